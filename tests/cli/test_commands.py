"""The list of commands, their help and examples, and the options that all of them have."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from commsim.cli import app
from commsim.cli.commands import COMMANDS, EXAMPLES, GROUPS
from commsim.errors import CommsimError

STEP = ["llama-3-8b", "--on", "hgx-h100-ndr400", "--tp", "8", "--no-files"]


def _leaves() -> dict[str, Any]:
    root: Any = typer.main.get_command(app)
    leaves = {}
    for name, command in root.commands.items():
        inner = getattr(command, "commands", None)
        leaves |= {name: command} if inner is None else {f"{name} {sub}": one for sub, one in inner.items()}
    return leaves


def test_every_command_is_in_one_group() -> None:
    grouped = [name for names in GROUPS.values() for name in names]
    assert sorted(grouped) == sorted(COMMANDS)
    printed = CliRunner().invoke(app, ["--help"]).stdout
    assert [line for line in printed.splitlines() if line[:-1] in GROUPS] == [f"{title}:" for title in GROUPS]


def test_every_command_has_two_examples() -> None:
    assert set(EXAMPLES) == set(_leaves())
    assert all(len(set(examples)) == 2 for examples in EXAMPLES.values())


@pytest.mark.parametrize("words", list(EXAMPLES))
def test_examples_are_what_the_command_takes(words: str) -> None:
    command = _leaves()[words]
    for example in EXAMPLES[words]:
        given = shlex.split(example.partition(" > ")[0])
        context = command.make_context(words, given)
        assert f"commsim {words} {example}".rstrip() in command.get_help(context)


def test_help_is_that_of_the_command() -> None:
    assert CliRunner().invoke(app, ["help"]).stdout == CliRunner().invoke(app, ["--help"]).stdout
    shown = CliRunner().invoke(app, ["help", "topo", "show"]).stdout
    assert "Show a machine" in shown
    assert "commsim topo show hgx-h100-ndr400 -n 4" in shown
    fault = CliRunner().invoke(app, ["help", "topo", "shw"]).exception
    assert isinstance(fault, CommsimError)
    assert str(fault) == "found the command 'shw' of topo, did you mean 'show'?"


def test_the_version_has_a_short_option() -> None:
    assert CliRunner().invoke(app, ["-V"]).stdout == CliRunner().invoke(app, ["--version"]).stdout


@pytest.mark.parametrize("words", [["run", "-q", *STEP], ["-q", "run", *STEP]])
def test_quiet_leaves_the_answer(words: list[str]) -> None:
    loud, quiet = CliRunner().invoke(app, ["run", *STEP]), CliRunner().invoke(app, words)
    assert "no NCCL version given" in loud.stderr
    assert quiet.stderr == ""
    assert quiet.stdout == loud.stdout


def test_quiet_does_not_hide_errors() -> None:
    assert isinstance(CliRunner().invoke(app, ["run", "-q", "nowhere"]).exception, CommsimError)
