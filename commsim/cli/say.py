"""What a command prints: lines, JSON, bars of progress."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import typer

T = TypeVar("T")


def say(text: str, nl: bool = True, err: bool = False) -> None:
    """Prints a line; once the reader has left (``| head``), it and all that follow are dropped and the work goes on."""
    try:
        typer.echo(text, nl=nl, err=err)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())


class Muted(io.TextIOBase):
    """Standard error under ``-q``: it takes everything and shows nothing."""

    def write(self, text: str) -> int:
        """Drops it."""
        return len(text)


def aside(text: str) -> None:
    """Prints a line that is not the answer, such as which files were written; under ``-q`` nothing."""
    if not isinstance(sys.stderr, Muted):
        say(text)


_COLOURS = {
    r"\bas expected\b|\bit fits\b|\bNothing is slow\b": typer.colors.GREEN,
    r"\bslower x?[\d.]+\b|\bslower\b|\bwrong data\b|\bbelow (the links|what the links can carry)\b|\bdoes not fit\b": (
        typer.colors.RED
    ),
    r"\bfaster x?[\d.]+\b|\bfaster\b|\bcannot judge\b": typer.colors.YELLOW,
}
"""Words of a verdict, and how they are coloured at a terminal."""


def verdict(text: str, nl: bool = True) -> None:
    """Prints a verdict, coloured at a terminal unless NO_COLOR is set (no-color.org)."""
    if sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb":
        for words, colour in _COLOURS.items():
            text = re.sub(words, typer.style(r"\g<0>", fg=colour), text)
    say(text, nl=nl)


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False))


@contextmanager
def terminal_bar(quiet: bool = False, *, counted: bool = False) -> Iterator[Any]:
    """A `rich.progress.Progress` on stderr, ``counted`` as done/all; None if quiet or where stderr is no terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()) if counted else ()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        yield bar


@contextmanager
def working(label: str, quiet: bool = False) -> Iterator[None]:
    """A turning sign with the seconds since, for work whose end is not known; nothing where no bar is shown."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), "{task.description}", TimeElapsedColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False) as bar:
        bar.add_task(label, total=None)
        yield


@contextmanager
def stages_bar(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """``(stage, done, all) -> None`` that shows a counted bar for each stage; shows nothing where no bar is shown."""
    with terminal_bar(quiet, counted=True) as bar:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, of: int) -> None:
            if bar is not None:
                if stage not in tasks:
                    tasks[stage] = bar.add_task(stage, total=of)
                bar.update(tasks[stage], completed=done)

        yield show


@contextmanager
def tracking(quiet: bool) -> Iterator[Any]:
    """``(items, label) -> items`` that shows how many have been taken; None where no bar is shown."""
    with terminal_bar(quiet) as bar:

        def track(items: Iterable[T], label: str) -> Iterable[T]:
            return bar.track(list(items), description=label)  # type: ignore[no-any-return]

        yield track if bar else None
