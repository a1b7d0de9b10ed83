"""Routes: inside a node from its graph (one table), between nodes by arithmetic on node and rail.

Every node is a copy of one template, so the table of one node serves them all and thousands of pairs route as
NumPy arithmetic. Rules, as NCCL computes paths (2.30.7 src/graph/paths.cc):

* NVLink first: direct or through switches; else over *one* other GPU (NVB), the widest, then the lowest.
* Otherwise the fewest PCIe hops; GPUs and NICs are never crossed on the way.
* A NIC that PCIe does not reach (another host of one NVLink domain) is reached through a GPU near it (PXN).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commsim.errors import TopologyError
from commsim.topology.graph import Int32, Int64, LinkKind, PathType, RouteTable, UInt8, VertexKind

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

Path = list[str]  # vertex names, both ends included

_PCIE_TRANSIT = {VertexKind.PCIE_SWITCH, VertexKind.HOST}


@dataclass(frozen=True, eq=False)
class NodeRoutes:
    """Routes inside one node as link ids of the node's template, padded with -1 at the end.

    ``gpu_gpu`` (g, g, hops), ``gpu_nic`` (g, n, hops), ``nic_gpu`` (n, g, hops); types are `PathType`.
    ``links`` is the number of links of the template: node k's copy of template link i has id ``k * links +
    i``.
    """

    links: int
    gpu_gpu: Int32
    gpu_nic: Int32
    nic_gpu: Int32
    gpu_gpu_type: UInt8
    gpu_nic_type: UInt8
    nearest_nic: Int32


@dataclass(frozen=True, eq=False)
class FabricRoutes:
    """Link ids: ``port_up``/``port_down``, and ``leaf``, (nodes, nics); ``up``/``down`` (leaves, spines).

    ``up`` has no column when no two nodes need a spine.
    """

    port_up: Int32
    port_down: Int32
    leaf: Int32
    up: Int32
    down: Int32
    nodes_per_leaf: int

    def spine(self, src_node: Int64, dst_node: Int64, nic: Int64) -> Int64:
        """The spine of a route: spread over pairs and rails, alike both ways, kept by shifting leaf groups."""
        position = src_node % self.nodes_per_leaf + dst_node % self.nodes_per_leaf
        return np.asarray((position + nic) % self.up.shape[1], dtype=np.int64)


# -- inside a node ---------------------------------


@dataclass(frozen=True)
class _Reach:
    """A node graph and its GPUs, and of each GPU: its breadth-first trees over NVLink and over all else, and the
    bytes/s of its direct NVLinks to other GPUs."""

    graph: Any
    gpus: Sequence[str]
    nvlink: dict[str, dict[str, str]]
    pcie: dict[str, dict[str, str]]
    direct: dict[str, dict[str, float]]


def _reach(graph: Any, gpus: Sequence[str]) -> _Reach:
    among = set(gpus)
    return _Reach(
        graph,
        gpus,
        nvlink={a: _tree(graph, a, lambda k: k == LinkKind.NVLINK, {VertexKind.NVSWITCH}) for a in gpus},
        pcie={a: _tree(graph, a, lambda k: k != LinkKind.NVLINK, _PCIE_TRANSIT) for a in gpus},
        direct={
            a: {c: d["bandwidth"] for c, d in graph.adj[a].items() if c in among and d["kind"] == LinkKind.NVLINK}
            for a in gpus
        },
    )


def _tree(graph: Any, source: str, usable: Callable[[LinkKind], bool], transit: set[VertexKind]) -> dict[str, str]:
    """Parent of every vertex reached from `source` in the fewest hops over usable links and transit."""
    parent, queue = {source: source}, deque([source])
    while queue:
        at = queue.popleft()
        if at != source and graph.nodes[at]["kind"] not in transit:
            continue
        for nxt, link in graph.adj[at].items():
            if nxt not in parent and usable(link["kind"]):
                parent[nxt] = at
                queue.append(nxt)
    return parent


def _path(parent: dict[str, str], target: str) -> Path | None:
    if target not in parent:
        return None
    path = [target]
    while parent[path[-1]] != path[-1]:
        path.append(parent[path[-1]])
    return path[::-1]


def _bridged(reach: _Reach, a: str, b: str) -> Path | None:
    """The path over one other GPU with NVLinks to both; the widest, then the lowest index."""
    shared = [(min(rate, reach.direct[b][c]), c) for c, rate in reach.direct[a].items() if c in reach.direct[b]]
    if not shared:
        return None
    widest = max(rate for rate, _ in shared)
    return [a, min((c for rate, c in shared if rate == widest), key=reach.gpus.index), b]


def pcie_type(graph: Any, path: Path) -> PathType:
    """NCCL's type of a path over PCIe, C2C and host links."""
    kinds = [graph.adj[u][v]["kind"] for u, v in pairwise(path)]
    through = [graph.nodes[v]["kind"] for v in path[1:-1]]
    if LinkKind.HOST in kinds:
        return PathType.SYS
    if VertexKind.HOST in through:
        c2c = kinds.count(LinkKind.C2C)
        if c2c == len(kinds):
            return PathType.C2C
        return PathType.P2C if c2c else PathType.PHB
    return PathType.PXB if through.count(VertexKind.PCIE_SWITCH) > 1 else PathType.PIX


