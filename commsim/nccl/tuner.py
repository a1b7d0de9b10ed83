"""NCCL's tuner: the time it expects of every (algorithm, protocol), and so what it chooses.

A replica of src/graph/tuning.cc, 2.8 to 2.30.7; the constants of each version are in `commsim.nccl.tuner_tables`. It
is a model of NCCL's *choice*, exact where it was compared with logs; as a model of *time* it is optimistic in the
middle sizes and knows no launch cost, so commsim times the choice by its own channel model (`commsim.nccl.predict`).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, floor, log2

from commsim.nccl import tuner_tables as tables
from commsim.nccl.channels import MOST_NVLS_HEADS
from commsim.nccl.environment import PATHS, PROTOCOL_NAMES, Allowed, ring_always, whole
from commsim.nccl.graph import Graph, System
from commsim.nccl.protocols import PROTOCOLS
from commsim.nccl.tuner_nvls import collnet_direct_bandwidth, nvls_bandwidth
from commsim.nccl.version import Version

ALGORITHMS = ("tree", "ring", "collnet_direct", "collnet_chain", "nvls", "nvls_tree", "pat")
"""In NCCL's order: the first of equals wins."""

COLLECTIVES = ("broadcast", "reduce", "all_gather", "reduce_scatter", "all_reduce")
"""The collectives with a choice, in the order in which NCCL prints them."""

Rules = Allowed
"""What NCCL_ALGO and NCCL_PROTO allow (`commsim.nccl.environment`)."""

_SIMPLE = 2


@dataclass(frozen=True)
class Candidate:
    """One entry of NCCL's TUNING table and the time it gives for one size."""

    algorithm: str
    protocol: str
    latency_us: float
    algbw_gbps: float
    time_us: float


@dataclass(frozen=True)
class Entry:
    """One entry of the printed table: us and GB/s; a bandwidth of 0 marks a candidate that cannot be chosen."""

    latency_us: float
    algbw_gbps: float


def table(
    system: System, collective: str, version: Version, env: dict[str, str] | None = None
) -> dict[tuple[str, str], Entry]:
    """NCCL's table for one collective: an entry for every algorithm of the version and every protocol."""
    env = env or {}
    rules = Allowed.from_env(env, collective)
    entries: dict[tuple[str, str], Entry] = {}
    for algorithm in tables.algorithms(version):
        for protocol, name in enumerate(PROTOCOL_NAMES):
            if not _computed(system, collective, algorithm, protocol, version):
                entries[algorithm, name] = Entry(0.0, 0.0)
                continue
            bandwidth = 0.0
            if (
                algorithm in rules.algorithms
                and name in rules.protocols
                and _enabled(system, collective, algorithm)
                and (protocol != 1 or rules.forced_ll128 or _whole_lines(system, algorithm, version))
            ):
                bandwidth = _bandwidth(system, collective, algorithm, protocol, version)
            entries[algorithm, name] = Entry(_latency(system, collective, algorithm, protocol, version), bandwidth)
    if ring_always(version) and not any(e.algbw_gbps for e in entries.values()):
        for protocol, name in enumerate(PROTOCOL_NAMES):
            if name in rules.protocols and (protocol != 1 or _whole_lines(system, "ring", version)):
                bandwidth = _bandwidth(system, collective, "ring", protocol, version)
                entries["ring", name] = Entry(entries["ring", name].latency_us, bandwidth)
    return entries


def candidates(
    system: System,
    collective: str,
    nbytes: int,
    version: Version,
    env: dict[str, str] | None = None,
    *,
    pipe_ops: int = 1,
) -> list[Candidate]:
    """Every enabled (algorithm, protocol) for one call of `nbytes`, with its latency, bandwidth and time.

    `nbytes` is NCCL's basis: the larger of the send and the receive buffer. `pipe_ops` is the number of calls of a
    group that each channel takes (1 for a call of its own).
    """
    return [
        Candidate(
            algorithm,
            protocol,
            entry.latency_us,
            entry.algbw_gbps,
            _time(system, collective, algorithm, PROTOCOL_NAMES.index(protocol), nbytes, entry, version, pipe_ops),
        )
        for (algorithm, protocol), entry in table(system, collective, version, env).items()
        if entry.algbw_gbps > 0.0
    ]


