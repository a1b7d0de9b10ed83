"""``commsim schedule check``: one schedule proven, or every algorithm at many rank counts and roots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from commsim.cli.options import Json, Memory
from commsim.cli.say import print_json, terminal_bar
from commsim.cli.schedule.source import (
    Channels,
    Chunks,
    Kind,
    Node,
    ScheduleOptions,
    Size,
    is_file,
    only_collective,
    schedule_of,
    warn_of_nodes,
)
from commsim.errors import ScheduleError

if TYPE_CHECKING:
    from commsim.collectives.schedule import Schedule


def check_command(
    source: Annotated[
        str | None, typer.Argument(metavar="[NAME|FILE]", help="An algorithm or a file; none with --all.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every algorithm of every collective.")] = False,
    collective: Kind = None,
    ranks: Annotated[str | None, typer.Option("--ranks", "-n", help="Rank counts: 8, 2,4,8 or 1..40.")] = None,
    roots: Annotated[str | None, typer.Option("--roots", "--root", "-r", help="all, or such as 0,3.")] = None,
    nbytes: Size = None,
    channels: Channels = None,
    chunks: Chunks = None,
    ranks_per_node: Node = None,
    memory: Memory = None,
    json_output: Json = False,
) -> None:
    """Prove schedules by replay on symbols, or name step, rank and chunk of a fault (exit status 1)."""
    del memory
    if every == (source is not None):
        raise ScheduleError("found neither or both of a schedule and --all, expected one of them")
    single = source is not None and (is_file(source) or (_one_number(ranks) and (roots is None or _one_number(roots))))
    if source is not None and single:
        number, root = (None if text is None else int(text) for text in (ranks, roots))
        options = ScheduleOptions(collective, number, nbytes, root, channels, chunks, ranks_per_node)
        _check_one(schedule_of(source, options, proof=True), json_output)
        return
    if nbytes is not None:
        raise ScheduleError("--nbytes is for one schedule; a proof over many holds for every size")
    from commsim.collectives.prove import prove
    from commsim.collectives.registry import entry

    if source is not None:
        entry(collective or only_collective(source), source)  # names what is unknown
        collective = collective or only_collective(source)
        warn_of_nodes(collective, source, ranks_per_node)
    counts = _numbers(ranks or "1..16", "--ranks", least=1)
    wanted: str | list[int] = "all" if roots in {None, "all"} else _numbers(roots or "", "--roots", least=0)
    with terminal_bar() as bar:
        task = bar and bar.add_task("proving", total=None)
        proofs = prove(
            counts,
            wanted,
            None if collective is None else [collective],
            None if source is None else [source],
            bar and (lambda done, total: bar.update(task, completed=done, total=total)),
            ranks_per_node=ranks_per_node,
            channels=1 if channels is None else channels,
            chunks=1 if chunks is None else chunks,
        )
    faults = [fault for proof in proofs for fault in proof.faults]
    if json_output:
        from dataclasses import asdict

        print_json([asdict(proof) for proof in proofs])
    else:
        from commsim.report.schedule_tables import proof_table

        typer.echo(proof_table(proofs))
    for fault in faults[:20]:
        typer.echo(f"fault: {fault}", err=True)
    if len(faults) > 20:
        typer.echo(f"... and {len(faults) - 20} more faults", err=True)
    if faults:
        raise typer.Exit(1)


def _check_one(schedule: Schedule, json_output: bool) -> None:
    from commsim.collectives.check import check
    from commsim.report.schedule_tables import heading

    fault = None
    try:
        check(schedule)
    except ScheduleError as error:
        fault = str(error)
    if json_output:
        named = {"collective": schedule.collective, "algorithm": schedule.algorithm, "ranks": schedule.world_size}
        print_json(named | {"size_bytes": schedule.nbytes, "proven": fault is None, "fault": fault})
    elif fault is None:
        typer.echo("\n".join([*heading(schedule), "proven: every rank ends with what the collective promises"]))
    if fault is not None:
        typer.echo(f"fault: {fault}", err=True)
        raise typer.Exit(1)


def _one_number(text: str | None) -> bool:
    return text is None or (text.isascii() and text.isdecimal() and len(text) <= 9)


def _numbers(text: str, option: str, least: int) -> list[int]:
    """'1..40' or '2,4,8..10' as numbers."""
    numbers: list[int] = []
    for part in text.split(","):
        ends = [end.strip() for end in part.split("..")]
        if len(ends) > 2 or not all(end.isascii() and end.isdecimal() and len(end) <= 7 for end in ends):
            raise ScheduleError(f"{option}: found {part[:40]!r}, expected numbers such as 8, 2,4,8 or 1..40")
        first, last = int(ends[0]), int(ends[-1])
        if first < least or last < first or last - first > 100_000:
            raise ScheduleError(f"{option}: found {part[:40]!r}, expected a rising range from {least} on")
        numbers += range(first, last + 1)
    return sorted(set(numbers))
