"""One node as NCCL sees it: links with the bandwidth it counts, its paths between GPUs, NICs and the NVSwitch, and what
a channel may try next at each place of it.

After src/graph/topo.cc and src/graph/paths.cc (ncclTopoComputePaths): the paths of `commsim.nccl.paths`, then
diversions where a GPU or NIC cannot be reached directly (through host memory, or through the GPU beside a NIC: PXN).
A NIC and its port on the network are two devices, with a link of the port's rate between them. Bandwidths in GB/s.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from commsim.nccl.environment import THROUGH_HOST, path_level, whole
from commsim.nccl.paths import (
    C2C,
    LOCAL_GBPS,
    NET,
    NO_PATH,
    NVL,
    P2C,
    PHB,
    PIX,
    PXB,
    PXN,
    SYS,
    Path,
    Wiring,
    peer_level,
)
from commsim.nccl.version import Version
from commsim.topology.graph import LinkKind, Topology, VertexKind
from commsim.topology.sockets import SKYLAKE, socket_gb_per_s
from commsim.units import GIGA, gb_per_s

_NEW_INTEL_SINCE: Version = (2, 26, 0)
"""Up to 2.25 NCCL tells only Skylake from older models (src/graph/topo.cc, ncclTopoAddCpu)."""

_TYPES_SINCE: dict[int, Version] = {C2C: (2, 25, 0), P2C: (2, 27, 0)}
"""Path types that earlier versions do not know (src/graph/topo.h; not in 2.24.3, not in 2.26.6)."""


_LOCAL_GPUS_SINCE: Version = (2, 27, 0)
_LOCAL_GPU_FIRST_SINCE: Version = (2, 27, 5)
"""How a version picks the GPU at which a channel enters from a NIC (ncclTopoSearchRecNet)."""


def nvlink_gbps(topology: Topology, version: Version) -> float:
    """One NVLink in one direction as a version counts it (src/graph/topo.h)."""
    sm = topology.gpu.sm
    if sm in (70, 75, 80, 87) or (sm >= 90 and version < (2, 18, 0)):  # which knows no newer ones
        return 21.0 if version < (2, 10, 0) else 22.0 if version < (2, 18, 0) else 20.0
    if sm >= 100 and version >= (2, 25, 0):
        return 40.0 if version < (2, 27, 0) else 40.1
    if sm >= 90:
        return 20.0 if version < (2, 20, 0) else 20.6
    return {60: 18.0, 86: 12.0, 89: 12.0}.get(sm, topology.nvlink_link_bandwidth * 0.8 / GIGA)


def cpu_link_gbps(topology: Topology, version: Version) -> float:
    """The link between two sockets as NCCL counts it."""
    newest = 0xFFFF if version >= _NEW_INTEL_SINCE else SKYLAKE
    return socket_gb_per_s(topology.cpu.vendor, topology.cpu.model, newest=newest)


@dataclass
class NodeView:
    """The node: `left` is what each directed link still has to give while channels are searched."""

    gpus: int
    nets: int
    sm: int
    nvswitch: bool
    amd: bool
    nics: tuple[int, ...] = ()  # of the node, by net
    places: tuple[int, ...] = ()  # of the GPUs among all of the node, whoever uses those
    types: tuple[int, ...] = ()  # that the version knows, nearest first
    left: list[float] = field(default_factory=list)
    net_left: list[float] = field(default_factory=list)
    is_pci: list[bool] = field(default_factory=list)
    reverse: list[int] = field(default_factory=list)
    into_old_gpu: list[bool] = field(default_factory=list)  # ends at a GPU before Ampere, where writes cost reads
    gpu_gpu: list[list[Path]] = field(default_factory=list)
    gpu_net: list[list[Path]] = field(default_factory=list)
    net_gpu: list[list[Path]] = field(default_factory=list)  # by net, then by GPU
    gpu_switch: list[Path] = field(default_factory=list)
    switch_gpu: list[Path] = field(default_factory=list)
    gpu_ports: list[tuple[int, ...]] = field(default_factory=list)  # PCIe out of and into each GPU
    max_gbps: float = 0.0
    total_gbps: float = 0.0

    def split_nvlink(self) -> bool:
        """Whether NVLink joins the GPUs into two groups of more than one (src/graph/paths.cc, ncclTopoSplitNvLink)."""
        group = list(range(self.gpus))
        for a in range(self.gpus):
            for b in range(a + 1, self.gpus):
                if self.gpu_gpu[a][b].type == NVL:
                    group[b] = group[a]
        return sum(group.count(g) > 1 for g in set(group)) == 2

    def nearest(self, paths: list[Path]) -> list[int]:
        """Which ends of some paths are nearest: the widest paths, and of those the shortest type."""
        best = min(((-p.gbps, p.type) for p in paths if p.gbps > 0), default=None)
        return [n for n, p in enumerate(paths) if (-p.gbps, p.type) == best]

    def local_nets(self, gpu: int) -> list[int]:
        """The NICs that NCCL gives a GPU for its channels, in turn: neighbours start at different NICs.

        Neighbours are so by their place in the node: those of other communicators count (src/graph/topo.cc,
        ncclTopoGetLocalNet, gpu.dev).
        """
        nets = self.nearest(self.gpu_net[gpu])
        if not nets:
            return []
        first = self.places[gpu]
        if len(nets) & (len(nets) - 1) == 0:
            bits = len(nets).bit_length() - 1
            first = int(f"{first % len(nets):0{bits}b}"[::-1], 2) if bits else 0
        sharing = max(1, len(self.nearest(self.net_gpu[nets[0]])))
        return [nets[(first + turn) % len(nets)] for turn in range(-(-len(nets) // sharing))]

    def local_gpu(self, net: int) -> int | None:
        """The GPU that is given a NIC first; None where it is nobody's own (src/graph/topo.cc, ncclTopoGetLocalGpu)."""
        turns = {gpu: self.local_nets(gpu) for gpu in self.nearest(self.net_gpu[net])}
        given = [gpu for gpu, nets in turns.items() if net in nets]
        return min(given, key=lambda gpu: turns[gpu].index(net), default=None)


