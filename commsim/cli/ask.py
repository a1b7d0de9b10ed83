"""Questions put to a person, or to what is piped in: each answer is judged at once."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TypeVar

import typer

from commsim.errors import CommsimError

T = TypeVar("T")


def asked(
    question: str,
    default: str,
    judge: Callable[[str], T],
    *,
    given: str | None = None,
    yes: bool = False,
    option: str = "",
) -> T:
    """The answer as `judge` makes it: what was given as an option, with `yes` the default, else what is typed.

    At a terminal a wrong answer is told and the question put again; piped in it ends the command.
    """
    if given is not None or yes:
        try:
            return judge(default if given is None else given)
        except CommsimError as error:
            raise CommsimError(f"{question if given is None else option or question}: {error}") from None
    if not sys.stdin.isatty():
        return _piped(question, default, judge)
    while True:
        try:
            return judge(str(typer.prompt(question, default=default, err=True)).strip())
        except CommsimError as error:
            typer.echo(str(error), err=True)


def _piped(question: str, default: str, judge: Callable[[str], T]) -> T:
    """The next line's answer, shown as a terminal shows what is typed."""
    typer.echo(f"{question} [{default}]: ", nl=False, err=True)
    line = sys.stdin.readline()
    answer = line.strip() or default
    typer.echo(answer if line else "", err=True)
    if not line:
        raise CommsimError(f"found no answer to {question!r}, expected one, its option, or --yes")
    try:
        return judge(answer)
    except CommsimError as error:
        raise CommsimError(f"{question}: {error}") from None


def whole(text: str) -> int:
    """A whole number above zero."""
    if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0 and len(text) < 9):
        raise CommsimError(f"found {text[:40]!r}, expected a whole number from 1 up, such as 4")
    return int(text)
