"""NCCL's choice explained in NCCL's own words: its graphs, its TUNING table and a line per size."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.errors import ScenarioError
from commsim.nccl.channels import nvls_channels, split, traffic
from commsim.nccl.environment import ALGORITHM_NAMES, FUNCTIONS, PROTOCOL_NAMES
from commsim.nccl.operation import SUM, Operation, ring_factor, unknown_to
from commsim.nccl.plugins import plugin_note, with_plugin
from commsim.nccl.protocols import PROTOCOLS
from commsim.nccl.registered import POLICY, policy, registration_of
from commsim.nccl.tuner import candidates, choose, left_out, max_threads, table
from commsim.nccl.tuner_ofi import own_choice
from commsim.nccl.tuner_tables import algorithms
from commsim.nccl.version import parse_version
from commsim.report.registered_choice import instead_lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from commsim.nccl.registered import Registration
    from commsim.nccl.system import Graph, System
    from commsim.nccl.version import Version
    from commsim.scenario.run import Prepared
    from commsim.topology.graph import Topology

_PATTERNS = {"BALANCED_TREE": 1, "SPLIT_TREE": 2, "TREE": 3, "RING": 4, "NVLS": 5, "COLLNET_DIRECT": 6}
_FUNCTIONS = {
    "broadcast": "Broadcast",
    "reduce": "Reduce",
    "all_gather": "AllGather",
    "reduce_scatter": "ReduceScatter",
    "all_reduce": "AllReduce",
}


def explain(prepared: Prepared) -> str:
    """The choices behind a scenario's items; a line that says so where a scenario leaves nothing to choose."""
    from commsim.nccl.graph import discover
    from commsim.nccl.predict import Options, Predictor
    from commsim.scenario.setting import nccl_graphs

    scenario = prepared.scenario
    if scenario.library.name != "nccl":
        return f"# no choice to explain: the library is {scenario.library.name}\n"
    version = parse_version(scenario.library.version)
    lines: list[str] = []
    for work in scenario.collectives:
        own = scenario.nccl_env(work)
        env = with_plugin(prepared.topology, version, own)
        if text := plugin_note(prepared.topology, version, own):
            lines.append(f"# {text}")
        if prepared.placed is None:
            system = discover(prepared.topology, version, env, nccl_graphs(scenario, prepared.topology))
        else:
            system = Predictor(prepared.topology, Options(version, own), None, prepared.placed.ranks).system
        library, t = scenario.library, prepared.topology
        buffers = registration_of(library.registered, t, system, version, env, work.operation, library.launch_mode)
        lines += [f"# {note}" for note in buffers.notes(work.collective)]
        measured = [int(size) for curve in prepared.measured for size in curve.size_bytes]
        if work.collective not in FUNCTIONS or system.ranks == 1:
            lines.append(f"# {work.collective}: sends and receives, or a copy; there is no algorithm to choose")
            lines += [line for n in work.sizes or measured for line in instead_lines(buffers, work.collective, n)]
            continue
        lines += graph_lines(system)
        lines += table_lines(system, version, env)
        operation = work.operation
        lines += operation_lines(system, work.collective, version, env, operation)
        sizes = work.sizes or measured
        for size in sizes:
            lines += instead_lines(buffers, work.collective, size) or choice_lines(
                system, work.collective, [size], version, env, prepared.topology, operation=operation, buffers=buffers
            )
    return "".join(f"{line}\n" for line in lines)


def _overruled(buffers: Registration | None) -> str:
    by_policy = buffers is not None and policy(buffers.env) == "efficiency"
    return f"{POLICY}=EFFICIENCY" if by_policy else "aws-ofi-nccl's tuner"


def graph_lines(system: System) -> list[str]:
    """The graphs as NCCL_DEBUG_SUBSYS=GRAPH prints them."""
    graphs: list[Graph | None] = [system.ring, system.tree, system.collnet_direct, system.collnet_chain, system.nvls]
    return [
        f"Pattern {_PATTERNS[g.pattern]}, crossNic {g.cross_nic}, nChannels {g.channels}, "
        f"bw {g.intra_gbps:f}/{g.inter_gbps:f}, type {g.intra_type}/{g.inter_type}, sameChannels {int(g.same_channels)}"
        for g in graphs
        if g is not None
    ] + [f"{system.coll_channels} coll channels"]