def choose(candidates: list[Candidate]) -> Candidate | None:
    """The candidate NCCL takes: least time, the first among equals."""
    return min(candidates, key=lambda c: c.time_us, default=None)


def max_threads(system: System, algorithm: str, protocol: str, env: dict[str, str] | None = None) -> int:
    """Threads of a block before NCCL takes any away: the row ``Max NThreads`` of its table (NCCL_NTHREADS)."""
    if algorithm == "pat":
        return 0
    if algorithm not in ("ring", "tree"):
        return 640 if protocol == "Simple" else 0
    if protocol == "LL128":
        return PROTOCOLS["LL128"].max_threads
    most = 512
    default = most
    if protocol == "Simple" and algorithm == "ring" and system.ring.intra_gbps * system.ring.channels <= 12.0:
        default = 256
    asked = whole(env or {}, "NCCL_NTHREADS")
    if not asked:
        return default
    return most if asked % 32 or asked > most else max(asked, 64)


# -- rules ---------------------------------


def _graph(system: System, algorithm: str, version: Version) -> Graph | None:
    if algorithm == "nvls" and version < (2, 18, 0):
        return system.ring if system.nvls is not None else None  # 2.17 only needed the speed of the switch
    found = {
        "tree": system.tree,
        "pat": system.tree,
        "ring": system.ring,
        "collnet_direct": system.collnet_direct,
        "collnet_chain": system.collnet_chain,
    }
    return found.get(algorithm, system.nvls)


def _computed(system: System, collective: str, algorithm: str, protocol: int, version: Version) -> bool:
    """Whether NCCL computes the entry at all; it prints zeros for the rest."""
    if collective in ("broadcast", "reduce"):
        return algorithm == "ring"
    if collective == "all_reduce" and algorithm == "pat":
        return False
    if collective != "all_reduce":
        known = ("ring", "nvls", "collnet_direct", "pat") if version >= (2, 17, 0) else ("ring",)
        if algorithm not in known or (algorithm == "collnet_direct" and version < (2, 20, 0)):
            return False
    if algorithm in ("nvls", "nvls_tree"):
        nvls = system.nvls
        return protocol == _SIMPLE and (version < (2, 28, 0) or (nvls is not None and nvls.channels >= 2))
    if algorithm == "pat":
        return protocol == _SIMPLE and system.nodes == system.ranks and system.sm >= 60
    return True


def _enabled(system: System, collective: str, algorithm: str) -> bool:
    if algorithm.startswith("collnet"):
        return system.collnet and (algorithm == "collnet_chain" or system.nvswitch)
    if algorithm == "nvls":
        heads_for_all = collective == "all_reduce" or system.ranks_per_node <= MOST_NVLS_HEADS  # src/enqueue.cc
        return heads_for_all and (system.nodes == 1 or system.collnet)
    return algorithm != "nvls_tree" or system.nodes > 1


def ll128_enabled(system: System, version: Version) -> bool:
    """Whether a ring may use LL128: every path keeps 128-byte stores whole."""
    return _whole_lines(system, "ring", version)


def _whole_lines(system: System, algorithm: str, version: Version) -> bool:
    graph = _graph(system, algorithm, version)
    if graph is None:
        return False
    intra = "NVL" if version < (2, 18, 0) else "NVB"
    near = PATHS.index(graph.intra_type) <= PATHS.index(intra)
    farthest = "PXN" if system.sm >= 90 else "PXB"
    near_nic = PATHS.index(graph.inter_type) <= PATHS.index(farthest)
    alike = not system.mixed_gpus or (version >= (2, 30, 0) and system.sm >= 90)
    if version >= (2, 27, 0):
        known = system.sm >= 70
    elif version >= (2, 16, 0):
        known = system.sm in ((70, 80, 90, 100, 120) if version >= (2, 25, 0) else (70, 80, 90))
    else:
        known = system.sm in (70, 80)
    return near and near_nic and alike and known


def _generation(system: System, version: Version) -> int:
    if version < (2, 12, 0):
        return 1 if system.sm == 80 else 0
    return min(system.generation, 3 if version >= (2, 25, 0) else 2 if version >= (2, 16, 0) else 1)


# -- bandwidth ---------------------------------


