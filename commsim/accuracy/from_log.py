"""The scenario that a measured log stands for: its facts on a machine, with every assumption as a sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from commsim.accuracy.judge import CurveSource
from commsim.accuracy.log_facts import LogFacts, facts_of
from commsim.accuracy.log_machine import LikelyMachine, shape_on
from commsim.document import Document, raise_faults
from commsim.errors import CommsimError, LogFormatError
from commsim.measure.records import Curve
from commsim.nccl.job_notes import NO_VERSION
from commsim.nccl.version import format_version
from commsim.scenario.load import check_document
from commsim.topology.presets import Preset, described, preset, preset_names

_WINDOWS_SINCE = (2, 27, 0)  # symmetric memory


@dataclass(frozen=True)
class LogMachine:
    """A machine for a log: its block of a scenario, where paths in it lie, and sentences on why and what is assumed."""

    name: str
    block: dict[str, Any]
    said: tuple[str, ...]


def machine_of(candidate: LikelyMachine, facts: LogFacts) -> LogMachine:
    """The machine of a candidate, with what spoke for it."""
    why = [f"machine: {candidate.name}, {candidate.words}"]
    if candidate.reasons:
        why.append(f"since {', and '.join(candidate.reasons)}")
    elif facts.gpu and candidate.nodes == 1:
        why.append("the GPUs and their number leave no other; within one node NICs play no part")
    elif facts.gpu:
        why.append("no other preset has these GPUs in such nodes and a network")
    alike = f"; {', '.join(candidate.alike)} would predict the same" if candidate.alike else ""
    block = {"preset": candidate.name, "nodes": candidate.nodes, "gpus_per_node": candidate.gpus_per_node}
    return LogMachine(candidate.name, block, ("; ".join(why) + alike, *facts.derived))


def named_machine(on: str, facts: LogFacts) -> LogMachine:
    """The machine that a person named: a preset, a topology file, NCCL's topology XML, or ``nvidia-smi topo -m``.

    Raises LogFormatError where the ranks of the log do not fill nodes of it, TopologyError where it cannot be read.
    """
    path = Path(on)
    if on in preset_names():
        block: dict[str, Any] = {"preset": on}
        figures = preset(on)
    elif path.suffix in (".yaml", ".yml"):
        block = {"path": str(path.resolve())}
        figures = described(path)
    elif path.exists():
        return _imported(path, facts)
    else:
        return _unknown(on)
    facts = _with_ranks(facts, figures)
    shape = shape_on(figures, facts)
    if shape is None:
        each = f"{facts.ranks_per_node} on a host" if facts.ranks_per_node else "no hosts named"
        nics = "" if figures.nics_per_node else " and no NIC that joins several"
        raise LogFormatError(
            f"{on} has {figures.gpus_per_node} GPUs per node{nics}: {facts.ranks} ranks, {each}, do not fill such nodes"
        )
    return LogMachine(
        on,
        block | {"nodes": shape.nodes, "gpus_per_node": shape.gpus_per_node},
        (f"machine: {on}, as asked for, {shape.words}", *facts.derived),
    )


def likely_ranks(on: str | None, nodes: int | None) -> int | None:
    """GPUs of so many nodes of a preset or a topology file; None where either is not said or of another machine."""
    if on is None or nodes is None:
        return None
    if on in preset_names():
        return nodes * preset(on).gpus_per_node
    path = Path(on)
    return nodes * described(path).gpus_per_node if path.suffix in (".yaml", ".yml") and path.exists() else None


def _with_ranks(facts: LogFacts, machine: Preset) -> LogFacts:
    """The facts; of a log that names no ranks, all GPUs of the nodes of a machine, said so.

    Raises LogFormatError where the machine joins nodes, and nobody says how many.
    """
    if facts.ranks is not None:
        return facts
    if facts.nodes is None and machine.nics_per_node:
        raise LogFormatError(
            f"the log does not say on how many ranks it ran; expected the nodes of {machine.name} (-n), all of whose "
            "GPUs are then taken, or a scenario in place of --on"
        )
    nodes, each = facts.nodes or 1, facts.ranks_per_node or machine.gpus_per_node
    taken = f"taken: the log names no ranks: all GPUs of {nodes} node{'s' * (nodes > 1)}"
    return replace(facts, ranks=nodes * each, nodes=nodes, ranks_per_node=each, derived=(*facts.derived, taken))


def _unknown(on: str) -> LogMachine:
    """Raises what says which presets have such a name."""
    from commsim.topology.presets import load_preset

    load_preset(on)
    raise LogFormatError(f"--on {on}: no such machine")  # a preset is loaded, or refused, above


def _imported(path: Path, facts: LogFacts) -> LogMachine:
    """A machine from its own dump."""
    from commsim.topology.importing import checked, import_file

    imported = import_file(path)
    nodes = facts.nodes or 1
    topology = checked(imported, path, nodes)
    if facts.ranks is not None and topology.world_size < facts.ranks:
        text = f"{path}: found {topology.world_size} GPUs on {nodes} nodes, the log has {facts.ranks} ranks"
        raise LogFormatError(text)
    block = {key: value for key, value in imported.data.items() if key != "description"} | {"nodes": nodes}
    if facts.ranks_per_node is not None:
        block["gpus_per_node"] = facts.ranks_per_node
    said = f"machine: as {path} describes it, {nodes} node{'s' * (nodes > 1)}"
    return LogMachine(path.name, block, (said, *imported.notes, *facts.derived))


def source_of(curve: Curve, machine: LogMachine) -> tuple[CurveSource, tuple[str, ...]]:
    """What predicts a curve on a machine, and sentences on what was taken where the log is silent.

    Raises CommsimError where no such job fits the machine.
    """
    facts = facts_of(curve)
    library, taken = _library(facts)
    item: dict[str, Any] = {"collective": curve.collective, "sizes": f"{int(curve.size_bytes[-1])} B"}
    if curve.root is not None:
        item["root"] = curve.root
    plain = {
        "name": f"{machine.name} as the log has it",
        "topology": machine.block,
        "library": library,
        "workload": [item],
    }
    scenario, faults = check_document(Document(file=curve.source or curve.name, data=plain, marks={}), Path())
    if scenario is None or faults:
        raise_faults(faults)
    if int(curve.conditions.get("graph", "0") or 0):
        taken.append("the log's calls were captured in a CUDA graph, which the prediction does not know")
    return CurveSource(Path(curve.source), Path("out") / Path(curve.source).stem, None, scenario), tuple(taken)


def _library(facts: LogFacts) -> tuple[dict[str, Any], list[str]]:
    """The library of a log, and what was taken where it says nothing."""
    library: dict[str, Any] = {"name": "nccl"}
    taken = []
    if facts.version is not None:
        library["version"] = format_version(facts.version)
    else:
        taken.append(NO_VERSION)
    if facts.launch:
        library["launch_mode"] = facts.launch
    else:
        taken.append("no launch given: one process per GPU is assumed")
    if facts.env:
        library["env"] = dict(facts.env)
    if facts.registered == "buffer" or (facts.version or _WINDOWS_SINCE) >= _WINDOWS_SINCE:
        library["registered"] = facts.registered
    return library, taken


def only_machine(choices: Sequence[LikelyMachine], facts: LogFacts) -> LikelyMachine | None:
    """The candidate that a log settles by itself; None where a person must say.

    Boards come in halves, of 4 and 8 GPUs: half of a node's may be all of another kind of node, which no preset is.
    """
    if len(choices) != 1 or facts.nodes is None:
        return None
    one = choices[0]
    return one if 2 * one.gpus_per_node > one.preset.gpus_per_node else None


def closeness(candidate: LikelyMachine, curve: Curve) -> float | None:
    """Median measured over predicted time above 1 MiB, or of all sizes; None where such a job cannot be predicted."""
    import numpy as np

    from commsim.accuracy.healthy import LARGE_ABOVE
    from commsim.accuracy.whatif import predicted_curve

    large = curve.size_bytes > LARGE_ABOVE
    rows = np.flatnonzero(large if large.any() else ~large)
    rows = rows[np.unique(np.linspace(0, len(rows) - 1, min(3, len(rows))).astype(int))]
    sizes = curve.size_bytes[rows]
    try:
        scenario = source_of(curve, machine_of(candidate, facts_of(curve)))[0].scenario
        assert scenario is not None
        predicted = predicted_curve(scenario, curve.collective, [int(n) for n in sizes], curve)
    except CommsimError:
        return None
    return float(np.median(curve.time_s[rows] / predicted.seconds_at(sizes)))
