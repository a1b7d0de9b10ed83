"""The frozen topology: vertices and links as NumPy columns, and the links between any two ranks.

What it is not: it holds no protocol cost and no collective. A link's bandwidth and latency are those of the
wire (or of the PCIe path as NCCL counts it); what NCCL pays on top belongs to the NCCL model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from commsim.errors import TopologyError
from commsim.topology.kinds import (
    Bool,
    Cpu,
    Float64,
    Gpu,
    Int32,
    Int64,
    LinkKind,
    PathType,
    RouteTable,
    UInt8,
    VertexKind,
)

if TYPE_CHECKING:
    from commsim.topology.detour import SwitchSearch
    from commsim.topology.fabric_routes import FabricRoutes
    from commsim.topology.node_routes import NodeRoutes

__all__ = ["Cpu", "Gpu", "LinkKind", "NodeGroup", "PathType", "RouteTable", "Topology", "VertexKind"]

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class NodeGroup:
    """Nodes that are alike: what one of them is, its number of vertices, and the routes inside it.

    ``nic_bandwidth`` is of one NIC, one direction, 0.0 without NICs; ``nvlink_links`` per GPU.
    """

    gpu: Gpu
    cpu: Cpu
    ranks_per_node: int
    nics_per_node: int
    nic_bandwidth: float
    has_nvswitch: bool
    nvlink_links: int
    nvlink_link_bandwidth: float
    vertices: int
    node_routes: NodeRoutes

    @property
    def links(self) -> int:
        """Number of links inside one node of the group, each direction counted."""
        return self.node_routes.links


@dataclass(frozen=True, eq=False)
class Topology:
    """A machine as directed links between vertices; the reverse of a link is a link of its own.

    Bandwidths are bytes/s in one direction, latencies seconds. V vertices, L links, `world_size` ranks, numbered
    node by node. ``vertex_node`` is -1 for the fabric. ``node_group`` (nodes,) says which of ``groups`` a node
    belongs to. Figures of a node (`gpu`, `ranks_per_node`, ...) are those that all nodes share; where nodes differ,
    TopologyError says so, and `group_of` has the figures of one rank's node. Links that have failed keep their
    number: they are marked in ``link_failed`` (L,), and no route takes them. ``in_network_reduction``: whether the
    switches of the fabric add (SHARP); ``adaptive_routing``: whether they route packets adaptively.
    ``plugin``: NCCL's network plugin on the machine (`FabricSpec.plugin`).
    """

    name: str
    groups: tuple[NodeGroup, ...]
    node_group: Int32
    network: str
    plugin: str
    in_network_reduction: bool
    adaptive_routing: bool
    kind: str
    routing: str
    oversubscription: float
    nodes_per_leaf: int
    vertex_name: tuple[str, ...]
    vertex_kind: UInt8
    vertex_node: Int32
    link_src: Int32
    link_dst: Int32
    link_bandwidth: Float64
    link_latency: Float64
    link_kind: UInt8
    rank_vertex: Int32
    fabric_routes: FabricRoutes | None
    link_failed: Bool | None = None

    # -- nodes ---------------------------------

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.node_group.size)

    @property
    def world_size(self) -> int:
        """Number of ranks, one per GPU."""
        return int(self.rank_vertex.size)

    @property
    def uniform(self) -> bool:
        """Whether all nodes are alike."""
        return len(self.groups) == 1

    @property
    def gpu(self) -> Gpu:
        """The GPU of every rank."""
        return self._alike([g.gpu for g in self.groups], "gpu")

    @property
    def cpu(self) -> Cpu:
        """The host CPU of every node."""
        return self._alike([g.cpu for g in self.groups], "cpu")

    @property
    def ranks_per_node(self) -> int:
        """Ranks of every node; rank r is local rank ``r % ranks_per_node`` of node ``r // ranks_per_node``."""
        return self._alike([g.ranks_per_node for g in self.groups], "ranks_per_node")

    @property
    def nics_per_node(self) -> int:
        """NICs of every node."""
        return self._alike([g.nics_per_node for g in self.groups], "nics_per_node")

    @property
    def nic_bandwidth(self) -> float:
        """Bytes/s of one NIC, one direction; 0.0 when there is none."""
        return self._alike([g.nic_bandwidth for g in self.groups], "nic_bandwidth")

    @property
    def has_nvswitch(self) -> bool:
        """Whether the GPUs of a node meet in NVSwitches."""
        return self._alike([g.has_nvswitch for g in self.groups], "has_nvswitch")

    @property
    def nvlink_links(self) -> int:
        """NVLinks of one GPU."""
        return self._alike([g.nvlink_links for g in self.groups], "nvlink_links")

    @property
    def nvlink_link_bandwidth(self) -> float:
        """Bytes/s of one NVLink, one direction."""
        return self._alike([g.nvlink_link_bandwidth for g in self.groups], "nvlink_link_bandwidth")

    @property
    def node_routes(self) -> NodeRoutes:
        """The routes inside node 0, whose links all nodes share the numbering of."""
        self._alike([(g.links, g.ranks_per_node, g.nics_per_node) for g in self.groups], "node_routes")
        return self.groups[int(self.node_group[0])].node_routes

    def _alike(self, values: list[T], figure: str) -> T:
        if all(v == values[0] for v in values[1:]):
            return values[0]
        shown = [getattr(v, "model", v) for v in dict.fromkeys(values)]
        if len(set(shown)) == 1:  # the same model, told apart by something else
            shown = list(dict.fromkeys(values))
        raise TopologyError(
            f"{self.name}: the nodes differ in {figure}: {', '.join(map(str, shown))}; "
            "what is asked for needs nodes that are alike"
        )

    @property
    def most_nics(self) -> int:
        """NICs of the node that has most of them."""
        return max(g.nics_per_node for g in self.groups)

    @property
    def keeps_rails(self) -> bool:
        """Whether messages change rails inside a node, over NVLink, and never in the fabric."""
        return self.kind == "rail_only" or self.routing == "rail"

    @cached_property
    def nics_of_nodes(self) -> Int64:
        """Number of NICs of each node, (nodes,)."""
        return np.array([g.nics_per_node for g in self.groups], dtype=np.int64)[self.node_group]

    @cached_property
    def usable_nics(self) -> Bool:
        """Whether a node has a NIC of an index, with a port that works and a path to its GPUs, (nodes, most NICs)."""
        fabric = self.fabric_routes
        if fabric is None:
            return np.arange(self.most_nics)[None, :] < self.nics_of_nodes[:, None]
        up = fabric.port_up >= 0
        if self.link_failed is not None:
            up = up & ~self.link_failed[fabric.port_up] & ~self.link_failed[fabric.port_down]
        reached = np.zeros((len(self.groups), self.most_nics), dtype=bool)
        for i, g in enumerate(self.groups):
            reached[i, : g.nics_per_node] = (g.node_routes.gpu_nic_type < PathType.DIS).all(axis=0)
        return np.asarray(up & reached[self.node_group])

    @cached_property
    def gpu_links(self) -> Bool:
        """Whether some route between two GPUs of one node takes a link, (L,); of every node by its own routes."""
        taken = np.zeros(len(self.link_src), dtype=bool)
        for i, g in enumerate(self.groups):
            links = np.unique(g.node_routes.gpu_gpu)
            first = self.node_first_link[:-1][self.node_group == i]
            taken[(first[:, None] + links[links >= 0][None, :]).ravel()] = True
        return taken

    @cached_property
    def switch_search(self) -> SwitchSearch:
        """Searches over the surviving links between switches, kept for the next."""
        from commsim.topology.detour import SwitchSearch

        return SwitchSearch(self)

    @cached_property
    def node_first_rank(self) -> Int64:
        """First rank of each node, and the world size, (nodes + 1,)."""
        return self._node_starts([g.ranks_per_node for g in self.groups])

    @cached_property
    def node_first_link(self) -> Int64:
        """First link inside each node, and the first link of the fabric, (nodes + 1,)."""
        return self._node_starts([g.links for g in self.groups])

    @cached_property
    def node_first_vertex(self) -> Int64:
        """First vertex of each node, and the first of the fabric, (nodes + 1,)."""
        return self._node_starts([g.vertices for g in self.groups])

    def _node_starts(self, sizes: list[int]) -> Int64:
        return np.concatenate([[0], np.cumsum(np.array(sizes, dtype=np.int64)[self.node_group])])

    @cached_property
    def rank_node(self) -> Int32:
        """The node of each rank, (world_size,)."""
        return self.vertex_node[self.rank_vertex]

    def node_of(self, rank: int) -> int:
        """The node that holds a rank."""
        return int(self.rank_node[self._checked(rank)])

    def group_of(self, rank: int) -> NodeGroup:
        """The figures of the node that holds a rank."""
        return self.groups[int(self.node_group[self.node_of(rank)])]

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.world_size:
            raise TopologyError(f"{self.name}: rank {rank} is not one of the {self.world_size} ranks")
        return int(rank)

    def _local(self, rank: int) -> int:
        return int(self._checked(rank) - self.node_first_rank[self.rank_node[rank]])

    # -- routes ---------------------------------

    def route(self, src_rank: int, dst_rank: int, nic: int | None = None) -> Int32:
        """The link ids from one rank's GPU to another's, in order; empty from a rank to itself.

        Between nodes the route leaves through NIC `nic` and enters through the NIC of the same index, so it stays
        on its rail. Default: the NIC nearest to the source GPU; with ``routing: rail``, to the destination GPU.
        """
        self._checked(src_rank)
        self._checked(dst_rank)
        return self.routes(np.array([src_rank]), np.array([dst_rank]), nic).link

    def routes(self, src: npt.ArrayLike, dst: npt.ArrayLike, nic: npt.ArrayLike | None = None) -> RouteTable:
        """The routes of many (src, dst) pairs at once; equal pairs share one route.

        `nic` is a NIC index for all pairs or one per pair (-1: the nearest), and counts between nodes only.
        """
        from commsim.topology.routing import route_table

        return route_table(self, src, dst, nic)

    def nearest_nic(self, rank: int) -> int:
        """The index within its node of the NIC that a rank's GPU reaches over the shortest PCIe path."""
        if not self.group_of(rank).nics_per_node:
            raise TopologyError(f"{self.name}: the nodes have no NIC")
        return int(self.group_of(rank).node_routes.nearest_nic[self._local(rank)])

    def path_type(self, a: int, b: int) -> str:
        """NCCL's name of the path between two ranks: LOC, NVL, NVB, C2C, PIX, PXB, PHB, SYS or NET."""
        if self.node_of(a) != self.node_of(b):
            return PathType.NET.name
        return PathType(int(self.group_of(a).node_routes.gpu_gpu_type[self._local(a), self._local(b)])).name

    def nic_path_type(self, rank: int, nic: int) -> str:
        """NCCL's name of the path from a rank's GPU to a NIC of its node: PIX, PXB, P2C, PXN, PHB or SYS."""
        group = self.group_of(rank)
        if not 0 <= nic < group.nics_per_node:
            raise TopologyError(f"{self.name}: NIC {nic} is not one of the {group.nics_per_node} NICs of a node")
        return PathType(int(group.node_routes.gpu_nic_type[self._local(rank), nic])).name

    def pair_links(self, a: int, b: int) -> int:
        """Number of NVLinks directly between two GPUs of a node; 0 if none, or if they meet in a switch."""
        group = self.group_of(a)
        if self.node_of(a) != self.node_of(b) or not group.nvlink_links:
            return 0
        src, dst = self.rank_vertex[[self._checked(a), self._checked(b)]]
        inside = slice(*self.node_first_link[[self.node_of(a), self.node_of(a) + 1]])
        direct = (self.link_src[inside] == src) & (self.link_dst[inside] == dst)
        direct &= self.link_kind[inside] == LinkKind.NVLINK
        if self.link_failed is not None:
            direct &= ~self.link_failed[inside]
        return round(float(self.link_bandwidth[inside][direct].sum()) / group.nvlink_link_bandwidth)

    # -- figures ---------------------------------

    def bisection_bandwidth(self) -> float:
        """Bytes/s, one direction, that the GPUs of one half of the machine can send to those of the other at once.

        For several nodes the halves are the first and the second half of the nodes (the cut that shares the
        fewest leaves); for one node the worst halving of the GPUs, beyond 8 that into first and second half, over
        NVLink alone where it joins them all. Infinite for a single rank, which no cut divides.
        """
        return self._bisection

    @cached_property
    def _bisection(self) -> float:
        from commsim.topology.bisection import fabric_bisection, node_bisection

        if self.world_size == 1:
            return math.inf
        return node_bisection(self) if self.nodes == 1 else fabric_bisection(self)

    def link_summary(self) -> list[tuple[str, str, int, float, float]]:
        """Rows (kind, ends, directed links, bytes/s of one, seconds of one), one per sort of link."""
        kind_of = self.vertex_kind
        low, high = np.sort(np.stack([kind_of[self.link_src], kind_of[self.link_dst]]), axis=0)
        columns = (self.link_kind, low, high, self.link_bandwidth, self.link_latency)
        # One number per row in place of five: numpy sorts whole rows twenty times as slowly.
        key = np.zeros(len(self.link_src), dtype=np.int64)
        for column in columns:
            values, index = np.unique(column, return_inverse=True)
            key = np.unique(key * len(values) + index.reshape(-1), return_inverse=True)[1].reshape(-1)
        _, first, counts = np.unique(key, return_index=True, return_counts=True)
        return [
            (
                LinkKind(int(self.link_kind[i])).name,
                f"{VertexKind(int(low[i])).name}-{VertexKind(int(high[i])).name}",
                int(count),
                float(self.link_bandwidth[i]),
                float(self.link_latency[i]),
            )
            for i, count in zip(first, counts, strict=True)
        ]

    @property
    def nbytes(self) -> int:
        """Bytes that the topology holds: columns, names and route tables."""
        from commsim.topology.memory import held_bytes

        return held_bytes(self)

    # -- symmetry ---------------------------------

    @cached_property
    def period_ranks(self) -> int | None:
        """The smallest shift of all ranks (r to ``(r + P) % world_size``) that maps links and routes onto themselves.

        None where no shift by less than the world size does: an incomplete leaf group, a degraded link, static
        routes. Inside one node only links that routes between its ranks take are looked at.
        """
        from commsim.topology.symmetry import smallest_period

        return smallest_period(self)

    @property
    def period_image(self) -> Int32 | None:
        """`link_image` of one period, (L,); None without a period."""
        return None if self.period_ranks is None else self.link_image(self.period_ranks)

    def link_image(self, shift: int) -> Int32:
        """The link that each link becomes when all ranks are shifted by `shift`, a multiple of the period, (L,).

        ``route((a + shift) % n, (b + shift) % n)`` is ``link_image(shift)[route(a, b)]``.
        """
        from commsim.topology.symmetry import link_image

        period = self.period_ranks
        if shift % self.world_size and (period is None or shift % period):
            raise TopologyError(f"{self.name}: a shift of {shift} ranks is no multiple of the period, {period}")
        return link_image(self, shift)

    # -- other forms ---------------------------------

    def scaled(self, bandwidth: float = 1, latency: float = 1) -> Topology:
        """The same machine with every bandwidth and every latency multiplied by a factor."""
        if not (bandwidth > 0 and math.isfinite(bandwidth) and latency >= 0 and math.isfinite(latency)):
            raise TopologyError(f"found scale factors {bandwidth} and {latency}, expected finite and positive ones")
        groups = [
            replace(
                g,
                nic_bandwidth=g.nic_bandwidth * bandwidth,
                nvlink_link_bandwidth=g.nvlink_link_bandwidth * bandwidth,
            )
            for g in self.groups
        ]
        return replace(
            self,
            groups=tuple(groups),
            link_bandwidth=self.link_bandwidth * bandwidth,
            link_latency=self.link_latency * latency,
        )

    def to_networkx(self, nodes: Sequence[int] | None = None) -> Any:
        """A networkx DiGraph of vertices (by name) and links; `nodes` keeps these nodes and the fabric.

        Links that have failed are left out.
        """
        import networkx as nx

        graph: Any = nx.DiGraph(name=self.name)
        keep = np.ones(len(self.vertex_name), dtype=bool)
        if nodes is not None:
            keep = np.isin(self.vertex_node, [*nodes, -1])
        for v in np.flatnonzero(keep):
            kind = VertexKind(int(self.vertex_kind[v]))
            graph.add_node(self.vertex_name[v], kind=kind, node=int(self.vertex_node[v]))
        up = keep[self.link_src] & keep[self.link_dst]
        for i in np.flatnonzero(up if self.link_failed is None else up & ~self.link_failed):
            graph.add_edge(
                self.vertex_name[self.link_src[i]],
                self.vertex_name[self.link_dst[i]],
                link=int(i),
                kind=LinkKind(int(self.link_kind[i])),
                bandwidth=float(self.link_bandwidth[i]),
                latency=float(self.link_latency[i]),
            )
        return graph
