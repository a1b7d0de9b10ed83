"""The time of one ring channel: a closed form where all hops are alike, a wavefront over the ranks otherwise.

Per slice, rank i sends when it holds the slice and its thread block is free; the slice arrives `hop` after it has been
served. A loop starts when the last slice of the loop before has arrived, and has been copied out of the buffer where
that is needed. Both roads equal the event kernel on the explicit Schedule (tests/nccl/test_timing.py).
"""

from __future__ import annotations

import sys

import numpy as np

from commsim.nccl.lower import Float64, Loop, RingPlan

_LONGEST_CYCLE = 8
_MOST_STEPPED = 20_000_000
"""Slices of all ranks in one loop up to which they are stepped one by one."""

_MOST_UNLIKE = 64
"""Different services up to which the paths through a loop are searched, once for each."""

_FEW_STEPS = 10_000
"""Steps of slices below which numba is not imported for them: it takes longer."""

_SAME = 1e-13
"""Relative difference of times that are equal but for the rounding of their sums."""


def is_uniform(plan: RingPlan) -> bool:
    """Whether every hop of the ring is alike and inside a node, so that the closed form holds.

    It does not where slices take longer both at the beginning of a loop and at its end.
    """
    both = plan.staging_rate < np.inf and bool(np.min(plan.keep_rate) < np.inf)
    return plan.crossing is None and bool(np.ptp(plan.rate) == 0.0 and np.ptp(plan.hop_s) == 0.0) and not both


def ring_closed_form(plan: RingPlan) -> tuple[float, float]:
    """Seconds of a uniform ring channel, and the part of them that is bandwidth rather than latency.

    With G slices of time t and hop h, a step costs max(G t, t + h): either the thread block never waits, or the first
    slice of the next step is waited for. A loop of P steps ends when the last slice has come, one hop after it was
    sent, and is kept, which takes k: (P - 1) max(G t, t + h) + max(G (t + k), t + h + G k, G t + h + k). What the
    slices of the first step take longer comes on top, G times: no path through the loop holds more of them, and the
    longest one holds them all.
    """
    total = busy = 0.0
    for loop in plan.loops:
        t = float(plan.service_of(loop)[0])
        h = float(plan.hop_of(loop)[0])
        k = float(plan.keep_of(loop)[0])
        G = loop.slices
        end = max(G * (t + k), t + h + G * k, G * t + h + k)
        total += loop.count * ((plan.steps - 1) * max(G * t, t + h) + G * plan.staging_of(loop) + end)
        busy += loop.count * plan.steps * G * t
    return total, busy


def ring_wavefront(plan: RingPlan) -> tuple[float, float]:
    """Seconds of any ring channel, step by step over all ranks at once, and the bandwidth part of them.

    Ranks leave a loop at different times unless the ring is uniform, so loops are stepped; but a loop only adds and
    takes maxima, so once all ranks are later by one and the same time than a few loops before, so they will be again:
    F(x) = x + a gives F(F(x)) = x + 2 a.
    """
    free = np.zeros(plan.ranks)  # when the thread block of each rank may start its next slice
    end = 0.0
    busy = 0.0
    for loop in plan.loops:
        service = plan.service_of(loop)
        hop = plan.hop_of(loop)
        past = [free]
        done = 0
        while done < loop.count:
            free, end = one_loop(plan, loop, service, hop, free)
            done += 1
            cycle, later = _steady(past, free)
            turns = (loop.count - done) // cycle if cycle else 0
            free, end, done = free + turns * later, end + turns * later, done + turns * cycle
            past = [free] if turns else [*past[1 - _LONGEST_CYCLE :], free]
        busy += loop.count * plan.steps * loop.slices * float(service.max())
    return end, busy


def one_loop(
    plan: RingPlan, loop: Loop, service: Float64, hop: Float64, free: Float64
) -> tuple[Float64, float]:  # fmt: skip
    """When each rank has ended a loop that it may begin at `free`, and when the last has: by steps, or by paths.

    `service` and `hop` are the plan's seconds of a slice of this loop, (ranks,).
    """
    keep, staging = plan.keep_of(loop), plan.staging_of(loop)
    unlike = np.unique(service)
    if staging or unlike.size > _MOST_UNLIKE or plan.ranks * plan.steps * loop.slices <= _MOST_STEPPED:
        return _one_loop(plan.steps, loop.slices, service, hop, keep, free, staging)
    from commsim.engine.loops.ring import longest_paths  # numba, which few ranks need not

    ended = longest_paths(*map(_plain, (service, hop, keep, unlike)), loop.slices, plan.steps, _plain(free))
    return ended, float(ended.max())


def _plain(column: Float64) -> Float64:
    """A column as compiled loops take it."""
    return np.ascontiguousarray(column, np.float64)


def _steady(past: list[np.ndarray], now: np.ndarray) -> tuple[int, float]:
    """After how many loops all ranks stand alike, and how much later; (0, 0.0) if they do not yet."""
    for cycle, before in enumerate(reversed(past), 1):
        shift = now - before
        if float(np.ptp(shift)) <= _SAME * float(now.max()):
            return cycle, float(shift.mean())
    return 0, 0.0


def _one_loop(
    steps: int,
    slices: int,
    service: np.ndarray,
    hop: np.ndarray,
    keep: np.ndarray,
    start: np.ndarray,
    staging: float = 0.0,
) -> tuple[np.ndarray, float]:
    columns = [_plain(column) for column in (service, hop, keep, start)]
    period = _period(columns)  # ranks as far apart do the same at the same time
    service, hop, keep, first = (column[:period] for column in columns)
    if steps * slices < _FEW_STEPS and "numba" not in sys.modules:
        ended = _stepped(service, hop, keep, slices, steps, first, staging)
    else:
        from commsim.engine.loops.ring import stepped

        ended = stepped(service, hop, keep, slices, steps, first, staging)
    return np.tile(ended, start.size // period), float(ended.max())


def _period(columns: list[np.ndarray]) -> int:
    """The smallest number of ranks after which all columns repeat."""
    n = columns[0].size
    divisors = (p for p in range(1, n // 2 + 1) if n % p == 0)
    return next((p for p in divisors if all((c[p:] == c[:-p]).all() for c in columns)), n)


def _stepped(
    service: np.ndarray, hop: np.ndarray, keep: np.ndarray, slices: int, steps: int, start: np.ndarray, staging: float
) -> np.ndarray:
    """As `commsim.engine.loops.ring.stepped`, to the bit, without numba, whose import takes longer than few steps."""
    free = start.copy()
    held = np.broadcast_to(start, (slices, start.size)).copy()  # when each rank holds each slice of this step
    for step in range(steps):
        for s in range(slices):
            np.maximum(held[s], free, out=free)
            free += service + (0.0 if step else staging)
            arrival = free + hop
            held[s, 1:] = arrival[:-1]
            held[s, 0] = arrival[-1]
    for s in range(slices):
        np.maximum(held[s], free, out=free)
        free += keep
    return free
