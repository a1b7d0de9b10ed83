"""Lines of a command that still has files to write: printed while somebody reads them."""

from __future__ import annotations

import os
import sys

import typer


def say(text: str, nl: bool = True, err: bool = False) -> None:
    """Prints a line; once the reader has left (``| head``), it and all that follow are dropped and the work goes on."""
    try:
        typer.echo(text, nl=nl, err=err)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), (sys.stderr if err else sys.stdout).fileno())
