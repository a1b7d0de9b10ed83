"""The question which machine a log is of, put to a person at a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from commsim.accuracy.which_machine import Question


def ask(question: Question) -> str | None:
    """The name of the machine that a person chooses; LogFormatError with the commands where there is no terminal."""
    if not question.choices or not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise question.refusal(_command())
    typer.echo(f"{question.curve.source}: which machine is this? {question.why}.", err=True)
    for line in question.lines():
        typer.echo(line, err=True)
    last = len(question.choices)
    number = 0
    while not 1 <= number <= last:
        text = typer.prompt(f"Its number, 1 to {last}", err=True)
        number = int(text) if text.isascii() and text.isdigit() else 0
    return question.choices[number - 1][0].name


def _command() -> str:
    """The command that was given, as it can be given again."""
    import shlex

    words = sys.argv[1:]
    return shlex.join(["commsim", *words]) if words[:1] == ["compare"] else "commsim compare LOG"
