"""A ring channel as an explicit Schedule, timed by the event engine: the second road to the figures of `timing`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from commsim.collectives.schedule import Schedule, relabel, then
from commsim.engine.memory import estimate_bytes, require_memory
from commsim.engine.program import Program
from commsim.engine.simulate import simulate
from commsim.nccl.lower import RingPlan

Float64 = npt.NDArray[np.float64]

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
    """What the engine runs: one link per hop, held for a slice's service.

    The engine pays a delay before an op and not after it, so that a slice pays the hop by which it came; what the last
    arrivals cost is added by `time_ring`.
    """
    ptr, idx = schedule.dependencies()
    n, table = plan.ranks, _table(plan, schedule)
    nbytes, rate = schedule.payload_bytes(), plan.rate
    if plan.crossing is not None:  # a message may take longer than its bytes: whole units of time stand for them
        nbytes, rate = np.rint(table.service_s / _TICK).astype(np.int64), np.full(n, 1 / _TICK)
    return Program(
        nbytes=nbytes,
        route=schedule.src.astype(np.int32),
        delay_s=table.waited_s,
        succ_ptr=ptr,
        succ_idx=idx,
        indeg=np.bincount(idx, minlength=schedule.rows).astype(np.int32),
        route_ptr=np.arange(n + 1, dtype=np.int64),
        route_link=np.arange(n, dtype=np.int32),
        link_bandwidth=rate.astype(np.float64),
        link_latency=np.zeros(n),
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Seconds of each row: its service, the hop by which its slice came (none at the start), and its own hop."""

    service_s: Float64
    waited_s: Float64
    hop_s: Float64


def _table(plan: RingPlan, schedule: Schedule) -> _Rows:
    n = plan.ranks
    loops = [loop for loop in plan.loops for _ in range(loop.count)]
    count = np.array([plan.steps * n * loop.slices for loop in loops])
    loop = np.repeat(np.arange(len(loops)), count)
    first_step = np.minimum.reduceat(schedule.step, np.cumsum(count) - count)[loop]
    hop = np.stack([plan.hop_of(each) for each in loops])
    service = np.stack([plan.service_of(each) for each in loops])
    # What the first sends of a loop wait for came in the loop before.
    came = loop - (schedule.step == first_step)
    waited = np.where(came < 0, 0.0, hop[came, (schedule.src - 1) % n])
    return _Rows(service[loop, schedule.src], waited, hop[loop, schedule.src])


def time_ring(plan: RingPlan) -> tuple[float, float]:
    """Seconds of a ring channel by simulation, and the bandwidth part of them (the busiest hop's)."""
    if not plan.loops:
        return 0.0, 0.0
    schedule = ring_schedule(plan)
    outcome = simulate(ring_program(plan, schedule))
    return float((outcome.end_s + _table(plan, schedule).hop_s).max()), float(outcome.link_busy_s.max())
