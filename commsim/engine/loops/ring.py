"""One loop of a ring: step by step, or by the longest paths through it, in time that grows with the ranks alone.

Rank r sends slice after slice, each in `service[r]`, and a slice may be sent on `hop[r]` after that. A path through a
loop of P steps of G slices goes on at a rank from one slice to the next, or with its slice to the next rank, a step
later. With m hops it goes on PG - mG times besides, best of all at the slowest rank that it visits. So the longest path
to a rank is a longest window of ranks before it, once for each different service.
"""

from __future__ import annotations

import numpy as np

from commsim.engine.loops.compiled import compiled
from commsim.engine.program import Float64


@compiled
def longest_paths(
    service: Float64, hop: Float64, keep: Float64, slowest: Float64, slices: int, steps: int, start: Float64
) -> Float64:
    """When each rank has ended a loop that it began at `start`, (ranks,).

    `keep` is what each slice of the last step costs the rank that it comes to; `slowest` the different services.
    """
    n, G, P = service.size, slices, steps
    end = np.full(n, -np.inf)
    queue = np.empty(n + P + 1, np.int64)
    for tau in slowest:
        for last in range(2):  # whether the path comes to its last rank in the last step, with a slice of that step
            total = 0.0
            sums = np.empty(n + P + 1)
            for i in range(n + P):
                sums[i] = total
                r = (i - P) % n
                total += service[r] + hop[r] - G * tau
            sums[n + P] = total
            head, tail, pushed, mark = 0, 0, 0, -1
            for b in range(n + P):
                r = (b - P) % n
                if last == 0 and service[r] == tau:
                    mark = b
                limit = mark if last == 0 else min(mark, b - 1)
                while pushed <= limit:  # in falling order of what they give
                    gives = start[(pushed - P) % n] - sums[pushed]
                    while tail > head and start[(queue[tail - 1] - P) % n] - sums[queue[tail - 1]] <= gives:
                        tail -= 1
                    queue[tail] = pushed
                    tail += 1
                    pushed += 1
                farthest = b - P + 1 if last == 0 else b - P
                while tail > head and queue[head] < farthest:
                    head += 1
                if b >= P and tail > head:
                    a = queue[head]
                    window = start[(a - P) % n] - sums[a] + sums[b]
                    if last == 0:
                        when = window + (P * G - 1) * tau + service[r] + G * keep[r]
                    else:
                        one = window + (P * G + G - 1) * tau + keep[r]
                        when = max(one, window + P * G * tau + G * keep[r])
                    end[r] = max(end[r], when)
                if last == 1 and service[r] == tau:
                    mark = b
    return end


@compiled
def stepped(
    service: Float64, hop: Float64, keep: Float64, slices: int, steps: int, start: Float64, staging: float
) -> Float64:
    """When each rank has ended a loop that it began at `start`, (ranks,), slice by slice.

    `staging` is what each slice of the first step takes more.
    """
    n = service.size
    free = start.copy()
    held = np.empty((slices, n))  # when each rank holds each slice of this step
    for s in range(slices):
        held[s] = start
    for step in range(steps):
        more = 0.0 if step else staging
        for s in range(slices):
            arrival = 0.0
            for r in range(n):
                begun = max(held[s, r], free[r])
                held[s, r] = arrival  # from the rank before
                free[r] = begun + (service[r] + more)
                arrival = free[r] + hop[r]
            held[s, 0] = arrival
    for s in range(slices):
        for r in range(n):
            free[r] = max(held[s, r], free[r]) + keep[r]
    return free
