"""NCCL's tuner: the time it expects of every (algorithm, protocol), and so what it chooses.

A replica of src/graph/tuning.cc, 2.8 to 2.30.7; the constants of each version are in `commsim.nccl.tuner_tables`. It
is a model of NCCL's *choice*, equal to what that file computes (tests/nccl/test_tuner_reference.py); as a model of
*time* it is optimistic in the middle sizes and knows no launch cost, so commsim times the choice by its own channel
model (`commsim.nccl.predict`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from commsim.collectives.semantics import CHAINED
from commsim.nccl import tuner_tables as tables
from commsim.nccl.environment import ALGORITHM_NAMES, PATHS, PROTOCOL_NAMES, Allowed, whole
from commsim.nccl.operation import SUM, Operation, passed_over, ring_factor
from commsim.nccl.protocols import PROTOCOLS
from commsim.nccl.system import System
from commsim.nccl.tuner_formulas import bandwidth, graph_of, latency
from commsim.nccl.version import Version

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
class TuningEntry:
    """One entry of the printed table: us and GB/s; a bandwidth of 0 marks a candidate that cannot be chosen."""

    latency_us: float
    algbw_gbps: float


def table(
    system: System, collective: str, version: Version, env: dict[str, str] | None = None
) -> dict[tuple[str, str], TuningEntry]:
    """NCCL's table for one collective: an entry for every algorithm of the version and every protocol."""
    rules = Allowed.from_env(env or {}, collective)
    entries: dict[tuple[str, str], TuningEntry] = {}
    for algorithm in tables.algorithms(version):
        for protocol, name in enumerate(PROTOCOL_NAMES):
            if not _computed(system, collective, algorithm, protocol, version):
                entries[algorithm, name] = TuningEntry(0.0, 0.0)
                continue
            entry = _entry(system, collective, algorithm, protocol, version)
            allowed = algorithm in rules.algorithms and name in rules.protocols and _enabled(system, algorithm, version)
            if not allowed or (
                protocol == 1 and not rules.forced_ll128 and not whole_lines(system, algorithm, version)
            ):
                entry = TuningEntry(entry.latency_us, 0.0)
            entries[algorithm, name] = entry
    # Before 2.24 a ring stays when the environment leaves a collective without any algorithm.
    if version < (2, 24, 0) and not any(e.algbw_gbps for e in entries.values()):
        entries |= _backup(system, collective, version, rules)
    return entries


def _entry(system: System, collective: str, algorithm: str, protocol: int, version: Version) -> TuningEntry:
    call = system, collective, algorithm, protocol, version
    return TuningEntry(latency(*call), bandwidth(*call))


def _backup(system: System, collective: str, version: Version, rules: Allowed) -> dict[tuple[str, str], TuningEntry]:
    """The ring's entries that stay although NCCL_ALGO leaves it out."""
    return {
        ("ring", name): _entry(system, collective, "ring", protocol, version)
        for protocol, name in enumerate(PROTOCOL_NAMES)
        if name in rules.protocols and (protocol != 1 or whole_lines(system, "ring", version))
    }


def expected(
    system: System, collective: str, nbytes: int, version: Version, env: dict[str, str] | None = None
) -> list[Candidate]:
    """Every (algorithm, protocol) that a communicator has, with the time that `ncclTopoGetAlgoTime` gives for `nbytes`.

    `nbytes` is NCCL's basis: the larger of the send and the receive buffer.
    """
    return _timed(system, collective, nbytes, version, table(system, collective, version, env))


def candidates(
    system: System,
    collective: str,
    nbytes: int,
    version: Version,
    env: dict[str, str] | None = None,
    *,
    operation: Operation = SUM,
) -> list[Candidate]:
    """What of `expected` NCCL compares for one call, which its types and reduction limit (src/enqueue.cc)."""
    compared = [
        c
        for c in expected(system, collective, nbytes, version, env)
        if not passed_over(system, collective, c.algorithm, version, operation)
    ]
    if not compared and (2, 19, 0) <= version < (2, 24, 0):  # a ring stays whatever the type
        rules = Allowed.from_env(env or {}, collective)
        compared = _timed(system, collective, nbytes, version, _backup(system, collective, version, rules))
    factor = ring_factor(system, collective, version, operation)
    return [replace(c, time_us=c.time_us * factor) if c.algorithm == "ring" else c for c in compared]


