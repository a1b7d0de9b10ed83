"""A cluster: copies of one node graph, and leaves and spines between their NICs, frozen to arrays.

Links are numbered node by node (each undirected link of the node graph twice, forth and back), then the NIC
ports (node, NIC; up, down), then leaf to spine (leaf, spine; up, down).

Latency: a port link carries one NIC with its cable and half a switch, a leaf-spine link one switch and its
cable. So a route over one leaf pays two NICs and one switch, and a route over a spine two NICs, three
switches and two cables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from commsim.errors import TopologyError
from commsim.topology.graph import Cpu, Gpu, LinkKind, PathType, Topology, VertexKind
from commsim.topology.node import NIC_LATENCY_S
from commsim.topology.routing import FabricRoutes, node_routes, vertices_of
from commsim.topology.spec import FabricSpec

# NVIDIA Quantum (QM8700, QM9700) product pages: under 130-150 ns port to port.
SWITCH_LATENCY_S = 0.15e-6
# 20 m of fibre between rows at 5 ns/m.
CABLE_LATENCY_S = 0.1e-6
# DGX SuperPOD reference architecture (H100): scalable units of 32 systems, one leaf per rail in each.
NODES_PER_LEAF = 32

_MOST_LINKS = 2**25  # about 1 GiB of columns


@dataclass(frozen=True)
class Fabric:
    """A fabric with every figure stated; bandwidths in bytes/s, latencies in seconds."""

    kind: str
    network: str
    nic_bandwidth: float
    nic_latency: float
    switch_latency: float
    cable_latency: float
    nodes_per_leaf: int
    oversubscription: float
    spines: int

    @property
    def uplink(self) -> float:
        """Bytes/s of all uplinks of a leaf of `ports` NICs per node position."""
        return self.nodes_per_leaf * self.nic_bandwidth / self.oversubscription


def fabric_of(spec: FabricSpec | None, nic_bandwidth: float, nic_latency: float | None, nodes: int) -> Fabric:
    """The fabric of a description, defaults filled in; a single switch where none is described."""
    spec = spec or FabricSpec()
    kind = spec.kind or "single_switch"
    single = kind == "single_switch"
    return Fabric(
        kind=kind,
        network=spec.network or "infiniband",
        nic_bandwidth=nic_bandwidth,
        nic_latency=NIC_LATENCY_S if nic_latency is None else nic_latency,
        switch_latency=SWITCH_LATENCY_S if spec.switch_latency is None else spec.switch_latency,
        cable_latency=CABLE_LATENCY_S if spec.cable_latency is None else spec.cable_latency,
        nodes_per_leaf=nodes if single else (spec.nodes_per_leaf or NODES_PER_LEAF),
        oversubscription=spec.oversubscription or 1.0,
        spines=spec.spines or 1,
    )


@dataclass(frozen=True)
class _Links:
    """Columns of links under construction."""

    src: np.ndarray[Any, Any]
    dst: np.ndarray[Any, Any]
    bandwidth: np.ndarray[Any, Any]
    latency: np.ndarray[Any, Any]
    kind: np.ndarray[Any, Any]

    @staticmethod
    def uniform(src: Any, dst: Any, bandwidth: float, latency: float, kind: LinkKind) -> _Links:
        """Both directions of links (src[i], dst[i]) alike, forth and back side by side."""
        a, b = np.asarray(src).ravel(), np.asarray(dst).ravel()
        n = 2 * len(a)
        return _Links(
            np.stack([a, b], axis=1).ravel(),
            np.stack([b, a], axis=1).ravel(),
            np.full(n, bandwidth),
            np.full(n, latency),
            np.full(n, kind),
        )

    @staticmethod
    def joined(parts: list[_Links]) -> _Links:
        """All links of the parts, in order."""
        names = ("src", "dst", "bandwidth", "latency", "kind")
        return _Links(*(np.concatenate([getattr(p, n) for p in parts]) for n in names))


def freeze(name: str, gpu: Gpu, cpu: Cpu, node: Any, *, ranks_per_node: int, nodes: int, fabric: Fabric) -> Topology:
    """The topology of `nodes` copies of a node graph; its first `ranks_per_node` GPUs hold the ranks."""
    gpus = vertices_of(node, VertexKind.GPU)[:ranks_per_node]
    nics = vertices_of(node, VertexKind.NIC)
    _check_fabric(name, nodes, len(nics), fabric)
    _check_size(name, nodes, node.number_of_edges(), len(nics), fabric)
    inside = node_routes(node, gpus, nics, name)
    members = list(node)
    position = {v: i for i, v in enumerate(members)}
    start = (np.arange(nodes) * len(members))[:, None]
    leaf, leaf_names, spines = _leaves(nodes, len(nics), fabric)
    base = nodes * len(members)

    parts = [_node_links(node, position, start)]
    routes = None
    if nodes > 1:
        nic_at = start + np.array([position[v] for v in nics])[None, :]
        parts += _fabric_links(nic_at, leaf, base, (len(leaf_names), spines), fabric)
        routes = _fabric_routes(leaf, len(leaf_names), spines, nodes * inside.links, fabric)
    links = _Links.joined(parts)
    extra = [*leaf_names, *(f"spine{i}" for i in range(spines))] if nodes > 1 else []
    kinds = np.array([node.nodes[v]["kind"] for v in members], dtype=np.uint8)
    nvlink, link_bandwidth = _nvlink_of(node, gpus)
    return Topology(
        name=name,
        gpu=gpu,
        cpu=cpu,
        nodes=nodes,
        ranks_per_node=len(gpus),
        nics_per_node=len(nics),
        nic_bandwidth=fabric.nic_bandwidth if nics else 0.0,
        network=fabric.network if nics else "none",
        has_nvswitch=bool((kinds == VertexKind.NVSWITCH).any()),
        nvlink_links=nvlink,
        nvlink_link_bandwidth=link_bandwidth,
        oversubscription=fabric.oversubscription,
        nodes_per_leaf=fabric.nodes_per_leaf,
        vertex_name=(*(f"node{k}.{v}" for k in range(nodes) for v in members), *extra),
        vertex_kind=np.concatenate([np.tile(kinds, nodes), np.full(len(extra), VertexKind.SWITCH)]).astype(np.uint8),
        vertex_node=np.concatenate([np.repeat(np.arange(nodes), len(members)), np.full(len(extra), -1)]).astype(
            np.int32
        ),
        link_src=links.src.astype(np.int32),
        link_dst=links.dst.astype(np.int32),
        link_bandwidth=links.bandwidth.astype(np.float64),
        link_latency=links.latency.astype(np.float64),
        link_kind=links.kind.astype(np.uint8),
        rank_vertex=(start + np.array([position[v] for v in gpus])[None, :]).ravel().astype(np.int32),
        node_routes=inside,
        fabric_routes=routes,
    )


def _check_fabric(name: str, nodes: int, nics: int, fabric: Fabric) -> None:
    if nodes > 1 and not nics:
        raise TopologyError(
            f"{name}: {nodes} nodes without a NIC cannot reach each other; "
            "set nics_per_node and nic_bandwidth, or choose a preset with a network"
        )
    if nodes > 1 and not fabric.nic_bandwidth > 0:
        raise TopologyError(f"{name}: nic_bandwidth is missing; set it, such as nic_bandwidth: 400 Gb/s")
    if fabric.kind == "single_switch" and fabric.oversubscription != 1:
        raise TopologyError(
            f"{name}: a single switch is never oversubscribed, found {fabric.oversubscription:g}; "
            "set fabric.kind to fat_tree or rail_fat_tree"
        )


def _check_size(name: str, nodes: int, inside: int, nics: int, fabric: Fabric) -> None:
    groups = -(-nodes // fabric.nodes_per_leaf)
    leaves = groups * (nics if fabric.kind == "rail_fat_tree" else 1)
    links = 2 * (nodes * (inside + nics) + (leaves * fabric.spines if groups > 1 else 0))
    if links > _MOST_LINKS:
        raise TopologyError(f"{name}: found {links} links, expected at most {_MOST_LINKS}")


def _leaves(nodes: int, nics: int, fabric: Fabric) -> tuple[np.ndarray[Any, Any], list[str], int]:
    """(leaf of each NIC (nodes, nics), names of the leaves, number of spines)."""
    group = np.arange(nodes)[:, None] // fabric.nodes_per_leaf
    groups = int(group.max()) + 1
    if fabric.kind == "rail_fat_tree":
        leaf = group * nics + np.arange(nics)[None, :]
        names = [f"leaf{g}.rail{r}" for g in range(groups) for r in range(nics)]
    else:
        leaf = np.broadcast_to(group, (nodes, nics)).copy()
        names = ["switch"] if fabric.kind == "single_switch" else [f"leaf{g}" for g in range(groups)]
    return leaf, names, fabric.spines if groups > 1 else 0


def _node_links(node: Any, position: dict[str, int], start: np.ndarray[Any, Any]) -> _Links:
    edges = list(node.edges(data=True))

    def both(values: list[Any]) -> np.ndarray[Any, Any]:
        return np.tile(np.repeat(np.array(values), 2), len(start))

    ends = np.array([[position[u], position[v]] for u, v, _ in edges], dtype=np.int64).reshape(-1, 2)
    return _Links(
        (start + ends.ravel()[None, :]).ravel(),
        (start + ends[:, ::-1].ravel()[None, :]).ravel(),
        both([d["bandwidth"] for *_, d in edges]),
        both([d["latency"] for *_, d in edges]),
        both([int(d["kind"]) for *_, d in edges]),
    )


def _fabric_links(
    nic_at: np.ndarray[Any, Any],
    leaf: np.ndarray[Any, Any],
    base: int,
    shape: tuple[int, int],
    fabric: Fabric,
) -> list[_Links]:
    """NIC ports, and leaf-spine links if any; `shape` is (leaves, spines), `base` the first leaf's vertex."""
    leaves, spines = shape
    port_latency = fabric.nic_latency + fabric.switch_latency / 2
    ports = _Links.uniform(nic_at, base + leaf, fabric.nic_bandwidth, port_latency, LinkKind.NETWORK)
    if not spines:
        return [ports]
    a, b = np.divmod(np.arange(leaves * spines), spines)
    per_position = 1 if fabric.kind == "rail_fat_tree" else nic_at.shape[1]
    uplink = fabric.uplink * per_position / spines
    latency = fabric.switch_latency + fabric.cable_latency
    return [ports, _Links.uniform(base + a, base + leaves + b, uplink, latency, LinkKind.FABRIC)]


