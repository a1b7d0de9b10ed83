"""NCCL's tuner: the time it expects of every (algorithm, protocol), and so what it chooses.

A replica of src/graph/tuning.cc (NCCL 2.30.7; older constants where a rule below says so). It is a model of NCCL's
*choice*, exact where it was compared with logs; as a model of *time* it is optimistic in the middle sizes and knows no
launch cost, so commsim times the choice by its own channel model (`commsim.nccl.predict`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor, log2

from commsim.nccl.graph import Graph, System
from commsim.nccl.protocols import PROTOCOLS
from commsim.nccl.version import Version

ALGORITHMS = ("tree", "ring", "nvls", "nvls_tree")
"""In NCCL's order: the first of equals wins. CollNet needs a SHARP plugin and PAT serves other collectives."""

_PROTOCOL_NAMES = ("LL", "LL128", "Simple")
_PROTO = {name: i for i, name in enumerate(_PROTOCOL_NAMES)}

# us; LL, LL128, Simple
_BASE_LATENCY = {"tree": (6.8, 14.0, 8.4), "ring": (6.6, 14.0, 8.4)}
_HW_LATENCY = {
    ("tree", "NVLINK"): (0.6, 1.25, 4.0),
    ("tree", "PCI"): (1.0, 1.9, 4.0),
    ("tree", "NET"): (5.0, 8.5, 14.0),
    ("ring", "NVLINK"): (0.6, 1.9, 3.4),
    ("ring", "PCI"): (1.0, 2.5, 5.7),
    ("ring", "NET"): (2.7, 4.0, 14.0),
}
_NVLS_LATENCY_US, _NVLS_NET_LATENCY_US, _NVLS_TREE_NET_LATENCY_US = 25.0, 18.0, 20.9

# GB/s; columns M = 1, M = 2, M > 2 (tuning.cc calls the last "N4")
_LL_MAX = ((39.0, 39.0, 20.4), (87.7, 22.5, 19.0), (141.0, 45.0, 35.0), (282.0, 90.0, 70.0))
_RING_LL128_CAP = ((20.0,) * 3, (20.0,) * 3, (36.7,) * 3, (40.0,) * 3)
_TREE_LL128_CAP = ((20.0,) * 3, (20.0,) * 3, (36.7, 36.7, 29.0), (55.6, 31.67, 20.0))
_TREE_CAP = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (38.7, 41.4, 36.0), (70.0, 42.8, 24.0))
_NVLS_TREE_CAP = ((26.5, 18.5, 10.0), (24.0, 23.6, 17.8), (0.0, 57.7, 45.5), (0.0, 96.0, 80.0))
_NVLS_EFFICIENCY = (0.0, 0.0, 0.85, 0.74)

_TREE_CORRECTION = (
    (1, 1, 1, 1, .9, .8, .7, .7, .7, .7, .6, .5, .4, .4, .5, .6, .7, .8, .9, 1, 1, 1, 1, 1),
    (1, 1, 1, 1, 1, .9, .8, .8, .8, .7, .6, .6, .6, .6, .6, .6, .8, .9, .9, .9, .9, 1, 1, 1),
    (.9, .9, .9, .9, .9, .9, .9, .8, .7, .6, .6, .5, .5, .5, .5, .6, .7, .8, .7, .7, .8, .9, .9, .9),
)  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """One entry of NCCL's TUNING table and the time it gives for one size."""

    algorithm: str
    protocol: str
    latency_us: float
    algbw_gbps: float
    time_us: float


@dataclass(frozen=True)
class Rules:
    """What NCCL_ALGO and NCCL_PROTO allow (either syntax: ``Ring,Tree``, ``^LL128`` or ``allreduce:tree;...``)."""

    algorithms: frozenset[str]
    protocols: frozenset[str]

    @classmethod
    def from_env(cls, env: dict[str, str], collective: str) -> Rules:
        """The rules that the environment of a job sets for one collective."""
        names = {"tree": "tree", "ring": "ring", "nvls": "nvls", "nvlstree": "nvls_tree"}
        protocols = {"ll": "LL", "ll128": "LL128", "simple": "Simple"}
        algorithms = _allowed(env.get("NCCL_ALGO", ""), names, collective)
        if env.get("NCCL_NVLS_ENABLE", "") == "0":
            algorithms -= {"nvls", "nvls_tree"}
        return cls(algorithms, _allowed(env.get("NCCL_PROTO", ""), protocols, collective))


def _allowed(text: str, names: dict[str, str], collective: str) -> frozenset[str]:
    everything = frozenset(names.values())
    chosen = everything
    for part in text.lower().replace("_", "").split(";"):
        scope, _, listed = part.rpartition(":")
        if scope and scope != collective.replace("_", ""):
            continue
        listed = listed.strip()
        if not listed:
            continue
        inverted, listed = listed.startswith("^"), listed.lstrip("^")
        wanted = frozenset(names[n.strip()] for n in listed.split(",") if n.strip() in names)
        chosen = everything - wanted if inverted else wanted or chosen
    return chosen


