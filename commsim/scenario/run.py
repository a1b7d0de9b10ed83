"""Wires a Scenario's parts into a Result: topology, library model or raw schedule, lower bounds, measured curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np

import commsim
from commsim.document import KeyPath, raise_faults
from commsim.errors import CommsimError, ScenarioError
from commsim.measure.records import Curve
from commsim.scenario.chakra import TraceFiles, TraceWork
from commsim.scenario.jobs import JobsWork
from commsim.scenario.load import resolved_yaml, scenario_hash, scenario_warnings
from commsim.scenario.predictors import Cache, check_alike, row_predictor
from commsim.scenario.result import Item, Result
from commsim.scenario.training import TrainingWork

if TYPE_CHECKING:
    from commsim.scenario.result import Row
    from commsim.scenario.rows import RowPredictor
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology

T = TypeVar("T")
Progress = Callable[[Iterable[int], str], Iterable[int]]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A scenario whose topology is built and whose measured curves are read: all that can be wrong with its input is
    known before anything is predicted or written."""

    scenario: Scenario
    topology: Topology
    measured: tuple[Curve, ...]
    traces: tuple[TraceFiles, ...] = ()


def prepare(scenario: Scenario, cache: Cache | None = None) -> Prepared:
    """Builds and reads what a scenario names; every fault is a CommsimError located in the file."""
    topology = (cache or Cache()).topology(scenario)
    _check_places(scenario, topology)
    return Prepared(scenario, topology, tuple(_measured(scenario, topology)), _trace_files(scenario, topology))


def run(scenario: Scenario | Prepared, progress: Progress | None = None, cache: Cache | None = None) -> Result:
    """Predicts every item of a scenario and the sizes of the measured files it names.

    `progress` may wrap the sizes of an item to show how far the run is.
    """
    cache = cache or Cache()
    ready = scenario if isinstance(scenario, Prepared) else prepare(scenario, cache)
    scenario, topology, measured = ready.scenario, ready.topology, ready.measured
    warnings = scenario_warnings(scenario)
    items = []
    for work in scenario.collectives:
        predictor = row_predictor(scenario, topology, work, cache)
        curves = tuple(c for c in measured if c.collective == work.collective)
        sizes = work.sizes if work.sizes is not None else _sizes_of(curves)
        shown = progress(sizes, f"{scenario.name}: {work.collective}") if progress else sizes
        rows = tuple(predictor(size) for size in shown)
        known = {row.size_bytes: row for row in rows}
        at = []
        for curve in curves:
            logged = work.as_logged(curve.dtype, curve.redop)
            if scenario.library.name != "nccl" or logged.operation.alike(work.operation):
                at.append(_at_measured(scenario.name, curve, predictor, known, topology))
            else:
                at.append(
                    _at_measured(scenario.name, curve, row_predictor(scenario, topology, logged, cache), {}, topology)
                )
        items.append(
            Item(
                name=scenario.name,
                collective=work.collective,
                n_ranks=topology.world_size,
                library=scenario.library.name,
                mode=scenario.mode,
                rows=rows,
                measured=curves,
                at_measured=tuple(at),
                parameters=predictor.provenance,
                use=predictor.use,
                use_bytes=max(sizes, default=0),
            )
        )
        warnings += [w for w in predictor.warnings if w not in warnings]
    jobs = []
    for group in scenario.jobs:
        from commsim.scenario.together import run_jobs

        found, notes = run_jobs(scenario, topology, group)
        jobs.append(found)
        warnings += [w for w in notes if w not in warnings]
    trainings = []
    for step in scenario.trainings:
        from commsim.scenario.training_run import run_training

        trained, notes = run_training(scenario, topology, step.training)
        trainings.append(trained)
        warnings += [w for w in notes if w not in warnings]
    claims = []
    for stated in scenario.claims:
        from commsim.scenario.claim_run import run_claim

        claims.append(run_claim(scenario, topology, stated.claim))
    traces = []
    for replayed, files in zip(scenario.traces, ready.traces, strict=True):
        from commsim.scenario.chakra_run import run_trace

        traced, notes = run_trace(scenario, topology, replayed.trace, files)
        traces.append(traced)
        warnings += [w for w in notes if w not in warnings]
    return Result(
        scenario=scenario,
        scenario_hash=scenario_hash(scenario),
        resolved=resolved_yaml(scenario),
        topology=_summary(topology),
        items=tuple(items),
        jobs=tuple(jobs),
        trainings=tuple(trainings),
        claims=tuple(claims),
        traces=tuple(traces),
        warnings=tuple(warnings),
        provenance={"commsim": commsim.__version__, "source": scenario.source},
    )


