"""Known algorithms as candidates for small arrays: those of the registry, and exchanges in groups, over shortest ways.

Trees add at a root and then spread the sum, so that bytes of an all_reduce cross a network twice; where an array is
small, every rank may send all of it to others and add what comes in, which crosses it once.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

import numpy as np

from commsim.collectives.registry import build, entry, names
from commsim.collectives.rows import assemble, blocks, rows, spread
from commsim.collectives.schedule import Op, Schedule
from commsim.errors import CommsimError
from commsim.synthesis.laying import Laid
from commsim.synthesis.network import FlowNetwork
from commsim.topology.kinds import Float64

MOST_BYTES = 1 << 20
"""Size up to which known algorithms are tried: beyond it links count more than their latencies."""
MOST_RANKS = 64
"""Ranks up to which they are tried."""
_CHUNKS = (1, 4)
"""Pieces that follow each other."""


def known_schedules(network: FlowNetwork, collective: str, nbytes: int, root: int, itemsize: int) -> Iterator[Laid]:
    """Every known algorithm in which only ranks act, over ways between ranks that pass no other rank.

    An algorithm is left out where a pair that it joins has no such way.
    """
    ways = _Ways(network, nbytes)
    for schedule in _schedules(network, collective, nbytes, root, itemsize):
        laid = ways.laid(schedule)
        if laid is not None:
            yield laid


def grouped_all_reduce(world_size: int, nbytes: int, sizes: tuple[int, ...], itemsize: int = 1) -> Schedule:
    """In each step all of a group send each other the whole array; ``sizes`` of groups multiply to the ranks.

    Groups of step t are the ranks that differ in digit t alone, the fastest first: of 2 everywhere this is recursive
    doubling, of one group the direct form (Ruefenacht, Bull, Booth 2017: recursive multiplying).
    """
    rank, parts, stride = np.arange(world_size), [], 1
    for step, size in enumerate(sizes):
        digit = rank // stride % size
        for turn in range(1, size):
            to = rank + ((digit + turn) % size - digit) * stride
            parts.append(rows(step, rank, to, 0, op=Op.REDUCE))
        stride *= size
    name = "grouped_" + "x".join(map(str, sizes))
    return assemble("all_reduce", name, world_size, parts, blocks(nbytes, 1, itemsize))


def _schedules(network: FlowNetwork, collective: str, nbytes: int, root: int, itemsize: int) -> Iterator[Schedule]:
    n = network.n
    for _, algorithm in names(collective):
        known = entry(collective, algorithm)
        if known.adds_in:
            continue
        own = root if "root" in known.takes else 0
        per_node = _per_node(network) if "ranks_per_node" in known.takes else None
        for chunks in _CHUNKS:
            try:
                yield build(
                    collective, algorithm, n, nbytes, own, chunks=chunks, ranks_per_node=per_node, itemsize=itemsize
                )
            except CommsimError:  # not of so many ranks, or so few bytes
                break
    if collective == "all_reduce":
        for sizes in _products(n):
            for chunks in _CHUNKS:
                yield spread(grouped_all_reduce(n, nbytes, sizes, itemsize), 1, chunks, itemsize=itemsize)


def _products(n: int) -> Iterator[tuple[int, ...]]:
    """The ways to write n as a product of numbers above 1, in every order."""
    if n == 1:
        yield ()
    for first in range(2, n + 1):
        if n % first == 0:
            for rest in _products(n // first):
                yield (first, *rest)


def _per_node(network: FlowNetwork) -> int:
    """Ranks of a node, if all have as many, one after the other; else all of them."""
    of = network.node[network.ranks]
    first = int((of == of[0]).sum())
    even = network.n % first == 0 and bool((of.reshape(-1, first) == of[::first, None]).all())
    return first if even and int(of[0]) >= 0 else network.n


class _Ways:
    """The quickest way between any two ranks for the whole array, looked for when it is first needed."""

    def __init__(self, network: FlowNetwork, nbytes: int) -> None:
        n, self.network = network, network
        self._hop_s: Float64 = n.latency + nbytes / (n.capacity * float(n.unit))
        self._onward: list[list[tuple[int, int]]] = [[] for _ in range(n.vertices)]
        for edge, (a, b) in enumerate(zip(n.tail.tolist(), n.head.tolist(), strict=True)):
            self._onward[a].append((b, edge))
        self._from: dict[int, dict[int, tuple[int, ...]]] = {}

    def laid(self, schedule: Schedule) -> Laid | None:
        """The schedule with a way for each row; None where two ranks have none."""
        pairs, which = np.unique(schedule.src.astype(np.int64) * schedule.endpoints + schedule.dst, return_inverse=True)
        ways: list[tuple[int, ...]] = []
        for pair in pairs.tolist():
            src, dst = divmod(pair, schedule.endpoints)
            way = () if src == dst else self._of(src).get(dst)
            if way is None:
                return None
            ways.append(way)
        return Laid(schedule, which.reshape(-1).astype(np.int64), tuple(ways))

    def _of(self, src: int) -> dict[int, tuple[int, ...]]:
        if src not in self._from:
            self._from[src] = self._search(src)
        return self._from[src]

    def _search(self, src: int) -> dict[int, tuple[int, ...]]:
        """The ways from a rank to all that it reaches (Dijkstra 1959); ranks pass nothing on."""
        n, start = self.network, int(self.network.ranks[src])
        rank_of = {int(v): r for r, v in enumerate(n.ranks.tolist())}
        far, by, queue = {start: 0.0}, dict[int, int](), [(0.0, start)]
        while queue:
            so_far, v = heappop(queue)
            if so_far > far[v] or (v in rank_of and v != start):
                continue
            for w, edge in self._onward[v]:
                later = so_far + float(self._hop_s[edge])
                if later < far.get(w, np.inf):
                    far[w], by[w] = later, edge
                    heappush(queue, (later, w))
        ways: dict[int, tuple[int, ...]] = {}
        for vertex, rank in rank_of.items():
            if vertex != start and vertex in by:
                way, at = list[int](), vertex
                while at != start:
                    way.append(by[at])
                    at = int(n.tail[by[at]])
                ways[rank] = tuple(reversed(way))
        return ways
