"""The tuner's latencies and bandwidths of every algorithm and protocol (src/graph/tuning.cc)."""

from __future__ import annotations

from math import floor, log2

from commsim.collectives.semantics import CHAINED, REDUCING, WHOLE
from commsim.nccl import tuner_tables as tables
from commsim.nccl.system import Graph, System
from commsim.nccl.version import Version

_LL, _LL128, _SIMPLE = range(3)


def graph_of(system: System, algorithm: str, version: Version) -> Graph | None:
    """The graph that an algorithm is priced by; None where the system has none.

    Before 2.18 both kinds of CollNet are priced by the one graph of CollNet, a chain, and NVLS by that of the ring.
    """
    if version < (2, 18, 0):
        if algorithm == "nvls":
            return system.ring if system.nvls is not None else None
        if algorithm == "collnet_direct":
            return system.collnet_chain
    graphs = {
        "tree": system.tree,
        "pat": system.tree,
        "ring": system.ring,
        "collnet_direct": system.collnet_direct,
        "collnet_chain": system.collnet_chain,
    }
    return graphs.get(algorithm, system.nvls)


def generation(system: System, version: Version) -> int:
    """Row of the tables: 0 Volta, 1 Ampere, 2 Hopper, 3 Blackwell.

    Before 2.17 only GPUs that all are of 8.0 (from 2.15 of 9.0) have a row of their own, and every other is as Volta.
    """
    if version < (2, 17, 0):
        if system.mixed_gpus:
            return 0
        return {80: 1, 90: 2 if version >= (2, 15, 0) else 0}.get(system.sm, 0)
    newest = 3 if version >= (2, 25, 0) else 2
    return min(newest, 3 if system.sm >= 100 else 2 if system.sm >= 90 else 1 if system.sm >= 80 else 0)


def column(system: System) -> int:
    """Column of the tables: one node, two, more."""
    return min(system.nodes, 3) - 1


def latency(system: System, collective: str, algorithm: str, protocol: int, version: Version) -> float:
    """Latency of a table's entry in us."""
    N, M = system.ranks, system.nodes
    inside, depth = N // M - 1, floor(log2(M))
    graph = graph_of(system, algorithm, version)
    link = "NVLINK" if graph is not None and graph.intra_type == "NVL" else "PCI"
    base = tables.base_latency(algorithm, version)[protocol]
    intra = _hop(system, algorithm, link, protocol, version)
    if version < (2, 18, 0) and M > 1 and protocol == 0:
        intra *= 1.8
    inter = _net_hop(system, algorithm, protocol, version)
    if algorithm == "tree":
        return base + 2 * (inside * intra + depth * inter)
    if algorithm.startswith("nvls"):
        return _nvls(system, algorithm, version, base, intra, inter)
    if algorithm == "pat":
        return 8.0 + depth * inter / 3.5 + 2.8 * N
    if algorithm == "ring":
        return base + _ring_hops(system, collective, protocol, version, intra, inter)
    # The CollNet before 2.14, here collnet_chain, was a direct one from 2.10 on.
    if algorithm == "collnet_direct" or (2, 10, 0) <= version < (2, 14, 0):
        serial = 0.5 if version < (2, 19, 0) else 0.4
        return base + 2 * (min(1, inside) * intra + inside * serial) + inter
    return base + 2 * inside * intra + (0.0 if (2, 14, 0) <= version < (2, 18, 0) else inter)


def _nvls(system: System, algorithm: str, version: Version, base: float, intra: float, inter: float) -> float:
    M = system.nodes
    if version < (2, 18, 0):
        return base
    if version < (2, 19, 0):  # without what the NIC adds, and NVLSTree as deep as a chain of the nodes
        hop = tables.hop_latency(algorithm, "NET", version)[_SIMPLE]
        return base + hop * (2 * (M - 1) if algorithm == "nvls_tree" else min(1, M - 1))
    if algorithm == "nvls":
        return base + intra + (inter if M > 1 else 0.0)
    return base + intra + 2 * floor(log2(M)) * inter


