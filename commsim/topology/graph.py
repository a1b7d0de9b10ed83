"""The frozen topology: vertices and links as NumPy columns, and the links between any two ranks.

What it is not: it holds no protocol cost and no collective. A link's bandwidth and latency are those of the
wire (or of the PCIe path as NCCL counts it); what NCCL pays on top belongs to the NCCL model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commsim.errors import TopologyError

if TYPE_CHECKING:
    from commsim.topology.routing import FabricRoutes, NodeRoutes

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float64 = npt.NDArray[np.float64]
UInt8 = npt.NDArray[np.uint8]


class VertexKind(IntEnum):
    """What a vertex is."""

    GPU = 0
    NVSWITCH = 1
    PCIE_SWITCH = 2
    HOST = 3
    NIC = 4
    SWITCH = 5


class LinkKind(IntEnum):
    """What a link is; HOST joins two CPU sockets, NETWORK a NIC and its leaf, FABRIC a leaf and a spine."""

    NVLINK = 0
    C2C = 1
    PCIE = 2
    HOST = 3
    NETWORK = 4
    FABRIC = 5


class PathType(IntEnum):
    """NCCL's path types, nearest first (NCCL 2.30.7 src/include/graph.h:117-154)."""

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    NET = 10
    DIS = 11


@dataclass(frozen=True)
class Gpu:
    """A GPU model: marketing name, generation ("volta" ... "blackwell") and compute capability times ten."""

    model: str
    generation: str
    sm: int


@dataclass(frozen=True)
class Cpu:
    """A host CPU: arch "x86_64", "arm64" or "ppc64"; vendor "intel", "amd", "arm" or "ibm"; model."""

    arch: str
    vendor: str
    model: str


@dataclass(frozen=True, eq=False)
class RouteTable:
    """Deduplicated routes: pair k takes the links ``link[ptr[index[k]]:ptr[index[k] + 1]]``."""

    ptr: Int64
    link: Int32
    index: Int32

    def links(self, pair: int) -> Int32:
        """The link ids of one asked pair, in the order a message crosses them."""
        route = self.index[pair]
        return self.link[self.ptr[route] : self.ptr[route + 1]]


