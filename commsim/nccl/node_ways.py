"""The ways between the nodes of a communicator: what their channels get of NICs and fabric, and how long they are.

A hop of NCCL is a parameter of the network (`NetworkParameters.ring_hop`), measured over ordinary links and holding
their latencies. A fault or a long line may make the links of a way slower than that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from commsim.nccl.communicator import Comm
from commsim.nccl.pools import MESHES
from commsim.nccl.system import Graph
from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, Int64

if TYPE_CHECKING:
    from commsim.nccl.streams import Streams

ROUNDING = 1e-9
"""Shares that are nearer to one are one."""


@dataclass(frozen=True, eq=False)
class Edges:
    """Pairs of nodes of which the first sends to the second, both (edges,), and what their channels get of the NICs."""

    src: Int64
    dst: Int64
    streams: Streams | None  # None: all they could take

    def share(self, channels: int) -> tuple[Float64, Int64]:
        """What a channel of so many gets on each edge, of what its NICs could give it, and the link that limits it."""
        if self.streams is None:
            return np.ones(self.src.size), np.full(self.src.size, -1, np.int64)
        return self.streams.of(channels)


@dataclass(frozen=True, eq=False)
class NodeWays:
    """The ways between the nodes of a communicator, by the graphs of each kind of node."""

    comm: Comm
    rings: tuple[Graph, ...]
    tree_graphs: tuple[Graph, ...]
    own_nics: tuple[tuple[int, ...] | None, ...]  # of each kind those by which its ranks send; None: all that work
    known: tuple[Edges, Float64] | None = None  # `trees` and `ports`, where they are not those of the machine's ways

    @property
    def count(self) -> int:
        """Number of nodes."""
        return int(self.comm.nodes.size)

    @cached_property
    def ring(self) -> Edges:
        """Each node to the next, the last to the first."""
        src = np.arange(self.count)
        return self._edges(src, np.roll(src, -1), self.rings)

    @cached_property
    def trees(self) -> Edges:
        """Each node to its parent in both trees, then each parent to its child."""
        if self.known is not None:
            return self.known[0]
        return self._edges(*self.tree_ends, self.tree_graphs, trees=True)

    @property
    def tree_ends(self) -> tuple[Int64, Int64]:
        """The nodes that send and receive on each edge of `trees`."""
        from commsim.collectives.tree import double_binary_tree

        both = double_binary_tree(self.count).parent
        child = np.concatenate([np.flatnonzero(parent >= 0) for parent in both])
        above = np.concatenate([parent[parent >= 0] for parent in both]).astype(np.int64)
        return np.concatenate([child, above]), np.concatenate([above, child])

    @cached_property
    def longest_s(self) -> float:
        """Seconds that the links between two NICs never exceed."""
        return longest_s(self.comm.topology) if self.count > 1 else 0.0

    def ring_s(self, channels: int) -> Float64:
        """Seconds of the links on the longest way of so many channels from each node to the next, (M,)."""
        return np.asarray(self._ring_s[:, : max(1, channels)].max(axis=1))

    def farthest_s(self, channels: int) -> float:
        """The same over all edges of the trees."""
        return float(self._tree_s[:, : max(1, channels)].max(initial=0.0))

    @cached_property
    def peers_s(self) -> float:
        """The same on the longest way between the first node and another, on any rail."""
        first, others = np.zeros(self.count - 1, np.int64), np.arange(1, self.count)
        both = ((first, others), (others, first))
        return max(float(between_s(self.comm, self.rings, *ends).max(initial=0.0)) for ends in both)

    @cached_property
    def _ring_s(self) -> Float64:
        return between_s(self.comm, self.rings, self.ring.src, self.ring.dst)

    @cached_property
    def _tree_s(self) -> Float64:
        return between_s(self.comm, self.tree_graphs, *self.tree_ends)

    @cached_property
    def edge_tree(self) -> Int64:
        """The tree of each edge of `trees`, 0 or 1."""
        return np.tile(np.repeat([0, 1], self.count - 1), 2)

    @cached_property
    def tree_traffic(self) -> Float64:
        """Bytes that each node sends, and receives, by byte of a call over the double tree, (M,).

        Over two nodes every byte goes once; over more a node with a parent and two children in one tree is a leaf of
        the other, and sends twice as much; of three nodes none has two children (src/graph/trees.cc).
        """
        return np.asarray(np.bincount(self.trees.src, minlength=self.count) / 2)

    @cached_property
    def ports(self) -> Float64:
        """Of each node the least share of its nominal rate that one of its NICs in use has, (M,)."""
        if self.known is not None:
            return self.known[1]
        return np.asarray(np.minimum(1.0, self._nics.min(axis=1)))

    def slowest_port(self) -> int:
        """The link out of the NIC whose share of its nominal rate is least."""
        node, nic = np.unravel_index(int(self._nics.argmin()), self._nics.shape)
        return int(self.comm.topology.fabric.port_up[self.comm.nodes[node], nic])

    @cached_property
    def _nics(self) -> Float64:
        """What each NIC has of its nominal rate, (M, NICs); infinite where it cannot be used, or is not."""
        t, nodes = self.comm.topology, self.comm.nodes
        if self.comm.plain or self.count < 2:
            return np.ones((self.count, 1))
        up, down = t.fabric.port_up[nodes], t.fabric.port_down[nodes]
        rate = np.minimum(t.link_bandwidth[up], t.link_bandwidth[down])
        nominal = np.array([g.nic_bandwidth for g in t.groups])[t.node_group[nodes]]
        used = np.ones((len(self.comm.kinds), rate.shape[1]), bool)
        for k, nics in enumerate(self.used_nics):
            if nics is not None:
                used[k] = np.isin(np.arange(rate.shape[1]), nics)
        return np.where(t.usable_nics[nodes] & used[self.comm.kind], rate / nominal[:, None], inf)

    @cached_property
    def used_nics(self) -> tuple[tuple[int, ...] | None, ...]:
        """Of each kind of node the NICs that its channels and its ranks take; None: all that work.

        A node some GPUs of which have no rank uses those beside the others.
        """
        out: list[tuple[int, ...] | None] = []
        for own, *graphs in zip(self.own_nics, self.rings, self.tree_graphs, strict=True):
            nics = {nic for graph in graphs for both in graph.nics for nic in both}
            out.append(None if own is None else tuple(sorted(nics | set(own))))
        return tuple(out)

    def _edges(self, src: Int64, dst: Int64, graphs: tuple[Graph, ...], *, trees: bool = False) -> Edges:
        """These edges with their streams; of a plain machine on trees only where a way leaves its leaf switch.

        A mesh of routers, such as a torus, has its cut instead (`Machine.cut`) where its nodes are alike.
        """
        comm, shared = self.comm, np.ones(src.size, bool)
        if comm.plain and comm.topology.nodes > 1:
            shared &= comm.topology.kind not in MESHES
            shared &= (comm.topology.fabric.leaf[src] != comm.topology.fabric.leaf[dst]).any(axis=1)
        if self.count < 2 or not shared.any():
            return Edges(src, dst, None)
        from commsim.nccl.streams import Streams, streams

        meeting = np.maximum(np.bincount(src)[src], np.bincount(dst)[dst])[shared] if trees else None
        between = streams(comm, graphs, src[shared], dst[shared], meeting)
        if shared.all():
            return Edges(src, dst, between)
        share = np.ones((src.size, between.share.shape[1]))
        link = np.full(share.shape, -1, np.int64)
        share[shared], link[shared] = between.share, between.link
        return Edges(src, dst, Streams(share, link))


def inside_s(topology: Topology) -> tuple[float, float]:
    """Seconds of the links on the longest way between two GPUs of the first node, and from a GPU to a NIC and back."""
    routes = topology.groups[int(topology.node_group[0])].node_routes
    own = topology.link_latency[int(topology.node_first_link[0]) :]
    tables = routes.gpu_gpu, routes.gpu_nic, routes.nic_gpu
    way, out, back = (
        float(np.where(table >= 0, own[np.maximum(table, 0)], 0.0).sum(axis=-1).max(initial=0.0)) for table in tables
    )
    return way, out + back


def longest_s(topology: Topology) -> float:
    """Seconds that the links between two NICs never exceed."""
    t = topology
    if t.nodes < 2:
        return 0.0
    first, last = np.zeros(1, np.int64), np.array([t.nodes - 1])
    hops = 2 + t.fabric.between(first, first, last, first).shape[1]
    return float(hops * t.link_latency[int(t.node_first_link[-1]) :].max())


def between_s(comm: Comm, graphs: tuple[Graph, ...], src: Int64, dst: Int64) -> Float64:
    """Seconds of the links from NIC to NIC on the way of each channel over each edge, (edges, channels)."""
    from commsim.nccl.streams import stream_ways

    ways = stream_ways(comm, graphs, src, dst)
    each = np.where(ways.links >= 0, comm.topology.link_latency[np.maximum(ways.links, 0)], 0.0).sum(axis=1)
    return np.asarray(each[ways.of])
