"""The scenario of a question in one line: `commsim run all_reduce --on hgx-h100-ndr400 -n 4`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from commsim.cli.options import AskedOptions
    from commsim.scenario.asked import OneLine
    from commsim.scenario.schema import Scenario


def asked_question(subject: str, overrides: Sequence[str], options: AskedOptions) -> OneLine:
    """What is asked; CommsimError for a question without a machine."""
    from commsim.errors import CommsimError, UnitError
    from commsim.scenario.asked import BYTES, OPTIONS, OneLine, option
    from commsim.units import nccl_bytes

    words = asdict(options)
    for name in BYTES:
        try:
            words[name] = None if words[name] is None else nccl_bytes(words[name])
        except UnitError as error:
            raise UnitError(f"{OPTIONS[name]}: {error}") from None
    words["tokens"] = tokens_of(options.tokens)
    if not options.on:
        first = OneLine(**words | {"on": ""}, subject=subject)
        raise CommsimError(f"found {option(first, options.given[0])} without --on, {_expected(subject, options.nodes)}")
    return OneLine(**words, subject=subject, overrides=tuple(overrides))


def tokens_of(text: str | None) -> float | None:
    """Those of an option."""
    from commsim.errors import UnitError
    from commsim.units import parse_count

    try:
        return None if text is None else parse_count(text)
    except UnitError as error:
        raise UnitError(f"--tokens: {error}") from None


def asked_scenario(question: OneLine, show: Callable[[str], None]) -> Scenario:
    """The scenario of a question; what was filled in is shown, and on stderr what changes nothing."""
    from commsim.scenario.asked import without_effect
    from commsim.scenario.question import assumed, checked, document_of

    for line in without_effect(question):
        typer.echo(f"warning: {line}", err=True)
    document = document_of(question)
    scenario = checked(document)
    if filled := assumed(document):
        from commsim.report.tables import comment

        show("\n".join(comment(f"taken where nothing is said: {filled}")))
    return scenario


def _expected(subject: str, nodes: int | None) -> str:
    """What belongs beside a subject without a machine."""
    from commsim.scenario.asked import collective_named
    from commsim.scenario.load import is_model

    if collective_named(subject) or subject.endswith(".json") or is_model(subject):
        return f"expected a machine for {subject!r:.80}, such as --on hgx-h100-ndr400"
    change = f"topology.nodes={nodes or 4}"
    return f"expected it of a collective or a model; of a scenario it is a change, such as {change}"
