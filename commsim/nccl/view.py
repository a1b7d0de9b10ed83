"""One node as NCCL sees it: links with the bandwidth it counts, and its paths between GPUs, NICs and the NVSwitch.

After src/graph/topo.cc and src/graph/paths.cc: breadth-first paths, nearest type first, then diversions where a GPU
or NIC cannot be reached directly (through host memory, or through the GPU beside a NIC: PXN). Bandwidths in GB/s.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from commsim.nccl.environment import PATHS, THROUGH_HOST, path_level, whole
from commsim.nccl.peer import peer_level
from commsim.nccl.version import Version
from commsim.topology.graph import LinkKind, VertexKind

if TYPE_CHECKING:
    from commsim.topology.graph import Topology

LOC, NVL, NVB, C2C, PIX, PXB, P2C, PXN, PHB, SYS = range(10)

_CPU_LINK_GBPS = {"intel": 10.0, "amd": 16.0, "ibm": 32.0, "arm": 6.0, "zhaoxin": 6.0}
"""src/graph/topo.h LINK_SYS, where the CPU model says no more."""

_INTEL_LINK_GBPS = (
    ("emerald", 40.0),
    ("8592", 40.0),
    ("8558", 40.0),
    ("sapphire", 22.0),
    ("84", 22.0),
    ("broadwell", 6.0),
)
"""From 2.26 NCCL tells newer Intel CPUs apart, by words of the model's name."""


def nvlink_gbps(topology: Topology, version: Version) -> float:
    """One NVLink in one direction as a version counts it (src/graph/topo.h)."""
    sm = topology.gpu.sm
    if sm in (70, 75, 80, 87):
        return 21.0 if version < (2, 12, 0) else 22.0 if version < (2, 15, 0) else 20.0
    if sm == 90:
        return 20.0 if version < (2, 20, 0) else 20.6
    if sm >= 100:
        return 40.0 if version < (2, 27, 0) else 40.1
    return {60: 18.0, 86: 12.0, 89: 12.0}.get(sm, topology.nvlink_link_bandwidth * 0.8 / 1e9)


def cpu_link_gbps(topology: Topology, version: Version) -> float:
    """The link between two sockets as NCCL counts it."""
    if topology.cpu.vendor == "intel" and version >= (2, 26, 0):
        model = topology.cpu.model.lower()
        for word, bandwidth in _INTEL_LINK_GBPS:
            if word in model:
                return bandwidth
    return _CPU_LINK_GBPS.get(topology.cpu.vendor, 10.0)


@dataclass
class Path:
    """A path: link ids in order, its farthest type and its narrowest link."""

    links: tuple[int, ...]
    type: int
    gbps: float
    through_intel: bool = False  # from a GPU through an Intel root complex, which takes 6/5 of PCIe