def _fabric_routes(
    leaf: np.ndarray[Any, Any], leaves: int, spines: int, first_link: int, fabric: Fabric
) -> FabricRoutes:
    ports = (first_link + 2 * np.arange(leaf.size)).reshape(leaf.shape).astype(np.int32)
    up = (first_link + 2 * leaf.size + 2 * np.arange(leaves * spines)).reshape(leaves, spines).astype(np.int32)
    return FabricRoutes(ports, ports + 1, leaf.astype(np.int32), up, up + 1, fabric.nodes_per_leaf)


def _nvlink_of(node: Any, gpus: list[str]) -> tuple[int, float]:
    """(NVLinks per GPU of the described machine, bytes/s of one); (0, 0.0) without NVLink."""
    most, bandwidth = node.graph.get("nvlink", (0, 0.0))
    for g in gpus:
        links = [d for d in node.adj[g].values() if d["kind"] == LinkKind.NVLINK]
        count = sum(d["count"] for d in links)
        if count > most:
            most, bandwidth = count, links[0]["bandwidth"] / links[0]["count"]
    return most, bandwidth


def check(topology: Topology) -> list[str]:
    """Faults of a topology, one sentence each; empty when it is sound.

    What `load_topology` builds has none unless the description itself is odd (a NIC slower than nothing, a
    link that nothing uses is no fault); arrays put together by hand are what this is for.
    """
    t, faults = topology, []
    vertices, links = len(t.vertex_name), len(t.link_src)
    columns: dict[str, np.ndarray[Any, Any]] = {
        "link_dst": t.link_dst,
        "link_bandwidth": t.link_bandwidth,
        "link_latency": t.link_latency,
    }
    faults += [f"{n} has {len(c)} rows, link_src {links}" for n, c in columns.items() if len(c) != links]
    if len(t.vertex_kind) != vertices or len(t.vertex_node) != vertices or len(t.rank_vertex) != t.world_size:
        faults.append("the vertex columns and rank_vertex do not have one row per vertex and rank")
    ends = np.concatenate([t.link_src, t.link_dst])
    if links and (ends.min() < 0 or ends.max() >= vertices):
        faults.append(f"a link ends at a vertex outside 0..{vertices - 1}")
    if faults:
        return faults
    bad_bandwidth = ~(np.isfinite(t.link_bandwidth) & (t.link_bandwidth > 0))
    bad_latency = ~(np.isfinite(t.link_latency) & (t.link_latency >= 0))
    faults += [f"{_name(t, i)} has bandwidth {t.link_bandwidth[i]:g}" for i in np.flatnonzero(bad_bandwidth)]
    faults += [f"{_name(t, i)} has latency {t.link_latency[i]:g}" for i in np.flatnonzero(bad_latency)]
    for rank, v in enumerate(t.rank_vertex):
        if t.vertex_kind[v] != VertexKind.GPU:
            faults.append(f"rank {rank} is not on a GPU but on {t.vertex_name[v]}")
    return faults + _nic_faults(t) + _island_faults(t)


