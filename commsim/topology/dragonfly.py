"""Dragonfly (Kim et al., ISCA 2008; Slingshot): groups of switches joined all to all, groups joined all to all.

Global links are placed by distance: with m links per pair of groups and h ports per switch, link j to the group d
further on leaves from switch ``((d - 1) m + j) // h``. Every group then looks alike, which a placement by group
number would not give.

Minimal routing: at most one local link, one global link, one local link; among the m global links those with the
fewest local hops. With ``routing: spray`` (adaptive routing that balances perfectly, over paths that need not be
minimal) a vertex stands for each group. A switch has two links to it: one as wide as all its local links, for what
stays in the group, and one that adds its share of the global links, for what leaves it. The m global links between
two groups are one. That the two share the local links is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.topology.fabric import Fabric
from commsim.topology.fabric_routes import FabricRoutes, Flowlet, PathChoice
from commsim.topology.kinds import Bool, Int32, Int64, LinkKind
from commsim.topology.links import BuiltFabric, LinkColumns, Ports

_MOST_COSTS = 2**22  # pairs times global links looked at in one go: 32 MiB a column


@dataclass(frozen=True)
class DragonflyShape:
    """Numbers of a dragonfly: groups, switches of a group, global links per pair of groups, global ports used."""

    groups: int
    switches: int
    links: int

    @property
    def ports(self) -> int:
        """Global links of one switch, at most."""
        return -(-(self.groups - 1) * self.links // self.switches) if self.groups > 1 else 0


@dataclass(frozen=True, eq=False)
class GroupedRoutes(FabricRoutes):
    """Routes over groups of switches, which move with their nodes."""

    shape: DragonflyShape

    @property
    def period_nodes(self) -> int | None:
        """A group; a switch where there is one group; a node where there is one switch."""
        s, per_leaf = self.shape, self.nodes_per_leaf
        if s.groups * s.switches == 1:
            return 1
        if s.groups * s.switches * per_leaf != self.nodes:
            return None
        return per_leaf if s.groups == 1 else per_leaf * s.switches

    def switch_image(self, shift: int) -> Int64:
        """Groups move with their nodes, or switches within the only group."""
        total = self.shape.groups * self.shape.switches
        return np.asarray((np.arange(total) + shift // self.nodes_per_leaf) % total)


@dataclass(frozen=True, eq=False)
class DragonflyRoutes(GroupedRoutes):
    """Minimal routes. ``local`` (groups, from, to) and ``far`` (groups, distance - 1, links) are link ids."""

    choose: PathChoice
    local: Int32
    far: Int32

    @property
    def choices(self) -> int:
        """The global links of a pair of groups."""
        return max(1, self.shape.links)

    def between(
        self, src: Int64, src_nic: Int64, dst: Int64, dst_nic: Int64, attempt: int = 0, flowlet: Flowlet = 0
    ) -> Int32:
        """Local, global, local."""
        a, b = self.leaf[src, src_nic].astype(np.int64), self.leaf[dst, dst_nic].astype(np.int64)
        out = np.full((len(src), 3), -1, dtype=np.int32)
        group, here = np.divmod(a, self.shape.switches)
        to_group, there = np.divmod(b, self.shape.switches)
        near = (group == to_group) & (here != there)
        out[near, 0] = self.local[group[near], here[near], there[near]]
        away = np.flatnonzero(group != to_group)
        chunk = max(1, _MOST_COSTS // self.choices)
        flowlet = np.broadcast_to(flowlet, src.shape)
        for first in range(0, len(away), chunk):
            k = away[first : first + chunk]
            distance = (to_group[k] - group[k]) % self.shape.groups
            number = self.choose.number(src[k], dst[k], src_nic[k], here[k] + there[k], flowlet[k])
            link, exit_at, enter_at = self._global(distance, here[k], there[k], number, attempt)
            steps = exit_at != here[k], enter_at != there[k]
            out[k, 0] = np.where(steps[0], self.local[group[k], here[k], exit_at], -1)
            out[k, 1] = self.far[group[k], distance - 1, link]
            out[k, 2] = np.where(steps[1], self.local[to_group[k], enter_at, there[k]], -1)
        return out

    def _global(
        self, distance: Int64, here: Int64, there: Int64, number: Int64, attempt: int
    ) -> tuple[Int64, Int64, Int64]:
        """(link of the pair, switch it leaves from, switch it arrives at)."""
        s = self.shape
        j = np.arange(s.links)[None, :]
        exits = ((distance - 1)[:, None] * s.links + j) // s.ports
        entries = ((s.groups - distance - 1)[:, None] * s.links + j) // s.ports
        hops = (exits != here[:, None]).astype(np.int64) + (entries != there[:, None])
        if self.choose.hashed:
            best = hops == hops.min(axis=1, keepdims=True)
            turn = _turn_among(best, number)
        else:
            turn = number % s.links
        cost = hops * s.links + (j - turn[:, None]) % s.links
        ranked = np.argsort(cost, axis=1, kind="stable") if attempt else cost.argmin(axis=1)[:, None]
        link = ranked[:, attempt % s.links]
        row = np.arange(len(link))
        return link, exits[row, link], entries[row, link]


def _turn_among(best: Bool, number: Int64) -> Int64:
    """The column of the ``number % count``-th of the true columns of each row: each equally often."""
    nth = number % best.sum(axis=1)
    return np.asarray((np.cumsum(best, axis=1) > nth[:, None]).argmax(axis=1), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class SprayedRoutes(GroupedRoutes):
    """Even spreading over a group's links: switch to the group's vertex, over to another group's, and down.

    ``to_hub`` (2, groups, switches), for what stays and what leaves, and ``far`` (groups, distance - 1) are link ids.
    """

    to_hub: Int32
    far: Int32

    def switch_image(self, shift: int) -> Int64:
        """Groups move with their nodes; so do the vertices that stand for them, numbered after the switches."""
        s = self.shape
        hubs = (np.arange(s.groups) + shift // (self.nodes_per_leaf * s.switches)) % s.groups
        return np.concatenate([super().switch_image(shift), s.groups * s.switches + hubs])

    def between(
        self, src: Int64, src_nic: Int64, dst: Int64, dst_nic: Int64, attempt: int = 0, flowlet: Flowlet = 0
    ) -> Int32:
        """Up to the group, to the other group, down."""
        a, b = self.leaf[src, src_nic].astype(np.int64), self.leaf[dst, dst_nic].astype(np.int64)
        out = np.full((len(src), 3), -1, dtype=np.int32)
        k = np.flatnonzero(a != b)
        group, here = np.divmod(a[k], self.shape.switches)
        to_group, there = np.divmod(b[k], self.shape.switches)
        far = group != to_group
        leaves = far.astype(np.int64)
        out[k, 0], out[k, 2] = self.to_hub[leaves, group, here], self.to_hub[leaves, to_group, there] + 1
        distance = (to_group - group)[far] % self.shape.groups
        out[k[far], 1] = self.far[group[far], distance - 1]
        return out


def dragonfly(fabric: Fabric, ports: Ports, first_vertex: int, first_link: int) -> BuiltFabric:
    """The switches and links of a dragonfly; a job inside one group gets only the switches that it needs."""
    s = _shape(fabric, ports)
    switch = np.arange(ports.nodes) // fabric.nodes_per_leaf
    leaf = np.broadcast_to(switch[:, None], ports.vertex.shape)
    of_ports, port_links = ports.cabled(leaf, first_vertex, first_link, fabric.switch_latency)
    base, at = (*of_ports, fabric.nodes_per_leaf, s), first_link + len(port_links.src)
    names = [f"group{g}.switch{i}" for g in range(s.groups) for i in range(s.switches)]
    if fabric.routing == "spray":
        links, to_hub, far = _sprayed(fabric, ports, s, first_vertex, at)
        names += [f"group{g}" for g in range(s.groups)] if s.groups * s.switches > 1 else []
        return BuiltFabric(names, LinkColumns.joined([port_links, *links]), SprayedRoutes(*base, to_hub, far))
    links, local, far = _wired(fabric, ports, s, first_vertex, at)
    choose = fabric.choice(fabric.nodes_per_leaf * (s.switches if s.groups > 1 else 1), ports.nodes)
    return BuiltFabric(names, LinkColumns.joined([port_links, *links]), DragonflyRoutes(*base, choose, local, far))


def _shape(fabric: Fabric, ports: Ports) -> DragonflyShape:
    switches = -(-ports.nodes // fabric.nodes_per_leaf)
    groups = -(-switches // fabric.leaves_per_group)
    if groups == 1:
        return DragonflyShape(1, switches, 0)
    # A balanced dragonfly has as many global ports as edge ports (Kim et al., section 3.1).
    edge = fabric.leaves_per_group * fabric.nodes_per_leaf * ports.vertex.shape[1]
    return DragonflyShape(groups, fabric.leaves_per_group, fabric.global_links or max(1, edge // (groups - 1)))


def _bandwidths(fabric: Fabric, ports: Ports) -> tuple[float, float]:
    local = fabric.link_bandwidth or float(ports.bandwidth.max())
    return local, fabric.global_bandwidth or local


def _global_links(groups: int, links: int, at: int) -> tuple[Int64, Int64, Int64, Int32]:
    """(group, group, which of its links) of each link between groups, and ids (groups, distance - 1, links)."""
    g, to = (np.repeat(x, links) for x in np.triu_indices(groups, 1))
    j = np.tile(np.arange(links), groups * (groups - 1) // 2)
    far = np.full((groups, groups - 1, links), -1, dtype=np.int32)
    far[g, to - g - 1, j] = at + 2 * np.arange(len(g))
    far[to, groups - (to - g) - 1, j] = at + 2 * np.arange(len(g)) + 1
    return g, to, j, far


def _wired(
    fabric: Fabric, ports: Ports, s: DragonflyShape, first_vertex: int, at: int
) -> tuple[list[LinkColumns], Int32, Int32]:
    """(links, local ids, global ids) with every link drawn."""
    local_bytes, global_bytes = _bandwidths(fabric, ports)
    a, b = np.triu_indices(s.switches, 1)
    group = np.repeat(np.arange(s.groups), len(a))
    tail, head = np.tile(a, s.groups), np.tile(b, s.groups)
    local = np.full((s.groups, s.switches, s.switches), -1, dtype=np.int32)
    local[group, tail, head] = at + 2 * np.arange(len(group))
    local[group, head, tail] = at + 2 * np.arange(len(group)) + 1
    start = first_vertex + group * s.switches
    inside = LinkColumns.both_ways(start + tail, start + head, local_bytes, fabric.hop_latency, LinkKind.FABRIC)

    at += 2 * len(group)
    g, to, j, far = _global_links(s.groups, s.links, at)
    exits = ((to - g - 1) * s.links + j) // max(s.ports, 1)
    entries = ((s.groups - (to - g) - 1) * s.links + j) // max(s.ports, 1)
    across = LinkColumns.both_ways(
        first_vertex + g * s.switches + exits,
        first_vertex + to * s.switches + entries,
        global_bytes,
        fabric.switch_latency + fabric.global_latency,
        LinkKind.FABRIC,
    )
    return [inside, across], local, far


def _sprayed(
    fabric: Fabric, ports: Ports, s: DragonflyShape, first_vertex: int, at: int
) -> tuple[list[LinkColumns], Int32, Int32]:
    """(links, switch to group ids, group to group ids) with equal links merged.

    Two halves of the way through a group have the latency of one local link; a way between groups has that of two
    local links and a global one, as most of the minimal routes have.
    """
    local_bytes, global_bytes = _bandwidths(fabric, ports)
    switches = s.groups * s.switches
    to_hub = (at + 2 * np.arange(2 * switches)).reshape(2, s.groups, s.switches).astype(np.int32)
    if switches == 1:
        return [], to_hub, np.zeros((1, 0), dtype=np.int32)
    ends = np.tile(np.arange(switches), 2)
    inner = local_bytes * max(fabric.leaves_per_group - 1, 1)
    outer = inner + global_bytes * s.links * (s.groups - 1) / s.switches
    inside = LinkColumns.both_ways(
        first_vertex + ends,
        first_vertex + switches + ends // s.switches,
        np.repeat([inner, outer], switches),
        fabric.hop_latency / 2,
        LinkKind.FABRIC,
    )
    at += 4 * switches
    g, to, _, far = _global_links(s.groups, 1, at)
    across = LinkColumns.both_ways(
        first_vertex + switches + g,
        first_vertex + switches + to,
        global_bytes * s.links,
        fabric.switch_latency + fabric.global_latency + fabric.hop_latency,
        LinkKind.FABRIC,
    )
    return [inside, across], to_hub, far[:, :, 0]