class Candidates:
    """The NICs and GPUs to try in a node, by a version's rules; what is asked again is kept.

    ``turned``: another GPU is tried first for each channel; ``new_orders_only``: an order is either that of the channel
    before, or a new one. ``local_gpu``: the GPU that is given each NIC first.
    """

    def __init__(self, view: NodeView, version: Version) -> None:
        self.view = view
        self.turned = version < _LOCAL_GPUS_SINCE
        self.new_orders_only = version >= _LOCAL_GPU_FIRST_SINCE
        self.local_gpu = [view.local_gpu(n) for n in range(view.nets)]
        self._nets: dict[tuple[int, int], list[int]] = {}
        self._beside: dict[tuple[int, str], list[int]] = {}
        self._nearest: dict[int, set[int]] = {}  # of each NIC the GPUs with the best path from it
        self._followers: dict[tuple[int, int], list[tuple[int, tuple[int, int], int]]] = {}

    def nets(self, gpu: int, farthest: int) -> list[int]:
        """The NICs up to a type of path, nearest first; `gpu` -1 looks from all GPUs."""
        key = (gpu, farthest)
        if key not in self._nets:
            view = self.view
            gpus = range(view.gpus) if gpu == -1 else [gpu]
            nets = [net for g in gpus for net in view.local_nets(g)]
            for kind in range(farthest + 1):
                nets += [net for g in gpus for net, path in enumerate(view.gpu_net[g]) if path.type == kind]
            self._nets[key] = list(dict.fromkeys(nets))
        return self._nets[key]

    def entries(self, net: int, gbps: int, channel: int) -> list[int]:
        """The GPUs at which a channel may enter from a NIC."""
        view, paths = self.view, self.view.net_gpu[net]
        if not self.turned:
            near, own = view.nearest(paths), self.local_gpu[net]
            if not self.new_orders_only or own is None:
                return near
            return [own, *(g for g in near if g != own)]
        if net not in self._nearest:
            scores = [(p.gbps, -len(p.links)) for p in paths]
            self._nearest[net] = {gpu for gpu, score in enumerate(scores) if score == max(scores)}
        gpus = ((channel + i) % view.gpus for i in range(view.gpus))
        return [g for g in gpus if g in self._nearest[net] and paths[g].gbps >= gbps]

    def followers(self, gpu: int, net: int) -> list[tuple[int, tuple[int, int], int]]:
        """All GPUs that can follow one: (GPU, its score inside the node, its score to a NIC), by all but the second."""
        if (gpu, net) not in self._followers:
            view, scores = self.view, []
            for i in range(1, view.gpus):
                there = (gpu + i) % view.gpus
                path, towards = view.gpu_gpu[gpu][there], view.net_gpu[net][there] if net >= 0 else NO_PATH
                if path.links:
                    inside = (-int(path.gbps), len(path.links))
                    scores.append((-int(towards.gbps), len(towards.links), inside, i, there))
            self._followers[gpu, net] = [(there, inside, wide) for wide, _, inside, _, there in sorted(scores)]
        return self._followers[gpu, net]

    def neighbours(self, gpu: int, pattern: str) -> list[int]:
        """Behind an NVSwitch only the next and the previous GPU are tried, as it prefers few peers."""
        key = (gpu, pattern)
        if key not in self._beside:
            before, after = ((gpu + step) % self.view.gpus for step in (-1, 1))
            tried = {"RING": (before, after), "TREE": (after,)}.get(pattern, (after, before))
            free = (there for there in dict.fromkeys(tried) if there != gpu)
            self._beside[key] = [there for there in free if self.view.gpu_gpu[gpu][there].links]
        return self._beside[key]


