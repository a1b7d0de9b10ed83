"""A machine in two levels: nodes whose ranks reach each other at once, and the rails that join nodes.

A rail is a NIC index. What a node sends over one leaves by the rank nearest to that NIC, its gateway. Plans between
nodes are made of nodes and rails; ways over links are those of the topology's own routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np

from commsim.errors import InfeasibleError
from commsim.topology.bisection import nic_pcie_bandwidth
from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, Int64

_PATTERN = 10_080
"""Turns after which rails are taken anew: a multiple of every number up to 10."""


@dataclass(frozen=True, eq=False)
class Levels:
    """``order`` (m,): the nodes round a ring, those of one leaf side by side. All nodes have G ranks.

    ``gateway`` (nodes, rails): the local rank that sends over a rail, -1 where a node has none that works; ``rate``
    (nodes, rails): bytes/s of the rail there, 0.0 without.
    """

    topology: Topology
    order: Int64
    gateway: Int64
    rate: Float64

    @property
    def m(self) -> int:
        """Number of nodes."""
        return int(self.order.size)

    @property
    def G(self) -> int:
        """Ranks of a node."""
        return int(self.topology.ranks_per_node)

    @property
    def rails(self) -> int:
        """Rails of the machine."""
        return int(self.gateway.shape[1])

    @cached_property
    def node_rate(self) -> Float64:
        """Bytes/s out of each node, and into it, (nodes,)."""
        return np.asarray(self.rate.sum(axis=1), np.float64)

    @cached_property
    def inside_rate(self) -> float:
        """Bytes/s that every rank can send to others of its node at least."""
        t = self.topology
        out = np.bincount(t.link_src[t.gpu_links], t.link_bandwidth[t.gpu_links], len(t.vertex_name))
        return float(out[t.rank_vertex].min())

    def turns(self, a: int, b: int) -> Int64:
        """The rails that what goes from node a to node b takes in turn, (`_PATTERN`,), as often as both ends carry."""
        return turns_of(np.minimum(self.rate[a], self.rate[b]))

    def alike(self, nodes: Sequence[int]) -> bool:
        """Whether these nodes have the same rails of one rate each: then rail r has every r-th turn."""
        rate = self.rate[list(nodes)]
        return bool((rate == rate[0, 0]).all())

    def ways(self, src: Int64, dst: Int64, rail: Int64) -> tuple[Int64, list[tuple[int, ...]]]:
        """(place, ways): links from ranks to ranks, over a rail between nodes (-1 in a node); equal ways once."""
        table = self.topology.routes(src, dst, rail)
        bounds = table.ptr.tolist()
        link = table.link.tolist()
        return table.index.astype(np.int64), [tuple(link[a:b]) for a, b in pairwise(bounds)]


_kept: dict[tuple[float, ...], Int64] = {}


def turns_of(share: Float64) -> Int64:
    """Rails in turn, each at any time as often as its share asks for (the k-th turn of n at k / n)."""
    rate = tuple(share.tolist())
    if rate not in _kept:
        if not share.any():
            raise InfeasibleError("two nodes have no rail in common: a plan by levels needs one")
        wanted = share / share.sum() * _PATTERN
        count = np.floor(wanted).astype(np.int64)
        count[np.argsort(count - wanted, kind="stable")[: _PATTERN - int(count.sum())]] += 1
        rail = np.repeat(np.arange(count.size), count)
        place = np.arange(_PATTERN) - np.repeat(np.cumsum(count) - count, count)
        _kept[rate] = rail[np.argsort((place + 0.5) / count[rail], kind="stable")]
    return _kept[rate]


def levels_of(topology: Topology) -> Levels:
    """The levels of a machine; InfeasibleError says why it has none: one node, or nodes of unlike size."""
    t = topology
    if t.nodes < 2 or t.fabric_routes is None:
        raise InfeasibleError(f"{t.name}: a plan by levels needs two nodes or more, found {t.nodes}")
    sizes = np.diff(t.node_first_rank)
    if (sizes != sizes[0]).any():
        raise InfeasibleError(
            f"{t.name}: a plan by levels needs nodes of one size, found {sorted(set(sizes.tolist()))}"
        )
    gateway = np.full((t.nodes, t.most_nics), -1, np.int64)
    for i, group in enumerate(t.groups):
        kinds = group.node_routes.gpu_nic_type  # nearest first
        hops = (group.node_routes.gpu_nic >= 0).sum(axis=2)
        nearest = np.lexsort((np.broadcast_to(np.arange(kinds.shape[0])[:, None], kinds.shape), hops, kinds), axis=0)[0]
        gateway[t.node_group == i, : group.nics_per_node] = nearest
    gateway[~t.usable_nics] = -1
    port = np.where(gateway >= 0, t.link_bandwidth[t.fabric.port_up], 0.0)
    rate = np.minimum(port, np.where(gateway >= 0, nic_pcie_bandwidth(t), 0.0))
    leaf = np.where(t.usable_nics, t.fabric.leaf, -1)
    order = np.lexsort(np.vstack([np.arange(t.nodes)[None, :], leaf.max(axis=1)[None, :]]))
    return Levels(t, order.astype(np.int64), gateway, rate)