def _bandwidth(system: System, collective: str, algorithm: str, protocol: int, version: Version) -> float:
    """Algorithm bandwidth in GB/s, were the candidate enabled."""
    graph = _graph(system, algorithm, version)
    if graph is None:
        return 0.0
    if algorithm in ("nvls", "nvls_tree"):
        return nvls_bandwidth(system, graph, collective, algorithm, version)
    if algorithm.startswith("collnet") and protocol == 1:
        return 0.0
    N, M = system.ranks, system.nodes
    speed = graph.intra_gbps if M <= 2 or algorithm.startswith("collnet") else graph.inter_gbps
    bus = graph.channels * speed
    if version < (2, 18, 0):
        bus = min(bus, {1: 235.0, 2: 370.0}.get(_generation(system, version), bus))
    if algorithm == "ring":
        return _ring_bus(system, graph, bus, collective, protocol, version) * N / _steps(collective, N)
    if algorithm == "tree":
        return _tree_bus(system, graph, bus, collective, protocol, version) * 0.5
    if algorithm == "pat":
        return bus * (0.85 if version < (2, 24, 0) else 0.75)
    if version < (2, 14, 0):
        return bus * 0.9 * (1 / 6 if protocol == 0 else 1.0) * 0.5
    if protocol != _SIMPLE:
        return 0.0
    if algorithm == "collnet_chain":
        return bus * (0.75 if version < (2, 18, 0) else 1.0) * 0.5
    return collnet_direct_bandwidth(system, graph, collective, version)


def _ring_bus(
    system: System, graph: Graph, bus: float, collective: str, protocol: int, version: Version
) -> float:  # fmt: skip
    if protocol == 0:
        return min(_ll_max(system, version), bus * _ring_ll_factor(collective, system.nodes, version))
    if protocol == 1:
        lone = system.ranks / system.nodes < 2 and version < (2, 23, 0)
        cap = tables.ring_ll128_cap(version, collective)[_generation(system, version)][_column(system)]
        return min(bus * (0.7 if lone else 0.92), graph.channels * cap)
    return bus


def _tree_bus(
    system: System, graph: Graph, bus: float, collective: str, protocol: int, version: Version
) -> float:  # fmt: skip
    generation, column = _generation(system, version), _column(system)
    bus = min(bus * 0.92, graph.channels * tables.tree_cap(version)[generation][column])
    if protocol == 0:
        bus = min(bus / 3.8, _ll_max(system, version))
    elif protocol == 1:
        across = 0.915 if version < (2, 12, 0) else 120 / 128
        cap = tables.tree_ll128_cap(version, collective)[generation][column]
        bus = min(bus * (7 / 9 if system.nodes == 1 else across), graph.channels * cap)
    if graph.pattern == "TREE" and version >= (2, 18, 0):
        bus *= 0.85
    return bus


def _column(system: System) -> int:
    return min(system.nodes, 3) - 1


def _ll_max(system: System, version: Version) -> float:
    rows = tables.ll_max(version)
    if system.nodes == 1:
        return rows[_generation(system, version)][0]
    amd = system.cpu_vendor == "amd" or (system.cpu_vendor == "mixed" and version >= (2, 25, 0))
    return rows[1 if amd else 0][_column(system)]


def _ring_ll_factor(collective: str, nodes: int, version: Version) -> float:
    if version >= (2, 21, 0):
        return 0.5
    return 1 / 4 if nodes > 1 or collective in ("all_reduce", "reduce") else 1 / 3


# -- latency ---------------------------------


def _steps(collective: str, ranks: int) -> int:
    return {"all_reduce": 2 * (ranks - 1), "all_gather": ranks - 1, "reduce_scatter": ranks - 1}.get(collective, ranks)


def _inter_steps(collective: str, nodes: int, version: Version) -> int:
    if nodes == 1 or collective in ("broadcast", "reduce"):
        return 0
    if collective == "all_reduce":
        return 2 * nodes if (2, 12, 0) <= version < (2, 23, 0) else 2 * (nodes - 1)
    return nodes - 1


def _hop(system: System, algorithm: str, link: str, protocol: int, version: Version) -> float:
    power = system.cpu_arch == "ppc64" and version >= (2, 12, 0)
    row = "ring" if power and (algorithm, link, protocol) == ("tree", "PCI", _SIMPLE) else algorithm
    return tables.hop_latency(row, link, version)[protocol]


