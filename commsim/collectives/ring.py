"""Ring schedules of any length: reduce-scatter, all-gather, and the all-reduce made of both.

Position p of the ring sends only to position p + 1. In step s it sends block (p - 1 - s) mod n, as NCCL's
ring does (src/device/all_reduce.h, runRing), so that after n - 1 steps position p owns block p: the result
of the reduce-scatter.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.collectives.dependencies import Dependencies
from commsim.collectives.schedule import Buffer, Int32, Op, Schedule, at_least_one, elements, split_evenly
from commsim.errors import ScheduleError

Order = Sequence[int] | Sequence[Sequence[int]] | npt.NDArray[np.integer] | None


def _ring(
    collective: str,
    world_size: int,
    nbytes: int,
    channels: int = 1,
    itemsize: int = 1,
    order: Order = None,
    *,
    pipeline: int = 1,
) -> Schedule:
    """The ring all-reduce, or its first n - 1 steps, which reduce, or the others, which copy.

    In an all-reduce each rank sends 2(n-1)/n * nbytes when n divides the element count (Patarasuk & Yuan 2009),
    otherwise twice the message less the two blocks that it never sends; all ranks together send 2(n-1) * nbytes.
    Within a step rows run over (channel, piece, block), so that the next hop of a chunk stands one step's rows
    further down.

    Parameters
    ----------
    order : ranks along the ring, one list for all channels or one list per channel; 0, 1, 2, ... by default.
    pipeline : pieces per block and channel, which follow each other round the ring independently.

    >>> ring_all_reduce(4, nbytes=4096).sent_bytes(), ring_all_gather(4, nbytes=4096).sent_bytes()
    (array([6144, 6144, 6144, 6144]), array([3072, 3072, 3072, 3072]))
    >>> ring_all_reduce(3, nbytes=4).sent_bytes()   # blocks of 2, 1 and 1 bytes
    array([5, 6, 5])
    """
    at_least_one(ranks=world_size, channels=channels, pipeline=pipeline)
    # Blocks are split first, so equal blocks give equal chunks at every rank whatever the number of channels.
    counts = split_evenly(split_evenly(split_evenly(elements(nbytes, itemsize), world_size), channels), pipeline)
    rings = ring_orders(order, world_size, channels)
    n = world_size
    span = range(n - 1 if collective == "all_gather" else 0, n - 1 if collective == "reduce_scatter" else 2 * (n - 1))
    shape = (len(span), channels, pipeline, n)
    rows = len(span) * channels * pipeline * n

    def spread(values: npt.NDArray[Any], kind: type[np.generic]) -> npt.NDArray[Any]:
        column = np.empty(shape, kind)
        column[...] = values
        return column.reshape(-1)

    # Block j leaves position j + 1 + s in step s: a window sliding over the ring serves all steps.
    around = rings[:, np.arange(span.start + 1, span.stop + n + 1) % n]
    window = np.lib.stride_tricks.sliding_window_view(around, n, axis=1).swapaxes(0, 1)[:, :, None]
    # Block j of a channel belongs to the rank at ring position j.
    chunk = (rings[:, None, :] * channels + np.arange(channels, dtype=np.int32)[:, None, None]) * pipeline + np.arange(
        pipeline, dtype=np.int32
    )[:, None]
    number = np.asarray(span)[:, None, None, None]
    slot = spread(chunk, np.int32)
    buffer = np.full(rows, Buffer.OUTPUT, np.uint8)
    return Schedule(
        collective=collective,
        algorithm="ring",
        world_size=n,
        endpoints=n,
        op=spread(np.where(number < n - 1, np.uint8(Op.REDUCE), np.uint8(Op.COPY)), np.uint8),
        src=spread(window[:-1], np.int32),
        dst=spread(window[1:], np.int32),
        src_buffer=buffer,
        src_chunk=slot,
        dst_buffer=buffer,
        dst_chunk=slot,
        step=spread(number - span.start, np.int32),
        channel=spread(np.arange(channels, dtype=np.int32)[:, None, None], np.int32),
        chunk_bytes=counts.reshape(-1) * itemsize,
        known_dependencies=partial(ring_dependencies, rows, channels * pipeline * n),
    )


ring_all_reduce = partial(_ring, "all_reduce")
ring_reduce_scatter = partial(_ring, "reduce_scatter")
ring_all_gather = partial(_ring, "all_gather")


def stepwise_ring_all_reduce(
    world_size: int, nbytes: int, channels: int = 1, itemsize: int = 1, order: Order = None, *, pipeline: int = 1
) -> Schedule:
    """The ring all-reduce of a program that waits for both its send and its receive before the next step.

    The rows of `ring_all_reduce`, and a rank's next row starts only when its last has arrived. So the slowest hop sets
    the pace of all, where the plain ring hides it behind the others.

    >>> stepwise_ring_all_reduce(4, nbytes=4096).after.shape
    (20, 2)
    """
    ring = ring_all_reduce(world_size, nbytes, channels, itemsize, order, pipeline=pipeline)
    per_step = channels * pipeline * world_size
    row = np.arange(max(ring.rows - per_step, 0), dtype=np.int64)
    # Block j leaves position j + 1 + s in step s, so the next row of a rank carries the block before.
    block = row % world_size
    following = row + per_step - 1 + world_size * (block == 0)
    return ring.edit(algorithm="ring_stepwise", after=np.stack([row, following], axis=1))


def ring_orders(order: Order, world_size: int, channels: int) -> Int32:
    """Ranks by ring position, (channels, world_size); each channel must visit every rank once."""
    given = np.arange(world_size) if order is None else np.asarray(order)
    if given.shape not in {(world_size,), (channels, world_size)}:
        raise ScheduleError(
            f"ring order has the shape {given.shape}, expected ({world_size},) or ({channels}, {world_size})"
        )
    rings = np.broadcast_to(given, (channels, world_size))
    wrong = np.flatnonzero((np.sort(rings, axis=1) != np.arange(world_size)).any(axis=1))
    if wrong.size:
        raise ScheduleError(f"ring order of channel {wrong[0]} does not visit each rank of 0..{world_size - 1} once")
    return rings.astype(np.int32)


def ring_dependencies(rows: int, rows_per_step: int) -> Dependencies:
    """Successors of ring rows: a chunk's next hop stands ``rows_per_step`` further down; no more is needed.

    Before a copy lands on a block that its rank has sent on, that partial sum has gone all the way round to
    it.
    """
    edges = max(rows - rows_per_step, 0)
    ptr = np.minimum(np.arange(rows + 1, dtype=np.int64), edges)
    return ptr, np.arange(rows_per_step, rows_per_step + edges, dtype=np.int32)
