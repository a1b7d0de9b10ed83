"""The tuner's bandwidth of what reduces in a switch: NVLS and NVLSTree (NVSwitch), CollNetDirect (network)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.nccl import tuner_tables as tables

if TYPE_CHECKING:
    from commsim.nccl.graph import Graph, System
    from commsim.nccl.version import Version


def nvls_bandwidth(system: System, graph: Graph, collective: str, algorithm: str, version: Version) -> float:
    """Algorithm bandwidth of NVLS or NVLSTree in GB/s (src/graph/tuning.cc).

    2.17 takes 3/4 of the ring's speed, 2.18 to 2.27 a flat share of the graph's, 2.28 and later the efficiency of the
    switch by generation.
    """
    if version >= (2, 28, 0):
        return _by_efficiency(system, graph, collective, algorithm, version)
    M = system.nodes
    if version < (2, 18, 0):
        speed = graph.intra_gbps if M <= 2 else graph.inter_gbps
        return min(graph.channels * speed, 370.0) * 0.75
    across = graph.inter_gbps / 2 if algorithm == "nvls_tree" and M > 2 else graph.inter_gbps
    bus = graph.channels * min(graph.intra_gbps, across)
    if collective != "all_reduce" and version >= (2, 23, 0):
        return bus
    if algorithm == "nvls_tree" and version < (2, 19, 0):
        return bus * 0.70 * M / (2 * (M - 1))
    return bus * 5 / 6


def _by_efficiency(system: System, graph: Graph, collective: str, algorithm: str, version: Version) -> float:
    N, M, generation = system.ranks, system.nodes, system.generation
    if graph.channels < 2:
        return 0.0
    ppn = N / M
    gain = 2.0 if collective == "all_reduce" else (ppn - 1) / ppn
    heads = graph.channels
    inside = graph.intra_gbps * tables.NVLS_EFFICIENCY[generation] * (heads - 1) / heads * gain
    across = graph.inter_gbps * (2.0 if M <= 2 and algorithm == "nvls_tree" else 1.0)
    per_channel = min(inside, across)
    if algorithm == "nvls_tree":
        per_channel = min(per_channel, tables.nvls_tree_cap(version)[generation][min(M, 3) - 1])
    bus = heads * per_channel
    return bus * N / (2 * (N - 1)) if collective == "all_reduce" else bus


def collnet_direct_bandwidth(system: System, graph: Graph, collective: str, version: Version) -> float:
    """Algorithm bandwidth of CollNetDirect with Simple in GB/s, from 2.14."""
    ppn = system.ranks / system.nodes
    if collective != "all_reduce":
        if version >= (2, 28, 0):
            return ppn * min(graph.intra_gbps, 0.9 * graph.inter_gbps)
        weight = (ppn - 1) / 7
        return ppn * graph.intra_gbps * (weight * 0.85 + (1 - weight) * 0.95)
    factor = ppn / graph.channels
    factor -= (factor - 1) / 2
    bus = graph.channels * graph.intra_gbps / factor
    return bus * (0.85 if system.sm >= 90 and version >= (2, 18, 0) else 1.0) * 0.5