def _net_hop(system: System, algorithm: str, protocol: int, version: Version) -> float:
    row = "tree" if system.ranks == system.nodes and version >= (2, 23, 0) else algorithm
    latency = _hop(system, row, "NET", protocol, version)
    extra = system.nic_latency_us if system.nodes > 1 else 0.0
    if version < (2, 12, 0) or extra == 0.0:
        return latency
    if version < (2, 18, 0):
        return extra
    return latency + extra * (2 if protocol == _SIMPLE else 1)


def _latency(system: System, collective: str, algorithm: str, protocol: int, version: Version) -> float:
    N, M = system.ranks, system.nodes
    inside, depth = N // M - 1, floor(log2(M))
    graph = _graph(system, algorithm, version)
    link = "NVLINK" if graph is not None and graph.intra_type == "NVL" else "PCI"
    base = tables.base_latency(algorithm, version)[protocol]
    intra = _hop(system, algorithm, link, protocol, version)
    if version < (2, 18, 0) and M > 1 and protocol == 0:
        intra *= 1.8
    inter = _net_hop(system, algorithm, protocol, version)
    if algorithm == "tree":
        return base + 2 * (inside * intra + depth * inter)
    if algorithm == "nvls":
        return base if version < (2, 18, 0) else intra + (inter if M > 1 else 0.0)
    if algorithm == "nvls_tree":
        return base + intra + 2 * depth * inter
    if algorithm == "pat":
        return 8.0 + depth * inter / 3.5 + 2.8 * N
    if algorithm == "collnet_direct":
        serial = 0.5 if version < (2, 18, 0) else 0.4
        return base + 2 * (min(1, inside) * intra + inside * serial) + inter
    if algorithm == "collnet_chain":
        return base + 2 * inside * intra + (0.0 if (2, 14, 0) <= version < (2, 18, 0) else inter)
    return base + _ring_hops(system, collective, protocol, version, intra, inter)


def _ring_hops(
    system: System, collective: str, protocol: int, version: Version, intra: float, inter: float
) -> float:  # fmt: skip
    N, M = system.ranks, system.nodes
    if collective in ("broadcast", "reduce"):
        link = "NET" if M > 1 else "NVLINK" if system.ring.intra_type == "NVL" else "PCI"
        if system.ring.same_channels:
            return _hop(system, "ring", link, protocol, version)
        return N * _hop(system, "tree" if protocol == _SIMPLE else "ring", link, protocol, version)
    overhead = 0.0
    if M > 1 and version >= (2, 18, 0):
        amd = system.cpu_vendor == "amd" and system.cpu_arch == "x86_64"
        overhead = (2.0 if amd else 1.0) * (3 if protocol == _SIMPLE else 1)
    across = _inter_steps(collective, M, version)
    return (_steps(collective, N) - across) * max(intra, overhead) + across * inter


# -- time ---------------------------------


def _time(
    system: System,
    collective: str,
    algorithm: str,
    protocol: int,
    nbytes: int,
    entry: Entry,
    version: Version,
    pipe_ops: int,
) -> float:
    bandwidth, latency = entry.algbw_gbps, entry.latency_us
    corrected = algorithm == "tree"
    if algorithm == "nvls_tree":
        corrected = version >= (2, 29, 0) and system.sm >= 100 and system.cpu_arch == "x86_64"
    if corrected and collective == "all_reduce":
        bandwidth *= tables.tree_correction(protocol, nbytes, version)
    if algorithm == "ring" and protocol == _SIMPLE and system.nodes > 1 and collective == "all_reduce":
        latency *= _plateau(system, nbytes, version)
    batch = 8 if version >= (2, 30, 0) else 9
    count = pipe_ops if algorithm == "ring" else ceil(pipe_ops / batch)
    return latency * count + nbytes / (1000.0 * bandwidth)


def _plateau(system: System, nbytes: int, version: Version) -> float:
    """Factor on the latency of a Simple ring between nodes, from the size on at which every step is full."""
    if version < (2, 18, 0):
        factor = 1.5 if system.sm >= 90 and version >= (2, 17, 0) else 1.9
        return factor if nbytes >= system.ranks / 16 * 65536 else 1.0
    if nbytes // (system.coll_channels * system.ranks) < 64:
        return 1.0
    return 1.4 if system.sm >= 80 else 1.9


assert tuple(PROTOCOLS) == PROTOCOL_NAMES