def _steps(collective: str, ranks: int) -> int:
    return {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(collective, ranks)


def _inter_steps(collective: str, nodes: int, version: Version) -> int:
    if nodes == 1 or collective in ("broadcast", "reduce"):
        return 0
    if collective == "all_reduce":
        return 2 * nodes if (2, 12, 0) <= version < (2, 23, 0) else 2 * (nodes - 1)
    return nodes - 1


def _base_latency(algorithm: str, protocol: int, version: Version) -> float:
    if version < (2, 18, 0):
        return {"tree": (4.4, 4.4, 0.0), "ring": (3.6, 10.0, 8.4)}[algorithm][protocol]
    if algorithm == "tree" and protocol == 2 and version < (2, 23, 0):
        return 0.0
    return _BASE_LATENCY[algorithm][protocol]


def _hw_latency(algorithm: str, link: str, protocol: int, version: Version) -> float:
    value = _HW_LATENCY[algorithm, link][protocol]
    if version < (2, 18, 0) and link == "NVLINK" and protocol < 2:
        value = {"tree": (0.52, 1.25), "ring": (0.47, 1.9)}[algorithm][protocol]
    if algorithm == "tree" and protocol == 2 and version < (2, 23, 0):
        early_18 = (2, 18, 3) <= version < (2, 19, 0)
        value = {"NVLINK": 4.0, "PCI": 6.0, "NET": 14.0}[link] if early_18 else 28.0
    if algorithm == "ring" and protocol == 2 and link == "NET" and version < (2, 18, 0):
        value = 28.0 if (2, 12, 0) <= version < (2, 14, 0) else 9.6
    return value


def _net_latency(system: System, algorithm: str, protocol: int, version: Version) -> float:
    row = "tree" if system.ranks_per_node == 1 and version >= (2, 23, 0) else algorithm
    latency = _hw_latency(row, "NET", protocol, version)
    extra = system.nic_latency_us
    if version < (2, 12, 0) or extra == 0.0:
        return latency
    if version < (2, 18, 0):
        return extra
    return latency + extra * (2 if protocol == 2 else 1)


def ll128_enabled(system: System, version: Version) -> bool:
    """Whether every path keeps 128-byte stores whole (src/graph/tuning.cc; never on PCIe-only nodes)."""
    inside = system.intra_type in ("LOC", "NVL", "NVB")
    across = system.nodes == 1 or system.inter_type in (
        ("LOC", "PIX", "PXB", "P2C", "PXN") if system.sm >= 90 else ("LOC", "PIX", "PXB")
    )
    known = version >= (2, 27, 0) or version < (2, 16, 0) or system.sm in (70, 80, 90, 100, 120)
    return inside and across and system.sm >= 70 and known


def _bandwidth(system: System, collective: str, algorithm: str, protocol: int, version: Version) -> float:
    """Algorithm bandwidth in GB/s; 0 disables the candidate."""
    graph: Graph | None = {"tree": system.tree, "ring": system.ring}.get(algorithm, system.nvls)
    if graph is None:
        return 0.0
    N, M, gen = system.ranks, system.nodes, system.generation
    column = min(M, 3) - 1
    bus = graph.channels * (graph.intra_gbps if M <= 2 else graph.inter_gbps)
    if algorithm in ("nvls", "nvls_tree"):
        return _nvls_bandwidth(system, graph, collective, algorithm, protocol, version)
    if gen == 1 and version < (2, 18, 0):
        bus = min(bus, 235.0)
    if protocol == 1 and not ll128_enabled(system, version):
        return 0.0
    if algorithm == "ring":
        if protocol == 0:
            bus = min(_ll_max(system, version), bus * _ring_ll_factor(collective, M, version))
        elif protocol == 1:
            cap = _RING_LL128_CAP[gen][column]
            bus = min(bus * (0.92 if version >= (2, 18, 0) else 120 / 128), graph.channels * cap)
        return bus * N / _steps(collective, N)
    if collective != "all_reduce":
        return 0.0
    bus = min(bus * 0.92, graph.channels * _TREE_CAP[gen][column])
    if protocol == 0:
        bus = min(bus / 3.8, _ll_max(system, version))
    elif protocol == 1:
        bus = min(bus * (7 / 9 if M == 1 else 120 / 128), graph.channels * _TREE_LL128_CAP[gen][column])
    if graph.pattern == "TREE" and version >= (2, 18, 0):
        bus *= 0.85
    return bus * 0.5


def _nvls_bandwidth(
    system: System, graph: Graph, collective: str, algorithm: str, protocol: int, version: Version
) -> float:
    N, M, gen = system.ranks, system.nodes, system.generation
    one_node = M == 1
    enabled = protocol == 2 and graph.channels >= 2 and (one_node if algorithm == "nvls" else not one_node)
    if not enabled or (algorithm == "nvls_tree" and (collective != "all_reduce" or version < (2, 18, 0))):
        return 0.0
    ppn = system.ranks_per_node
    share = (graph.channels - 1) / graph.channels
    gain = 2.0 if collective == "all_reduce" else (ppn - 1) / ppn
    if version >= (2, 28, 0):
        inside = graph.intra_gbps * _NVLS_EFFICIENCY[gen] * share * gain
        across = graph.inter_gbps * (2.0 if M <= 2 and algorithm == "nvls_tree" else 1.0)
    else:
        # 2.19 ... 2.27: a flat 5/6 of the graph's speed, halved between more than two nodes.
        inside = graph.intra_gbps * gain * 5 / 6
        across = float("inf") if one_node else graph.inter_gbps * (2.0 if M <= 2 else 1.0) * 5 / 6
    per_channel = min(inside, across)
    if algorithm == "nvls_tree":
        per_channel = min(per_channel, _NVLS_TREE_CAP[gen][min(M, 3) - 1])
    bus = graph.channels * per_channel
    return bus * N / (2 * (N - 1)) if collective == "all_reduce" else bus


def _ll_max(system: System, version: Version) -> float:
    if system.nodes == 1:
        if system.generation == 2 and version < (2, 21, 0):
            return 87.7
        return _LL_MAX[system.generation][0]
    row = 1 if system.cpu_vendor == "amd" else 0
    return _LL_MAX[row][min(system.nodes, 3) - 1]


def _ring_ll_factor(collective: str, nodes: int, version: Version) -> float:
    if version >= (2, 21, 0):
        return 0.5
    return 1 / 4 if nodes > 1 or collective in ("all_reduce", "reduce") else 1 / 3


def _latency(system: System, collective: str, algorithm: str, protocol: int, version: Version) -> float:
    N, M = system.ranks, system.nodes
    nvlink = "NVLINK" if system.intra_type in ("NVL", "LOC") else "PCI"
    if algorithm in ("nvls", "nvls_tree"):
        intra = 23.0 if (2, 18, 0) <= version < (2, 21, 0) else _NVLS_LATENCY_US
        if algorithm == "nvls":
            return intra + (_NVLS_NET_LATENCY_US if M > 1 else 0.0)
        across = _NVLS_TREE_NET_LATENCY_US if version >= (2, 28, 9) else 14.0
        return intra + 2 * floor(log2(M)) * (across + 2 * system.nic_latency_us)
    base = _base_latency(algorithm, protocol, version)
    intra = _hw_latency(algorithm, nvlink, protocol, version)
    if version < (2, 18, 0) and M > 1 and protocol == 0:
        intra *= 1.8
    inter = _net_latency(system, algorithm, protocol, version)
    if algorithm == "tree":
        return base + 2 * ((N // M - 1) * intra + floor(log2(M)) * inter)
    if collective in ("broadcast", "reduce"):
        return base + intra
    overhead = 0.0
    if M > 1 and version >= (2, 18, 0):
        overhead = (2.0 if system.cpu_vendor == "amd" else 1.0) * (3 if protocol == 2 else 1)
    steps, across = _steps(collective, N), _inter_steps(collective, M, version)
    return base + (steps - across) * max(intra, overhead) + across * inter


def candidates(
    system: System, collective: str, nbytes: int, version: Version, env: dict[str, str] | None = None
) -> list[Candidate]:
    """NCCL's table for one call: every enabled (algorithm, protocol) with its latency, bandwidth and time."""
    rules = Rules.from_env(env or {}, collective)
    found = []
    for algorithm in ALGORITHMS:
        if algorithm not in rules.algorithms:
            continue
        for protocol, name in enumerate(_PROTOCOL_NAMES):
            if name not in rules.protocols and not algorithm.startswith("nvls"):
                continue
            bandwidth = _bandwidth(system, collective, algorithm, protocol, version)
            if bandwidth <= 0.0:
                continue
            latency = _latency(system, collective, algorithm, protocol, version)
            time = _time(system, collective, algorithm, protocol, nbytes, latency, bandwidth, version)
            found.append(Candidate(algorithm, name, latency, bandwidth, time))
    return found


def _time(
    system: System,
    collective: str,
    algorithm: str,
    protocol: int,
    nbytes: int,
    latency: float,
    bandwidth: float,
    version: Version,
) -> float:
    if algorithm == "tree" and nbytes >= 64:
        index = floor(log2(nbytes / 64))
        if index < (24 if version >= (2, 29, 0) else 23):
            bandwidth *= _TREE_CORRECTION[protocol][index]
    plateau = algorithm == "ring" and protocol == 2 and system.nodes > 1 and collective == "all_reduce"
    if plateau and nbytes / (system.coll_channels * system.ranks) >= 64:
        latency *= 1.4 if system.sm >= 80 else 1.9
    return latency + nbytes / (1000.0 * bandwidth)


def choose(candidates: list[Candidate]) -> Candidate | None:
    """The candidate NCCL takes: least time, the first among equals."""
    return min(candidates, key=lambda c: c.time_us, default=None)


assert tuple(PROTOCOLS) == _PROTOCOL_NAMES