def vertices_of(graph: Any, kind: VertexKind) -> list[str]:
    """The vertices of one kind, in the order they were added."""
    return [v for v, data in graph.nodes(data=True) if data["kind"] == kind]


def node_routes(graph: Any, gpus: Sequence[str], nics: Sequence[str], name: str) -> NodeRoutes:
    """The routes between GPUs and NICs of a node graph; TopologyError names a pair without a path."""
    link_id: dict[tuple[str, str], int] = {}
    for i, (u, v) in enumerate(graph.edges):
        link_id[u, v], link_id[v, u] = 2 * i, 2 * i + 1

    reach = _reach(graph, gpus)
    gpu_paths: dict[tuple[str, str], tuple[Path, PathType]] = {}
    for i, a in enumerate(gpus):
        gpu_paths[a, a] = ([a], PathType.LOC)
        for b in gpus[i + 1 :]:
            path = _gpu_path(reach, a, b)
            if path is None:
                raise TopologyError(f"{name}: {a} and {b} of a node are not connected by NVLink, C2C or PCIe")
            gpu_paths[a, b] = path
            gpu_paths[b, a] = (path[0][::-1], path[1])

    to_nic: dict[tuple[str, str], tuple[Path, PathType]] = {}
    for n in nics:
        for a, found in _nic_paths(reach, n, gpu_paths).items():
            if found is None:
                raise TopologyError(
                    f"{name}: {a} and {n} of a node are not connected; a NIC needs a PCIe path to a GPU"
                )
            to_nic[a, n] = found

    def table(rows: Sequence[str], columns: Sequence[str], path_of: Callable[[str, str], Path]) -> Int32:
        paths = [[path_of(r, c) for c in columns] for r in rows]
        hops = max((len(p) - 1 for row in paths for p in row), default=0)
        out = np.full((len(rows), len(columns), hops), -1, dtype=np.int32)
        for i, row in enumerate(paths):
            for j, path in enumerate(row):
                out[i, j, : len(path) - 1] = [link_id[e] for e in pairwise(path)]
        return out

    return NodeRoutes(
        links=2 * graph.number_of_edges(),
        gpu_gpu=table(gpus, gpus, lambda a, b: gpu_paths[a, b][0]),
        gpu_nic=table(gpus, nics, lambda a, n: to_nic[a, n][0]),
        nic_gpu=table(nics, gpus, lambda n, a: to_nic[a, n][0][::-1]),
        gpu_gpu_type=np.array([[gpu_paths[a, b][1] for b in gpus] for a in gpus], dtype=np.uint8),
        gpu_nic_type=_matrix([[to_nic[a, n][1] for n in nics] for a in gpus], len(gpus), len(nics)),
        nearest_nic=_nearest(gpus, nics, {pair: (t, len(p)) for pair, (p, t) in to_nic.items()}),
    )


def _gpu_path(reach: _Reach, a: str, b: str) -> tuple[Path, PathType] | None:
    direct = _path(reach.nvlink[a], b)
    if direct is not None:
        return direct, PathType.NVL
    bridged = _bridged(reach, a, b)
    if bridged is not None:
        return bridged, PathType.NVB
    path = _path(reach.pcie[a], b)
    return None if path is None else (path, pcie_type(reach.graph, path))


def _nic_paths(
    reach: _Reach, nic: str, gpu_paths: dict[tuple[str, str], tuple[Path, PathType]]
) -> dict[str, tuple[Path, PathType] | None]:
    """From every GPU to one NIC; where PCIe does not lead there, over the first of the GPUs nearest to the NIC."""
    direct = {a: path for a in reach.gpus if (path := _path(reach.pcie[a], nic)) is not None}
    proxy = min(direct, key=lambda a: len(direct[a]), default=None)
    out: dict[str, tuple[Path, PathType] | None] = {}
    for a in reach.gpus:
        if a in direct:
            out[a] = direct[a], pcie_type(reach.graph, direct[a])
        else:
            out[a] = None if proxy is None else (gpu_paths[a, proxy][0] + direct[proxy][1:], PathType.PXN)
    return out


