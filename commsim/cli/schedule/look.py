"""``commsim schedule list | show | draw | stats``: what there is, and what one looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from commsim.cli.options import Json, spread
from commsim.cli.say import print_json
from commsim.cli.schedule.source import Kind, ScheduleOptions, Source, schedule_of

_SHOWN_BYTES, _DRAWN_BYTES = 1100, 4500
"""Of a row in a table of all steps, and in a picture; measured with 180,000 and 8,000 rows."""


def list_command(collective: Kind = None, json_output: Json = False) -> None:
    """List the algorithms of each collective with the options they take."""
    from commsim.collectives.registry import ALIASES, entry, names
    from commsim.collectives.semantics import collective as known

    if collective is not None:
        known(collective)
    rows = [(c, a, sorted(entry(c, a).takes), entry(c, a).summary) for c, a in names(collective)]
    aliases = {(c, other): a for (c, other), a in ALIASES.items() if collective in {None, c}}
    if json_output:
        print_json(
            [
                {
                    "collective": c,
                    "algorithm": a,
                    "options": takes,
                    "summary": summary,
                    "also_called": [other for (kind, other), name in aliases.items() if (kind, name) == (c, a)],
                }
                for c, a, takes, summary in rows
            ]
        )
        return
    from commsim.report.schedule_tables import algorithm_table
    from commsim.report.tables import hanging

    always = {"channels", "chunks"}
    typer.echo(algorithm_table([(c, a, [o for o in takes if o not in always], text) for c, a, takes, text in rows]))
    if aliases:
        words = ", ".join(f"{c} {other} = {a}" for (c, other), a in aliases.items())
        typer.echo("\n".join(["", *hanging("also known as: ", words)]))


@spread
def show(
    source: Source,
    options: ScheduleOptions,
    full: Annotated[bool, typer.Option("--full", help="All ranks and steps, however many.")] = False,
) -> None:
    """Show what every rank sends in every step: `3→1+` is chunk 3 to rank 1, added there."""
    import shutil

    from commsim.report.schedule_tables import step_table

    schedule = schedule_of(source, options, _SHOWN_BYTES if full else 0)
    width = shutil.get_terminal_size((160, 24)).columns
    limits: dict[str, Any] = {"ranks": None, "steps": None} if full else {}
    typer.echo(step_table(schedule, width=max(width, 60), **limits), nl=False)


@spread
def draw(
    source: Source,
    out: Annotated[Path, typer.Option("--out", "-o", help="Picture to write: FILE.png or FILE.svg.")],
    options: ScheduleOptions,
) -> None:
    """Draw a space-time diagram: ranks down, steps across, arrows coloured by chunk."""
    from commsim.cli.pictures import form_of, write_picture
    from commsim.report.schedule_plot import plot_schedule

    form_of(out)
    write_picture(out, plot_schedule(schedule_of(source, options, _DRAWN_BYTES)))
    typer.echo(f"wrote {out}", err=True)


@spread
def stats(source: Source, options: ScheduleOptions, json_output: Json = False) -> None:
    """Count steps and bytes per rank, beside the least that any algorithm needs."""
    from commsim.report.schedule_tables import heading, schedule_stats, stats_table

    schedule = schedule_of(source, options)
    figures = schedule_stats(schedule)
    if json_output:
        print_json(figures)
    else:
        typer.echo("\n".join([*heading(schedule), stats_table(figures)]))