def table_lines(system: System, version: Version, env: dict[str, str] | None = None) -> list[str]:
    """The table as NCCL_DEBUG_SUBSYS=TUNING prints it: us and GB/s, three algorithms a block."""
    entries = {collective: table(system, collective, version, env) for collective in FUNCTIONS}
    names = algorithms(version)
    lines = []
    for start in range(0, len(names), 3):
        block = names[start : start + 3]
        columns = [(algorithm, protocol) for algorithm in block for protocol in PROTOCOL_NAMES]
        lines.append("  Algorithm   |" + "".join(f" {'':14}   {ALGORITHM_NAMES[a]:>14}   {'':14} |" for a in block))
        lines.append("  Protocol    |" + "".join(f" {protocol:>14} |" for _, protocol in columns))
        lines.append(" Max NThreads |" + "".join(f" {max_threads(system, a, p, env):>14} |" for a, p in columns))
        for collective in FUNCTIONS:
            cells = (entries[collective][column] for column in columns)
            row = "".join(f"{cell.latency_us:8.1f}/{cell.algbw_gbps:6.1f} |" for cell in cells)
            lines.append(f"{_FUNCTIONS[collective]:>13} |{row}")
    return lines


def operation_lines(
    system: System, collective: str, version: Version, env: dict[str, str] | None, operation: Operation
) -> list[str]:
    """What the type and the reduction of a call take from the table: a comment for each algorithm they concern."""
    if reason := unknown_to(version, system.sm, collective, operation):
        raise ScenarioError(f"{collective} ({operation}): {reason}")
    missing = left_out(system, collective, version, env, operation)
    lines = [f"# {collective} not by {ALGORITHM_NAMES[name]}: {reason}" for name, reason in missing.items()]
    factor = ring_factor(system, collective, version, operation)
    if factor != 1.0:
        lines.append(
            f"# {collective} by Ring counts {factor:.0f} times its time: {operation.dtype} above eight ranks loses "
            "digits in a ring"
        )
    return lines


def choice_lines(
    system: System,
    collective: str,
    sizes: Iterable[int],
    version: Version,
    env: dict[str, str] | None = None,
    topology: Topology | None = None,
    *,
    operation: Operation = SUM,
    buffers: Registration | None = None,
) -> list[str]:
    """A line per size as NCCL logs its choice, with the time it expects; where a tuner plugin overrules it, that one.

    As in NCCL's log the bytes of all_gather and reduce_scatter are those of one rank. Without a topology no plugin is
    asked.
    """
    lines = []
    for nbytes in sizes:
        allowed = candidates(system, collective, nbytes, version, env, operation=operation)
        best = nccl = choose(allowed)
        if topology is not None:
            best = own_choice(system, topology, env or {}, collective, nbytes, allowed)
        if best is None:
            lines.append(f"{_FUNCTIONS[collective]}: {nbytes} Bytes -> nothing that the environment allows")
            continue
        if buffers is not None and buffers.prefers_nvls(collective, nbytes, (best.algorithm, best.protocol)):
            best = next((c for c in allowed if c.algorithm == "nvls"), best)
        moved = traffic(collective, nbytes, system.ranks)
        protocol = PROTOCOLS[best.protocol]
        threads = max_threads(system, best.algorithm, best.protocol, env)
        limit = system.coll_channels
        if best.algorithm.startswith("nvls"):
            limit = nvls_channels(system.sm, system.nodes, version, env or {})
            if buffers is not None and buffers.by_nvls:
                limit = min(limit, buffers.nvls_channels(collective))
        used = split(
            limit, nbytes, best.algorithm, protocol, system.ranks, version, moved, max_threads=threads
        ).channels
        algorithm = ALGORITHM_NAMES[best.algorithm].upper().replace("NVLSTREE", "NVLS_TREE")
        lines.append(
            f"{_FUNCTIONS[collective]}: {moved[1]} Bytes -> Algo {algorithm} proto {best.protocol.upper()} "
            f"channel{{Lo..Hi}}={{0..{used - 1}}} time {best.time_us:.1f}"
            + ("" if best == nccl else f" (by {_overruled(buffers)})")
        )
    return lines
