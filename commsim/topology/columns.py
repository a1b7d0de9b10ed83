"""A machine as NumPy columns: its nodes, vertices and links; what routes, cuts and symmetries are computed from.

What it is not: it holds no protocol cost and no collective. A link's bandwidth and latency are those of the
wire (or of the PCIe path as NCCL counts it); what NCCL pays on top belongs to the NCCL model.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, overload

import numpy as np

from commsim.errors import TopologyError
from commsim.topology.fabric_routes import UNREACHABLE
from commsim.topology.kinds import Bool, Cpu, Float64, Gpu, Int32, Int64, LinkKind, PathType, UInt8

if TYPE_CHECKING:
    from commsim.topology.fabric_routes import FabricRoutes
    from commsim.topology.link_search import LinkSearch
    from commsim.topology.node_routes import NodeRoutes

T = TypeVar("T")


_DEVICE = re.compile(r"node(0|[1-9][0-9]{0,8})\.(.+)")


@dataclass(frozen=True, eq=False)
class VertexNames(Sequence[str]):
    """``node3.gpu0`` for the devices of nodes, which those of one group have in common, and the names of switches.

    They are made when they are asked for: of 65,536 nodes they would be a third of a topology.
    `first` (nodes + 1,) is the first vertex of each node, and of the switches; `devices` are those of each group.
    """

    first: Int64
    group: Int32
    devices: tuple[tuple[str, ...], ...]
    switches: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.first[-1]) + len(self.switches)

    @overload
    def __getitem__(self, at: int) -> str: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[str, ...]: ...

    def __getitem__(self, at: int | slice) -> str | tuple[str, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        vertex = int(at) + (len(self) if at < 0 else 0)
        if not 0 <= vertex < len(self):
            raise IndexError(f"vertex {at} of {len(self)}")
        if vertex >= self.first[-1]:
            return self.switches[vertex - int(self.first[-1])]
        node = int(np.searchsorted(self.first, vertex, side="right")) - 1
        return f"node{node}.{self.devices[int(self.group[node])][vertex - int(self.first[node])]}"

    def __iter__(self) -> Iterator[str]:
        for node, group in enumerate(self.group.tolist()):
            prefix = f"node{node}."
            for device in self.devices[group]:
                yield prefix + device
        yield from self.switches

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._place(name) is not None

    def index(self, name: str, start: int = 0, stop: int | None = None) -> int:
        """The vertex of a name; ValueError where there is none from `start` on, before `stop`."""
        place = self._place(name)
        if place is None or not start <= place < (len(self) if stop is None else stop):
            raise ValueError(f"no vertex {name}")
        return place

    def _place(self, name: str) -> int | None:
        match = _DEVICE.fullmatch(name)
        if match is None or int(match[1]) >= self.group.size:
            return self._switch.get(name)
        node, devices = int(match[1]), self._device[int(self.group[int(match[1])])]
        return None if match[2] not in devices else int(self.first[node]) + devices[match[2]]

    @cached_property
    def _switch(self) -> dict[str, int]:
        return {name: int(self.first[-1]) + i for i, name in enumerate(self.switches)}

    @cached_property
    def _device(self) -> tuple[dict[str, int], ...]:
        return tuple({name: i for i, name in enumerate(devices)} for devices in self.devices)


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
class TopologyColumns:
    """A machine as directed links between vertices; the reverse of a link is a link of its own.

    Bandwidths are bytes/s in one direction, latencies seconds. V vertices, L links, `world_size` ranks, numbered
    node by node. ``vertex_node`` is -1 for the fabric. ``node_group`` (nodes,) says which of ``groups`` a node
    belongs to. Figures of a node (`gpu`, `ranks_per_node`, ...) are those that all nodes share; where nodes differ,
    TopologyError says so, and `group_of` has the figures of one rank's node. Links that have failed keep their
    number: they are marked in ``link_failed`` (L,), and no route takes them; ``link_share`` (L,) is what is left of the
    described bandwidth of each link where some are degraded or have failed, ``node_gdr`` (nodes,) whether the NICs of a
    node reach its GPUs' memory where some do not though they could; ``at_start`` is the machine as it was when the job
    began, where faults set in later. ``in_network_reduction``: whether the
    switches of the fabric add (SHARP); ``plugin``: NCCL's network plugin on the machine (`FabricSpec.plugin`).
    """

    name: str
    groups: tuple[NodeGroup, ...]
    node_group: Int32
    network: str
    plugin: str
    in_network_reduction: bool
    kind: str
    routing: str
    oversubscription: float
    nodes_per_leaf: int
    flowlet_bytes: int
    vertex_name: Sequence[str]
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
    link_share: Float64 | None = None
    node_gdr: Bool | None = None
    at_start: TopologyColumns | None = None

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
    def one_build(self) -> bool:
        """Whether all nodes are of one build, of which some may have failed parts."""
        return len({(g.gpu, g.ranks_per_node, g.nics_per_node, g.nic_bandwidth) for g in self.groups}) == 1

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

    @property
    def draws_flowlets(self) -> bool:
        """Whether every flowlet of a stream, `flowlet_bytes` of it, draws one of several equal paths."""
        return self.routing == "flowlet" and self.fabric_routes is not None and self.fabric_routes.choices > 1

    @property
    def fabric(self) -> FabricRoutes:
        """The routes between nodes, of which there are several."""
        assert self.fabric_routes is not None
        return self.fabric_routes

    @cached_property
    def works(self) -> Bool:
        """Whether a link has not failed, (L,)."""
        return np.ones(len(self.link_src), dtype=bool) if self.link_failed is None else ~self.link_failed

    def passable(self, links: Int32) -> Bool:
        """Whether the fabric joins two NICs and all links of the path between them work, of paths (pairs, hops)."""
        joined = links[:, 0] != UNREACHABLE if links.shape[1] else np.ones(len(links), dtype=bool)
        if self.link_failed is not None:
            joined = joined & (self.works[links] | (links < 0)).all(axis=1)
        return np.asarray(joined)

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
        up = (fabric.port_up >= 0) & self.works[fabric.port_up] & self.works[fabric.port_down]
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
    def switch_search(self) -> LinkSearch:
        """Searches over the surviving links between switches, kept for the next."""
        from commsim.topology.link_search import LinkSearch

        links = np.flatnonzero((self.link_kind == LinkKind.FABRIC) & self.works)
        tail, head = (ends[links] - self.node_first_vertex[-1] for ends in (self.link_src, self.link_dst))
        return LinkSearch(links, tail, head, in_turn=True)

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
