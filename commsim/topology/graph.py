"""The topology of a machine: its columns, and what is asked of them: routes, path types, bisection, symmetry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from sys import getsizeof
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.errors import TopologyError
from commsim.topology.bisection import fabric_bisection, node_bisection
from commsim.topology.columns import NodeGroup, TopologyColumns, VertexNames
from commsim.topology.kinds import Cpu, Gpu, Int32, LinkKind, PathType, RouteTable, VertexKind
from commsim.topology.routing import route_table

__all__ = ["Cpu", "Gpu", "LinkKind", "NodeGroup", "PathType", "RouteTable", "Topology", "VertexKind"]


class Topology(TopologyColumns):
    """A machine as `TopologyColumns` say, with the routes between its ranks."""

    # -- routes ---------------------------------

    def route(self, src_rank: int, dst_rank: int, nic: int | None = None) -> Int32:
        """The link ids from one rank's GPU to another's, in order; empty from a rank to itself.

        Between nodes the route leaves through NIC `nic` and enters through the NIC of the same index, so it stays
        on its rail. Default: the NIC nearest to the source GPU; with ``routing: rail``, to the destination GPU.
        """
        self._checked(src_rank)
        self._checked(dst_rank)
        return self.routes(np.array([src_rank]), np.array([dst_rank]), nic).link

    def routes(
        self,
        src: npt.ArrayLike,
        dst: npt.ArrayLike,
        nic: npt.ArrayLike | None = None,
        flowlet: npt.ArrayLike = 0,
    ) -> RouteTable:
        """The routes of many (src, dst) pairs at once; equal pairs share one route.

        `nic` is a NIC index for all pairs or one per pair (-1: the nearest), and counts between nodes only; so does
        `flowlet`, the number of a pair's flowlet where each draws a path (`draws_flowlets`).
        """
        return route_table(self, src, dst, nic, flowlet)

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
        direct &= (self.link_kind[inside] == LinkKind.NVLINK) & self.works[inside]
        return round(float(self.link_bandwidth[inside][direct].sum()) / group.nvlink_link_bandwidth)

    def link_name(self, link: int) -> str:
        """A link's ends by name, such as ``node0.gpu0 -> node0.nvswitch``."""
        return f"{self.vertex_name[int(self.link_src[link])]} -> {self.vertex_name[int(self.link_dst[link])]}"

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
        """Bytes that the topology holds: columns, names and route tables; an array held twice counts once."""
        arrays: dict[int, int] = {}
        _collect(self, arrays)
        names = self.vertex_name
        own = (names.switches, *names.devices) if isinstance(names, VertexNames) else (names,)
        return sum(arrays.values()) + sum(getsizeof(some) + sum(map(getsizeof, some)) for some in own)

    # -- symmetry ---------------------------------

    @cached_property
    def period_ranks(self) -> int | None:
        """The smallest shift of all ranks (r to ``(r + P) % world_size``) that maps links and routes onto themselves.

        None where no shift by less than the world size does: an incomplete leaf group, a degraded link, static
        routes. Inside one node only links that routes between its ranks take are looked at.
        """
        from commsim.topology.symmetry import smallest_period  # only folding asks

        return smallest_period(self)

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
        rates = ("nic_bandwidth", "nvlink_link_bandwidth")
        groups = tuple(replace(g, **{rate: getattr(g, rate) * bandwidth for rate in rates}) for g in self.groups)
        return replace(
            self,
            groups=groups,
            link_bandwidth=self.link_bandwidth * bandwidth,
            link_latency=self.link_latency * latency,
        )

    def to_networkx(self, nodes: Sequence[int] | None = None) -> Any:
        """A networkx DiGraph of vertices (by name) and links; `nodes` keeps these nodes and the fabric.

        Links that have failed are left out.
        """
        import networkx as nx

        graph: Any = nx.DiGraph(name=self.name)
        keep = np.isin(self.vertex_node, [*(range(self.nodes) if nodes is None else nodes), -1])
        for v in np.flatnonzero(keep).tolist():
            kind = VertexKind(int(self.vertex_kind[v]))
            graph.add_node(self.vertex_name[v], kind=kind, node=int(self.vertex_node[v]))
        for i in np.flatnonzero(keep[self.link_src] & keep[self.link_dst] & self.works):
            graph.add_edge(
                self.vertex_name[int(self.link_src[i])],
                self.vertex_name[int(self.link_dst[i])],
                link=int(i),
                kind=LinkKind(int(self.link_kind[i])),
                bandwidth=float(self.link_bandwidth[i]),
                latency=float(self.link_latency[i]),
            )
        return graph


def _collect(value: Any, arrays: dict[int, int]) -> None:
    if isinstance(value, np.ndarray):
        arrays[id(value)] = value.nbytes
    elif isinstance(value, tuple) and not (value and isinstance(value[0], str)):
        for item in value:
            _collect(item, arrays)
    elif is_dataclass(value):
        for part in fields(value):
            _collect(getattr(value, part.name), arrays)
