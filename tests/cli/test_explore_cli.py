"""``commsim explore`` before its server starts: what it takes, and what it says where it cannot."""

from __future__ import annotations

import builtins
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import CommsimError, ScenarioError
from commsim.explorer import serve as serving
from commsim.explorer.state import State


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[State]:
    """The states with which the server would have started."""
    states: list[State] = []

    def serve(
        listening: socket.socket, start: State, folder: Path, say: Callable[[str], None], *, browser: bool, framed: bool
    ) -> None:
        del folder, say, browser, framed
        assert listening.getsockname()[0] == "127.0.0.1"
        listening.close()
        states.append(start)

    monkeypatch.setattr(serving, "serve", serve)
    return states


def explore(*words: str) -> Any:
    """Runs the command; its fault is raised."""
    result = CliRunner().invoke(app, ["explore", "--no-browser", *words])
    if isinstance(result.exception, CommsimError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result


@pytest.mark.parametrize(
    ("words", "query"),
    [
        ((), ""),
        (("ring-without-library",), ""),
        (("#nodes=8&tab=step",), "nodes=8&tab=step"),
        (("http://127.0.0.1:1/abc/#nodes=8",), "nodes=8"),
        (("all_reduce", "--on", "dgx-a100", "-b", "8", "-e", "1K"), "sizes=8+B+..+1+KiB+x2"),
        (("llama-3-8b", "--on", "hgx-h100", "--tp", "8"), "tab=step"),
        (("allreduce-8-h100", "topology.nodes=1", "workload.0.sizes=1 MiB"), "sizes=1+MiB"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_what_the_page_shows_first(started: list[State], words: tuple[str, ...], query: str) -> None:
    explore(*words)
    assert query in started[0].query()


def test_a_file_of_a_topology_is_named_from_here(
    started: list[State], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "mine.yaml").write_text("extends: hgx-h100\n")
    (tmp_path / "in" / "q.yaml").write_text(
        "name: q\ntopology: {path: mine.yaml}\nworkload: [{collective: all_reduce, sizes: 1 MiB}]\n"
    )
    monkeypatch.chdir(tmp_path)
    explore("in/q.yaml")
    assert started[0].document("collective")["topology"] == {"path": "in/mine.yaml"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("no-such-scenario",), "found no scenario file 'no-such-scenario'"),
        (("#nodez=1",), "unknown key 'nodez'"),
        (("generation/long-tail",), "not of one collective or one training step"),
        (("-n", "4"), "found options without a scenario"),
    ],
)
def test_what_it_cannot_show(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        explore(*words)


def test_a_port_that_is_taken() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(CommsimError, match=r"--port \d+: .*in use; expected a port that is free"):
            explore("--port", str(taken.getsockname()[1]))


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_extra_it_says_in_one_line_what_to_install(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    import sys

    real = builtins.__import__

    def refuse(name: str, *more: Any, **named: Any) -> Any:
        if name.partition(".")[0] == missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *more, **named)

    for name in [n for n in sys.modules if n.startswith(("commsim.explorer.serve", missing))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(CommsimError) as fault:
        explore()
    assert str(fault.value) == "explore needs a web server: pip install 'commsim[ui]'"