def _timed(
    system: System, collective: str, nbytes: int, version: Version, entries: dict[tuple[str, str], TuningEntry]
) -> list[Candidate]:
    """The entries that can be chosen, with the time of `nbytes` in us."""
    timed = []
    for (algorithm, protocol), entry in entries.items():
        rate, wait = entry.algbw_gbps, entry.latency_us
        if rate > 0.0:
            if collective == "all_reduce" and _corrected(system, algorithm, version):
                rate *= tables.tree_correction(algorithm, PROTOCOL_NAMES.index(protocol), nbytes, version)
            if collective == "all_reduce" and algorithm == "ring" and protocol == "Simple" and system.nodes > 1:
                wait *= _plateau(system, nbytes, version)
            time = wait + nbytes / (1000.0 * rate)
            timed.append(Candidate(algorithm, protocol, entry.latency_us, entry.algbw_gbps, time))
    return timed


def _corrected(system: System, algorithm: str, version: Version) -> bool:
    """Whether the bandwidth of an algorithm depends on the size."""
    nvls_too = version >= (2, 29, 0) and system.sm >= 100 and system.cpu_arch == "x86_64"
    return algorithm == "tree" or (algorithm == "nvls_tree" and nvls_too)


def left_out(
    system: System, collective: str, version: Version, env: dict[str, str] | None, operation: Operation
) -> dict[str, str]:  # fmt: skip
    """Algorithms that the table holds but a call of this kind cannot have, and why."""
    held = dict.fromkeys(a for (a, _), e in table(system, collective, version, env).items() if e.algbw_gbps > 0.0)
    why = {a: passed_over(system, collective, a, version, operation) for a in held}
    return {algorithm: text for algorithm, text in why.items() if text}


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


def _computed(system: System, collective: str, algorithm: str, protocol: int, version: Version) -> bool:
    """Whether NCCL computes the entry at all; it prints zeros for the rest."""
    if algorithm not in _of_collective(collective, version):
        return False
    if algorithm in ("nvls", "nvls_tree"):
        nvls = system.nvls
        return protocol == _SIMPLE and (version < (2, 28, 0) or (nvls is not None and nvls.channels >= 2))
    if algorithm == "pat":
        return protocol == _SIMPLE and system.nodes == system.ranks and (system.sm >= 60 or version < (2, 26, 0))
    return True


def _of_collective(collective: str, version: Version) -> tuple[str, ...]:
    """The algorithms that a version has for a collective."""
    if collective == "all_reduce":
        return tuple(a for a in ALGORITHM_NAMES if a != "pat")
    if collective in CHAINED or version < (2, 17, 0) or (2, 18, 0) <= version < (2, 19, 0):
        return ("ring",)
    return ("ring", "nvls") if version < (2, 20, 0) else ("ring", "nvls", "collnet_direct", "pat")


def _enabled(system: System, algorithm: str, version: Version) -> bool:
    if algorithm.startswith("collnet"):
        return system.collnet and (algorithm == "collnet_chain" or system.nvswitch)
    if algorithm == "nvls":
        return system.nodes == 1 or system.collnet or version < (2, 18, 0)
    return algorithm != "nvls_tree" or system.nodes > 1


def whole_lines(system: System, algorithm: str, version: Version) -> bool:
    """Whether an algorithm may use LL128: every path keeps 128-byte stores whole."""
    graph = graph_of(system, algorithm, version)
    if graph is None:
        return False
    intra = "NVL" if version < (2, 18, 3) else "NVB"
    near = PATHS.index(graph.intra_type) <= PATHS.index(intra)
    farthest = "PXN" if system.sm >= 90 and version >= (2, 17, 0) else "PXB"
    near_nic = PATHS.index(graph.inter_type) <= PATHS.index(farthest)
    alike = not system.mixed_gpus or (version >= (2, 30, 0) and system.sm >= 90)
    if version >= (2, 27, 0):
        known = system.sm >= 70
    elif version >= (2, 15, 0):
        known = system.sm in ((70, 80, 90, 100, 120) if version >= (2, 25, 0) else (70, 80, 90))
    else:
        known = system.sm in (70, 80)
    return near and near_nic and alike and known


def _plateau(system: System, nbytes: int, version: Version) -> float:
    """Factor on the latency of a Simple ring between nodes, from the size on at which every step is full."""
    if version < (2, 18, 0):
        factor = 1.5 if system.sm >= 90 and version >= (2, 17, 0) else 1.9
        return factor if nbytes >= system.ranks / 16 * 65536 else 1.0
    if nbytes // (system.coll_channels * system.ranks) < 64:
        return 1.0
    return 1.4 if system.sm >= 80 else 1.9


assert tuple(PROTOCOLS) == PROTOCOL_NAMES
