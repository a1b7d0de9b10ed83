"""The time that the farthest bytes of a collective are under way, however few they are."""

from __future__ import annotations

from heapq import heappop, heappush

import numpy as np

from commsim.collectives.semantics import ROOTED, TO_ROOT
from commsim.synthesis.network import FlowNetwork
from commsim.topology.kinds import Float64

_MOST_STARTS = 64
"""Ranks that ways are searched from; with more ranks, from that many, evenly spread: still no schedule is quicker."""


def latency_limit_s(network: FlowNetwork, collective: str, root: int = 0) -> float:
    """Seconds of latencies on the quickest way between two ranks, of the farthest that must hear of each other.

    From or to the root where there is one; from each rank to its next for send_recv.
    """
    n = network.n
    if n == 1:
        return 0.0
    if collective in ROOTED:
        on = network.reversed() if collective in TO_ROOT else network
        return float(_ways_s(on, root).max())
    starts = np.unique(np.linspace(0, n - 1, min(n, _MOST_STARTS)).round().astype(int)).tolist()
    if collective == "send_recv":
        return max(float(_ways_s(network, r)[(r + 1) % n]) for r in starts)
    return max(float(_ways_s(network, r).max()) for r in starts)


def _ways_s(network: FlowNetwork, start: int) -> Float64:
    """Seconds from one rank to every other, (n,) (Dijkstra 1959)."""
    onward = network.onward
    far = np.full(network.vertices, np.inf)
    first = int(network.ranks[start])
    far[first] = 0.0
    queue = [(0.0, first)]
    while queue:
        so_far, v = heappop(queue)
        if so_far > far[v]:
            continue
        for w, latency in onward[v]:
            if so_far + latency < far[w]:
                far[w] = so_far + latency
                heappush(queue, (so_far + latency, w))
    return far[network.ranks]
