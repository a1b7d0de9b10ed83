"""Routes inside one node, from its graph. Rules, as NCCL computes paths (2.30.7 src/graph/paths.cc):

* NVLink first: direct or through switches; else over *one* other GPU (NVB), the widest, then the lowest.
* Otherwise the fewest PCIe hops; GPUs and NICs are never crossed on the way.
* A NIC that PCIe does not reach (another host of one NVLink domain) is reached through a GPU near it (PXN).

Where NICs are kept to rails (`routing: rail`), every NIC but the nearest is reached so: rails are changed over
NVLink, between the GPUs of a node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from commsim.errors import TopologyError
from commsim.topology.kinds import Int32, LinkKind, NodeGraph, PathType, UInt8, VertexKind

Path = list[str]  # vertex names, both ends included
TypedPath = tuple[Path, PathType]
Paths = dict[tuple[str, str], TypedPath]

_PCIE_TRANSIT = {VertexKind.PCIE_SWITCH, VertexKind.CARD, VertexKind.HOST}


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


class _Reach:
    """What GPUs reach in a node graph: over NVLink and over all else by the fewest hops, and by direct NVLinks."""

    def __init__(self, graph: NodeGraph, gpus: Sequence[str]) -> None:
        self.graph, self.gpus = graph, gpus
        self._nvlink = {a: self._tree(a, True, {VertexKind.NVSWITCH}) for a in gpus}
        self._pcie = {a: self._tree(a, False, _PCIE_TRANSIT) for a in gpus}
        self._direct = {
            a: {c: w.bandwidth for c, w in graph.wires[a].items() if c in self._nvlink and w.kind == LinkKind.NVLINK}
            for a in gpus
        }

    def _tree(self, source: str, nvlink: bool, transit: set[VertexKind]) -> dict[str, str]:
        """Parent of every vertex reached from `source` in the fewest hops over NVLinks or all others, and transit."""
        parent = {source: source}
        for at in (queue := [source]):  # grows while it is read
            if at != source and self.graph.kinds[at] not in transit:
                continue
            for nxt, wire in self.graph.wires[at].items():
                if nxt not in parent and (wire.kind == LinkKind.NVLINK) == nvlink:
                    parent[nxt] = at
                    queue.append(nxt)
        return parent

    def between(self, a: str, b: str) -> TypedPath | None:
        """The path between two GPUs: over NVLink, one other GPU, or PCIe."""
        if direct := _path(self._nvlink[a], b):
            return direct, PathType.NVL
        shared = [(min(rate, self._direct[b][c]), c) for c, rate in self._direct[a].items() if c in self._direct[b]]
        if shared:  # the widest, then the lowest
            widest = max(rate for rate, _ in shared)
            return [a, min((c for rate, c in shared if rate == widest), key=self.gpus.index), b], PathType.NVB
        path = _path(self._pcie[a], b)
        return (path, pcie_type(self.graph, path)) if path else None

    def to_nic(self, nic: str, gpu_paths: Paths) -> dict[str, TypedPath | None]:
        """From every GPU to one NIC; where PCIe does not lead there, over the first of the GPUs nearest to the NIC."""
        direct = {a: path for a in self.gpus if (path := _path(self._pcie[a], nic))}
        proxy = min(direct, key=lambda a: len(direct[a]), default=None)
        out: dict[str, TypedPath | None] = {}
        for a in self.gpus:
            if a in direct:
                out[a] = direct[a], pcie_type(self.graph, direct[a])
            else:
                out[a] = None if proxy is None else (gpu_paths[a, proxy][0] + direct[proxy][1:], PathType.PXN)
        return out


def _path(parent: dict[str, str], target: str) -> Path:
    """Back from a vertex to the root; nothing where it is not reached."""
    if target not in parent:
        return []
    path = [target]
    while parent[path[-1]] != path[-1]:
        path.append(parent[path[-1]])
    return path[::-1]


def pcie_type(graph: NodeGraph, path: Path) -> PathType:
    """NCCL's type of a path over PCIe, C2C and host links."""
    kinds = [graph.wires[u][v].kind for u, v in pairwise(path)]
    through = [graph.kinds[v] for v in path[1:-1]]
    if LinkKind.HOST in kinds:
        return PathType.SYS
    if VertexKind.HOST in through:
        c2c = kinds.count(LinkKind.C2C)
        if c2c == len(kinds):
            return PathType.C2C
        return PathType.P2C if c2c else PathType.PHB
    return PathType.PXB if through.count(VertexKind.PCIE_SWITCH) > 1 else PathType.PIX


