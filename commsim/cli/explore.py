"""``commsim explore``: the page on which questions are asked by moving controls, in the browser."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commsim.cli.options import AskedOptions, changes, spread
from commsim.errors import CommsimError, ScenarioError

if TYPE_CHECKING:
    from commsim.explorer.state import State


@spread
def explore(
    scenario: Annotated[
        str | None,
        typer.Argument(
            help="What the page shows first: a scenario file, the name of a shipped one, the address of an earlier "
            "page, or with --on a collective or a model."
        ),
    ] = None,
    overrides: Annotated[list[str] | None, changes("Changes as key.path=value, such as topology.nodes=4.")] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1 (default: 0, one that is free).")] = 0,
    browser: Annotated[bool, typer.Option(help="Whether to open the browser.")] = True,
    framed: Annotated[
        bool, typer.Option("--framed", help="Let pages of this machine, such as a notebook, show it in a frame.")
    ] = False,
    *,
    question: AskedOptions,
) -> None:
    """Ask by moving controls: a page in the browser, served from this machine alone, with curve, machine and step."""
    try:
        from commsim.explorer.serve import serve
    except ImportError as missing:
        if missing.name and missing.name.partition(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise CommsimError("explore needs a web server: pip install 'commsim[ui]'") from None
    start = _start(scenario, overrides or [], question)
    listening = _listen(port)
    serve(listening, start, Path.cwd(), typer.echo, browser=browser, framed=framed)


def _listen(port: int) -> socket.socket:
    """A socket on 127.0.0.1; CommsimError where the port is taken."""
    listening = socket.socket()
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind(("127.0.0.1", port))
    except OSError as error:
        listening.close()
        raise CommsimError(f"--port {port}: {error.strerror}; expected a port that is free, or 0 for any") from None
    return listening


def _start(scenario: str | None, overrides: list[str], question: AskedOptions) -> State:
    """The state that a scenario, a question in one line or an earlier address means."""
    from commsim.explorer.state import State

    if scenario is None:
        if question.given or overrides:
            raise ScenarioError("found options without a scenario, a collective or a model that they are of")
        return State()
    if "#" in scenario:
        return State.of_query(scenario)
    return State.of_document(_document(scenario, overrides, question))


def _document(scenario: str, overrides: list[str], question: AskedOptions) -> dict[str, Any]:
    """The scenario as plain values, its files named from where the program runs."""
    from commsim.cli.asked import asked_question, asked_scenario
    from commsim.scenario.load import find_scenario, load_scenarios, said_by

    if question.given:
        asked = asked_scenario(asked_question(scenario, overrides, question), lambda line: typer.echo(line, err=True))
        return said_by(asked)
    loaded = load_scenarios(find_scenario(scenario), overrides)
    if len(loaded) != 1:
        typer.echo(f"note: the first of {len(loaded)} scenarios of {scenario} is shown", err=True)
    return said_by(loaded[0])
