"""A cluster frozen to arrays: copies of node graphs, and the fabric between their NICs.

Vertices and links are numbered node by node (each undirected link of a node graph twice, forth and back), then come
the switches, the NIC ports (node, NIC; up, down) and the links of the fabric.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from commsim.errors import TopologyError
from commsim.topology.columns import VertexNames
from commsim.topology.fabric import Fabric
from commsim.topology.fabric_routes import FabricRoutes
from commsim.topology.graph import NodeGroup, Topology
from commsim.topology.kinds import Cpu, Gpu, Int64, LinkKind, NodeGraph, VertexKind
from commsim.topology.links import BuiltFabric, LinkColumns, Ports
from commsim.topology.node_routes import node_routes

_MOST_LINKS = 2**25  # about 1 GiB of columns


def _builder(kind: str) -> Callable[[Fabric, Ports, int, int], BuiltFabric]:
    """What lays the links of a kind of fabric, imported when it is asked for."""
    if kind == "dragonfly":
        from commsim.topology.dragonfly import dragonfly

        return dragonfly
    if kind == "torus":
        from commsim.topology.torus import torus

        return torus
    from commsim.topology.tree import tree

    return tree


@dataclass(frozen=True)
class NodePart:
    """Nodes that are alike, before freezing: a node graph, of which the first `ranks_per_node` GPUs hold ranks."""

    gpu: Gpu
    cpu: Cpu
    graph: NodeGraph
    ranks_per_node: int
    nodes: int
    nic_bandwidth: float
    nic_latency: float

    @property
    def gpus(self) -> list[str]:
        """The GPUs of one node that hold ranks."""
        return self.graph.of_kind(VertexKind.GPU)[: self.ranks_per_node]

    @property
    def nics(self) -> list[str]:
        """The NICs of one node."""
        return self.graph.of_kind(VertexKind.NIC)


def freeze(name: str, parts: Sequence[NodePart], fabric: Fabric) -> Topology:
    """The topology of the nodes of all parts, in order, and a fabric between them if there are several."""
    nodes = sum(p.nodes for p in parts)
    if nodes > 1 and not all(p.nics for p in parts):
        raise TopologyError(
            f"{name}: found {sum(p.nodes for p in parts if not p.nics)} of {nodes} nodes without a NIC, which cannot "
            "reach the others; "
            "set nics_per_node and nic_bandwidth, or choose a preset with a network"
        )
    _check_size(name, parts, fabric)
    groups = [_group(p, fabric, name) for p in parts]
    node_group = np.repeat(np.arange(len(parts)), [p.nodes for p in parts]).astype(np.int32)
    sizes = np.array([g.vertices for g in groups])[node_group]
    start = np.concatenate([[0], np.cumsum(sizes)])
    columns, kinds, ranks = [], [], []
    devices, switches = tuple(tuple(part.graph.places()) for part in parts), tuple[str, ...]()
    for i, part in enumerate(parts):
        first, places = start[:-1][node_group == i], part.graph.places()
        columns.append(_node_links(part.graph, first))
        ranks.append((first[:, None] + np.array([places[v] for v in part.gpus])[None, :]).ravel())
        kinds.append(np.tile([int(kind) for kind in part.graph.kinds.values()], part.nodes))

    routes: FabricRoutes | None = None
    if nodes > 1:
        built = _builder(fabric.kind)(fabric, _ports(parts, start), int(start[-1]), sum(len(c.src) for c in columns))
        columns.append(built.links)
        switches = tuple(built.switches)
        kinds.append(np.full(len(built.switches), VertexKind.SWITCH))
        routes = built.routes
        if fabric.routes:
            from commsim.topology.static import with_static_routes

            names = VertexNames(start, node_group, devices, switches)
            routes = with_static_routes(built, fabric.routes, names, LinkColumns.joined(columns), int(start[-1]), name)
    links = LinkColumns.joined(columns)
    node_of = np.repeat(np.arange(nodes), sizes)
    return Topology(
        name=name,
        groups=tuple(groups),
        node_group=node_group,
        network=fabric.network if any(g.nics_per_node for g in groups) else "none",
        plugin=fabric.plugin if any(g.nics_per_node for g in groups) else "none",
        in_network_reduction=fabric.in_network_reduction,
        kind=fabric.kind,
        routing=fabric.routing,
        oversubscription=fabric.oversubscription,
        nodes_per_leaf=fabric.nodes_per_leaf,
        flowlet_bytes=fabric.flowlet_bytes,
        vertex_name=VertexNames(start, node_group, devices, switches),
        vertex_kind=np.concatenate(kinds).astype(np.uint8),
        vertex_node=np.concatenate([node_of, np.full(len(switches), -1)]).astype(np.int32),
        link_src=links.src,
        link_dst=links.dst,
        link_bandwidth=links.bandwidth,
        link_latency=links.latency,
        link_kind=links.kind,
        rank_vertex=np.concatenate(ranks).astype(np.int32),
        fabric_routes=routes,
    )


def _group(part: NodePart, fabric: Fabric, name: str) -> NodeGroup:
    gpus, nics = part.gpus, part.nics
    nvlink, link_bandwidth = _nvlink_of(part.graph, gpus)
    return NodeGroup(
        gpu=part.gpu,
        cpu=part.cpu,
        ranks_per_node=len(gpus),
        nics_per_node=len(nics),
        nic_bandwidth=part.nic_bandwidth if nics else 0.0,
        has_nvswitch=VertexKind.NVSWITCH in part.graph.kinds.values(),
        nvlink_links=nvlink,
        nvlink_link_bandwidth=link_bandwidth,
        vertices=len(part.graph.kinds),
        node_routes=node_routes(part.graph, gpus, nics, name, over_nvlink=fabric.keeps_rails),
    )


def _check_size(name: str, parts: Sequence[NodePart], fabric: Fabric) -> None:
    nodes = sum(p.nodes for p in parts)
    nics = [len(p.nics) for p in parts]
    inside = sum(p.nodes * (len(list(p.graph.edges())) + n) for p, n in zip(parts, nics, strict=True))
    links = 2 * (inside + (fabric.cables(nodes, max(nics)) if nodes > 1 else 0))
    if links > _MOST_LINKS:
        raise TopologyError(f"{name}: found {links} links, expected at most {_MOST_LINKS}")


def _ports(parts: Sequence[NodePart], start: Int64) -> Ports:
    """The NICs of all nodes, in columns of the node that has most."""
    nodes = len(start) - 1
    vertex = np.full((nodes, max(len(p.nics) for p in parts)), -1, dtype=np.int64)
    bandwidth, latency = np.zeros(vertex.shape), np.zeros(vertex.shape)
    first = 0
    for part in parts:
        places = part.graph.places()
        rows, n = slice(first, first + part.nodes), len(part.nics)
        vertex[rows, :n] = start[rows, None] + np.array([places[v] for v in part.nics])[None, :]
        bandwidth[rows, :n], latency[rows, :n] = part.nic_bandwidth, part.nic_latency
        first += part.nodes
    return Ports(vertex, bandwidth, latency)


def _node_links(graph: NodeGraph, start: Int64) -> LinkColumns:
    """The links of the copies of a node graph whose first vertices are `start`."""
    places, edges = graph.places(), list(graph.edges())
    wires = np.array([(w.bandwidth, w.latency, w.kind) for *_, w in edges]).reshape(-1, 3)
    tails, heads = [places[u] for u, _, _ in edges], [places[v] for _, v, _ in edges]
    one = LinkColumns.both_ways(tails, heads, wires[:, 0], wires[:, 1], LinkKind.NVLINK)
    kind, first = np.repeat(wires[:, 2], 2).astype(np.uint8), start.astype(np.int32)[:, None]
    bandwidth, latency = np.tile(one.bandwidth, start.size), np.tile(one.latency, start.size)
    return LinkColumns(
        (first + one.src).ravel(), (first + one.dst).ravel(), bandwidth, latency, np.tile(kind, start.size)
    )


def _nvlink_of(node: NodeGraph, gpus: list[str]) -> tuple[int, float]:
    """(NVLinks per GPU of the described machine, bytes/s of one); (0, 0.0) without NVLink."""
    most, bandwidth = node.nvlink
    for g in gpus:
        links = [wire for wire in node.wires[g].values() if wire.kind == LinkKind.NVLINK]
        count = sum(wire.count for wire in links)
        if count > most:
            most, bandwidth = count, links[0].bandwidth / links[0].count
    return most, bandwidth
