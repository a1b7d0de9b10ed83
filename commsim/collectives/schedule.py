"""The Schedule: one row per chunk move, as NumPy columns, without time and without links.

**Places.** A row reads slot ``src_chunk`` of ``src_buffer`` at endpoint ``src`` and copies it to, or
reduces it into, slot ``dst_chunk`` of ``dst_buffer`` at endpoint ``dst``. Endpoints below ``world_size``
are ranks, the others are switches that reduce and multicast. Slots are numbered in memory order over the
whole array, and slot ``c`` has ``chunk_bytes[c]`` bytes in every buffer; the last ``scratch_chunks`` slots
exist only in scratch.

**In place.** With ``in_place`` (the default, as NCCL's in-place call) a rank's contribution lies in OUTPUT
at the start and the result replaces it; otherwise it lies in INPUT, which may be overwritten, and OUTPUT
starts undefined. Scratch starts undefined.

**Order.** Rows are sorted by ``step``; rows of one step read the state before the step. Reductions of one
step into one slot commute and are allowed; any other pair of writers of one slot in one step is a race that
``check`` refuses.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commsim.errors import ScheduleError

if TYPE_CHECKING:
    from commsim.collectives.dependencies import Dependencies

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
UInt8 = npt.NDArray[np.uint8]


class Op(IntEnum):
    """What a row does to its destination."""

    COPY = 0
    REDUCE = 1


class Buffer(IntEnum):
    """Where a slot lies at its endpoint."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2


_ROW_TYPES: dict[str, type[np.generic]] = {
    "op": np.uint8,
    "src": np.int32,
    "dst": np.int32,
    "src_buffer": np.uint8,
    "src_chunk": np.int32,
    "dst_buffer": np.uint8,
    "dst_chunk": np.int32,
    "step": np.int32,
    "channel": np.int32,
}
_LOWERED_TYPES: dict[str, type[np.generic]] = {
    "wire_bytes": np.int64,
    "connection": np.int32,
}


@dataclass(frozen=True, eq=False)
class Schedule:
    """A collective as a table of chunk moves; columns have shape (rows,) unless said otherwise.

    ``after`` (edges, 2) adds order that the data does not imply: row ``after[e, 1]`` starts when row
    ``after[e, 0]`` has arrived. The lowered columns ``wire_bytes`` and ``connection`` are None
    until a library's lowering sets them. ``known_dependencies`` lets the builder of a regular family
    give them by arithmetic; use ``edit``, not ``dataclasses.replace``, to change rows, since it drops that
    rule.
    """

    collective: str
    algorithm: str
    world_size: int
    endpoints: int
    op: UInt8
    src: Int32
    dst: Int32
    src_buffer: UInt8
    src_chunk: Int32
    dst_buffer: UInt8
    dst_chunk: Int32
    step: Int32
    channel: Int32
    chunk_bytes: Int64
    root: int = 0
    in_place: bool = True
    scratch_chunks: int = 0
    after: Int64 = dataclasses.field(default_factory=lambda: np.zeros((0, 2), np.int64))
    wire_bytes: Int64 | None = None
    connection: Int32 | None = None
    known_dependencies: Callable[[], Dependencies] | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name, kind in (_ROW_TYPES | _LOWERED_TYPES).items():
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _column(name, value, kind, None if name == "op" else self.rows))
        object.__setattr__(self, "chunk_bytes", _column("chunk_bytes", self.chunk_bytes, np.int64, None))
        after = np.asarray(self.after, np.int64)
        if after.ndim != 2 or after.shape[1] != 2:
            raise ScheduleError(f"after has the shape {after.shape}, expected (edges, 2)")
        object.__setattr__(self, "after", after)
        if not 1 <= self.world_size <= self.endpoints:
            raise ScheduleError(
                f"found {self.world_size} ranks and {self.endpoints} endpoints, need 1 <= ranks <= endpoints"
            )
        check_root(self.root, self.world_size)
        if not 0 <= self.scratch_chunks <= self.chunk_bytes.size:
            raise ScheduleError(f"found {self.scratch_chunks} scratch chunks among {self.chunk_bytes.size} chunks")
        if self.rows and (self.step[1:] < self.step[:-1]).any():
            row = int(np.argmax(self.step[1:] < self.step[:-1])) + 1
            raise ScheduleError(
                f"row {row} has step {self.step[row]} after step {self.step[row - 1]}; sort rows by step"
            )

    @property
    def rows(self) -> int:
        """Number of rows."""
        return int(self.op.size)

    @property
    def steps(self) -> int:
        """Number of steps, counted from step 0 to the last step in use."""
        return int(self.step[-1]) + 1 if self.rows else 0

    @property
    def data_chunks(self) -> int:
        """Number of chunks that hold the array; scratch-only chunks follow them."""
        return int(self.chunk_bytes.size) - self.scratch_chunks

    @property
    def nbytes(self) -> int:
        """Size of the array in bytes: the nccl-tests *size* column (see ``semantics``)."""
        return int(self.chunk_bytes[: self.data_chunks].sum())

    def payload_bytes(self) -> Int64:
        """Bytes that each row moves, (rows,), without protocol overhead."""
        return self.chunk_bytes[self.src_chunk]

    def sent_bytes(self) -> Int64:
        """Payload bytes that leave each endpoint, (endpoints,); a move within an endpoint does not count."""
        return self._bytes_at(self.src)

    def received_bytes(self) -> Int64:
        """Payload bytes that reach each endpoint, (endpoints,); a move within an endpoint does not count."""
        return self._bytes_at(self.dst)

    def _bytes_at(self, endpoint: Int32) -> Int64:
        total = np.zeros(self.endpoints, np.int64)
        # add.at keeps int64 exact where bincount with weights would round above 2**53.
        np.add.at(total, endpoint, np.where(self.src != self.dst, self.payload_bytes(), 0))
        return total

    def slots(
        self, endpoint: npt.NDArray[np.integer], buffer: npt.NDArray[np.integer], chunk: npt.NDArray[np.integer]
    ) -> Int64:
        """Number of each slot among all slots of all endpoints."""
        place: Int64 = endpoint.astype(np.int64) * len(Buffer) + buffer
        return place * int(self.chunk_bytes.size) + chunk

    def slots_read(self) -> Int64:
        """Number of the slot that each row reads, (rows,)."""
        return self.slots(self.src, self.src_buffer, self.src_chunk)

    def slots_written(self) -> Int64:
        """Number of the slot that each row writes, (rows,)."""
        return self.slots(self.dst, self.dst_buffer, self.dst_chunk)

    def dependencies(self, *, joins: bool = False) -> Dependencies:
        """Successors of each row in CSR form, ``idx[ptr[i]:ptr[i + 1]]`` of row i; ``joins``: see `derive`."""
        from commsim.collectives.dependencies import derive, with_extra

        if self.known_dependencies is not None:
            return with_extra(self.known_dependencies(), self.after)
        return derive(self.op, self.slots_read(), self.slots_written(), self.step, self.after, joins=joins)

    def edit(self, **changes: Any) -> Schedule:
        """A copy with fields replaced; dependences are derived anew when a column they rest on changes."""
        if changes.keys() & (_ROW_TYPES.keys() - {"channel"}):
            changes.setdefault("known_dependencies", None)
        return dataclasses.replace(self, **changes)

    def take(self, order: npt.NDArray[np.integer[Any]], **changes: Any) -> Schedule:
        """The rows ``order`` in that order, ``after`` renumbered; edges of rows left out are dropped."""
        place = np.full(self.rows, -1, np.int64)
        place[order] = np.arange(order.size)
        after = place[self.after]
        given = {name: getattr(self, name) for name in _ROW_TYPES | _LOWERED_TYPES}
        columns = {name: None if column is None else column[order] for name, column in given.items()}
        return self.edit(**columns | {"after": after[(after >= 0).all(axis=1)]} | changes)


