"""The schedule that a command is about: a name with options, or a file; and the options themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from commsim.cli.options import Memory
from commsim.cli.say import say
from commsim.errors import ScheduleError

if TYPE_CHECKING:
    from commsim.collectives.schedule import Schedule

Source = Annotated[str, typer.Argument(metavar="NAME|FILE", help="An algorithm (see `schedule list`), .xml or .json.")]
Kind = Annotated[str | None, typer.Option("--collective", "-c", help="Such as all_reduce.")]
Size = Annotated[
    str | None, typer.Option("--nbytes", "-b", help="Size of the array: '64 MiB' (1 MiB, in whole chunks).")
]
Channels = Annotated[int | None, typer.Option("--channels", help="Shares of the array (1).")]
Chunks = Annotated[int | None, typer.Option("--chunks", help="Pieces per share (1).")]
Node = Annotated[
    int | None,
    typer.Option("--ranks-per-node", help="For algorithms that know nodes (the largest divisor up to 8; tree: 1)."),
]

_DEFAULT_RANKS, _DEFAULT_BYTES = 8, 2**20


@dataclass(frozen=True)
class ScheduleOptions:
    """What the command line says about a schedule; None where it says nothing."""

    collective: Kind = None
    ranks: Annotated[int | None, typer.Option("--ranks", "-n", help="Number of ranks (8).")] = None
    nbytes: Size = None
    root: Annotated[int | None, typer.Option("--root", "-r", help="Of rooted collectives (0).")] = None
    channels: Channels = None
    chunks: Chunks = None
    ranks_per_node: Node = None
    memory: Memory = None


def is_file(source: str) -> bool:
    return Path(source).suffix.lower() in {".xml", ".json"} or "/" in source or "\\" in source


def schedule_of(source: str, options: ScheduleOptions, more_bytes: int = 0, *, proof: bool = False) -> Schedule:
    """The schedule of a file or of a named algorithm; one that is too large is refused before it is built.

    ``more_bytes``: what the command takes for each row of it; ``proof``: whether it is to be proven.
    """
    from commsim.units import format_bytes, nccl_bytes

    size = None if options.nbytes is None else nccl_bytes(options.nbytes)
    if not is_file(source):
        return _build(source, options, size, more_bytes, proof)
    given = [name for name, value in vars(options).items() if value is not None and name not in ("nbytes", "memory")]
    if given:
        raise ScheduleError(f"{source}: --{given[0].replace('_', '-')} is for algorithms by name, the file says it all")
    if Path(source).suffix.lower() == ".json":
        from commsim.collectives.json_table import load_json

        if size is not None:
            raise ScheduleError(f"{source}: --nbytes is for algorithms and MSCCL files, the table has its sizes")
        return load_json(Path(source))
    from commsim.collectives.msccl import load_msccl

    schedule = load_msccl(Path(source), size)
    if size is None:
        say(f"# an MSCCL file says no size: {format_bytes(schedule.nbytes)} is taken; --nbytes takes another", err=True)
    return schedule


def _build(name: str, options: ScheduleOptions, size: int | None, more_bytes: int, proof: bool) -> Schedule:
    from commsim.collectives.registry import Cut, build
    from commsim.collectives.traffic import require_rows

    collective = options.collective or only_collective(name)
    ranks = _DEFAULT_RANKS if options.ranks is None else options.ranks
    channels = 1 if options.channels is None else options.channels
    chunks = 1 if options.chunks is None else options.chunks
    cut = Cut(channels=channels, chunks=chunks, ranks_per_node=options.ranks_per_node)
    warn_of_nodes(collective, name, options.ranks_per_node)

    require_rows(collective, name, ranks, more_bytes=more_bytes, proof=proof, **cut)

    def made(nbytes: int) -> Schedule:
        return build(collective, name, ranks, nbytes, options.root or 0, **cut)

    if size is not None:
        return made(size)
    if min(ranks, channels, chunks) < 1:
        return made(_DEFAULT_BYTES)  # says what is wrong
    unit = ranks**2 if collective == "all_to_all_v" else ranks
    schedule = made(_whole(unit * 4 * channels * chunks))
    if len(set(schedule.chunk_bytes.tolist())) <= 1:
        return schedule
    return made(_whole(unit * 4 * schedule.data_chunks))  # an algorithm may cut the array further than into blocks


def warn_of_nodes(collective: str, name: str, ranks_per_node: int | None) -> None:
    """Says so where an algorithm is given nodes and does not know them."""
    from commsim.collectives.registry import NODES, entry

    if ranks_per_node is not None and NODES not in entry(collective, name).takes:
        say(f"warning: --ranks-per-node changes nothing: {name} knows no nodes", err=True)


def _whole(unit: int) -> int:
    """The least multiple of ``unit`` that is not below the default size."""
    return -(-_DEFAULT_BYTES // unit) * unit


def only_collective(name: str) -> str:
    """The collective meant where none is given: all_reduce, or the first that has an algorithm of that name."""
    from commsim.collectives.registry import ALIASES, names

    having = [collective for collective, algorithm in [*names(), *ALIASES] if algorithm == name]
    return "all_reduce" if not having or "all_reduce" in having else having[0]
