"""What builders are made of: rows by broadcasting, the mirror image of a schedule, its channels and pieces."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Buffer, Op, Schedule, elements, split_evenly, then
from commsim.errors import ScheduleError

Ints = npt.NDArray[np.integer[Any]]
Int64 = npt.NDArray[np.int64]
Rows = dict[str, Int64]
P = ParamSpec("P")


def rows(
    step: Ints | int,
    src: Ints | int,
    dst: Ints | int,
    chunk: Ints | int,
    *,
    op: Op = Op.COPY,
    to: Ints | int | None = None,
    src_buffer: Buffer = Buffer.OUTPUT,
    dst_buffer: Buffer = Buffer.OUTPUT,
) -> Rows:
    """Columns of the moves of channel 0, broadcast against each other; ``to`` is the chunk written, else ``chunk``."""
    given = (step, op, src, dst, src_buffer, chunk, dst_buffer, chunk if to is None else to, 0)
    names = ("step", "op", "src", "dst", "src_buffer", "src_chunk", "dst_buffer", "dst_chunk", "channel")
    columns = np.broadcast_arrays(*(np.asarray(value, np.int64) for value in given))
    return {name: column.reshape(-1) for name, column in zip(names, columns, strict=True)}


def only(part: Rows, kept: npt.NDArray[np.bool_]) -> Rows:
    """The rows where ``kept`` (broadcast like the rows) holds."""
    mask = kept.reshape(-1)
    return {name: column[mask] for name, column in part.items()}


def between_ranks(part: Rows) -> Rows:
    """The rows that leave their endpoint."""
    return only(part, part["src"] != part["dst"])


def assemble(
    collective: str,
    algorithm: str,
    world_size: int,
    parts: Sequence[Rows],
    chunk_bytes: Int64,
    *,
    switches: int = 0,
    **fields: Any,
) -> Schedule:
    """A schedule of the rows of all parts, by step, within a step in the order given; empty steps are left out."""
    parts = parts or [rows(0, np.zeros(0, np.int64), 0, 0)]
    columns = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    order = np.argsort(columns["step"], kind="stable")
    columns["step"] = np.unique(columns["step"], return_inverse=True)[1]
    table: dict[str, Any] = {name: column[order] for name, column in columns.items()}
    return Schedule(
        collective=collective,
        algorithm=algorithm,
        world_size=world_size,
        endpoints=world_size + switches,
        chunk_bytes=chunk_bytes,
        **table,
        **fields,
    )


def blocks(nbytes: int, count: int, itemsize: int = 1) -> Int64:
    """Bytes of ``count`` blocks of the array, as equal as whole elements allow, (count,)."""
    return split_evenly(elements(nbytes, itemsize), count) * itemsize


def equal_blocks(nbytes: int, count: int, itemsize: int = 1) -> Int64:
    """Bytes of ``count`` equal blocks, (count,); a ScheduleError names the next size that can be cut so."""
    whole = count * itemsize
    if elements(nbytes, itemsize) % count:
        near = -(-nbytes // whole) * whole
        raise ScheduleError(f"{nbytes} bytes are no {count} equal blocks of whole elements; {near} bytes would be")
    return blocks(nbytes, count, itemsize)


def mirrored(schedule: Schedule, collective: str, *, op: Op = Op.REDUCE, **fields: Any) -> Schedule:
    """Every move backwards in time and direction: a broadcast becomes a reduce, an all-gather a reduce-scatter.

    That holds when every rank receives each chunk at most once: the way of a chunk is then a tree, and a rank
    that handed it on later than it came adds up all partial sums before it sends its own.
    """
    s = schedule.take(np.arange(schedule.rows)[::-1], step=schedule.steps - 1 - schedule.step[::-1])
    return s.edit(
        collective=collective,
        op=np.full(s.rows, op),
        src=s.dst,
        dst=s.src,
        src_chunk=s.dst_chunk,
        dst_chunk=s.src_chunk,
        src_buffer=s.dst_buffer,
        dst_buffer=s.src_buffer,
        **fields,
    )


def mirror(builder: Callable[P, Schedule], collective: str, op: Op = Op.REDUCE) -> Callable[P, Schedule]:
    """The builder of the mirror images (see `mirrored`) of what ``builder`` builds."""

    def build(*args: P.args, **options: P.kwargs) -> Schedule:
        return mirrored(builder(*args, **options), collective, op=op)

    return build


def in_turn(
    first: Callable[P, Schedule], second: Callable[P, Schedule], collective: str = "all_reduce", algorithm: str = ""
) -> Callable[P, Schedule]:
    """The builder of what two builders build of the same arguments, one after the other (see `then`)."""

    def build(*args: P.args, **options: P.kwargs) -> Schedule:
        one, two = first(*args, **options), second(*args, **options)
        return then(one, two, collective=collective, algorithm=algorithm)

    return build


def spread(schedule: Schedule, channels: int = 1, chunks: int = 1, *, itemsize: int = 1) -> Schedule:
    """The schedule on ``channels`` shares of every chunk, each cut into ``chunks`` pieces one step apart.

    Chunk c becomes the chunks (c * channels + channel) * chunks + piece. Pieces touch different slots, so any
    correct schedule stays correct.
    """
    parts = channels * chunks
    if parts == 1:
        return schedule
    sizes = split_evenly(split_evenly(schedule.chunk_bytes // itemsize, channels), chunks) * itemsize
    part = np.arange(parts)
    step = (schedule.step[:, None] + part % chunks).reshape(-1)
    order = np.argsort(step, kind="stable")
    copied = schedule.take(np.repeat(np.arange(schedule.rows), parts), step=np.sort(step), after=np.zeros((0, 2)))
    tiled = {"channel": copied.channel.reshape(-1, parts) * channels + part // chunks}
    tiled |= {name: getattr(copied, name).reshape(-1, parts) * parts + part for name in ("src_chunk", "dst_chunk")}
    rest = ("op", "src", "dst", "src_buffer", "dst_buffer")
    return copied.edit(
        **{name: column.reshape(-1)[order] for name, column in tiled.items()},
        **{name: getattr(copied, name)[order] for name in rest},
        chunk_bytes=sizes.reshape(-1),
        scratch_chunks=schedule.scratch_chunks * parts,
    )
