"""Wires a Scenario's parts into a Result: topology, library model or raw schedule, lower bounds, measured curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np

import commsim
from commsim.collectives.semantics import REDUCING, ROOTED, WHOLE
from commsim.document import KeyPath, raise_faults
from commsim.errors import CommsimError, ScenarioError
from commsim.measure.records import Curve, busbw_factor
from commsim.nccl import p2p
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.uncertainty import link_kind, spread
from commsim.nccl.version import parse_version
from commsim.scenario.chakra import TraceFiles, TraceWork
from commsim.scenario.jobs import JobsWork
from commsim.scenario.load import build_topology, resolved_yaml, scenario_hash, scenario_warnings
from commsim.scenario.result import Item, Result, Row
from commsim.scenario.training import TrainingWork

if TYPE_CHECKING:
    from commsim.engine.usage import Use
    from commsim.nccl.parameters import Parameters
    from commsim.scenario.schema import CollectiveWork, Scenario
    from commsim.topology.graph import Topology

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")
Progress = Callable[[Iterable[int], str], Iterable[int]]


@dataclass(frozen=True, eq=False)
class Prepared:
    """A scenario whose topology is built and whose measured curves are read: all that can be wrong with its input is
    known before anything is predicted or written."""

    scenario: Scenario
    topology: Topology
    measured: tuple[Curve, ...]
    traces: tuple[TraceFiles, ...] = ()


class Cache:
    """Topologies and NCCL models already built in this process, for runs that differ little; the latest few of each."""

    KEPT = 16

    def __init__(self) -> None:
        self._topologies: dict[str, Topology] = {}
        self._models: dict[tuple[object, ...], Predictor] = {}

    def topology(self, scenario: Scenario) -> Topology:
        """The topology of a scenario."""
        key = f"{scenario.base_dir}\n{scenario.topology.model_dump_json()}"
        return self._kept(self._topologies, key, lambda: build_topology(scenario))

    def model(self, topology: Topology, options: Options, parameters: Parameters | None = None) -> Predictor:
        """The NCCL model of a topology, options and parameters; of one topology object, if it comes from here."""
        of = {**vars(options), "env": tuple(sorted(options.env.items())), "parameters": parameters}
        return self._kept(self._models, (topology, *of.values()), lambda: Predictor(topology, options, parameters))

    def _kept(self, kept: dict[K, V], key: K, build: Callable[[], V]) -> V:
        value = kept.pop(key) if key in kept else build()
        kept[key] = value
        if len(kept) > self.KEPT:
            del kept[next(iter(kept))]
        return value


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
            _check_alike(scenario, topology)
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


@dataclass(frozen=True)
class Pace:
    """How many times as long as on the machine itself hops (links, proxies) and launches take."""

    latency: float = 1.0
    launch: float = 1.0


class RowPredictor:
    """Turns a size into a Row for one workload item; `warnings` fills as sizes are predicted."""

    def __init__(self, work: CollectiveWork, topology: Topology, *, in_network: bool = False) -> None:
        from commsim.network.bounds import lower_bound_s

        self.work, self.topology = work, topology
        self._in_network = in_network
        self.warnings: list[str] = []
        self.provenance = ""
        self.use: Use | None = None  # of the network by the largest size, where links are simulated
        self._bound = lower_bound_s

    def at_pace(self, pace: Pace) -> None:
        """From now on hops and launches take as much longer."""
        self.topology = replace(self.topology, link_latency=pace.latency * self.topology.link_latency)

    def row(
        self,
        size: int,
        *,
        time_s: float,
        kernel_s: float,
        launch_s: float,
        algorithm: str,
        protocol: str,
        channels: int,
        bottleneck: str,
        level: str,
    ) -> Row:
        """A Row of this item's type, with its lower bound."""
        work = self.work
        return Row(
            size_bytes=size,
            count=size // (work.item_bytes * (1 if work.collective in WHOLE else self.topology.world_size)),
            dtype=work.dtype,
            redop=work.redop if work.collective in REDUCING else "none",
            root=(work.root or 0) if work.collective in ROOTED else -1,
            time_s=time_s,
            algbw=size / time_s if time_s else 0.0,
            busbw=(size / time_s if time_s else 0.0) * busbw_factor(work.collective, self.topology.world_size),
            algorithm=algorithm,
            protocol=protocol,
            channels=channels,
            bottleneck=bottleneck,
            lower_bound_s=self._bound(work.collective, size, self.topology, in_network=self._in_network).seconds,
            launch_s=launch_s,
            kernel_s=kernel_s,
            level=level,
        )

    def choose(self, size: int) -> tuple[str, ...]:
        """What runs at one size: the algorithm, and the protocol where there is one."""
        row = self(size)
        return (row.algorithm, row.protocol) if row.protocol else (row.algorithm,)

    def __call__(self, size: int) -> Row:
        """The prediction for one size in bytes."""
        raise NotImplementedError


def _check_alike(scenario: Scenario, topology: Topology) -> None:
    """A ScenarioError for nodes that differ: the model of NCCL searches one node and takes all others to be like it."""
    if topology.uniform:
        return
    text = (
        f"found nodes of {len(topology.groups)} kinds (different machines, or a fault inside some) with library nccl, "
        "whose model takes all nodes to be alike; expected library none, or nodes that are alike"
    )
    raise ScenarioError([scenario.document.fault(("topology",), text)])


