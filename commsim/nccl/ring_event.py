"""A ring channel as an explicit Schedule, timed by the event engine: the second road to the figures of `timing`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commsim.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from commsim.collectives.schedule import Schedule, relabel, then
from commsim.engine.memory import estimate_bytes, require_memory
from commsim.engine.program import Program
from commsim.engine.simulate import simulate
from commsim.nccl.lower import RingPlan

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

_TICK = 1e-17
"""Seconds in which services are counted where they are not bytes over a rate."""

_BUILDERS = {
    "all_reduce": ring_all_reduce,
    "all_gather": ring_all_gather,
    "reduce_scatter": ring_reduce_scatter,
}


def ring_schedule(plan: RingPlan) -> Schedule:
    """The rows of one channel: every loop is a pipelined ring.

    A loop begins at a rank when the one before has ended there. A slice is one chunk of the Schedule; `after` holds the
    order between loops. InfeasibleError when the rows would not fit into half of the memory.
    """
    n = plan.ranks
    count = sum(loop.count * loop.slices for loop in plan.loops) * plan.steps * n
    # Joining the loops holds every row about twice.
    require_memory(2 * estimate_bytes(count), count)
    loops = [loop for loop in plan.loops for _ in range(loop.count)]
    build = _BUILDERS[plan.collective]
    parts = [build(n, loop.slice_bytes * loop.slices * n, pipeline=loop.slices) for loop in loops]
    sizes = np.concatenate([part.chunk_bytes for part in parts])
    schedule: Schedule | None = None
    first = 0
    for part in parts:
        chunks = np.arange(part.chunk_bytes.size) + first
        first += part.chunk_bytes.size
        rows = relabel(part, np.arange(n), chunks, chunk_bytes=sizes)
        schedule = rows if schedule is None else _follow(schedule, rows)
    assert schedule is not None
    return schedule.edit(algorithm="ring")


def _follow(before: Schedule, after: Schedule) -> Schedule:
    """`after` once `before` has ended, rank by rank: its first sends wait for the last arrivals."""
    last = np.flatnonzero(before.step == before.steps - 1)
    first = np.flatnonzero(after.step == 0)
    wait, go = np.nonzero(before.dst[last][:, None] == after.src[first][None, :])
    joined = then(before, after)
    edges = np.stack([last[wait], first[go] + before.rows], axis=1)
    return joined.edit(after=np.concatenate([joined.after, edges]))


def ring_program(plan: RingPlan, schedule: Schedule) -> Program:
    """What the engine runs: a link per rank, which a slice of its holds for its service.

    Ops are the rows, then an arrival of each, one hop later, then the copies of what the network brought in the last
    step of a loop, which hold the link of the receiver.
    """
    n, rows = plan.ranks, schedule.rows
    service_s, hop_s, keep_s, loop = _times(plan, schedule)
    ptr, idx = schedule.dependencies()
    row = np.arange(rows, dtype=np.int64)
    kept = np.flatnonzero(keep_s)
    copies = 2 * rows + np.arange(kept.size, dtype=np.int64)
    at = schedule.dst[kept].astype(np.int64)
    # A rank begins its next loop when all is kept, and not with what others have sent it already.
    copy, later = np.nonzero((at[:, None] == schedule.src[None, :]) & (loop[kept][:, None] + 1 == loop[None, :]))
    before = np.concatenate([row, rows + np.repeat(row, np.diff(ptr)), rows + kept, copies[copy]])
    after = np.concatenate([rows + row, idx, copies, later])
    order, ops = np.argsort(before, kind="stable"), 2 * rows + kept.size
    nowhere = np.full(rows, n)
    held = np.max(plan.slice_s) + np.max(plan.chunk_s) + np.max(plan.drain_s)
    by_bytes = plan.crossing is None and held == 0.0 and not plan.whole_passes
    if by_bytes and plan.staging_rate == np.inf and not kept.size:
        nbytes, rate = np.concatenate([schedule.payload_bytes(), np.zeros(rows, np.int64)]), plan.rate
    else:  # a slice or a message may take longer than its bytes: whole units of time stand for them
        seconds = np.concatenate([service_s, np.zeros(rows), keep_s[kept]])
        nbytes, rate = np.rint(seconds / _TICK).astype(np.int64), np.full(n, 1 / _TICK)
    return Program(
        nbytes=nbytes,
        route=np.concatenate([schedule.src, nowhere, at]).astype(np.int32),
        delay_s=np.concatenate([np.zeros(rows), hop_s, np.zeros(kept.size)]),
        succ_ptr=np.concatenate([[0], np.cumsum(np.bincount(before, minlength=ops))]).astype(np.int64),
        succ_idx=after[order].astype(np.int32),
        route_ptr=np.append(np.arange(n + 1, dtype=np.int64), n),
        route_link=np.arange(n, dtype=np.int32),
        link_bandwidth=rate.astype(np.float64),
        link_latency=np.zeros(n),
    )


def _times(plan: RingPlan, schedule: Schedule) -> tuple[Float64, Float64, Float64, Int64]:
    """Of each row: seconds of its service, of its hop, and of the copy of what it brings (0: none); its loop."""
    n = plan.ranks
    loops = [loop for loop in plan.loops for _ in range(loop.count)]
    count = np.array([plan.steps * n * loop.slices for loop in loops])
    loop = np.repeat(np.arange(len(loops)), count)
    first_step = np.minimum.reduceat(schedule.step, np.cumsum(count) - count)[loop]
    hop, service, keep = (np.stack([of(each) for each in loops]) for of in (plan.hop_of, plan.service_of, plan.keep_of))
    last = schedule.step == first_step + plan.steps - 1
    kept = np.where(last, keep[loop, schedule.dst], 0.0)
    staging = np.array([plan.staging_of(each) for each in loops])
    began = np.where(schedule.step == first_step, staging[loop], 0.0)
    return service[loop, schedule.src] + began, hop[loop, schedule.src], kept, loop


def time_ring(plan: RingPlan) -> tuple[float, float]:
    """Seconds of a ring channel by simulation, and the bandwidth part of them (the busiest hop's)."""
    if not plan.loops:
        return 0.0, 0.0
    outcome = simulate(ring_program(plan, ring_schedule(plan)))
    return float(outcome.makespan_s), float(outcome.link_busy_s.max())
