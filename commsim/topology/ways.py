"""Ways between a rank and a vertex that is no rank: an NVSwitch, a host, a switch of the fabric.

Within a node the way of the fewest hops, over no other GPU or NIC. To the fabric a rank leaves through its nearest
NIC that works; between switches the way of the fewest surviving links. The way back is the same one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commsim.errors import TopologyError
from commsim.topology.kinds import VertexKind
from commsim.topology.link_search import LinkSearch
from commsim.topology.routing import fabric_links

if TYPE_CHECKING:
    from commsim.topology.graph import Topology


class WayFinder:
    """Finds ways on one topology, and keeps what it has searched in a node."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._first_switch = int(topology.node_first_vertex[-1])
        self._rank_of = {int(v): rank for rank, v in enumerate(topology.rank_vertex)}
        self._searches: dict[int, LinkSearch] = {}

    def links(self, a: int, b: int) -> list[int]:
        """Link ids from vertex `a` to vertex `b`, one of which is a rank's GPU or both of which are switches."""
        if a not in self._rank_of and b in self._rank_of:
            # Links are numbered forth and back side by side.
            return [link ^ 1 for link in reversed(self.links(b, a))]
        node, to_node = (int(self._topology.vertex_node[v]) for v in (a, b))
        if node < 0:
            return self._between(a, b)
        if node == to_node:
            return self._inside(node, a, b)
        rank = self._rank_of[a]
        return self._up(rank, b) if to_node < 0 else self._across(rank, b)

    def leaf(self, rank: int) -> int:
        """The vertex of the switch at which a rank enters the fabric."""
        return self._first_switch + int(self._topology.fabric.leaf[self._topology.node_of(rank), self._nic(rank)])

    def _nic(self, rank: int) -> int:
        t, node = self._topology, self._topology.node_of(rank)
        usable = t.usable_nics[node]
        nearest = t.nearest_nic(rank)
        usable_nic = next((nic for k in range(usable.size) if usable[nic := (nearest + k) % usable.size]), None)
        if usable_nic is None:
            raise TopologyError(f"{t.name}: node{node} has no NIC that works")
        return int(usable_nic)

    def _to_port(self, rank: int, nic: int) -> list[int]:
        t, node = self._topology, self._topology.node_of(rank)
        local = rank - int(t.node_first_rank[node])
        template = t.group_of(rank).node_routes.gpu_nic[local, nic]
        inside = (template[template >= 0] + t.node_first_link[node]).tolist()
        return [*inside, int(t.fabric.port_up[node, nic])]

    def _up(self, rank: int, switch: int) -> list[int]:
        return self._to_port(rank, self._nic(rank)) + self._between(self.leaf(rank), switch)

    def _between(self, a: int, b: int) -> list[int]:
        path = self._topology.switch_search.path(a - self._first_switch, b - self._first_switch)
        return self._checked(path, a, b)

    def _checked(self, path: list[int] | None, a: int, b: int) -> list[int]:
        if path is None:
            names = self._topology.vertex_name
            raise TopologyError(f"{self._topology.name}: no way from {names[a]} to {names[b]}")
        return path

    def _across(self, rank: int, b: int) -> list[int]:
        """From a rank to a vertex inside another node, entered on the rail on which the rank's own node is left."""
        t, to_node = self._topology, int(self._topology.vertex_node[b])
        one_pair = np.array([[t.node_of(rank)], [to_node], [self._nic(rank)]], dtype=np.int64)
        out, into, middle = (x[0] for x in fabric_links(t, *one_pair))
        down = int(t.fabric.port_down[to_node, int(into)])
        onward = self._inside(to_node, int(t.link_dst[down]), b)
        return [*self._to_port(rank, int(out)), *middle[middle >= 0].tolist(), down, *onward]

    def _inside(self, node: int, a: int, b: int) -> list[int]:
        if node not in self._searches:
            t = self._topology
            first, last = t.node_first_vertex[[node, node + 1]].tolist()
            kinds = t.vertex_kind[first:last]
            ends = first + np.flatnonzero((kinds == VertexKind.GPU) | (kinds == VertexKind.NIC))
            links = np.arange(*t.node_first_link[[node, node + 1]])
            links = links[t.works[links]]
            self._searches[node] = LinkSearch(links, t.link_src[links], t.link_dst[links], ends=set(ends.tolist()))
        return self._checked(self._searches[node].path(a, b), a, b)
