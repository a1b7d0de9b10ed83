"""The question which machine a log is of, put to a person at a terminal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click
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
    number = typer.prompt("Its number", type=click.IntRange(1, last), err=True)
    return question.choices[int(number) - 1][0].name


def _command() -> str:
    """The command that was given, as it can be given again."""
    import shlex

    words = sys.argv[1:]
    return shlex.join(["commsim", *words]) if words[:1] == ["compare"] else "commsim compare LOG"
