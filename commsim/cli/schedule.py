"""``commsim schedule``: every algorithm of every collective, and schedules in files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from collections.abc import Callable

    from commsim.collectives.prove import Proof
    from commsim.collectives.schedule import Schedule

app = typer.Typer(no_args_is_help=True, help="List, show, draw, prove, import and export schedules of collectives.")

Source = Annotated[str, typer.Argument(metavar="NAME|FILE", help="An algorithm (see `schedule list`), .xml or .json.")]
Kind = Annotated[str | None, typer.Option("--collective", "-c", help="Such as all_reduce.", show_default=False)]
Ranks = Annotated[int | None, typer.Option("--ranks", "-n", help="Number of ranks (8).", show_default=False)]
Size = Annotated[
    str | None,
    typer.Option("--nbytes", "-b", help="Size of the array: '64 MiB' (1 MiB, in whole chunks).", show_default=False),
]
Root = Annotated[int | None, typer.Option("--root", "-r", help="Of rooted collectives (0).", show_default=False)]
Channels = Annotated[int | None, typer.Option("--channels", help="Shares of the array (1).", show_default=False)]
Chunks = Annotated[int | None, typer.Option("--chunks", help="Pieces per share (1).", show_default=False)]
Node = Annotated[int | None, typer.Option("--ranks-per-node", help="Where it matters.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on stdout.")]

_DEFAULT_RANKS, _DEFAULT_BYTES = 8, 2**20


@dataclass(frozen=True)
class _Wish:
    """What the command line says about a schedule; None where it says nothing."""

    collective: str | None = None
    ranks: int | None = None
    nbytes: str | None = None
    root: int | None = None
    channels: int | None = None
    chunks: int | None = None
    ranks_per_node: int | None = None


def _is_file(source: str) -> bool:
    return Path(source).suffix.lower() in {".xml", ".json"} or "/" in source or "\\" in source


def _schedule(source: str, wish: _Wish) -> Schedule:
    """The schedule of a file or of a named algorithm."""
    from commsim.errors import ScheduleError
    from commsim.units import parse_bytes

    size = None if wish.nbytes is None else parse_bytes(wish.nbytes)
    if not _is_file(source):
        return _build(source, wish, size)
    said = [name for name, value in vars(wish).items() if value is not None and name != "nbytes"]
    if said:
        raise ScheduleError(f"{source}: --{said[0].replace('_', '-')} is for algorithms by name, the file says it all")
    if Path(source).suffix.lower() == ".json":
        from commsim.collectives.json_table import load_json

        if size is not None:
            raise ScheduleError(f"{source}: --nbytes is for algorithms and MSCCL files, the table has its sizes")
        return load_json(Path(source))
    from commsim.collectives.msccl import load_msccl

    return load_msccl(Path(source), size)


def _build(name: str, wish: _Wish, size: int | None) -> Schedule:
    from commsim.collectives.registry import build

    collective = wish.collective or _only_collective(name)
    ranks = _DEFAULT_RANKS if wish.ranks is None else wish.ranks
    channels = 1 if wish.channels is None else wish.channels
    chunks = 1 if wish.chunks is None else wish.chunks

    def made(nbytes: int) -> Schedule:
        node = wish.ranks_per_node
        return build(collective, name, ranks, nbytes, wish.root or 0, channels, chunks, ranks_per_node=node)

    if size is not None:
        return made(size)
    if min(ranks, channels, chunks) < 1:
        return made(_DEFAULT_BYTES)  # says what is wrong
    unit = ranks**2 if collective == "all_to_all_v" else ranks
    schedule = made(_whole(unit * 4 * channels * chunks))
    if len(set(schedule.chunk_bytes.tolist())) <= 1:
        return schedule
    return made(_whole(unit * 4 * schedule.data_chunks))  # an algorithm may cut the array further than into blocks


def _whole(unit: int) -> int:
    """The least multiple of ``unit`` that is not below the default size."""
    return -(-_DEFAULT_BYTES // unit) * unit


def _only_collective(name: str) -> str:
    """The collective meant where none is given: all_reduce, or the first that has an algorithm of that name."""
    from commsim.collectives.registry import ALIASES, names

    having = [collective for collective, algorithm in [*names(), *ALIASES] if algorithm == name]
    return "all_reduce" if not having or "all_reduce" in having else having[0]


@app.command("list")
def list_command(collective: Kind = None, json_output: Json = False) -> None:
    """List the algorithms of each collective with the options they take."""
    from commsim.collectives.registry import ALIASES, entry, names
    from commsim.collectives.semantics import collective as known

    if collective is not None:
        known(collective)
    rows = [(c, a, sorted(entry(c, a).takes), entry(c, a).summary) for c, a in names(collective)]
    aliases = {(c, other): a for (c, other), a in ALIASES.items() if collective in {None, c}}
    if json_output:
        _print_json(
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


@app.command()
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

    schedule = _schedule(source, _Wish(collective, ranks, nbytes, root, channels, chunks, ranks_per_node))
    width = shutil.get_terminal_size((160, 24)).columns
    limits: dict[str, Any] = {"ranks": None, "steps": None} if full else {}
    typer.echo(step_table(schedule, width=max(width, 60), **limits), nl=False)


@app.command()
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
    schedule = _schedule(source, _Wish(collective, ranks, nbytes, root, channels, chunks, ranks_per_node))
    from commsim.report.files import write_atomically
    from commsim.report.plots import figure_bytes
    from commsim.report.schedule_plot import plot_schedule

    write_atomically(out, figure_bytes(plot_schedule(schedule), form))
    typer.echo(f"wrote {out}", err=True)


@app.command()
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

    schedule = _schedule(source, _Wish(collective, ranks, nbytes, root, channels, chunks, ranks_per_node))
    found = schedule_stats(schedule)
    if json_output:
        _print_json(found.to_dict())
    else:
        typer.echo("\n".join([*heading(schedule), stats_table(found)]))


@app.command("check")
def check_command(
    source: Annotated[
        str | None, typer.Argument(metavar="[NAME|FILE]", help="An algorithm or a file; none with --all.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every algorithm of every collective.")] = False,
    collective: Kind = None,
    ranks: Annotated[
        str | None, typer.Option("--ranks", "-n", help="Rank counts: 8, 2,4,8 or 1..40.", show_default=False)
    ] = None,
    roots: Annotated[
        str | None, typer.Option("--roots", "--root", "-r", help="all, or such as 0,3.", show_default=False)
    ] = None,
    nbytes: Size = None,
    channels: Channels = None,
    chunks: Chunks = None,
    ranks_per_node: Node = None,
    json_output: Json = False,
) -> None:
    """Prove schedules by replay on symbols, or name step, rank and chunk of a fault (exit status 1)."""
    from commsim.errors import ScheduleError

    if every == (source is not None):
        raise ScheduleError("found neither or both of a schedule and --all, expected one of them")
    single = source is not None and (_is_file(source) or (_one_number(ranks) and (roots is None or _one_number(roots))))
    if source is not None and single:
        number, root = (None if text is None else int(text) for text in (ranks, roots))
        _check_one(source, _Wish(collective, number, nbytes, root, channels, chunks, ranks_per_node), json_output)
        return
    if nbytes is not None:
        raise ScheduleError("--nbytes is for one schedule; a proof over many holds for every size")
    from commsim.collectives.prove import prove
    from commsim.collectives.registry import entry

    if source is not None:
        entry(collective or _only_collective(source), source)  # names what is unknown
        collective = collective or _only_collective(source)
    counts = _numbers(ranks or "1..16", "--ranks", least=1)
    wanted: str | list[int] = "all" if roots in {None, "all"} else _numbers(roots or "", "--roots", least=0)
    proofs = _with_progress(
        lambda progress: prove(
            counts,
            wanted,
            None if collective is None else [collective],
            None if source is None else [source],
            progress,
            ranks_per_node=ranks_per_node,
            channels=1 if channels is None else channels,
            chunks=1 if chunks is None else chunks,
        )
    )
    faults = [fault for proof in proofs for fault in proof.faults]
    if json_output:
        from dataclasses import asdict

        _print_json([asdict(proof) for proof in proofs])
    else:
        from commsim.report.schedule_tables import proof_table

        typer.echo(proof_table(proofs))
    for fault in faults[:20]:
        typer.echo(f"fault: {fault}", err=True)
    if len(faults) > 20:
        typer.echo(f"... and {len(faults) - 20} more faults", err=True)
    if faults:
        raise typer.Exit(1)


def _check_one(source: str, wish: _Wish, json_output: bool) -> None:
    from commsim.collectives.check import check
    from commsim.errors import ScheduleError
    from commsim.report.schedule_tables import heading

    schedule = _schedule(source, wish)
    fault = None
    try:
        check(schedule)
    except ScheduleError as error:
        fault = str(error)
    if json_output:
        named = {"collective": schedule.collective, "algorithm": schedule.algorithm, "ranks": schedule.world_size}
        _print_json(named | {"proven": fault is None, "fault": fault})
    elif fault is None:
        typer.echo("\n".join([*heading(schedule), "proven: every rank ends with what the collective promises"]))
    if fault is not None:
        typer.echo(f"fault: {fault}", err=True)
        raise typer.Exit(1)


def _one_number(text: str | None) -> bool:
    return text is None or (text.isascii() and text.isdecimal() and len(text) <= 9)


def _numbers(text: str, option: str, least: int) -> list[int]:
    """'1..40' or '2,4,8..10' as numbers."""
    from commsim.errors import ScheduleError

    found: list[int] = []
    for part in text.split(","):
        ends = [end.strip() for end in part.split("..")]
        if len(ends) > 2 or not all(end.isascii() and end.isdecimal() and len(end) <= 7 for end in ends):
            raise ScheduleError(f"{option}: found {part[:40]!r}, expected numbers such as 8, 2,4,8 or 1..40")
        first, last = int(ends[0]), int(ends[-1])
        if first < least or last < first or last - first > 100_000:
            raise ScheduleError(f"{option}: found {part[:40]!r}, expected a rising range from {least} on")
        found += range(first, last + 1)
    return sorted(set(found))


def _with_progress(work: Callable[[Callable[[int, int], None] | None], list[Proof]]) -> list[Proof]:
    """``work`` with a progress bar on stderr, if that is a terminal."""
    import sys

    if not sys.stderr.isatty():
        return work(None)
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("proving", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return work(progress)


@app.command("import")
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
    from commsim.report.files import write_atomically
    from commsim.report.schedule_tables import heading

    if out.suffix.lower() != ".json":
        raise ScheduleError(f"{out}: found the ending {out.suffix!r}, expected .json")
    name = str(source)
    schedule = _schedule(name if _is_file(name) else f"./{name}", _Wish(nbytes=nbytes))
    if check:
        try:
            prove_one(schedule)
        except ScheduleError as error:
            raise ScheduleError(f"{source}: {error}") from None
    write_atomically(out, json_text(schedule))
    typer.echo("\n".join([*heading(schedule), f"wrote {out}"]), err=True)


@app.command()
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
    schedule = _schedule(source, _Wish(collective, ranks, nbytes, root, channels, chunks, ranks_per_node))
    text = _text(schedule, chosen, protocol)
    if out is None:
        typer.echo(text, nl=False)
        return
    from commsim.report.files import write_atomically

    write_atomically(out, text)
    typer.echo(f"wrote {out}", err=True)


def _text(schedule: Schedule, form: str, protocol: str) -> str:
    if form == "goal":
        from commsim.collectives.goal import goal_text

        return goal_text(schedule)
    if form == "json":
        from commsim.collectives.json_table import json_text

        return json_text(schedule)
    from commsim.collectives.msccl_export import MOST_STEPS, msccl_text

    text = msccl_text(schedule, protocol)
    longest = max((block.count("<step") for block in text.split("<tb ")), default=0)
    if longest > MOST_STEPS:
        typer.echo(f"warning: a thread block has {longest} steps, MSCCL's runtime takes {MOST_STEPS}", err=True)
    return text


def _print_json(document: Any) -> None:
    import json

    typer.echo(json.dumps(document, indent=2, allow_nan=False))
