"""How slow this machine is just now, beside the one that the bars were set on.

Shared machines change their speed twofold from one hour to the next. A fixed piece of work that is none of commsim's is
measured beside each workload: an interpreter's loop with a heap, a sort, and reads all over an array larger than a
cache. Bars in seconds grow, and bars in work per second shrink, by as much as it takes longer than it did then.
"""

from __future__ import annotations

import heapq
import time

import numpy as np

RECORDED_S = 0.117
"""CPU-seconds of `work` on two cores of an Intel Xeon (family 6, model 167) with nothing else running."""

_ROUNDS = 3


def work() -> float:
    """The fixed piece of work."""
    heap: list[tuple[float, int]] = []
    for i in range(60_000):
        heapq.heappush(heap, ((i * 7919) % 10_007 / 3, i))
    total = sum(heapq.heappop(heap)[0] for _ in range(len(heap)))
    random = np.random.default_rng(0)
    table = random.random(1 << 22)
    at = random.integers(0, table.size, 1 << 21)
    return total + float(table[at].sum()) + float(np.sort(table[: 1 << 19])[0])


def slowness() -> float:
    """CPU time of `work` now over `RECORDED_S`, the median of a few; never below 1, so that no bar becomes stricter."""
    seconds = []
    for _ in range(_ROUNDS):
        before = time.process_time()
        work()
        seconds.append(time.process_time() - before)
    return max(1.0, sorted(seconds)[_ROUNDS // 2] / RECORDED_S)