class _NcclRows(RowPredictor):
    def __init__(self, scenario: Scenario, topology: Topology, work: CollectiveWork, cache: Cache) -> None:
        from commsim.scenario.params import nccl_graphs, nccl_parameters

        _check_alike(scenario, topology)
        # NVSwitches of Hopper and later reduce and multicast (NVLS): no algorithm is faster than that bound.
        super().__init__(work, topology, in_network=topology.has_nvswitch and topology.gpu.sm >= 90)
        library = scenario.library
        stated = "version" in library.model_fields_set
        parameters, own = nccl_parameters(scenario, topology)
        self.model = cache.model(
            topology,
            Options(
                version=parse_version(library.version) if stated else None,
                env=scenario.nccl_env(work),
                launch=library.launch_mode,
                mode=scenario.mode,
                engine=scenario.engine,
                operation=work.operation,
                graphs=nccl_graphs(scenario, topology),
            ),
            parameters,
        )
        self._own = own
        self.warnings = self.model.warnings
        note = (
            "faults: the model of NCCL reads one node and the way between the first two; a fault anywhere else does "
            "not change its times (library none sends every message over its own way)"
        )
        if (scenario.topology.faults or topology.link_failed is not None) and note not in self.warnings:
            self.warnings.append(note)
        self.provenance = self.model.parameters.provenance
        self._cache = cache
        # What was measured are runs back to back.
        self._link = link_kind(self.model.system, self.model.machine, topology.network)
        self._measured = scenario.mode == "back_to_back" and topology.world_size > 1

    def at_pace(self, pace: Pace) -> None:
        """Scales the parameters: the latencies of links are theirs."""
        parameters = self.model.parameters.scaled(pace.latency, pace.launch)
        self.model = self._cache.model(self.topology, self.model.options, parameters)

    def choose(self, size: int) -> tuple[str, ...]:
        """NCCL's choice, which needs no time."""
        if self.work.collective in p2p.COLLECTIVES:
            return super().choose(size)
        return self.model.choose(self.work.collective, size)

    def __call__(self, size: int) -> Row:
        p = self.model.predict(self.work.collective, size)
        row = self.row(
            size,
            time_s=p.time_s,
            kernel_s=p.kernel_s,
            launch_s=p.launch_s,
            algorithm=p.algorithm,
            protocol=p.protocol,
            channels=p.channels,
            bottleneck=p.bottleneck,
            level=p.level,
        )
        share = p.busy_s / p.time_s if p.time_s else 0.0
        row = replace(row, busiest_link=p.limit, busiest_share=min(share, 1.0) if p.limit else None)
        if self._own is not None:
            return replace(row, low_s=p.time_s * self._own[0], high_s=p.time_s * self._own[1])
        topology = self.topology
        band = spread(topology.gpu.generation, self._link, size, topology.nodes) if self._measured else None
        if band is None:
            return row
        if band.warning and band.warning not in self.warnings:
            self.warnings.append(band.warning)
        return replace(row, low_s=p.time_s * band.low, high_s=p.time_s * band.high)


class _GlooRows(RowPredictor):
    def __init__(self, scenario: Scenario, topology: Topology, work: CollectiveWork) -> None:
        from commsim.gloo.predict import GlooPredictor
        from commsim.scenario.params import gloo_parameters

        super().__init__(work, topology)
        parameters, band = gloo_parameters(scenario)
        self._one_host, self._mode = scenario.library.one_host, scenario.mode
        self.model = GlooPredictor(topology, parameters, one_host=self._one_host, mode=self._mode)
        self.provenance = self.model.parameters.provenance
        self._band = band
        if topology.cpu.cores == 0:
            self.warnings.append("the topology does not say how many cores a node has; taken as enough for all ranks")

    def at_pace(self, pace: Pace) -> None:
        """Scales what messages and calls cost, and the latencies of links."""
        from commsim.gloo.predict import GlooPredictor

        super().at_pace(pace)
        parameters = self.model.parameters.scaled(pace.latency, pace.launch)
        self.model = GlooPredictor(self.topology, parameters, one_host=self._one_host, mode=self._mode)

    def __call__(self, size: int) -> Row:
        p = self.model.predict(self.work.collective, size, root=self.work.root or 0, itemsize=self.work.item_bytes)
        row = self.row(
            size,
            time_s=p.time_s,
            kernel_s=p.time_s,
            launch_s=0.0,
            algorithm=p.algorithm,
            protocol="",
            channels=0,
            bottleneck=p.bottleneck,
            level="event",
        )
        row = replace(row, busiest_link=p.limit, busiest_share=p.share if p.limit else None)
        if self._band is None:
            return row
        return replace(row, low_s=p.time_s * self._band[0], high_s=p.time_s * self._band[1])


def row_predictor(
    scenario: Scenario, topology: Topology, work: CollectiveWork, cache: Cache, pace: Pace | None = None
) -> RowPredictor:
    """What predicts the rows of one workload item on a topology, at another pace than the machine's if one is given."""
    predictor = _predictor(scenario, topology, work, cache)
    if pace is not None:
        predictor.at_pace(pace)
    return predictor


def _predictor(scenario: Scenario, topology: Topology, work: CollectiveWork, cache: Cache) -> RowPredictor:
    if scenario.library.name == "nccl":
        return _NcclRows(scenario, topology, work, cache)
    if scenario.library.name == "gloo":
        return _GlooRows(scenario, topology, work)
    from commsim.scenario.raw import RawRows

    return RawRows(scenario, topology, work)


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
