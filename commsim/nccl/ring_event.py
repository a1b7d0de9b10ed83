"""A ring channel as an explicit Schedule, timed by the event engine: the second road to the figures of `timing`."""

from __future__ import annotations

import numpy as np

from commsim.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from commsim.collectives.schedule import Schedule, relabel, then
from commsim.engine.memory import estimate_bytes, require_memory
from commsim.engine.program import Program
from commsim.engine.simulate import simulate
from commsim.nccl.lower import RingPlan

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
    """What the engine runs: one link per hop at the channel's rate; the hop latency is paid before a slice is served.

    Only differences of times matter along a chain, so paying it before or after the service is the same; the last slice
    ends one service later, the first begins one hop later.
    """
    ptr, idx = schedule.dependencies()
    payload = schedule.payload_bytes()
    hop = plan.hop_s[schedule.src] + plan.first_pass_s * np.minimum(1.0, payload / plan.unit_bytes)
    n = plan.ranks
    return Program(
        nbytes=payload,
        route=schedule.src.astype(np.int32),
        delay_s=hop,
        succ_ptr=ptr,
        succ_idx=idx,
        indeg=np.bincount(idx, minlength=schedule.rows).astype(np.int32),
        route_ptr=np.arange(n + 1, dtype=np.int64),
        route_link=np.arange(n, dtype=np.int32),
        link_bandwidth=plan.rate.astype(np.float64),
        link_latency=np.zeros(n),
    )


def time_ring(plan: RingPlan) -> tuple[float, float]:
    """Seconds of a ring channel by simulation, and the bandwidth part of them (the busiest hop's)."""
    if not plan.loops:
        return 0.0, 0.0
    outcome = simulate(ring_program(plan, ring_schedule(plan)))
    return float(outcome.makespan_s), float(outcome.link_busy_s.max())