def _check_places(scenario: Scenario, topology: Topology) -> None:
    """A ScenarioError for ranks that the topology does not have."""
    parts: list[tuple[KeyPath, list[tuple[KeyPath, str]]]] = [
        (("workload", i), work.place_faults(topology.world_size))
        for i, work in enumerate(scenario.workload)
        if isinstance(work, JobsWork)
    ]
    parts += [
        (("workload", i), work.place_faults(topology, scenario.base_dir))
        for i, work in enumerate(scenario.workload)
        if isinstance(work, TrainingWork)
    ]
    parts += [
        (("workload", i), work.place_faults(topology.world_size))
        for i, work in enumerate(scenario.workload)
        if isinstance(work, TraceWork)
    ]
    if scenario.variation is not None:
        parts.append((("variation",), scenario.variation.place_faults(topology.world_size)))
    faults = [scenario.document.fault((*at, *path), text) for at, found in parts for path, text in found]
    if faults:
        raise_faults(faults)


def _measured(scenario: Scenario, topology: Topology) -> list[Curve]:
    """The curves that `compare` names; every file that cannot serve is a fault at its place in the scenario."""
    from commsim.measure.parsers import read_measured

    curves: list[Curve] = []
    faults = []
    wanted = {work.collective for work in scenario.collectives}
    for i, path in enumerate(scenario.compare_paths()):
        try:
            found = read_measured(path)
        except CommsimError as error:
            faults.append(scenario.document.fault(("compare", i), str(error)))
            continue
        for curve in found:
            if curve.collective not in wanted:
                message = f"{path.name} holds {curve.collective}, expected {', '.join(sorted(wanted))}"
                faults.append(scenario.document.fault(("compare", i), message))
            elif curve.n_ranks is not None and curve.n_ranks != topology.world_size:
                message = (
                    f"{path.name} was measured on {curve.n_ranks} ranks, not {topology.world_size} as the topology has"
                )
                faults.append(scenario.document.fault(("compare", i), message))
        curves += found
    if faults:
        raise ScenarioError(faults)
    return curves


def _trace_files(scenario: Scenario, topology: Topology) -> tuple[TraceFiles, ...]:
    """What the files of every ``trace:`` item hold; every file that cannot be read is a fault at the item."""
    found, faults = [], []
    for i, work in enumerate(scenario.workload):
        if not isinstance(work, TraceWork):
            continue
        try:
            check_alike(scenario, topology)
            found.append(TraceFiles(work.trace, scenario.base_dir, topology.world_size))
        except CommsimError as error:
            faults += [
                scenario.document.fault(("workload", i, "trace", "path"), text) for text in str(error).split("\n")
            ]
    if faults:
        raise ScenarioError(faults)
    return tuple(found)


def _sizes_of(curves: Iterable[Curve]) -> tuple[int, ...]:
    return tuple(sorted({int(size) for curve in curves for size in curve.size_bytes}))


def _at_measured(name: str, curve: Curve, predictor: RowPredictor, known: dict[int, Row], topology: Topology) -> Curve:
    rows = [known.get(int(size)) or predictor(int(size)) for size in curve.size_bytes]
    return Curve(
        name=name,
        collective=curve.collective,
        n_ranks=topology.world_size,
        kind="predicted",
        size_bytes=curve.size_bytes,
        time_s=np.array([row.time_s for row in rows]),
        dtype=predictor.work.dtype,
        redop=predictor.work.redop,
    )


def _summary(topology: Topology) -> dict[str, object]:
    """What a result says of its topology; of different nodes a list, one value per kind of node."""
    kinds = topology.groups

    def of(values: list[T]) -> T | list[T]:
        return values[0] if all(value == values[0] for value in values) else values

    return {
        "name": topology.name,
        "gpu": of([g.gpu.model for g in kinds]),
        "ranks": topology.world_size,
        "nodes": topology.nodes,
        "nodes_of_kind": [int((topology.node_group == i).sum()) for i in range(len(kinds))],
        "ranks_per_node": of([g.ranks_per_node for g in kinds]),
        "nics_per_node": of([g.nics_per_node for g in kinds]),
        "nic_bandwidth_bytes_per_s": of([g.nic_bandwidth for g in kinds]),
        "network": topology.network,
        "oversubscription": topology.oversubscription,
        "bisection_bytes_per_s": topology.bisection_bandwidth() if topology.world_size > 1 else None,
    }