@dataclass(frozen=True, eq=False)
class Topology:
    """A machine as directed links between vertices; the reverse of a link is a link of its own.

    Bandwidths are bytes/s in one direction, latencies seconds. V vertices, L links, `world_size` ranks; rank
    r is local rank ``r % ranks_per_node`` of node ``r // ranks_per_node``. ``vertex_node`` is -1 for the
    fabric.
    """

    name: str
    gpu: Gpu
    cpu: Cpu
    nodes: int
    ranks_per_node: int
    nics_per_node: int
    nic_bandwidth: float
    network: str
    has_nvswitch: bool
    nvlink_links: int
    nvlink_link_bandwidth: float
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
    node_routes: NodeRoutes
    fabric_routes: FabricRoutes | None

    @property
    def world_size(self) -> int:
        """Number of ranks, one per GPU."""
        return self.nodes * self.ranks_per_node

    def node_of(self, rank: int) -> int:
        """The node that holds a rank."""
        return self._checked(rank) // self.ranks_per_node

    def _checked(self, rank: int) -> int:
        if not 0 <= rank < self.world_size:
            raise TopologyError(f"{self.name}: rank {rank} is not one of the {self.world_size} ranks")
        return int(rank)

    def _local(self, rank: int) -> int:
        return self._checked(rank) % self.ranks_per_node

    # -- routes ---------------------------------

    def route(self, src_rank: int, dst_rank: int, nic: int | None = None) -> Int32:
        """The link ids from one rank's GPU to another's, in order; empty from a rank to itself.

        Between nodes the route leaves through NIC `nic` (default: the nearest to the source GPU) and enters
        through the NIC of the same index, so it stays on its rail.
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
        if not self.nics_per_node:
            raise TopologyError(f"{self.name}: the nodes have no NIC")
        return int(self.node_routes.nearest_nic[self._local(rank)])

    def path_type(self, a: int, b: int) -> str:
        """NCCL's name of the path between two ranks: LOC, NVL, NVB, C2C, PIX, PXB, PHB, SYS or NET."""
        if self.node_of(a) != self.node_of(b):
            return PathType.NET.name
        return PathType(int(self.node_routes.gpu_gpu_type[self._local(a), self._local(b)])).name

    def nic_path_type(self, rank: int, nic: int) -> str:
        """NCCL's name of the path from a rank's GPU to a NIC of its node: PIX, PXB, P2C, PXN, PHB or SYS."""
        if not 0 <= nic < self.nics_per_node:
            raise TopologyError(f"{self.name}: NIC {nic} is not one of the {self.nics_per_node} NICs of a node")
        return PathType(int(self.node_routes.gpu_nic_type[self._local(rank), nic])).name

    def pair_links(self, a: int, b: int) -> int:
        """Number of NVLinks directly between two GPUs of a node; 0 if none, or if they meet in a switch."""
        if self.node_of(a) != self.node_of(b) or not self.nvlink_links:
            return 0
        src, dst = self.rank_vertex[[self._checked(a), self._checked(b)]]
        direct = (self.link_src == src) & (self.link_dst == dst) & (self.link_kind == LinkKind.NVLINK)
        return round(float(self.link_bandwidth[direct].sum()) / self.nvlink_link_bandwidth)

    # -- figures ---------------------------------

    def bisection_bandwidth(self) -> float:
        """Bytes/s, one direction, between two halves of the machine: of its nodes, or of one node's GPUs.

        For several nodes the halves are the first and the second half of the nodes (the cut that shares the
        fewest leaves); for one node the worst halving of the GPUs. Infinite for a single rank, which no cut
        divides.
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
        rows: dict[tuple[int, int, int, float, float], int] = {}
        ends = np.sort(np.stack([kind_of[self.link_src], kind_of[self.link_dst]], axis=1), axis=1)
        columns = np.column_stack([self.link_kind, ends, self.link_bandwidth, self.link_latency])
        distinct, counts = np.unique(columns, axis=0, return_counts=True)
        for (kind, a, b, bandwidth, latency), count in zip(distinct.tolist(), counts.tolist(), strict=True):
            rows[(int(kind), int(a), int(b), bandwidth, latency)] = count
        return [
            (LinkKind(kind).name, f"{VertexKind(a).name}-{VertexKind(b).name}", count, bandwidth, latency)
            for (kind, a, b, bandwidth, latency), count in rows.items()
        ]

    # -- other forms ---------------------------------

    def scaled(self, bandwidth: float = 1, latency: float = 1) -> Topology:
        """The same machine with every bandwidth and every latency multiplied by a factor."""
        if not (bandwidth > 0 and math.isfinite(bandwidth) and latency >= 0 and math.isfinite(latency)):
            raise TopologyError(f"found scale factors {bandwidth} and {latency}, expected finite and positive ones")
        return replace(
            self,
            nic_bandwidth=self.nic_bandwidth * bandwidth,
            nvlink_link_bandwidth=self.nvlink_link_bandwidth * bandwidth,
            link_bandwidth=self.link_bandwidth * bandwidth,
            link_latency=self.link_latency * latency,
        )

    def to_networkx(self, nodes: Sequence[int] | None = None) -> Any:
        """A networkx DiGraph of vertices (by name) and links; `nodes` keeps these nodes and the fabric."""
        import networkx as nx

        graph: Any = nx.DiGraph(name=self.name)
        keep = np.ones(len(self.vertex_name), dtype=bool)
        if nodes is not None:
            keep = np.isin(self.vertex_node, [*nodes, -1])
        for v in np.flatnonzero(keep):
            kind = VertexKind(int(self.vertex_kind[v]))
            graph.add_node(self.vertex_name[v], kind=kind, node=int(self.vertex_node[v]))
        for i in np.flatnonzero(keep[self.link_src] & keep[self.link_dst]):
            graph.add_edge(
                self.vertex_name[self.link_src[i]],
                self.vertex_name[self.link_dst[i]],
                link=int(i),
                kind=LinkKind(int(self.link_kind[i])),
                bandwidth=float(self.link_bandwidth[i]),
                latency=float(self.link_latency[i]),
            )
        return graph
