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
    graph = NodeGraph()
    for g in range(gpus):
        graph.add_vertex(f"gpu{g}", VertexKind.GPU)
    _nvlink(graph, spec.nvlink or NvlinkSpec(), gpus, full_gpus(spec, name), name)
    _pcie(graph, spec, gpus, name)
    _nics(graph, spec, nics, spread, name)
    return graph


def _nvlink(graph: NodeGraph, spec: NvlinkSpec, gpus: int, full: int, name: str) -> None:
    kind = spec.kind or "none"
    if kind == "none" or not spec.links:
        return
    bandwidth = need(spec.bandwidth, name, "node.nvlink.bandwidth")
    latency = NVLINK_LATENCY_S if spec.latency is None else spec.latency
    if kind == "switch":
        graph.add_vertex("nvswitch", VertexKind.NVSWITCH)
        for g in range(gpus):
            _link(graph, (f"gpu{g}", "nvswitch"), LinkKind.NVLINK, (bandwidth, latency), spec.links)
        return
    for (a, b), count in _nvlink_pairs(kind, spec.links, full, name).items():
        if a < gpus and b < gpus:
            _link(graph, (f"gpu{a}", f"gpu{b}"), LinkKind.NVLINK, (bandwidth, latency), count)


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


def _slots(spec: NodeSpec, name: str) -> tuple[int, int, int]:
    """(GPUs of the whole node, sockets, GPUs per switch), checked against each other."""
    pcie, full = spec.pcie or PcieSpec(), full_gpus(spec, name)
    sockets, per_switch = pcie.sockets or 1, pcie.gpus_per_switch or 0
    if sockets > full:
        raise TopologyError(f"{name}: node.pcie.sockets: found {sockets} sockets for {full} GPUs")
    if per_switch > full:
        raise TopologyError(f"{name}: node.pcie.gpus_per_switch: found {per_switch} for {full} GPUs")
    return full, sockets, per_switch


def _socket(gpu: int, full: int, sockets: int) -> int:
    return gpu * sockets // full


def _pcie(graph: NodeGraph, spec: NodeSpec, gpus: int, name: str) -> None:
    pcie = spec.pcie or PcieSpec()
    full, sockets, _ = _slots(spec, name)
    latency = PCIE_LATENCY_S if pcie.latency is None else pcie.latency
    used = _socket(gpus - 1, full, sockets) + 1 if pcie.linked_sockets else sockets
    for s in range(used):
        graph.add_vertex(f"cpu{s}", VertexKind.HOST)
    if spec.c2c is not None:
        bandwidth = need(spec.c2c.bandwidth, name, "node.c2c.bandwidth")
        c2c_latency = NVLINK_LATENCY_S if spec.c2c.latency is None else spec.c2c.latency
        for g in range(gpus):
            host = f"cpu{_socket(g, full, sockets)}"
            _link(graph, (f"gpu{g}", host), LinkKind.C2C, (bandwidth, c2c_latency))
    else:
        bandwidth = need(pcie.bandwidth, name, "node.pcie.bandwidth")
        for g in range(gpus):
            parent = _parent(graph, spec, g, name)
            _link(graph, (f"gpu{g}", parent), LinkKind.PCIE, (bandwidth, latency))
    _socket_links(graph, pcie, used, name)


def _parent(graph: NodeGraph, spec: NodeSpec, gpu: int, name: str) -> str:
    """The PCIe switch or host above a GPU's slot; the switch and its uplink appear when first asked for."""
    full, sockets, per_switch = _slots(spec, name)
    host = f"cpu{_socket(gpu, full, sockets)}"
    if not per_switch:
        return host
    switch = f"pcie{gpu // per_switch}"
    if switch not in graph.kinds:
        pcie = spec.pcie or PcieSpec()
        uplink = need(pcie.switch_bandwidth or pcie.bandwidth, name, "node.pcie.bandwidth")
        first = f"cpu{_socket(gpu // per_switch * per_switch, full, sockets)}"
        latency = PCIE_LATENCY_S if pcie.latency is None else pcie.latency
        graph.add_vertex(switch, VertexKind.PCIE_SWITCH)
        _link(graph, (switch, first), LinkKind.PCIE, (uplink, latency))
    return switch


def _socket_links(graph: NodeGraph, pcie: PcieSpec, sockets: int, name: str) -> None:
    board = pcie.linked_sockets or sockets
    latency = SOCKET_LATENCY_S if pcie.socket_latency is None else pcie.socket_latency
    for a in range(sockets):
        for b in range(a + 1, min(sockets, a - a % board + board)):
            bandwidth = need(pcie.socket_bandwidth, name, "node.pcie.socket_bandwidth")
            _link(graph, (f"cpu{a}", f"cpu{b}"), LinkKind.HOST, (bandwidth, latency))


def _nics(graph: NodeGraph, spec: NodeSpec, nics: int, spread: int, name: str) -> None:
    """Adds NICs; NIC i stands beside GPU ``i * spread // nics``, so equal counts pair each GPU with a NIC."""
    nic, pcie = spec.nic or NicSpec(), spec.pcie or PcieSpec()
    latency = PCIE_LATENCY_S if pcie.latency is None else pcie.latency
    full, sockets, _ = _slots(spec, name)
    for i in range(nics):
        gpu = i * spread // nics
        bandwidth = need(nic.pcie_bandwidth or pcie.bandwidth, name, "node.nic.pcie_bandwidth")
        graph.add_vertex(f"nic{i}", VertexKind.NIC)
        host = f"cpu{_socket(gpu, full, sockets)}"
        beside_gpu = (nic.attach or "switch") == "switch" and spec.c2c is None
        parent = _parent(graph, spec, gpu, name) if beside_gpu else host
        if parent not in graph.kinds:
            graph.add_vertex(parent, VertexKind.HOST)
        _link(graph, (f"nic{i}", parent), LinkKind.PCIE, (bandwidth, latency))


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