def view_of(topology: Topology, version: Version, env: dict[str, str]) -> NodeView:
    """NCCL's view of the first node; NICs are left out of a communicator that has no other node."""
    return _Builder(topology, version, env).view()


def _port_works(t: Topology, nic: int) -> bool:
    """Whether the port of a NIC of the first node is up."""
    ports = [int(t.fabric.port_up[0, nic]), int(t.fabric.port_down[0, nic])]
    return bool(t.works[ports].all())


class _Builder:
    def __init__(self, topology: Topology, version: Version, env: dict[str, str]) -> None:
        self.topology, self.version, self.env = topology, version, env
        t = topology
        vertices = [int(v) for v in np.flatnonzero(t.vertex_node == 0)]
        kinds: dict[int, VertexKind | None] = {v: VertexKind(int(t.vertex_kind[v])) for v in vertices}
        self.gpus = [int(v) for v in t.rank_vertex[: t.ranks_per_node]]
        self.places = [v for v, kind in kinds.items() if kind is VertexKind.GPU]
        every = [v for v, kind in kinds.items() if kind is VertexKind.NIC] if t.nodes > 1 else []
        self.nics = [i for i in range(len(every)) if _port_works(t, i)]  # NCCL lists no others (src/transport/net_ib)
        nics = [every[i] for i in self.nics]
        self.hosts = [v for v, kind in kinds.items() if kind is VertexKind.HOST]
        self.nets = [-1 - v for v in nics]  # a number for the port of each NIC
        self.wiring = Wiring(kinds | dict.fromkeys(self.nets))
        self.peer_level = peer_level(t, version, env)
        self._join()
        for nic, net in zip(nics, self.nets, strict=True):
            self.wiring.join(self._device(nic), net, NET, gb_per_s(t.nic_bandwidth))
        self.wiring.sort()
        self.to_host = {v: self.wiring.paths_to(v) for v in self.hosts}
        self.to_gpu = [self.wiring.paths_to(v) for v in self.gpus]
        self.to_net = [self.wiring.paths_to(v) for v in self.nets]

    def _join(self) -> None:
        t = self.topology
        per_link, sockets = nvlink_gbps(t, self.version), cpu_link_gbps(t, self.version)
        types = {LinkKind.NVLINK: NVL, LinkKind.C2C: C2C, LinkKind.PCIE: PIX, LinkKind.HOST: SYS}
        pairs: set[tuple[int, int]] = set()
        for i in range(*t.node_first_link[:2].tolist()):
            if t.link_failed is not None and t.link_failed[i]:
                continue
            ends = int(t.link_src[i]), int(t.link_dst[i])
            kind, gbps = LinkKind(int(t.link_kind[i])), gb_per_s(float(t.link_bandwidth[i]))
            if kind not in types or ends[::-1] in pairs or (kind is LinkKind.NVLINK and self.peer_level < NVL):
                continue
            if kind is LinkKind.NVLINK and t.nvlink_link_bandwidth:
                gbps = round(float(t.link_bandwidth[i]) / t.nvlink_link_bandwidth) * per_link
            elif kind is LinkKind.HOST:
                gbps = sockets
            pairs.add(ends)
            if kind is LinkKind.C2C and t.cpu.vendor == "ibm":  # NVLinks to a POWER9
                kind, gbps = LinkKind.NVLINK, round(gbps / (t.nvlink_link_bandwidth / GIGA or 25.0)) * per_link
            self.wiring.join(*ends, types[kind], gbps)

    def _device(self, nic: int) -> int:
        """The PCI device of a NIC: itself, or the card whose port it is."""
        w = self.wiring
        return next((w.dst[i] for i in w.out.get(nic, []) if w.kind[w.dst[i]] is VertexKind.CARD), nic)

    def view(self) -> NodeView:
        t, w = self.topology, self.wiring
        to_gpu, to_net = self.to_gpu, self.to_net
        switches = [v for v, kind in w.kind.items() if kind is VertexKind.NVSWITCH and self.peer_level >= NVL]
        switches = [v for v in switches if all(v in paths for paths in to_gpu)]  # faults may cut GPUs off
        old = t.gpu.sm < 80
        view = NodeView(
            gpus=len(self.gpus),
            nets=len(self.nets),
            nics=tuple(self.nics),
            places=tuple(self.places.index(v) for v in self.gpus),
            sm=t.gpu.sm,
            nvswitch=bool(switches),
            amd=t.cpu.vendor == "amd",
            types=tuple(k for k in range(SYS + 1) if self.version >= _TYPES_SINCE.get(k, (0, 0, 0))),
            left=list(w.gbps),
            net_left=[gb_per_s(t.nic_bandwidth)] * len(self.nets),
            is_pci=[kind == PIX for kind in w.type],
            reverse=list(w.reverse),
            into_old_gpu=[old and w.kind[d] is VertexKind.GPU for d in w.dst],
            gpu_ports=[self._port(v) for v in self.gpus],
        )
        view.gpu_gpu = [[self._peer(a, b) for b in range(view.gpus)] for a in range(view.gpus)]
        view.gpu_net = [[paths.get(v, NO_PATH) for paths in to_net] for v in self.gpus]
        view.net_gpu = [[paths.get(v, NO_PATH) for paths in to_gpu] for v in self.nets]
        if switches:
            to = w.paths_to(switches[0])
            view.gpu_switch = [to[v] for v in self.gpus]
            view.switch_gpu = [paths[switches[0]] for paths in to_gpu]
        self._reach_nics(view)
        intel = t.cpu.vendor == "intel" and t.cpu.arch == "x86_64"
        for row in [*view.gpu_gpu, *view.gpu_net]:
            row[:] = [replace(p, through_intel=intel and p.type == PHB) for p in row]
        if t.network in THROUGH_HOST:  # a plugin that reaches GPUs, but hands over by the host, counts as far
            for row in [*view.gpu_net, *view.net_gpu]:
                row[:] = [replace(p, type=max(p.type, PHB)) for p in row]
        self._speeds(view)
        return view

    def _speeds(self, view: NodeView) -> None:
        """The widest path of a GPU, and the most that its links carry (src/graph/search.cc, ncclTopoSearchInit)."""
        if view.gpus == 1 and not view.nets:
            view.max_gbps = view.total_gbps = LOCAL_GBPS
            return
        rows = view.gpu_net if view.nets else view.gpu_gpu
        view.max_gbps = max((p.gbps for row in rows for p in row if p.links), default=0.0)
        for v in self.gpus:
            pcie = self._out(v, (PIX,)) or self._out(v, (C2C,))
            view.total_gbps = max(view.total_gbps, sum(self._out(v, (NVL,))), pcie[-1] if pcie else 0.0)

    def _out(self, vertex: int, types: tuple[int, ...]) -> list[float]:
        """Bandwidths of the links of some types out of a device."""
        return [self.wiring.gbps[i] for i in self.wiring.out.get(vertex, []) if self.wiring.type[i] in types]

    def _port(self, gpu: int) -> tuple[int, ...]:
        """The PCIe link out of a GPU and that into it."""
        link = next((i for i in self.wiring.out.get(gpu, []) if self.wiring.type[i] == PIX), None)
        return () if link is None else (link, self.wiring.reverse[link])

    def _local_host(self, gpu: int) -> int | None:
        """The host in fewest links of a GPU; None without one."""
        hops = {h: len(paths[self.gpus[gpu]].links) for h, paths in self.to_host.items() if self.gpus[gpu] in paths}
        return min(hops, key=hops.__getitem__, default=None)

    def _merged(self, first: Path, then: Path) -> Path:
        """One path after another."""
        kind = max(first.type, then.type)
        if self.version >= (2, 27, 0) and {first.type, then.type} == {PHB, C2C}:
            kind = P2C  # a NIC at the host that a superchip's GPU reaches over C2C
        return Path(first.links + then.links, kind, min(first.gbps, then.gbps))

    def _peer(self, a: int, b: int) -> Path:
        """From one GPU to another: through host memory where they may not write to each other."""
        path = self.to_gpu[b].get(self.gpus[a], NO_PATH)
        if path.type <= self.peer_level or a == b:
            return path
        return self._by_host(self.gpus[a], self._local_host(b), self.to_gpu[b]) or path

    def _by_host(self, device: int, host: int | None, onward: dict[int, Path]) -> Path | None:
        """From a device through a host to where the paths `onward` end; None where there is no such way."""
        if host is None or host not in onward or device not in self.to_host[host]:
            return None
        return self._merged(self.to_host[host][device], onward[host])

    def _reach_nics(self, view: NodeView) -> None:
        self._over_c2c(view)
        pxn = whole(self.env, "NCCL_PXN_DISABLE") != 1 and self.version >= (2, 12, 0)
        beside = PXN if self.version >= (2, 27, 0) else PXB  # a path no farther gains by PXN only if that is wider
        reach = P2C if self.version >= (2, 28, 0) else PXB  # of the GPU beside the NIC
        for n, net in enumerate(self.nets):
            for g, gpu in enumerate(self.gpus):
                other = view.local_gpu(n) if pxn else None
                if other is not None and other != g:
                    near, own = view.gpu_net[other][n], view.gpu_net[g][n]
                    joined = near.type <= reach and view.gpu_gpu[other][g].type <= NVL
                    if joined and (near.gbps > own.gbps or own.type > beside):
                        via = self._merged(view.gpu_gpu[g][other], near)
                        view.gpu_net[g][n] = replace(via, type=PXN)
                if view.gpu_net[g][n].type >= PHB or self._direct(view, g, n):
                    continue
                host = self._local_host(g)
                inward, outward = self._by_host(net, host, self.to_gpu[g]), self._by_host(gpu, host, self.to_net[n])
                if inward is not None and outward is not None:
                    view.net_gpu[n][g], view.gpu_net[g][n] = inward, outward

    def _over_c2c(self, view: NodeView) -> None:
        """From 2.27 on a superchip's GPU reads and writes the NICs of its host over C2C."""
        if self.version < (2, 27, 0):
            return
        for g, gpu in enumerate(self.gpus):
            host = self._local_host(g)
            if host is None or self.to_host[host][gpu].type != C2C:
                continue
            for n, net in enumerate(self.nets):
                if self.to_host[host].get(net, NO_PATH).type == PHB:
                    for row, at in ((view.gpu_net[g], n), (view.net_gpu[n], g)):
                        row[at] = replace(row[at], type=min(P2C, row[at].type))

    def _direct(self, view: NodeView, g: int, n: int) -> bool:
        """Whether the NIC writes to the GPU's memory (GPUDirect RDMA), or to that of the GPU that stands in for it."""
        if self.topology.network == "ethernet":
            return False
        if self.topology.node_gdr is not None and not self.topology.node_gdr[0]:
            return False
        level = path_level(self.env, "NCCL_NET_GDR_LEVEL", "PXB")
        path = view.gpu_net[g][n]
        if path.type == PXN and (other := view.local_gpu(n)) is not None:
            path = view.gpu_net[other][n]
        return path.type <= level or path.type == P2C
