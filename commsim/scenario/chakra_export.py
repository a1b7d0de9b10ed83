"""A ``training:`` item as Chakra traces, with the scenario that replays them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import commsim
from commsim.chakra.export import StepTraces
from commsim.chakra.writing import trace_bytes
from commsim.files import write_atomically
from commsim.scenario.chakra import TraceSpec
from commsim.scenario.load import resolved_yaml
from commsim.scenario.training_run import comm_times, training_program
from commsim.scenario.workload.trace import TraceWork
from commsim.training.simulate import simulate

if TYPE_CHECKING:
    from commsim.scenario.run import Prepared


def export_traces(prepared: Prepared, folder: Path) -> list[str]:
    """Writes ``NAME.RANK.et`` per rank, ``groups.json`` and ``replay.yaml``; returns lines on what is there.

    ScenarioError without a ``training:`` item; InfeasibleError for a step that traces cannot say.
    """
    scenario, topology = prepared.scenario, prepared.topology
    if not scenario.trainings:
        text = "found no training item, expected one to export as Chakra traces"
        raise scenario.document.error(("workload",), text)
    spec = scenario.trainings[0].training
    program = training_program(scenario, topology, spec, comm_times(scenario, topology))
    traces = StepTraces(program, simulate(program.order, program.works, program.machine))
    stem = folder / scenario.slug
    about = {"made_by": f"commsim {commsim.__version__}", "workload": scenario.name}
    ranks = nodes = 0
    for rank, made in traces.ranks():
        write_atomically(folder / f"{scenario.slug}.{rank}.et", trace_bytes(made, **about))
        ranks, nodes = ranks + 1, nodes + len(made)
    write_atomically(folder / "groups.json", json.dumps(traces.groups) + "\n")
    groups = str((folder / "groups.json").resolve())
    replayed = TraceSpec(path=str(stem.resolve()), groups=groups, contention=spec.contention)
    name, work = f"{scenario.name[:180]}, replayed", TraceWork(trace=replayed)
    replay = scenario.model_copy(update={"name": name, "workload": (work,), "compare": ()})
    write_atomically(folder / "replay.yaml", resolved_yaml(replay, folder))
    return [
        f"# wrote {nodes:,} nodes of {ranks:,} ranks as {stem}.*.et; replay them with commsim run {folder}/replay.yaml"
    ]
