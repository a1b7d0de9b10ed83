"""``commsim schedule import | export``: schedules from and for other tools."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commsim.cli.options import spread
from commsim.cli.schedule.source import ScheduleOptions, Size, Source, is_file, schedule_of
from commsim.errors import ScheduleError
from commsim.files import write_atomically

if TYPE_CHECKING:
    from commsim.collectives.schedule import Schedule

_TEXT_BYTES = {"msccl": 2050, "goal": 2050, "json": 200}
"""Of a row while the text of a file is made; measured with 500,000 rows, msccl taken as goal."""


def import_command(
    source: Annotated[Path, typer.Argument(metavar="FILE", help="An MSCCL algorithm (.xml) or a table (.json).")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Table to write: FILE.json.")],
    nbytes: Size = None,
    check: Annotated[bool, typer.Option(help="Refuse a schedule that is not correct.")] = True,
) -> None:
    """Read a schedule, prove it, and write it as a JSON table."""
    from commsim.collectives.check import check as prove_one
    from commsim.collectives.json_table import json_text
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


@spread
def export(
    source: Source,
    *,
    form: Annotated[str | None, typer.Option("--format", "-f", help="msccl, goal or json; else by the ending.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="FILE.xml, .goal or .json (stdout).")] = None,
    options: ScheduleOptions,
    protocol: Annotated[str, typer.Option(help="Of an MSCCL file: Simple, LL or LL128.")] = "Simple",
) -> None:
    """Write a schedule as MSCCL XML, as GOAL for LogGOPSim, or as a JSON table."""
    from commsim.collectives.goal import goal_text
    from commsim.collectives.json_table import json_text
    from commsim.collectives.msccl_export import msccl_text

    writers: dict[str, Callable[[Schedule], str]] = {
        "msccl": partial(msccl_text, protocol=protocol),
        "goal": goal_text,
        "json": json_text,
    }
    endings = {".xml": "msccl", ".goal": "goal", ".json": "json"}
    chosen = form or (endings.get(out.suffix.lower()) if out is not None else None)
    if chosen is None or chosen not in writers:
        instead = f"the format {form!r}" if form else f"the ending {out.suffix!r}" if out is not None else "no --format"
        raise ScheduleError(f"found {instead}, expected one of {', '.join(writers)}")
    text = writers[chosen](schedule_of(source, options, _TEXT_BYTES[chosen]))
    if out is None:
        typer.echo(text, nl=False)
        return
    write_atomically(out, text)
    typer.echo(f"wrote {out}", err=True)