def steps(collective: str, ranks: int) -> int:
    """Steps of a ring."""
    return {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(collective, ranks)


def _inter_steps(collective: str, nodes: int, version: Version) -> int:
    if nodes == 1 or collective in CHAINED:
        return 0
    if collective == "all_reduce":
        return 2 * nodes if (2, 12, 0) <= version < (2, 23, 0) else 2 * (nodes - 1)
    return nodes - 1


def _hop(system: System, algorithm: str, link: str, protocol: int, version: Version) -> float:
    power = system.cpu_arch == "ppc64" and version >= (2, 10, 0)
    row = "ring" if power and (algorithm, link, protocol) == ("tree", "PCI", _SIMPLE) else algorithm
    return tables.hop_latency(row, link, version)[protocol]


def _net_hop(system: System, algorithm: str, protocol: int, version: Version) -> float:
    row = "tree" if system.ranks == system.nodes and version >= (2, 23, 0) else algorithm
    hop = _hop(system, row, "NET", protocol, version)
    extra = system.nic_latency_us if system.nodes > 1 else 0.0
    if version < (2, 12, 0) or extra == 0.0:
        return hop
    if version < (2, 18, 0):
        return extra
    return hop + extra * (2 if protocol == _SIMPLE else 1)


def _ring_hops(
    system: System, collective: str, protocol: int, version: Version, intra: float, inter: float
) -> float:  # fmt: skip
    N, M = system.ranks, system.nodes
    if collective in CHAINED:
        link = "NET" if M > 1 else "NVLINK" if system.ring.intra_type == "NVL" else "PCI"
        if system.ring.same_channels:
            return _hop(system, "ring", link, protocol, version)
        return N * _hop(system, "tree" if protocol == _SIMPLE else "ring", link, protocol, version)
    overhead = 0.0
    if M > 1 and version >= (2, 18, 0):
        amd = system.cpu_vendor == "amd" and system.cpu_arch == "x86_64"
        overhead = (2.0 if amd else 1.0) * (3 if protocol == _SIMPLE else 1)
    across = _inter_steps(collective, M, version)
    return (steps(collective, N) - across) * max(intra, overhead) + across * inter


def nvls_bandwidth(
    system: System, graph: Graph, bus: float, collective: str, algorithm: str, version: Version
) -> float:  # fmt: skip
    """Algorithm bandwidth of NVLS or NVLSTree in GB/s (src/graph/tuning.cc); `bus` is that of all channels.

    2.17 takes 3/4 of the ring's speed, 2.18 to 2.27 a flat share of the graph's, 2.28 and later the efficiency of the
    switch by generation.
    """
    if collective != "all_reduce" and version >= (2, 27, 0) and not _gathers(system):
        return 0.0
    if version >= (2, 28, 0):
        return _by_efficiency(system, graph, collective, algorithm, version)
    if version < (2, 19, 0):
        return _first_nvls(system, bus, algorithm, version)
    across = graph.inter_gbps / 2 if algorithm == "nvls_tree" and system.nodes > 2 else graph.inter_gbps
    if collective == "all_reduce" or version < (2, 27, 0):
        bus = graph.channels * min(graph.intra_gbps, across)
    else:
        bus = graph.channels * min(graph.intra_gbps * (1 - system.nodes / system.ranks), 0.9 * across)
    return bus if collective != "all_reduce" and version >= (2, 23, 0) else bus * 5 / 6


def _first_nvls(system: System, bus: float, algorithm: str, version: Version) -> float:
    M = system.nodes
    if algorithm == "nvls_tree":
        return bus * 0.70 * M / (2 * (M - 1)) if M > 1 else 0.0
    return bus * (0.75 if version < (2, 18, 3) else 5 / 6)


def _by_efficiency(system: System, graph: Graph, collective: str, algorithm: str, version: Version) -> float:
    N, M, row = system.ranks, system.nodes, generation(system, version)
    if graph.channels < 2:
        return 0.0
    ppn = N / M
    gain = 2.0 if collective == "all_reduce" else (ppn - 1) / ppn
    heads = graph.channels
    inside = graph.intra_gbps * tables.NVLS_EFFICIENCY[row] * (heads - 1) / heads * gain
    across = graph.inter_gbps * (2.0 if M <= 2 and algorithm == "nvls_tree" else 1.0)
    per_channel = min(inside, across)
    if algorithm == "nvls_tree":
        per_channel = min(per_channel, tables.nvls_tree_cap(version)[row][column(system)])
    bus = heads * per_channel
    return bus * N / (2 * (N - 1)) if collective == "all_reduce" else bus


def collnet_direct_bandwidth(system: System, graph: Graph, bus: float, collective: str, version: Version) -> float:
    """Algorithm bandwidth of CollNetDirect with Simple in GB/s, from 2.14; `bus` is that of all channels."""
    ppn = system.ranks / system.nodes
    if collective != "all_reduce":
        if not _gathers(system):
            return 0.0
        if version >= (2, 27, 0):
            return ppn * min(graph.intra_gbps, 0.9 * graph.inter_gbps)
        weight = (ppn - 1) / 7
        return ppn * graph.intra_gbps * (weight * 0.85 + (1 - weight) * 0.95)
    factor = ppn / graph.channels
    factor -= (factor - 1) / 2
    return bus / factor * (0.85 if system.sm >= 90 and version >= (2, 18, 0) else 1.0) * 0.5


def _gathers(system: System) -> bool:
    """Whether the network's switches may do all_gather and reduce_scatter, as far as these leave a node.

    Their plugin must know both, and every GPU of a node must have a NIC of its own.
    """
    return system.nodes == 1 or (system.collnet_gathers and system.ranks_per_node <= system.collnet_heads)


_OLD_MOST = {1: 235.0, 2: 370.0}
"""Most GB/s of all channels by generation, Ampere's until 2.17 and Hopper's in 2.17."""


def bandwidth(system: System, collective: str, algorithm: str, protocol: int, version: Version) -> float:
    """Algorithm bandwidth of a table's entry in GB/s, were it enabled."""
    graph = graph_of(system, algorithm, version)
    if graph is None:
        return 0.0
    N, M = system.ranks, system.nodes
    speed = graph.intra_gbps if M <= 2 or algorithm.startswith("collnet") else graph.inter_gbps
    bus = graph.channels * speed
    row = generation(system, version)
    if version < (2, 18, 0) and (row == 1 or version >= (2, 17, 0)):
        bus = min(bus, _OLD_MOST.get(row, bus))
    if algorithm.startswith("nvls"):
        return nvls_bandwidth(system, graph, bus, collective, algorithm, version)
    if algorithm == "ring":
        return _ring(system, graph, bus, collective, protocol, version) * N / steps(collective, N)
    if algorithm == "tree":
        return _tree(system, graph, bus, collective, protocol, version) * 0.5
    if algorithm == "pat":
        return bus * (0.85 if version < (2, 24, 0) else 0.75)
    if version < (2, 10, 0):
        bus *= 0.9
        if protocol == _LL and version < (2, 9, 0):  # its last release with anything but Simple
            return bus / 6 * 0.5
    if protocol != _SIMPLE:
        return 0.0
    if algorithm == "collnet_direct":
        return collnet_direct_bandwidth(system, graph, bus, collective, version)
    return bus * (0.75 if (2, 14, 0) <= version < (2, 18, 0) else 1.0) * 0.5


def _ring(
    system: System, graph: Graph, bus: float, collective: str, protocol: int, version: Version
) -> float:  # fmt: skip
    if protocol == _LL:
        return min(_ll_max(system, version), bus * _ring_ll_factor(collective, system.nodes, version))
    if protocol == _LL128:
        lone = system.ranks / system.nodes < 2 and version < (2, 23, 0)
        cap = tables.ring_ll128_cap(version, collective)[generation(system, version)][column(system)]
        return min(bus * (0.7 if lone else 0.92), graph.channels * cap)
    return bus


def _tree(
    system: System, graph: Graph, bus: float, collective: str, protocol: int, version: Version
) -> float:  # fmt: skip
    row, nodes = generation(system, version), column(system)
    bus = min(bus * 0.92, graph.channels * tables.tree_cap(version)[row][nodes])
    if protocol == _LL:
        bus = min(bus / 3.8, _ll_max(system, version))
    elif protocol == _LL128:
        across = 0.915 if version < (2, 10, 0) else 120 / 128
        cap = tables.tree_ll128_cap(version, collective)[row][nodes]
        bus = min(bus * (7 / 9 if system.nodes == 1 else across), graph.channels * cap)
    if graph.pattern == "TREE" and version >= (2, 18, 3):
        bus *= 0.85
    return bus


def _ll_max(system: System, version: Version) -> float:
    rows = tables.ll_max(version)
    if system.nodes == 1:
        return rows[generation(system, version)][0]
    amd = system.cpu_vendor == "amd" or (system.cpu_vendor == "mixed" and version >= (2, 24, 0))
    return rows[1 if amd else 0][column(system)]


def _ring_ll_factor(collective: str, nodes: int, version: Version) -> float:
    if version >= (2, 21, 0):
        return 0.5
    return 1 / 4 if nodes > 1 or collective in REDUCING & WHOLE else 1 / 3