def _column(name: str, value: Any, kind: type[np.generic], rows: int | None) -> npt.NDArray[Any]:
    given = np.asarray(value)
    column = given if given.dtype == kind else given.astype(kind)
    if column.ndim != 1 or (rows is not None and column.size != rows):
        raise ScheduleError(f"column {name} has the shape {column.shape}, expected ({'n' if rows is None else rows},)")
    if column is not given and given.size and (column != given).any():
        raise ScheduleError(f"column {name} has values that do not fit {np.dtype(kind)}")
    view = column.view()
    view.flags.writeable = False
    return view


def split_evenly(count: int | Int64, parts: int) -> Int64:
    """``count`` in ``parts`` whole shares that differ by at most one, the larger ones first; a new last axis.

    >>> split_evenly(10, 4)
    array([3, 3, 2, 2])
    """
    counts = np.asarray(count, np.int64)[..., None]
    return counts // parts + (np.arange(parts) < counts % parts)


def elements(nbytes: int, itemsize: int) -> int:
    """Number of elements in ``nbytes``; a ScheduleError when it is not a whole number."""
    if itemsize < 1 or nbytes < 0 or nbytes % itemsize:
        raise ScheduleError(
            f"found {nbytes} bytes with elements of {itemsize} bytes, expected a whole number of elements"
        )
    return nbytes // itemsize


def at_least_one(**counts: int) -> None:
    """Raise a ScheduleError that names each count below 1."""
    for name, value in counts.items():
        if value < 1:
            raise ScheduleError(f"{name} is {value}, expected at least 1")


def check_root(root: int, world_size: int) -> None:
    """Raise a ScheduleError unless the root is one of the ranks."""
    if not 0 <= root < world_size:
        raise ScheduleError(f"root {root} is not one of the ranks 0..{world_size - 1}")


def _same_frame(schedules: Sequence[Schedule]) -> None:
    first = schedules[0]
    for s in schedules[1:]:
        if s.world_size != first.world_size:
            raise ScheduleError(f"cannot combine schedules of {first.world_size} and {s.world_size} ranks")
        if s.scratch_chunks != first.scratch_chunks or not np.array_equal(s.chunk_bytes, first.chunk_bytes):
            raise ScheduleError(
                f"cannot combine {first.algorithm} and {s.algorithm}: chunk tables differ; use relabel first"
            )


