"""``commsim schedule list | show | draw | stats``: what there is, and what one looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from commsim.cli.schedule.source import (
    Channels,
    Chunks,
    Json,
    Kind,
    Node,
    Ranks,
    Root,
    ScheduleOptions,
    Size,
    Source,
    print_json,
    schedule_of,
)


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

    always = {"channels", "chunks"}
    typer.echo(algorithm_table([(c, a, [o for o in takes if o not in always], text) for c, a, takes, text in rows]))
    if aliases:
        typer.echo("\nalso known as: " + ", ".join(f"{c} {other} = {a}" for (c, other), a in aliases.items()))


def show(
    source: Source,
    collective: Kind = None,
    ranks: Ranks = None,
    nbytes: Size = None,
    root: Root = None,
    channels: Channels = None,
    chunks: Chunks = None,
    ranks_per_node: Node = None,
    full: Annotated[bool, typer.Option("--full", help="All ranks and steps, however many.")] = False,
) -> None:
    """Show what every rank sends in every step: `3→1+` is chunk 3 to rank 1, added there."""
    import shutil

    from commsim.report.schedule_tables import step_table

    schedule = schedule_of(source, ScheduleOptions(collective, ranks, nbytes, root, channels, chunks, ranks_per_node))
    width = shutil.get_terminal_size((160, 24)).columns
    limits: dict[str, Any] = {"ranks": None, "steps": None} if full else {}
    typer.echo(step_table(schedule, width=max(width, 60), **limits), nl=False)


def draw(
    source: Source,
    out: Annotated[Path, typer.Option("--out", "-o", help="Picture to write: FILE.png or FILE.svg.")],
    collective: Kind = None,
    ranks: Ranks = None,
    nbytes: Size = None,
    root: Root = None,
    channels: Channels = None,
    chunks: Chunks = None,
    ranks_per_node: Node = None,
) -> None:
    """Draw a space-time diagram: ranks down, steps across, arrows coloured by chunk."""
    from commsim.errors import CommsimError

    form = out.suffix.lower().lstrip(".")
    if form not in {"png", "svg"}:
        raise CommsimError(f"{out}: found the ending {out.suffix!r}, expected .png or .svg")
    schedule = schedule_of(source, ScheduleOptions(collective, ranks, nbytes, root, channels, chunks, ranks_per_node))
    from commsim.files import write_atomically
    from commsim.report.plots import figure_bytes
    from commsim.report.schedule_plot import plot_schedule

    write_atomically(out, figure_bytes(plot_schedule(schedule), form))
    typer.echo(f"wrote {out}", err=True)


def stats(
    source: Source,
    collective: Kind = None,
    ranks: Ranks = None,
    nbytes: Size = None,
    root: Root = None,
    channels: Channels = None,
    chunks: Chunks = None,
    ranks_per_node: Node = None,
    json_output: Json = False,
) -> None:
    """Count steps and bytes per rank, beside the least that any algorithm needs."""
    from commsim.report.schedule_tables import heading, schedule_stats, stats_table

    schedule = schedule_of(source, ScheduleOptions(collective, ranks, nbytes, root, channels, chunks, ranks_per_node))
    figures = schedule_stats(schedule)
    if json_output:
        print_json(figures)
    else:
        typer.echo("\n".join([*heading(schedule), stats_table(figures)]))