def _name(t: Topology, link: np.signedinteger[Any]) -> str:
    return f"the link {t.vertex_name[t.link_src[link]]} -> {t.vertex_name[t.link_dst[link]]}"


def _nic_faults(t: Topology) -> list[str]:
    pcie = np.zeros(len(t.vertex_name), dtype=bool)
    pcie[t.link_src[np.isin(t.link_kind, [LinkKind.PCIE, LinkKind.C2C])]] = True
    nics = np.flatnonzero(t.vertex_kind == VertexKind.NIC)
    faults = [f"{t.vertex_name[v]} has no PCIe path" for v in nics if not pcie[v]]
    port = np.zeros(len(t.vertex_name), dtype=bool)
    port[t.link_src[t.link_kind == LinkKind.NETWORK]] = True
    if t.nodes > 1:
        faults += [f"{t.vertex_name[v]} is not cabled to a switch" for v in nics if not port[v]]
    if (t.node_routes.gpu_nic_type >= PathType.NET).any():
        faults.append("a GPU has no path to a NIC of its node")
    return faults


def _island_faults(t: Topology) -> list[str]:
    import networkx as nx

    graph = nx.Graph(zip(t.link_src.tolist(), t.link_dst.tolist(), strict=True))
    graph.add_nodes_from(t.rank_vertex.tolist())
    island = {v: i for i, group in enumerate(nx.connected_components(graph)) for v in group}
    home = island[int(t.rank_vertex[0])]
    cut = [r for r, v in enumerate(t.rank_vertex.tolist()) if island[v] != home]
    return [f"rank {cut[0]} (and {len(cut) - 1} more) cannot be reached from rank 0"] if cut else []
