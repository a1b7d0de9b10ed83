"""The tree of a fabric's switches above some ranks, along which switches that add (SHARP) pass sums up.

SHARP builds its trees over the switches as they are cabled (Graham et al., COMHPC 2016, section III): a leaf adds what
the ranks below it send, the switch above adds what the leaves send.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

from commsim.errors import TopologyError
from commsim.topology.kinds import Int64
from commsim.topology.ways import WayFinder

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

Levels = list[tuple[Int64, Int64]]


def common_switch(topology: Topology, switches: Iterable[int]) -> int:
    """The switch nearest to all of some switches (vertices): the least farthest, then the least sum, then number."""
    first = int(topology.node_first_vertex[-1])
    ends = sorted({s - first for s in switches})
    count = len(topology.vertex_name) - first
    farthest, total = np.zeros(count), np.zeros(count)
    for end in ends:
        before = topology.switch_search.tree(end)
        hops = np.full(count, np.inf)
        for at, (previous, _) in before.items():  # breadth first, so the one before is known
            hops[at] = 0 if at == end else hops[previous] + 1
        farthest, total = np.maximum(farthest, hops), total + hops
    best = int(np.lexsort((total, farthest))[0])
    if not np.isfinite(farthest[best]):
        raise TopologyError(f"{topology.name}: no switch is joined to all leaves that the ranks enter by")
    return first + best


def needs_adding_switches(topology: Topology) -> None:
    """A TopologyError with the reason where the network has no switches that add."""
    if topology.fabric_routes is None:
        raise TopologyError(f"{topology.name} is one node, and this adds in the switches of a network")
    if topology.in_network_reduction:
        return
    if topology.network == "infiniband":
        raise TopologyError(
            f"{topology.name} does not say that its switches add (SHARP): set fabric: {{in_network_reduction: true}}"
        )
    raise TopologyError(
        f"the switches of {topology.name} do not add: the network is {topology.network}, SHARP is InfiniBand's"
    )


class SwitchTree:
    """Called with ranks, the levels of (children, parents) from them up to one switch.

    A child is a rank or, as every parent, a switch, numbered from the world size on in the order of the vertices. Ranks
    enter at the leaf of their nearest NIC; the top is the switch nearest to all of these leaves.
    """

    def __init__(self, topology: Topology) -> None:
        needs_adding_switches(topology)
        self._topology, self._ways = topology, WayFinder(topology)

    def __call__(self, ranks: Int64) -> Levels:
        """The levels above these ranks; children of level k have k levels below them."""
        t = self._topology
        first, n = int(t.node_first_vertex[-1]), t.world_size
        leaf = {int(r): self._ways.leaf(int(r)) - first for r in ranks}
        top = common_switch(t, {first + s for s in leaf.values()}) - first
        towards = t.switch_search.tree(top)
        parent, height = dict[int, int](), dict[int, int]()
        for start in sorted(set(leaf.values())):
            at, level = start, 1
            while height.get(at, 0) < level:
                height[at] = level
                if at == top:
                    break
                parent[at] = towards[at][0]
                at, level = parent[at], level + 1
        levels = [(np.array(list(leaf), np.int64), n + np.array(list(leaf.values()), np.int64))]
        for level in range(1, height[top]):
            children = np.array(sorted(s for s, h in height.items() if h == level), np.int64)
            levels.append((n + children, n + np.array([parent[int(s)] for s in children], np.int64)))
        return levels
