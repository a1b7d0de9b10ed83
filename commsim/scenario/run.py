"""Runs a scenario's workload: the machine is built, files are read, each item answers in the order of the file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import commsim
from commsim.document import raise_faults
from commsim.document.types import KeyFaults
from commsim.errors import CommsimError, Fault, ScenarioError
from commsim.measure.records import Curve
from commsim.scenario.item import Item
from commsim.scenario.load import resolved_yaml, scenario_hash, scenario_warnings
from commsim.scenario.placement import Placed, placed
from commsim.scenario.predictors import Cache
from commsim.scenario.result import Result
from commsim.scenario.setting import idle_warnings
from commsim.scenario.strict import format_ranks
from commsim.scenario.work import Progress, Traced, WorkSite

if TYPE_CHECKING:
    from commsim.scenario.fit import Known
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Prepared:
    """A scenario whose topology is built and whose files are read: all that can be wrong with its input is known before
    anything is predicted or written."""

    scenario: Scenario
    topology: Topology
    measured: tuple[Curve, ...]
    files: dict[int, Any] = field(default_factory=dict)  # by item, what its `read` returned
    known: Known | None = None  # of `library.measured`
    placed: Placed | None = None  # of `placement`

    def site(self, place: int, cache: Cache, progress: Progress | None = None, notes: bool = True) -> WorkSite:
        """Where an item of the workload runs."""
        files = self.files.get(place)
        return WorkSite(self.scenario, self.topology, place, cache, self.measured, files, progress, notes)


def prepare(scenario: Scenario, cache: Cache | None = None) -> Prepared:
    """Builds and reads what a scenario names; every fault is a CommsimError located in the file."""
    cache = cache or Cache()
    topology = cache.topology(scenario)
    _check_places(scenario, topology)
    where = placed(scenario.placement, scenario.free_path(), scenario.document, topology)
    ranks = topology.world_size if where is None else len(where.ranks)
    measured, known = tuple(_measured(scenario, ranks)), None
    if scenario.library.measured:
        from commsim.scenario.fit import known_of

        known = known_of(scenario)
    ready = Prepared(scenario, topology, measured, known=known, placed=where)
    return replace(ready, files=_files(ready, cache))


def run(
    scenario: Scenario | Prepared, progress: Progress | None = None, cache: Cache | None = None, notes: bool = True
) -> Result:
    """The answers to the items of a scenario.

    `progress` may wrap the sizes of an item to show how far the run is. Without `notes` it is not looked for what takes
    time and changes no figure: knobs without effect, NCCL's model beside a schedule, the bound in words.
    """
    cache = cache or Cache()
    ready = scenario if isinstance(scenario, Prepared) else prepare(scenario, cache)
    scenario = ready.scenario
    warnings = scenario_warnings(scenario) + (idle_warnings(scenario, ready.topology) if notes else [])
    provenance = {"commsim": commsim.__version__, "source": scenario.source}
    if ready.known is not None:
        provenance["known"] = ready.known.words()
        warnings += ready.known.missed()
    answers = []
    for place, work in enumerate(scenario.workload):
        answer, said = work.run(ready.site(place, cache, progress, notes))
        answers.append(answer)
        if notes and scenario.document.overrides and isinstance(answer, Item):
            from commsim.scenario.unbound_notes import unbound_notes

            said = [*said, *unbound_notes(scenario, answer, warnings)]
        warnings += [text for text in said if text not in warnings]
    return Result(
        scenario=scenario,
        scenario_hash=scenario_hash(scenario),
        resolved=resolved_yaml(scenario),
        topology=_summary(ready.topology, ready.placed),
        answers=tuple(answers),
        warnings=tuple(warnings),
        provenance=provenance,
    )


def traced(ready: Prepared) -> Traced:
    """What the first item of the workload that can be traced does over time; where none can, the first's fault."""
    refused: list[ScenarioError] = []
    for place, work in enumerate(ready.scenario.workload):
        try:
            return work.traced(ready.site(place, Cache()))
        except ScenarioError as error:
            refused.append(error)
    raise refused[0]


def _check_places(scenario: Scenario, topology: Topology) -> None:
    """A ScenarioError for ranks that the topology does not have."""
    parts: KeyFaults = [
        (("workload", i, *path), text)
        for i, work in enumerate(scenario.workload)
        for path, text in work.place_faults(topology, scenario.base_dir)
    ]
    if scenario.variation is not None:
        parts += [(("variation", *path), text) for path, text in scenario.variation.place_faults(topology.world_size)]
    if parts:
        raise_faults(scenario.document.fault(path, text) for path, text in parts)


def _measured(scenario: Scenario, ranks: int) -> list[Curve]:
    """The curves that `compare` names; every file that cannot serve is a fault at its place in the scenario."""
    if not scenario.compare:
        return []
    from commsim.measure.parsers import read_measured

    curves: list[Curve] = []
    faults = []
    wanted = {work.collective for work in scenario.collectives}
    for i, path in enumerate(scenario.compare_paths()):
        try:
            read = read_measured(path)
        except CommsimError as error:
            faults.append(scenario.document.fault(("compare", i), str(error)))
            continue
        for curve in read:
            if curve.collective not in wanted:
                message = f"{path.name} holds {curve.collective}, expected {', '.join(sorted(wanted))}"
                faults.append(scenario.document.fault(("compare", i), message))
            elif curve.n_ranks is not None and curve.n_ranks != ranks:
                owner = "topology has" if scenario.placement is None else "placement takes"
                message = f"{path.name} was measured on {curve.n_ranks} ranks, not {ranks} as the {owner}"
                faults.append(scenario.document.fault(("compare", i), message))
        curves += read
    if faults:
        raise ScenarioError(faults)
    return curves


def _files(ready: Prepared, cache: Cache) -> dict[int, Any]:
    """By item, what the files hold that it names; every file that cannot be read is a fault at the item."""
    files: dict[int, Any] = {}
    faults: list[Fault] = []
    for place, work in enumerate(ready.scenario.workload):
        try:
            files[place] = work.read(ready.site(place, cache))
        except ScenarioError as error:
            faults += error.faults
    if faults:
        raise ScenarioError(faults)
    return files


def _summary(topology: Topology, where: Placed | None) -> dict[str, object]:
    """What a result says of its topology; of different nodes a list, one value per kind of node."""
    placement = where and {"ranks": len(where.ranks), "nodes": format_ranks(where.nodes)}
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
        **({"placement": placement} if placement else {}),
    }