def _joined(schedules: Sequence[Schedule], collective: str | None, algorithm: str | None) -> Schedule:
    """Rows of all schedules one below the other, ``after`` renumbered; steps are left to the caller."""
    first = schedules[0]
    columns: dict[str, Any] = {}
    for name in _ROW_TYPES | _LOWERED_TYPES:
        parts = [getattr(s, name) for s in schedules]
        missing = [p is None for p in parts]
        if any(missing) and not all(missing):
            raise ScheduleError(f"cannot combine: only some of the schedules have the lowered column {name}")
        columns[name] = None if missing[0] else np.concatenate(parts)
    offsets = np.cumsum([0, *(s.rows for s in schedules)])
    columns["after"] = np.concatenate([s.after + o for s, o in zip(schedules, offsets, strict=False)])
    return first.edit(
        collective=collective or first.collective,
        algorithm=algorithm or first.algorithm,
        endpoints=max(s.endpoints for s in schedules),
        **columns,
    )


def then(a: Schedule, b: Schedule, *, collective: str | None = None, algorithm: str | None = None) -> Schedule:
    """``a``, then ``b`` on what ``a`` left, with ``b``'s steps after ``a``'s; only the data orders them.

    Names and root come from ``a`` unless given. All-reduce is ``then(reduce_scatter, all_gather,
    collective="all_reduce")``.
    """
    _same_frame([a, b])
    return _joined([a, b.edit(step=b.step + a.steps)], collective, algorithm)


def both(schedules: Sequence[Schedule], *, collective: str | None = None, algorithm: str | None = None) -> Schedule:
    """All schedules side by side: step k of the result is step k of each, in the order given."""
    if not schedules:
        raise ScheduleError("both() needs at least one schedule")
    _same_frame(schedules)
    step = np.concatenate([s.step for s in schedules])
    order = np.argsort(step, kind="stable")
    # Joined with step 0 everywhere first: the rows are not yet sorted by step.
    joined = _joined([s.edit(step=np.zeros_like(s.step)) for s in schedules], collective, algorithm)
    return joined.take(order, step=step[order])


def relabel(
    schedule: Schedule,
    ranks: npt.ArrayLike,
    chunks: npt.ArrayLike | None = None,
    *,
    world_size: int | None = None,
    endpoints: int | None = None,
    chunk_bytes: npt.ArrayLike | None = None,
    scratch_chunks: int | None = None,
) -> Schedule:
    """The schedule with endpoint e renamed ``ranks[e]`` and chunk c ``chunks[c]``.

    ``ranks`` has one entry per endpoint. With ``world_size``, ``endpoints`` and ``chunk_bytes`` the
    schedule becomes part of a larger one, to be put together by ``both`` and ``then``; chunk sizes must
    agree. Without ``chunk_bytes`` the chunk table is permuted along.
    """
    rank_map = np.asarray(ranks, np.int32)
    if rank_map.shape != (schedule.endpoints,) or np.unique(rank_map).size != rank_map.size:
        raise ScheduleError(f"ranks must be {schedule.endpoints} different endpoints, found {rank_map.tolist()}")
    size = schedule.chunk_bytes.size
    chunk_map = np.arange(size, dtype=np.int32) if chunks is None else np.asarray(chunks, np.int32)
    if chunk_map.shape != (size,) or np.unique(chunk_map).size != size:
        raise ScheduleError(f"chunks must be {size} different chunks, found {chunk_map.tolist()}")
    world = schedule.world_size if world_size is None else world_size
    places = max(world, schedule.endpoints) if endpoints is None else endpoints
    if chunk_bytes is None:
        table = np.empty(size, np.int64)
        if size and not 0 <= chunk_map.min() <= chunk_map.max() < size:
            raise ScheduleError(f"chunks must be a permutation of 0..{size - 1} when no chunk_bytes is given")
        table[chunk_map] = schedule.chunk_bytes
    else:
        table = np.asarray(chunk_bytes, np.int64)
        if size and not 0 <= chunk_map.min() <= chunk_map.max() < table.size:
            raise ScheduleError(f"chunks must lie in 0..{table.size - 1}")
        if not np.array_equal(table[chunk_map], schedule.chunk_bytes):
            raise ScheduleError("the chunks named have other sizes in chunk_bytes than in the schedule")
    if rank_map.size and not 0 <= rank_map.min() <= rank_map.max() < places:
        raise ScheduleError(f"ranks must lie in 0..{places - 1}, found {rank_map.tolist()}")
    # A one-to-one renaming keeps every dependence, so a rule by arithmetic stays valid.
    return dataclasses.replace(
        schedule,
        world_size=world,
        endpoints=places,
        src=rank_map[schedule.src],
        dst=rank_map[schedule.dst],
        src_chunk=chunk_map[schedule.src_chunk],
        dst_chunk=chunk_map[schedule.dst_chunk],
        chunk_bytes=table,
        scratch_chunks=schedule.scratch_chunks if scratch_chunks is None else scratch_chunks,
        root=int(rank_map[schedule.root]) if rank_map[schedule.root] < world else 0,
    )