@dataclass
class NodeView:
    """The node: `left` is what each directed link still has to give while channels are searched."""

    gpus: int
    nets: int
    sm: int
    nvswitch: bool
    amd: bool
    left: list[float] = field(default_factory=list)
    net_left: list[float] = field(default_factory=list)
    is_pci: list[bool] = field(default_factory=list)
    reverse: list[int] = field(default_factory=list)
    into_old_gpu: list[bool] = field(default_factory=list)  # ends at a GPU before Ampere, where writes cost reads
    gpu_gpu: list[list[Path]] = field(default_factory=list)
    gpu_net: list[list[Path | None]] = field(default_factory=list)
    net_gpu: list[list[Path | None]] = field(default_factory=list)  # by net, then by GPU
    gpu_switch: list[Path] = field(default_factory=list)
    switch_gpu: list[Path] = field(default_factory=list)
    gpu_pci: list[float] = field(default_factory=list)
    out_gbps: list[float] = field(default_factory=list)  # by type: all first links of GPU paths up to it, together
    max_gbps: float = 0.0
    total_gbps: float = 0.0
    nearest: list[list[int]] = field(default_factory=list)  # the NICs nearest to each GPU
    sharing: list[int] = field(default_factory=list)  # how many GPUs have the same nearest NICs

    def worst_gpu_type(self) -> int:
        """The farthest type among the paths between two GPUs; LOC for one GPU."""
        return max((p.type for a, row in enumerate(self.gpu_gpu) for b, p in enumerate(row) if a != b), default=LOC)

    def settle(self) -> None:
        """Notes the NICs nearest to each GPU, once the paths stand."""
        self.nearest = []
        for row in self.gpu_net:
            found = [(p.type, -p.gbps, n) for n, p in enumerate(row) if p is not None]
            best = min(found, default=(0, 0.0, 0))[:2]
            self.nearest.append([n for kind, gbps, n in found if (kind, gbps) == best])
        self.sharing = [sum(own == other for other in self.nearest) for own in self.nearest]

    def local_net(self, gpu: int, channel: int) -> int | None:
        """The NIC that NCCL gives a GPU for a channel: neighbours start at different NICs."""
        nets = self.nearest[gpu]
        if not nets:
            return None
        first = gpu
        if len(nets) & (len(nets) - 1) == 0:
            bits = len(nets).bit_length() - 1
            first = int(f"{gpu % len(nets):0{bits}b}"[::-1], 2) if bits else 0
        return nets[(first + channel % -(-len(nets) // self.sharing[gpu])) % len(nets)]


def view_of(topology: Topology, version: Version, env: dict[str, str]) -> NodeView:
    """NCCL's view of the first node; NICs are left out of a communicator that has no other node."""
    builder = _Builder(topology, version, env)
    return builder.view()


class _Builder:
    def __init__(self, topology: Topology, version: Version, env: dict[str, str]) -> None:
        self.topology, self.version, self.env = topology, version, env
        t = topology
        vertices = np.flatnonzero(t.vertex_node == 0)
        self.kind = {int(v): VertexKind(int(t.vertex_kind[v])) for v in vertices}
        self.gpu_vertices = [int(v) for v in t.rank_vertex[: t.ranks_per_node]]
        self.nic_vertices = [v for v, kind in self.kind.items() if kind is VertexKind.NIC] if t.nodes > 1 else []
        self.src: list[int] = []
        self.dst: list[int] = []
        self.gbps: list[float] = []
        self.type: list[int] = []
        self.out: dict[int, list[int]] = {v: [] for v in self.kind}
        self.peer_level = peer_level(t, version, env)
        self._links()

    def _links(self) -> None:
        t = self.topology
        per_link = nvlink_gbps(t, self.version)
        hosts = cpu_link_gbps(t, self.version)
        here = (t.vertex_node[t.link_src] == 0) & (t.vertex_node[t.link_dst] == 0)
        for i in np.flatnonzero(here if t.link_failed is None else here & ~t.link_failed):
            kind, gbps = LinkKind(int(t.link_kind[i])), float(t.link_bandwidth[i]) / 1e9
            kind_type = {LinkKind.NVLINK: NVL, LinkKind.C2C: C2C, LinkKind.PCIE: PIX, LinkKind.HOST: SYS}.get(kind)
            if kind_type is None or (kind is LinkKind.NVLINK and self.peer_level < NVL):
                continue
            if kind is LinkKind.NVLINK and t.nvlink_link_bandwidth:
                gbps = round(float(t.link_bandwidth[i]) / t.nvlink_link_bandwidth) * per_link
            elif kind is LinkKind.HOST:
                gbps = hosts
            link = len(self.src)
            self.src.append(int(t.link_src[i]))
            self.dst.append(int(t.link_dst[i]))
            self.gbps.append(gbps)
            self.type.append(kind_type)
            self.out[self.src[-1]].append(link)
        for links in self.out.values():  # wide links first, as NCCL sorts them
            links.sort(key=lambda i: (-self.gbps[i], i))

    def view(self) -> NodeView:
        t = self.topology
        gpus, nics = self.gpu_vertices, self.nic_vertices
        from_gpu = [self._paths(v) for v in gpus]
        from_nic = [self._paths(v) for v in nics]
        switches = [v for v, kind in self.kind.items() if kind is VertexKind.NVSWITCH and self.peer_level >= NVL]
        switches = [v for v in switches if all(v in found for found in from_gpu)]  # faults may cut GPUs off
        view = NodeView(len(gpus), len(nics), t.gpu.sm, bool(switches), t.cpu.vendor == "amd")
        old = t.gpu.sm < 80
        view.left = list(self.gbps)
        view.is_pci = [kind == PIX for kind in self.type]
        ends = {(s, d): i for i, (s, d) in enumerate(zip(self.src, self.dst, strict=True))}
        view.reverse = [ends.get((d, s), i) for i, (s, d) in enumerate(zip(self.src, self.dst, strict=True))]
        view.into_old_gpu = [old and self.kind[d] is VertexKind.GPU for d in self.dst]
        view.net_left = [t.nic_bandwidth / 1e9] * len(nics)
        view.gpu_pci = [
            max((self.gbps[i] for i in self.out[v] if self.type[i] in (PIX, C2C)), default=-1.0) for v in gpus
        ]
        view.gpu_gpu = [[self._gpu_pair(from_gpu, a, b) for b in range(len(gpus))] for a in range(len(gpus))]
        view.gpu_net = [[self._limited(from_gpu[g].get(v)) for v in nics] for g in range(len(gpus))]
        view.net_gpu = [[self._limited(from_nic[n].get(v)) for v in gpus] for n in range(len(nics))]
        for kind in range(SYS + 1):
            first = {p.links[0] for row in view.gpu_gpu for p in row if p.links and p.type <= kind}
            view.out_gbps.append(sum(self.gbps[i] for i in first))
        if switches:
            to = self._paths(switches[0])
            view.gpu_switch = [from_gpu[g][switches[0]] for g in range(len(gpus))]
            view.switch_gpu = [to[v] for v in gpus]
        self._reach_nics(view)
        view.settle()
        pairs: list[Path | None] = (
            [p for row in view.gpu_net for p in row]
            if nics
            else [p for a, row in enumerate(view.gpu_gpu) for b, p in enumerate(row) if a != b]
        )
        view.max_gbps = max((p.gbps for p in pairs if p is not None), default=5000.0)
        view.total_gbps = max((self._total(v) for v in gpus), default=5000.0)
        if len(gpus) == 1 and not nics:
            view.max_gbps = view.total_gbps = 5000.0
        return view

    def _total(self, gpu: int) -> float:
        nvlink = sum(self.gbps[i] for i in self.out[gpu] if self.type[i] == NVL)
        return max(nvlink, max((self.gbps[i] for i in self.out[gpu] if self.type[i] in (PIX, C2C)), default=0.0))

    def _limited(self, path: Path | None) -> Path | None:
        if path is None:
            return None
        return Path(path.links, path.type, min(path.gbps, self.topology.nic_bandwidth / 1e9), path.through_intel)

    def _paths(self, start: int) -> dict[int, Path]:
        """Paths from a vertex to all others, fewest hops first and among those the widest."""
        found = {start: Path((), LOC, 5000.0)}
        waiting = deque([start])
        while waiting:
            here = waiting.popleft()
            path = found[here]
            for link in self.out[here]:
                there, kind = self.dst[link], self.type[link]
                through = here != start and self.kind[here] is VertexKind.GPU
                if through and (kind != NVL or self.kind[there] is not VertexKind.GPU or len(path.links) > 1):
                    continue
                gbps = min(path.gbps, self.gbps[link])
                known = found.get(there)
                if known is not None and not (len(known.links) > len(path.links) and known.gbps < gbps):
                    continue
                found[there] = Path((*path.links, link), self._type(path, link, through), gbps)
                if known is None:
                    waiting.append(there)
        for path in found.values():
            if self.version >= (2, 27, 0) and sorted(self.type[i] for i in path.links) == [C2C, PIX]:
                path.type = P2C  # a NIC at the host that a superchip's GPU reaches over C2C
        if self.kind[start] is VertexKind.GPU:
            for path in found.values():
                path.through_intel = path.type == PHB and self._intel()
        return found

    def _intel(self) -> bool:
        return self.topology.cpu.vendor == "intel" and self.topology.cpu.arch == "x86_64"

    def _type(self, path: Path, link: int, through: bool) -> int:
        kind, ends = self.type[link], (self.kind[self.src[link]], self.kind[self.dst[link]])
        if kind == PIX:
            if VertexKind.HOST in ends:
                kind = PHB
            elif ends == (VertexKind.PCIE_SWITCH, VertexKind.PCIE_SWITCH):
                kind = PXB
        elif kind == NVL and through and path.type == NVL:
            kind = NVB
        return max(path.type, kind)

    def _gpu_pair(self, from_gpu: list[dict[int, Path]], a: int, b: int) -> Path:
        if a == b:
            return Path((), LOC, 5000.0)
        path = from_gpu[a].get(self.gpu_vertices[b])
        if path is None:
            return Path((), len(PATHS) - 1, 0.0)
        if self.peer_level < path.type < PHB:
            return self._through_host(from_gpu, a, b) or path
        return path

    def _through_host(self, from_gpu: list[dict[int, Path]], a: int, b: int) -> Path | None:
        """Up to the nearest host and down again, as data passes through shared host memory."""
        hosts = [v for v, kind in self.kind.items() if kind is VertexKind.HOST and v in from_gpu[a]]
        if not hosts:
            return None
        host = min(hosts, key=lambda v: (from_gpu[a][v].type, len(from_gpu[a][v].links)))
        up, down = from_gpu[a][host], self._paths(host).get(self.gpu_vertices[b])
        if down is None:
            return None
        kind = max(PHB, up.type, down.type)
        return Path((*up.links, *down.links), kind, min(up.gbps, down.gbps), kind == PHB and self._intel())

    # -- network ---------------------------------

    def _reach_nics(self, view: NodeView) -> None:
        near = PXB if whole(self.env, "NCCL_PXN_DISABLE") != 1 and self.version >= (2, 12, 0) else -1
        for g in range(view.gpus):
            for n in range(view.nets):
                path = view.gpu_net[g][n]
                if path is None or near < 0 or path.type <= PXN:
                    continue
                beside = next(
                    (
                        other
                        for other in range(view.gpus)
                        if other != g
                        and _kind(view.gpu_net[other][n]) in (PIX, PXB, P2C)
                        and view.gpu_gpu[g][other].type <= NVL
                    ),
                    None,
                )
                if beside is not None:
                    self._via(view, g, beside, n)
        self._without_gdr(view)

    def _via(self, view: NodeView, g: int, beside: int, n: int) -> None:
        first, last = view.gpu_gpu[g][beside], view.gpu_net[beside][n]
        assert last is not None
        view.gpu_net[g][n] = Path((*first.links, *last.links), PXN, min(first.gbps, last.gbps))

    def _without_gdr(self, view: NodeView) -> None:
        """NICs that are too far for GPU memory (or sockets) go through the host: at least PHB."""
        level = path_level(self.env, "NCCL_NET_GDR_LEVEL", "PXB")
        level = max(level, PXN) if level >= PXB else level
        sockets = self.topology.network in THROUGH_HOST
        for rows in (view.gpu_net, view.net_gpu):
            for row in rows:
                for path in row:
                    if path is not None and (sockets or path.type > level) and path.type < PHB:
                        path.type = PHB


def _kind(path: Path | None) -> int:
    return len(PATHS) - 1 if path is None else path.type
