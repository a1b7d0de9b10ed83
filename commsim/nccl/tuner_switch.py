"""The tuner's bandwidth of what reduces in a switch: NVLS and NVLSTree (NVSwitch), CollNetDirect (network)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.nccl import tuner_tables as tables
from commsim.nccl.tuner_inputs import column, generation

if TYPE_CHECKING:
    from commsim.nccl.system import Graph, System
    from commsim.nccl.version import Version


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
