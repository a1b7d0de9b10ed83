"""One node as a graph: vertices with a `kind`, links with kind, bandwidth, latency and count.

Links are undirected here and carry the bandwidth of all their parallel wires in one direction; freezing
splits each into two. The order in which vertices and links are added is their order in the frozen arrays.
"""

from __future__ import annotations

from collections.abc import Sequence

from commsim.errors import TopologyError
from commsim.topology.kinds import LinkKind, NodeGraph, VertexKind, Wire
from commsim.topology.spec import NicSpec, NodeSpec, NvlinkSpec, PcieSpec

# Latencies where a description states none: one hop of the hardware, not NCCL's cost.
# PCIe: a switch forwards in 105-150 ns (Broadcom/PLX PEX8700 product briefs) plus serialisation at both ends.
PCIE_LATENCY_S = 0.2e-6
# Remote against local DRAM on two-socket Xeon and EPYC: about 60-100 ns more.
SOCKET_LATENCY_S = 0.1e-6
# About half of a 0.5 us unloaded remote access over one link.
NVLINK_LATENCY_S = 0.2e-6
# Half of the sub-0.6 us end-to-end latency of ConnectX product briefs, plus 10 m of cable at 5 ns/m.
NIC_LATENCY_S = 0.35e-6

# DGX-1V, NVLinks between GPU pairs; read from an NCCL topology dump of the machine and drawn in NVIDIA's
# "DGX-1 With Tesla V100 System Architecture" white paper (WP-08437-002), figure 4.
CUBE_MESH = {
    (0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2,
    (2, 6): 1, (3, 7): 1, (4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2,
}  # fmt: skip


def node_graph(spec: NodeSpec, gpus: int, nics: int, spread: int, name: str) -> NodeGraph:
    """The graph of a node with its first `gpus` GPUs and `nics` NICs spread over its first `spread` GPUs."""
    return _written(spec, name) if spec.vertices is not None else _pattern(spec, gpus, nics, spread, name)


def full_gpus(spec: NodeSpec, name: str) -> int:
    """Number of GPUs of the whole node."""
    gpus = spec.gpus if spec.vertices is None else list(spec.vertices.values()).count("gpu")
    if not gpus:
        raise TopologyError(f"{name}: node.gpus: the node has no GPU")
    return gpus


def full_nics(spec: NodeSpec) -> int:
    """Number of NICs of the whole node."""
    if spec.vertices is not None:
        return list(spec.vertices.values()).count("nic")
    return (spec.nic.count or 0) if spec.nic else 0


def _link(graph: NodeGraph, ends: tuple[str, str], kind: LinkKind, wire: tuple[float, float], count: int = 1) -> None:
    """Adds `count` parallel links; `wire` is (bytes/s, seconds) of one."""
    bandwidth, latency = wire
    graph.join(*ends, Wire(kind, bandwidth * count, latency, count))


def need(value: float | None, name: str, path: str) -> float:
    """A figure that the description must state by now."""
    if value is None:
        raise TopologyError(f"{name}: {path} is missing")
    return value


# -- patterns ---------------------------------


def _pattern(spec: NodeSpec, gpus: int, nics: int, spread: int, name: str) -> NodeGraph:
    node = _Pattern(spec, name)
    for g in range(gpus):
        node.graph.add_vertex(f"gpu{g}", VertexKind.GPU)
    node.add_nvlink(gpus)
    node.add_pcie(gpus)
    node.add_nics(nics, spread)
    return node.graph


class _Pattern:
    """A node under construction: its graph, and where the slots of the whole node are."""

    def __init__(self, spec: NodeSpec, name: str) -> None:
        self.graph, self.spec, self.name = NodeGraph(), spec, name
        self.pcie, self.full = spec.pcie or PcieSpec(), full_gpus(spec, name)
        self.sockets, self.per_switch = self.pcie.sockets or 1, self.pcie.gpus_per_switch or 0
        self.latency = PCIE_LATENCY_S if self.pcie.latency is None else self.pcie.latency
        if self.sockets > self.full:
            raise TopologyError(f"{name}: node.pcie.sockets: found {self.sockets} sockets for {self.full} GPUs")
        if self.per_switch > self.full:
            raise TopologyError(f"{name}: node.pcie.gpus_per_switch: found {self.per_switch} for {self.full} GPUs")

    def add_nvlink(self, gpus: int) -> None:
        nvlink = self.spec.nvlink or NvlinkSpec()
        kind = nvlink.kind or "none"
        if kind == "none" or not nvlink.links:
            return
        bandwidth = need(nvlink.bandwidth, self.name, "node.nvlink.bandwidth")
        wire = bandwidth, NVLINK_LATENCY_S if nvlink.latency is None else nvlink.latency
        if kind == "switch":
            self.graph.add_vertex("nvswitch", VertexKind.NVSWITCH)
            for g in range(gpus):
                _link(self.graph, (f"gpu{g}", "nvswitch"), LinkKind.NVLINK, wire, nvlink.links)
            return
        for (a, b), count in _nvlink_pairs(kind, nvlink.links, self.full, self.name).items():
            if a < gpus and b < gpus:
                _link(self.graph, (f"gpu{a}", f"gpu{b}"), LinkKind.NVLINK, wire, count)

    def add_pcie(self, gpus: int) -> None:
        """Adds the hosts, what joins the GPUs to them, PCIe or C2C, and the links between the hosts."""
        used = self._socket(gpus - 1) + 1 if self.pcie.linked_sockets else self.sockets
        for s in range(used):
            self.graph.add_vertex(f"cpu{s}", VertexKind.HOST)
        if self.spec.c2c is not None:
            bandwidth = need(self.spec.c2c.bandwidth, self.name, "node.c2c.bandwidth")
            latency = NVLINK_LATENCY_S if self.spec.c2c.latency is None else self.spec.c2c.latency
            for g in range(gpus):
                _link(self.graph, (f"gpu{g}", f"cpu{self._socket(g)}"), LinkKind.C2C, (bandwidth, latency))
        else:
            bandwidth = need(self.pcie.bandwidth, self.name, "node.pcie.bandwidth")
            for g in range(gpus):
                _link(self.graph, (f"gpu{g}", self._parent(g)), LinkKind.PCIE, (bandwidth, self.latency))
        board = self.pcie.linked_sockets or used
        latency = SOCKET_LATENCY_S if self.pcie.socket_latency is None else self.pcie.socket_latency
        for a in range(used):
            for b in range(a + 1, min(used, a - a % board + board)):
                bandwidth = need(self.pcie.socket_bandwidth, self.name, "node.pcie.socket_bandwidth")
                _link(self.graph, (f"cpu{a}", f"cpu{b}"), LinkKind.HOST, (bandwidth, latency))

    def add_nics(self, nics: int, spread: int) -> None:
        """Adds NICs; NIC i stands beside GPU ``i * spread // nics``, so equal counts pair each GPU with a NIC."""
        nic = self.spec.nic or NicSpec()
        beside_gpu = nic.attach != "host" and self.spec.c2c is None
        for i in range(nics):
            gpu = i * spread // nics
            bandwidth = need(nic.pcie_bandwidth or self.pcie.bandwidth, self.name, "node.nic.pcie_bandwidth")
            self.graph.add_vertex(f"nic{i}", VertexKind.NIC)
            parent = self._parent(gpu) if beside_gpu else f"cpu{self._socket(gpu)}"
            if parent not in self.graph.kinds:
                self.graph.add_vertex(parent, VertexKind.HOST)
            _link(self.graph, (f"nic{i}", parent), LinkKind.PCIE, (bandwidth, self.latency))

    def _socket(self, gpu: int) -> int:
        return gpu * self.sockets // self.full

    def _parent(self, gpu: int) -> str:
        """The PCIe switch or host above a GPU's slot; the switch and its uplink appear when first asked for."""
        if not self.per_switch:
            return f"cpu{self._socket(gpu)}"
        switch = f"pcie{gpu // self.per_switch}"
        if switch not in self.graph.kinds:
            uplink = need(self.pcie.switch_bandwidth or self.pcie.bandwidth, self.name, "node.pcie.bandwidth")
            first = f"cpu{self._socket(gpu - gpu % self.per_switch)}"
            self.graph.add_vertex(switch, VertexKind.PCIE_SWITCH)
            _link(self.graph, (switch, first), LinkKind.PCIE, (uplink, self.latency))
        return switch


def _nvlink_pairs(kind: str, links: int, gpus: int, name: str) -> dict[tuple[int, int], int]:
    if kind == "cube_mesh":
        if gpus != 8 or links != 6:
            raise TopologyError(
                f"{name}: node.nvlink: a cube mesh has 8 GPUs of 6 links each, found {gpus} GPUs of {links}"
            )
        return CUBE_MESH
    if kind == "pairs":
        if gpus % 2:
            raise TopologyError(f"{name}: node.nvlink: bridges join pairs, found {gpus} GPUs")
        return {(a, a + 1): links for a in range(0, gpus, 2)}
    if gpus < 2:
        return {}
    if links % (gpus - 1):
        raise TopologyError(
            f"{name}: node.nvlink: {links} links per GPU of a mesh cannot be shared evenly by {gpus - 1} peers"
        )
    return {(a, b): links // (gpus - 1) for a in range(gpus) for b in range(a + 1, gpus)}


# -- written out ---------------------------------


def _written(spec: NodeSpec, name: str) -> NodeGraph:
    graph = NodeGraph()
    assert spec.vertices is not None
    assert spec.links is not None
    for vertex, kind in sorted(spec.vertices.items(), key=lambda item: item[1] != "gpu"):
        graph.add_vertex(vertex, VertexKind[kind.upper()])
    for i, link in enumerate(spec.links):
        where = f"{name}: node.links.{i}"
        for end in link.ends:
            if end not in graph.kinds:
                raise TopologyError(f"{where}: {end!r} is not a vertex; the vertices are {_some(list(graph.kinds))}")
        if link.ends[0] == link.ends[1]:
            raise TopologyError(f"{where}: a link joins two vertices, found {link.ends[0]!r} twice")
        if link.ends[1] in graph.wires[link.ends[0]]:
            raise TopologyError(
                f"{where}: {link.ends[0]} and {link.ends[1]} are joined twice; `count` makes links wider"
            )
        link_kind = LinkKind[link.kind.upper()]
        _check_ends(link_kind, [graph.kinds[end] for end in link.ends], where)
        _link(graph, link.ends, link_kind, (link.bandwidth, link.latency), link.count)
    return graph


_ENDS = {
    LinkKind.NVLINK: {VertexKind.GPU, VertexKind.NVSWITCH},
    LinkKind.C2C: {VertexKind.GPU, VertexKind.HOST},
    LinkKind.PCIE: {VertexKind.GPU, VertexKind.PCIE_SWITCH, VertexKind.HOST, VertexKind.NIC, VertexKind.CARD},
    LinkKind.HOST: {VertexKind.HOST},
}


def _check_ends(kind: LinkKind, ends: list[VertexKind], where: str) -> None:
    for end in ends:
        if end not in _ENDS[kind]:
            allowed = " or ".join(sorted(k.name.lower() for k in _ENDS[kind]))
            raise TopologyError(f"{where}: a {kind.name.lower()} link ends at {allowed}, found a {end.name.lower()}")


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (" ..." if len(names) > 8 else "")
