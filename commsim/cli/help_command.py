"""``commsim help [COMMAND]``: the same as ``commsim COMMAND --help``."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from commsim.document.types import show, suggest
from commsim.errors import CommsimError


def help_command(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[COMMAND]...", help="A command, such as run or topo show.")
    ] = None,
) -> None:
    """Show the help of a command, or the list of all."""
    here: Any = context.find_root()
    for word in words or ():
        commands = getattr(here.command, "commands", {})
        if word not in commands:
            beside = "" if here.parent is None else f" of {here.info_name}"
            raise CommsimError(f"found the command {show(word)}{beside}, {suggest(word, list(commands))}")
        here = type(here)(commands[word], info_name=word, parent=here)
    typer.echo(here.get_help())
