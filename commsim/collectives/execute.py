"""A schedule carried out on NumPy arrays, and the result that its collective promises, computed without it.

The proof of ``check`` is about every input at once; this is about one input, and about real numbers: their types,
their sums, their order in memory.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Buffer, Int64, Op, Schedule, split_evenly
from commsim.collectives.semantics import collective as collective_of
from commsim.collectives.semantics import precondition
from commsim.errors import ScheduleError

Array = npt.NDArray[Any]
ReduceOp = Literal["sum", "max"]

_COMBINE: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum}


def execute(schedule: Schedule, inputs: npt.ArrayLike, op: ReduceOp = "sum") -> Array:
    """What every rank holds in OUTPUT after the schedule, (world_size, elements).

    ``inputs`` (world_size, elements) holds every rank's array, ``schedule.nbytes`` long, float32, float64 or int32;
    of an all-gather or gather only the rank's own block is read, of a broadcast or scatter only the root's array.
    Places that nobody wrote are NaN, or the smallest int32. Rows of one step read the state before the step;
    several reductions into one slot are added in row order.

    >>> from commsim.collectives.ring import ring_all_reduce
    >>> execute(ring_all_reduce(2, nbytes=8, itemsize=4), np.array([[1, 2], [10, 20]], np.int32))
    array([[11, 22],
           [11, 22]], dtype=int32)
    """
    given = _arrays(schedule, inputs)
    combine = _combine(schedule.collective, op)
    sizes = schedule.chunk_bytes // given.itemsize
    if (sizes * given.itemsize != schedule.chunk_bytes).any():
        raise ScheduleError(f"chunks of the schedule are no whole elements of {given.dtype}")
    offsets, total = np.cumsum(sizes) - sizes, int(sizes.sum())
    nothing, lowest = [np.iinfo(given.dtype).min] * 2 if given.dtype.kind == "i" else [np.nan, -np.inf]
    memory = np.full(schedule.endpoints * len(Buffer) * total, nothing, given.dtype)
    # A switch starts with what changes nothing when it is added.
    memory[schedule.world_size * len(Buffer) * total :] = 0 if op == "sum" else lowest

    def places(endpoint: Array, buffer: Array, chunk: Array) -> Int64:
        """Index in memory of every element of the slots, one slot after the other."""
        count = sizes[chunk]
        start = (endpoint.astype(np.int64) * len(Buffer) + buffer) * total + offsets[chunk]
        return np.repeat(start - (np.cumsum(count) - count), count) + np.arange(count.sum())

    start = precondition(schedule)
    datum = places(start.rank, np.zeros_like(start.rank), start.datum) - np.repeat(
        start.rank * (len(Buffer) * total - given.shape[1]), sizes[start.datum]
    )
    memory[places(start.endpoint, start.buffer, start.chunk)] = given.reshape(-1)[datum]
    s = schedule
    bounds = np.searchsorted(s.step, np.arange(s.steps + 1))
    for first, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        now = slice(first, last)
        values = memory[places(s.src[now], s.src_buffer[now], s.src_chunk[now])]
        target = places(s.dst[now], s.dst_buffer[now], s.dst_chunk[now])
        reduces = np.repeat(s.op[now] == Op.REDUCE, sizes[s.dst_chunk[now]])
        memory[target[~reduces]] = values[~reduces]
        combine.at(memory, target[reduces], values[reduces])
    result: Array = memory.reshape(s.endpoints, len(Buffer), total)[: s.world_size, Buffer.OUTPUT, : given.shape[1]]
    return result


def reference(
    collective: str, inputs: npt.ArrayLike, op: ReduceOp = "sum", root: int = 0, bounds: npt.ArrayLike | None = None
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """What every rank must hold, and where the collective says anything at all, (world_size, elements) each.

    ``bounds`` are the first elements of the blocks and the end, (blocks + 1,), by default as even as can be: n
    blocks, or n * n from every rank to every rank for all_to_all_v.

    >>> values, defined = reference("reduce_scatter", np.array([[1, 2], [10, 20]]))
    >>> np.where(defined, values, 0)
    array([[11,  0],
           [ 0, 22]])
    """
    kind, given = collective_of(collective), np.asarray(inputs)
    n, elements = given.shape
    count = n ** max(kind.blocks, 1)
    edges = np.append(0, np.cumsum(split_evenly(elements, count))) if bounds is None else np.asarray(bounds)
    owner = np.repeat(np.arange(count), np.diff(edges))
    rank = np.arange(n)[:, None]
    everywhere = np.ones((n, elements), bool)
    own, at_root = owner == rank, everywhere & (rank == root)
    result: tuple[Array, npt.NDArray[np.bool_]]
    if collective in {"all_reduce", "barrier", "reduce", "reduce_scatter"}:
        total = _combine(collective, op).reduce(given, axis=0, dtype=given.dtype)
        where = {"reduce": at_root, "reduce_scatter": own}.get(collective, everywhere)
        result = np.broadcast_to(total, given.shape), where
    elif collective in {"all_gather", "gather"}:
        gathered = given[owner, np.arange(elements)]
        result = np.broadcast_to(gathered, given.shape), at_root if collective == "gather" else everywhere
    elif collective in {"broadcast", "scatter"}:
        result = np.broadcast_to(given[root], given.shape), own if collective == "scatter" else everywhere
    elif collective == "send_recv":
        result = np.roll(given, 1, axis=0), everywhere
    elif collective == "all_to_all":
        blocks = given.reshape(n, n, elements // n)
        result = blocks.swapaxes(0, 1).reshape(n, elements), everywhere
    else:
        sender, receiver = np.divmod(owner, n)
        result = np.broadcast_to(given[sender, np.arange(elements)], given.shape), receiver == rank
    return result


def verify(schedule: Schedule, inputs: npt.ArrayLike, op: ReduceOp = "sum") -> None:
    """Return if the schedule turns ``inputs`` into what its collective promises; else name rank and element."""
    given = _arrays(schedule, inputs)
    result = execute(schedule, given, op)
    expected, defined = reference(schedule.collective, given, op, schedule.root, block_bounds(schedule, given.itemsize))
    exact = given.dtype.kind == "i"
    # Sums of n numbers in any order differ by n roundings at most, relative to the sum of their sizes.
    slack = 0.0 if exact else float(np.finfo(given.dtype).eps) * schedule.world_size
    bound = slack * np.abs(given.astype(np.float64)).sum(axis=0)
    wrong = defined & ~(np.abs(result.astype(np.float64) - expected.astype(np.float64)) <= bound)
    if wrong.any():
        rank, element = (int(i) for i in np.argwhere(wrong)[0])
        raise ScheduleError(
            f"{schedule.algorithm} {schedule.collective} ({op}): rank {rank} has {result[rank, element]} at element "
            f"{element}, expected {expected[rank, element]}; {int(wrong.sum())} elements are wrong"
        )


def block_bounds(schedule: Schedule, itemsize: int) -> Int64:
    """First element of each block of the schedule's collective, and the end: (blocks + 1,)."""
    kind = collective_of(schedule.collective)
    count = schedule.world_size ** max(kind.blocks, 1)
    if not kind.blocks:
        return np.append(0, np.cumsum(split_evenly(schedule.nbytes // itemsize, count)))
    sizes = schedule.chunk_bytes[: schedule.data_chunks].reshape(count, -1).sum(axis=1) // itemsize
    return np.append(0, np.cumsum(sizes))


def _arrays(schedule: Schedule, inputs: npt.ArrayLike) -> Array:
    given = np.ascontiguousarray(inputs)
    if given.dtype not in (np.float32, np.float64, np.int32):
        raise ScheduleError(f"inputs are {given.dtype}, expected float32, float64 or int32")
    if given.ndim != 2 or given.shape[0] != schedule.world_size or given.shape[1] * given.itemsize != schedule.nbytes:
        raise ScheduleError(
            f"inputs of shape {given.shape} and type {given.dtype} do not fit {schedule.world_size} ranks with "
            f"{schedule.nbytes} bytes each"
        )
    return given


def _combine(collective: str, op: str) -> np.ufunc:
    if op not in _COMBINE:
        raise ScheduleError(f"reduction is {op!r}, expected one of {', '.join(_COMBINE)}")
    if op == "sum" and collective_of(collective).idempotent:
        raise ScheduleError(f"a {collective} may count a rank more than once: run it with max")
    return _COMBINE[op]
