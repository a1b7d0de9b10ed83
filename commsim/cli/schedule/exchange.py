"""``commsim schedule import | export``: schedules from and for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commsim.cli.schedule.source import (
    Channels,
    Chunks,
    Kind,
    Node,
    Ranks,
    Root,
    ScheduleOptions,
    Size,
    Source,
    is_file,
    schedule_of,
)

if TYPE_CHECKING:
    from commsim.collectives.schedule import Schedule


def import_command(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="An MSCCL algorithm (.xml) or a table (.json).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Table to write: FILE.json.")],
    nbytes: Size = None,
    check: Annotated[bool, typer.Option("--check/--no-check", help="Refuse a schedule that is not correct.")] = True,
) -> None:
    """Read a schedule, prove it, and write it as a JSON table."""
    from commsim.collectives.check import check as prove_one
    from commsim.collectives.json_table import json_text
    from commsim.errors import ScheduleError
    from commsim.files import write_atomically
    from commsim.report.schedule_tables import heading

    if out.suffix.lower() != ".json":
        raise ScheduleError(f"{out}: found the ending {out.suffix!r}, expected .json")
    name = str(source)
    schedule = schedule_of(name if is_file(name) else f"./{name}", ScheduleOptions(nbytes=nbytes))
    if check:
        try:
            prove_one(schedule)
        except ScheduleError as error:
            raise ScheduleError(f"{source}: {error}") from None
    write_atomically(out, json_text(schedule))
    if source.suffix.lower() == ".xml":
        _warn_of_the_runtime(source, schedule.root)
    typer.echo("\n".join([*heading(schedule), f"wrote {out}"]), err=True)


def _warn_of_the_runtime(source: Path, root: int) -> None:
    """Say what keeps MSCCL's own runtime from running the file, if anything does."""
    from commsim.collectives.msccl_interpreter import faults, fewest_slots
    from commsim.collectives.msccl_xml import read_algo

    algo = read_algo(source)
    for fault in faults(algo, root):
        needs = f"; it needs room for {fewest_slots(algo)}" if fault.startswith("it hangs") else ""
        typer.echo(f"warning: {source}: on a GPU {fault}{needs}", err=True)


def export(
    source: Source,
    form: Annotated[
        str | None, typer.Option("--format", "-f", help="msccl, goal or json; else by the ending.", show_default=False)
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="FILE.xml, .goal or .json (stdout).", show_default=False)
    ] = None,
    collective: Kind = None,
    ranks: Ranks = None,
    nbytes: Size = None,
    root: Root = None,
    channels: Channels = None,
    chunks: Chunks = None,
    ranks_per_node: Node = None,
    protocol: Annotated[str, typer.Option("--protocol", help="Of an MSCCL file: Simple, LL or LL128.")] = "Simple",
) -> None:
    """Write a schedule as MSCCL XML, as GOAL for LogGOPSim, or as a JSON table."""
    from commsim.errors import ScheduleError

    endings = {".xml": "msccl", ".goal": "goal", ".json": "json"}
    chosen = form or (endings.get(out.suffix.lower()) if out is not None else None)
    if chosen is None or chosen not in endings.values():
        found = f"the format {form!r}" if form else f"the ending {out.suffix!r}" if out is not None else "no --format"
        raise ScheduleError(f"found {found}, expected one of {', '.join(endings.values())}")
    schedule = schedule_of(source, ScheduleOptions(collective, ranks, nbytes, root, channels, chunks, ranks_per_node))
    text = _text(schedule, chosen, protocol)
    if out is None:
        typer.echo(text, nl=False)
        return
    from commsim.files import write_atomically

    write_atomically(out, text)
    typer.echo(f"wrote {out}", err=True)


def _text(schedule: Schedule, form: str, protocol: str) -> str:
    if form == "goal":
        from commsim.collectives.goal import goal_text

        return goal_text(schedule)
    if form == "json":
        from commsim.collectives.json_table import json_text

        return json_text(schedule)
    from commsim.collectives.msccl_export import msccl_text

    return msccl_text(schedule, protocol)
