"""The schedule that a command is about: a name with options, or a file; and the options themselves."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from commsim.collectives.schedule import Schedule

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
class ScheduleOptions:
    """What the command line says about a schedule; None where it says nothing."""

    collective: str | None = None
    ranks: int | None = None
    nbytes: str | None = None
    root: int | None = None
    channels: int | None = None
    chunks: int | None = None
    ranks_per_node: int | None = None


def is_file(source: str) -> bool:
    return Path(source).suffix.lower() in {".xml", ".json"} or "/" in source or "\\" in source


def schedule_of(source: str, wish: ScheduleOptions) -> Schedule:
    """The schedule of a file or of a named algorithm."""
    from commsim.errors import ScheduleError
    from commsim.units import parse_bytes

    size = None if wish.nbytes is None else parse_bytes(wish.nbytes)
    if not is_file(source):
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


def _build(name: str, wish: ScheduleOptions, size: int | None) -> Schedule:
    from commsim.collectives.registry import Cut, build

    collective = wish.collective or only_collective(name)
    ranks = _DEFAULT_RANKS if wish.ranks is None else wish.ranks
    channels = 1 if wish.channels is None else wish.channels
    chunks = 1 if wish.chunks is None else wish.chunks

    def made(nbytes: int) -> Schedule:
        cut = Cut(channels=channels, chunks=chunks, ranks_per_node=wish.ranks_per_node)
        return build(collective, name, ranks, nbytes, wish.root or 0, **cut)

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


def only_collective(name: str) -> str:
    """The collective meant where none is given: all_reduce, or the first that has an algorithm of that name."""
    from commsim.collectives.registry import ALIASES, names

    having = [collective for collective, algorithm in [*names(), *ALIASES] if algorithm == name]
    return "all_reduce" if not having or "all_reduce" in having else having[0]


def print_json(document: Any) -> None:
    """Print one JSON document on stdout."""
    import json

    typer.echo(json.dumps(document, indent=2, allow_nan=False))
