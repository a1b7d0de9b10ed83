"""The tuner's latencies: what one call of an algorithm takes before its bytes count (src/graph/tuning.cc)."""

from __future__ import annotations

from math import floor, log2
from typing import TYPE_CHECKING

from commsim.collectives.semantics import CHAINED
from commsim.nccl import tuner_tables as tables
from commsim.nccl.tuner_inputs import graph_of

if TYPE_CHECKING:
    from commsim.nccl.system import System
    from commsim.nccl.version import Version

_SIMPLE = 2


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
