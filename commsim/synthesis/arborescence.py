"""Trees under prices of links: shortest ways between endpoints, Edmonds' cheapest arborescences, and flat trees.

A price is what a byte costs on an edge. Endpoints are the ranks, and after them the switches that copy. Ways between
two endpoints lead over other vertices only: an endpoint that passes bytes on is a vertex of the tree.
"""

from __future__ import annotations

import numpy as np

from commsim.engine.loops.compiled import compiled
from commsim.synthesis.network import FlowNetwork
from commsim.topology.kinds import Bool, Float64, Int64


@compiled
def _ways(
    graph: tuple[Int64, Int64, Int64], price: Float64, late: Float64, ends: Int64, is_end: Bool
) -> tuple[Float64, Float64, Int64]:
    """Price of the cheapest way between endpoints, seconds on it, (m, m), and by which edge vertices are reached."""
    ptr, edge, head = graph
    m, vertices = ends.size, ptr.size - 1
    cost, seconds = np.full((m, m), np.inf), np.full((m, m), np.inf)
    arrival = np.empty(vertices)
    before = np.full((m, vertices), -1, np.int64)
    far = np.empty(vertices)
    done = np.empty(vertices, np.bool_)
    for r in range(m):
        far[:] = np.inf
        done[:] = False
        far[ends[r]] = arrival[ends[r]] = 0.0
        while True:
            at, least = -1, np.inf
            for v in range(vertices):
                if not done[v] and far[v] < least:
                    at, least = v, far[v]
            if at < 0:
                break
            done[at] = True
            if is_end[at] and at != ends[r]:
                continue
            for k in range(ptr[at], ptr[at + 1]):
                e = edge[k]
                reached = least + price[e]
                if reached < far[head[e]]:
                    far[head[e]] = reached
                    arrival[head[e]] = arrival[at] + late[e]
                    before[r, head[e]] = e
        for s in range(m):
            cost[r, s] = far[ends[s]]
            seconds[r, s] = arrival[ends[s]] if far[ends[s]] < np.inf else np.inf
        cost[r, r] = np.inf
    return cost, seconds, before


@compiled
def _cycles(entry: Int64, cycle: Int64) -> int:
    """Numbers the cycles of a graph in which every vertex has one entry or none; how many there are."""
    count = entry.size
    state = np.zeros(count, np.int64)
    cycle[:] = -1
    cycles = 0
    for v in range(count):
        w = v
        while w != -1 and state[w] == 0:
            state[w] = v + 1
            w = entry[w]
        if w != -1 and state[w] == v + 1 and cycle[w] < 0:
            x = w
            while True:
                cycle[x] = cycles
                x = entry[x]
                if x == w:
                    break
            cycles += 1
    return cycles


@compiled
def _arborescence(cost: Float64, root: int) -> Int64:
    """The parent of every vertex in a cheapest tree out of the root, -1 of the root and of what it cannot reach.

    Edmonds 1967, "Optimum branchings": every vertex takes its cheapest entry; cycles of these become one vertex.
    """
    size = cost.shape[0]
    levels, count, at = 0, size, root
    sizes = np.zeros(size + 1, np.int64)
    entries = np.full((size + 1, size), -1, np.int64)
    now = cost.copy()
    none = np.zeros((0, 0), np.int64)
    # Of each level the ends, one level below, of every edge.
    tails, heads = [none], [none]
    while True:
        sizes[levels] = count
        entry = entries[levels, :count]
        for v in range(count):
            if v == at:
                continue
            least = np.inf
            for w in range(count):
                if w != v and now[w, v] < least:
                    least = now[w, v]
                    entry[v] = w
        cycle = np.full(count, -1, np.int64)
        cycles = _cycles(entry, cycle)
        if cycles == 0:
            break
        number, fresh = np.empty(count, np.int64), cycles
        for v in range(count):
            if cycle[v] >= 0:
                number[v] = cycle[v]
            else:
                number[v] = fresh
                fresh += 1
        shrunk = np.full((fresh, fresh), np.inf)
        tail, head = np.full((fresh, fresh), -1, np.int64), np.full((fresh, fresh), -1, np.int64)
        for a in range(count):
            for b in range(count):
                x, y = number[a], number[b]
                if x == y or not now[a, b] < np.inf:
                    continue
                price = now[a, b] - (now[entry[b], b] if cycle[b] >= 0 else 0.0)
                if price < shrunk[x, y]:
                    shrunk[x, y] = price
                    tail[x, y], head[x, y] = a, b
        at = number[at]
        levels += 1
        tails.append(tail)
        heads.append(head)
        now, count = shrunk, fresh
    parent = entries[levels].copy()
    for level in range(levels, 0, -1):
        below = entries[level - 1].copy()
        for v in range(sizes[level]):
            w = parent[v]
            if w >= 0:
                below[heads[level][w, v]] = tails[level][w, v]
        parent = below
    out: Int64 = parent[:size]
    return out


