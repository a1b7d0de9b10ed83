"""The tuner's bandwidths: bytes of a call per second by each algorithm (src/graph/tuning.cc)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.collectives.semantics import REDUCING, WHOLE
from commsim.nccl import tuner_tables as tables
from commsim.nccl.tuner_inputs import column, generation, graph_of
from commsim.nccl.tuner_latency import steps
from commsim.nccl.tuner_switch import collnet_direct_bandwidth, nvls_bandwidth

if TYPE_CHECKING:
    from commsim.nccl.system import Graph, System
    from commsim.nccl.version import Version

_LL, _LL128, _SIMPLE = range(3)
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