def node_routes(
    graph: NodeGraph,
    gpus: Sequence[str],
    nics: Sequence[str],
    name: str,
    *,
    over_nvlink: bool = False,
    link_id: dict[tuple[str, str], int] | None = None,
) -> NodeRoutes:
    """The routes between GPUs and NICs of a node graph; TopologyError names a pair without a path.

    `over_nvlink`: a NIC that is not among the nearest of a GPU is reached over NVLink and a GPU near it, where there
    is NVLink to it. `link_id` numbers the links (default: in the order of the graph); NICs that are no longer in
    the graph have no route.
    """
    number = _numbers(graph) if link_id is None else link_id
    reach = _Reach(graph, gpus)
    gpu_paths: Paths = {}
    for i, a in enumerate(gpus):
        gpu_paths[a, a] = ([a], PathType.LOC)
        for b in gpus[i + 1 :]:
            path = reach.between(a, b)
            if path is None:
                raise TopologyError(f"{name}: {a} and {b} of a node are not connected by NVLink, C2C or PCIe")
            gpu_paths[a, b] = path
            gpu_paths[b, a] = (path[0][::-1], path[1])

    to_nic: Paths = {}
    alive = [n for n in nics if n in graph.kinds]
    for n in alive:
        for a, path_to_nic in reach.to_nic(n, gpu_paths).items():
            if path_to_nic is None:
                raise TopologyError(
                    f"{name}: {a} and {n} of a node are not connected; a NIC needs a PCIe path to a GPU"
                )
            to_nic[a, n] = path_to_nic
    nearest = _nearest(gpus, alive, {pair: (t, len(p)) for pair, (p, t) in to_nic.items()})
    if over_nvlink:
        to_nic.update(_rail_changes(gpus, alive, gpu_paths, to_nic))

    def table(rows: Sequence[str], columns: Sequence[str], path_of: Callable[[str, str], Path]) -> Int32:
        paths = [[path_of(r, c) for c in columns] for r in rows]
        hops = max((len(p) - 1 for row in paths for p in row if p), default=0)
        out = np.full((len(rows), len(columns), hops), -1, dtype=np.int32)
        for i, row in enumerate(paths):
            for j, path in enumerate(row):
                if path:
                    out[i, j, : len(path) - 1] = [number[e] for e in pairwise(path)]
        return out

    none: TypedPath = ([], PathType.DIS)
    index = np.array([nics.index(n) for n in alive], dtype=np.int32)
    return NodeRoutes(
        links=len(number),
        gpu_gpu=table(gpus, gpus, lambda a, b: gpu_paths[a, b][0]),
        gpu_nic=table(gpus, nics, lambda a, n: to_nic.get((a, n), none)[0]),
        nic_gpu=table(nics, gpus, lambda n, a: to_nic.get((a, n), none)[0][::-1]),
        gpu_gpu_type=np.array([[gpu_paths[a, b][1] for b in gpus] for a in gpus], dtype=np.uint8),
        gpu_nic_type=np.array([to_nic.get((a, n), none)[1] for a in gpus for n in nics], np.uint8).reshape(
            len(gpus), len(nics)
        ),
        nearest_nic=index[nearest] if len(index) else nearest,
    )


def _numbers(graph: NodeGraph) -> dict[tuple[str, str], int]:
    """Link ids in the order of the graph, forth and back side by side."""
    number: dict[tuple[str, str], int] = {}
    for i, (u, v, _) in enumerate(graph.edges()):
        number[u, v], number[v, u] = 2 * i, 2 * i + 1
    return number


def _rail_changes(gpus: Sequence[str], nics: Sequence[str], gpu_paths: Paths, to_nic: Paths) -> Paths:
    """Paths over NVLink and the first GPU that is nearest to the NIC, for GPUs that have a nearer NIC (PXN)."""

    def distance(a: str, n: str) -> tuple[int, int]:
        path, kind = to_nic[a, n]
        return kind, len(path)

    out = {}
    home = {a: min((distance(a, m) for m in nics), default=(0, 0)) for a in gpus}
    for n in nics:
        own = [a for a in gpus if to_nic[a, n][1] != PathType.PXN]  # a proxy needs no proxy
        proxy = min(own, key=lambda a: distance(a, n))
        for a in gpus:
            path, kind = gpu_paths[a, proxy]
            if distance(a, n) > home[a] and kind == PathType.NVL:
                out[a, n] = path + to_nic[proxy, n][0][1:], PathType.PXN
    return out


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