@compiled
def _flat(cost: Float64, late: Float64, root: int) -> Int64:
    """The parent of every vertex where each is joined, in turn, where price and distance from the root are least."""
    m = cost.shape[0]
    parent = np.full(m, -1, np.int64)
    key, arrival = np.full(m, np.inf), np.zeros(m)
    inside = np.zeros(m, np.bool_)
    at = root
    for _ in range(m):
        inside[at] = True
        for v in range(m):
            reached = arrival[at] + late[at, v]
            if not inside[v] and cost[at, v] + reached < key[v]:
                key[v], arrival[v], parent[v] = cost[at, v] + reached, reached, at
        least, at = np.inf, -1
        for v in range(m):
            if not inside[v] and key[v] < least:
                least, at = key[v], v
        if at < 0:
            break
    return parent


class PricedWays:
    """A network under prices: the cheapest way between endpoints, and trees over such ways."""

    def __init__(self, network: FlowNetwork) -> None:
        self.network = network
        self.acting = np.flatnonzero(network.copies)
        self.ends = np.concatenate([network.ranks, self.acting])
        order = np.argsort(network.tail, kind="stable")
        self._edge = order.astype(np.int64)
        self._ptr = np.searchsorted(network.tail[order], np.arange(network.vertices + 1)).astype(np.int64)
        self._is_end = np.zeros(network.vertices, bool)
        self._is_end[self.ends] = True
        self.cost = self.late = np.zeros((0, 0))
        self._before = np.zeros((0, 0), np.int64)

    def set(self, price: Float64, late: Float64 | None = None) -> None:
        """With a price for each edge, (E,), and seconds over it."""
        graph = (self._ptr, self._edge, self.network.head)
        seconds = np.zeros(price.size) if late is None else late
        self.cost, self.late, self._before = _ways(graph, price, seconds, self.ends, self._is_end)

    def way(self, a: int, b: int) -> tuple[int, ...]:
        """The edges of the cheapest way from endpoint ``a`` to endpoint ``b``."""
        path, at = [], int(self.ends[b])
        while at != self.ends[a]:
            path.append(int(self._before[a, at]))
            at = int(self.network.tail[path[-1]])
        return tuple(reversed(path))

    def cheapest(self, root: int, flat: float = 0.0) -> Int64:
        """The parent of every endpoint in a cheapest tree, (m,); branches from the root are cheaper by ``flat``."""
        more = np.full((self.ends.size, 1), flat)
        more[root] = 0.0
        return self._pruned(_arborescence(self.cost + more, root))

    def flattest(self, root: int, cost: Float64) -> Int64:
        """The parent of every endpoint in a tree that weighs a ``cost`` (m, m) against seconds from the root."""
        return self._pruned(_flat(cost, self.late, root))

    def _pruned(self, parent: Int64) -> Int64:
        """Without switches that pass nothing on."""
        n = self.network.n
        while True:
            used = np.zeros(parent.size, bool)
            used[parent[parent >= 0]] = True
            idle = np.flatnonzero((parent >= 0) & ~used)
            idle = idle[idle >= n]
            if not idle.size:
                return parent
            parent[idle] = -1