def _matrix(rows: list[list[PathType]], height: int, width: int) -> UInt8:
    return np.array(rows, dtype=np.uint8).reshape(height, width)


def _nearest(gpus: Sequence[str], nics: Sequence[str], distance: dict[tuple[str, str], tuple[int, int]]) -> Int32:
    """NIC index per GPU: the nearest; GPUs that share the same set of nearest NICs take turns over it.

    NCCL spreads such GPUs as well (ncclTopoGetLocalNet, 2.30.7 src/graph/topo.cc), in bit-mirrored order.
    """
    taken: dict[tuple[int, ...], int] = {}
    nearest = []
    for a in gpus:
        best = min((distance[a, n] for n in nics), default=(0, 0))
        same = tuple(i for i, n in enumerate(nics) if distance[a, n] == best)
        turn = taken.get(same, 0)
        taken[same] = turn + 1
        nearest.append(same[turn % len(same)] if same else -1)
    return np.array(nearest, dtype=np.int32)


# -- whole machine ---------------------------------


def route_table(
    topology: Topology, src: npt.ArrayLike, dst: npt.ArrayLike, nic: npt.ArrayLike | None = None
) -> RouteTable:
    """The deduplicated routes of the pairs (src[k], dst[k]); see `Topology.routes`."""
    a, b = np.broadcast_arrays(np.asarray(src, dtype=np.int64).ravel(), np.asarray(dst, dtype=np.int64).ravel())
    world = topology.world_size
    if a.size and (min(a.min(), b.min()) < 0 or max(a.max(), b.max()) >= world):
        raise TopologyError(f"{topology.name}: found a rank outside 0..{world - 1}")
    rail = _rails(topology, a, nic)
    same_node = a // topology.ranks_per_node == b // topology.ranks_per_node
    key = (a * world + b) * (topology.nics_per_node + 1) + np.where(same_node, 0, rail)
    _, first, index = np.unique(key, return_index=True, return_inverse=True)
    links = _links(topology, a[first], b[first], rail[first], same_node[first])
    used = links >= 0
    ptr = np.concatenate([[0], np.cumsum(used.sum(axis=1))]).astype(np.int64)
    return RouteTable(ptr, links[used], index.reshape(-1).astype(np.int32))


def _rails(topology: Topology, src: Int64, nic: npt.ArrayLike | None) -> Int64:
    nearest = topology.node_routes.nearest_nic[src % topology.ranks_per_node].astype(np.int64)
    if nic is None:
        return nearest
    asked = np.broadcast_to(np.asarray(nic, dtype=np.int64), src.shape)
    if asked.size and (asked.min() < -1 or asked.max() >= topology.nics_per_node):
        found = asked.min() if asked.min() < -1 else asked.max()
        raise TopologyError(f"{topology.name}: NIC {found} is not one of the {topology.nics_per_node} NICs of a node")
    return np.where(asked < 0, nearest, asked)


def _links(
    topology: Topology, src: Int64, dst: Int64, rail: Int64, same_node: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int32]:
    """Link ids (pairs, most hops), -1 where a pair has no link in that column."""
    inside, fabric, p = topology.node_routes, topology.fabric_routes, topology.ranks_per_node
    node, local, to_node, to_local = src // p, src % p, dst // p, dst % p

    def placed(template: Int32, at: Int64) -> Int32:
        return np.where(template >= 0, template + (at * inside.links)[:, None], -1).astype(np.int32)

    if fabric is None or same_node.all():
        return placed(inside.gpu_gpu[local, to_local], node)
    k = np.flatnonzero(~same_node)
    hops, ends = inside.gpu_gpu.shape[2], inside.gpu_nic.shape[2]
    out = np.full((len(src), max(hops, 2 * ends + 4)), -1, dtype=np.int32)
    i = np.flatnonzero(same_node)
    out[i, :hops] = placed(inside.gpu_gpu[local[i], to_local[i]], node[i])
    node, local, to_node, to_local, rail = node[k], local[k], to_node[k], to_local[k], rail[k]
    out[k, :ends] = placed(inside.gpu_nic[local, rail], node)
    out[k, ends] = fabric.port_up[node, rail]
    leaf, to_leaf = fabric.leaf[node, rail], fabric.leaf[to_node, rail]
    far = leaf != to_leaf
    if far.any():
        spine = fabric.spine(node[far], to_node[far], rail[far])
        out[k[far], ends + 1] = fabric.up[leaf[far], spine]
        out[k[far], ends + 2] = fabric.down[to_leaf[far], spine]
    out[k, ends + 3] = fabric.port_down[to_node, rail]
    out[k, ends + 4 : 2 * ends + 4] = placed(inside.nic_gpu[rail, to_local], to_node)
    return out
