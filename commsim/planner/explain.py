"""Why a run takes as long as it does, and what each single change would give: every change is simulated."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from commsim.document import Document, raise_faults, with_values
from commsim.errors import CommsimError, InfeasibleError
from commsim.planner.changes import (
    ITEM,
    Change,
    collective_changes,
    faulty,
    generation_changes,
    machine_changes,
    network_changes,
    step_changes,
)
from commsim.planner.placement import PlacementCost, placement_cost
from commsim.scenario.item import Item
from commsim.scenario.load import check_document
from commsim.scenario.predictors import Cache, row_predictor
from commsim.scenario.run import Prepared, prepare
from commsim.synthesis.bound import sharpened
from commsim.units import GIB, format_bytes

if TYPE_CHECKING:
    from commsim.engine.usage import Use
    from commsim.scenario.generation_result import GenerationItem
    from commsim.scenario.item import Row
    from commsim.scenario.result import Result
    from commsim.scenario.rl_result import RlItem
    from commsim.scenario.schema import Scenario
    from commsim.scenario.training_result import TrainingItem
    from commsim.scenario.workload.generation import GenerationWork
    from commsim.scenario.workload.rl import RlWork

Progress = Callable[[Sequence[Change], str], Iterable[Change]]
"""Wraps the changes that are about to be tried, to show how far it is."""


NOTHING = 1e-3
"""Share of the time below which a change changes nothing."""


@dataclass(frozen=True)
class Gain:
    """What a change gives: the time with it, the seconds saved, and what to write on the command line to repeat it.

    ``misses`` says what it lacks where it cannot be had (memory); ``choice`` the algorithm and protocol it then runs.
    """

    what: str
    seconds: float
    saved_s: float
    overrides: str = ""
    misses: str = ""
    choice: str = ""


@dataclass(frozen=True, eq=False)
class Explanation:
    """One size of a collective, or one step, with the changes tried, best first; ``refused``: (change, why not).

    ``generation``: the requests of which the mean time to the last token is explained; ``rl``: the step.
    ``place`` counts the items of the workload. ``row``, ``use`` and ``parts`` (seconds by kind of cost, the largest
    first) and ``placement`` are of the collective, ``step`` of the step. ``sound``: seconds and limit of the machine
    without its faults; ``perfect_s``: of the step with collectives at the limit of the links. ``lost``: a sentence
    on what is lost to the slowest node, where nodes are unlike.
    """

    place: int
    title: str
    seconds: float
    gains: tuple[Gain, ...]
    refused: tuple[tuple[str, str], ...]
    row: Row | None = None
    use: Use | None = None
    parts: Mapping[str, float] = field(default_factory=dict)
    step: TrainingItem | None = None
    placement: PlacementCost | None = None
    generation: GenerationItem | None = None
    rl: RlItem | None = None
    limit_s: float = 0.0
    limit: str = ""
    sound: tuple[float, float] | None = None
    perfect_s: float | None = None
    lost: str = ""

    @property
    def best(self) -> tuple[Gain, ...]:
        """The changes that can be had and save time, best first."""
        return tuple(g for g in self.gains if not g.misses and g.saved_s > NOTHING * self.seconds)

    @property
    def barred(self) -> tuple[Gain, ...]:
        """The changes that would save time but lack something."""
        return tuple(g for g in self.gains if g.misses and g.saved_s > NOTHING * self.seconds)


def explain(
    result: Result,
    sizes: Sequence[int] = (),
    progress: Progress | None = None,
    *,
    what_if: bool = True,
    cache: Cache | None = None,
) -> list[Explanation]:
    """Every collective at its smallest and largest size (or at `sizes`), every training step, run of requests and
    step of reinforcement learning.

    Without `what_if` nothing is changed: only what bounds them. Jobs beside each other, claims and traces explain
    themselves. `cache` holds what the run built.
    """
    cache = cache or Cache()
    explanations: list[Explanation] = []
    for place, answer in enumerate(result.answers):
        if isinstance(answer, Item):
            wanted = sizes or ends(answer)
            explanations += [_collective(result.scenario, place, s, cache, progress, what_if) for s in wanted]
        elif answer.kind == "trainings":
            explanations.append(_step(result.scenario, place, cast("TrainingItem", answer), cache, progress, what_if))
        elif answer.kind == "generations":
            item = cast("GenerationItem", answer)
            explanations.append(_generation(result.scenario, place, item, cache, progress, what_if))
        elif answer.kind == "rl":
            explanations.append(_rl(result.scenario, place, cast("RlItem", answer), cache, progress, what_if))
    return explanations


def ends(item: Item) -> list[int]:
    """The smallest and the largest size of an item."""
    sizes = [row.size_bytes for row in item.rows]
    return sorted({min(sizes), max(sizes)}) if sizes else []


def _collective(
    scenario: Scenario, place: int, size: int, cache: Cache, progress: Progress | None, what_if: bool
) -> Explanation:
    base = _alone(scenario, place, size)
    ready = _built(base, scenario, {}, cache)
    work = ready.scenario.collectives[0]
    predictor = row_predictor(ready.scenario, ready.topology, work, cache)
    row, use, parts = predictor(size), predictor.use, predictor.parts(size)
    ranks = predictor.n_ranks
    title = f"{work.collective} of {format_bytes(size)}"
    of = "" if ready.placed is None else f"of {ready.topology.world_size} "
    on = f"{title} on {ranks} {of}rank{'s' if of or ranks > 1 else ''}"
    bound = sharpened(predictor.bound, size) if ranks > 1 else None
    limit_s, limit = (bound.seconds(size), bound.words(size)) if bound is not None else (0.0, "")
    lost = predictor.lost(size)
    if not what_if:
        bare = Explanation(place, on, row.time_s, (), (), row=row, use=use, parts=parts, lost=lost)
        return replace(bare, limit_s=limit_s, limit=limit)
    if work.algorithm == "auto":  # tried anew for every change it would take minutes
        base = with_values(base, {f"{ITEM}.algorithm": row.algorithm})

    def gain(change: Change) -> Gain:
        other = _built(base, scenario, change.values, cache)
        new = row_predictor(other.scenario, other.topology, other.scenario.collectives[0], cache, change.pace)
        seconds, *way = new.timed(size)
        if change.runs not in (None, tuple(way)):
            raise InfeasibleError(f"NCCL takes {'/'.join(way)} instead")
        overrides = _overrides(change, place, scenario)
        return Gain(change.what, seconds, row.time_s - seconds, overrides, choice="/".join(filter(None, way)))

    changes = [*machine_changes(ready.topology), *collective_changes(ready.scenario, ready.topology, work)]
    changes = [c for c in changes if c.runs != (row.algorithm, row.protocol)]
    tried = _tried(changes, title, gain, progress)
    cost = placement_cost(ready, size, row.time_s, row.limiting_place or row.bottleneck, cache)
    whole = Explanation(place, on, row.time_s, *tried, row=row, use=use, parts=parts, placement=cost, lost=lost)
    sound = _sound(base, ready, size, cache) if ranks > 1 else None
    return replace(whole, limit_s=limit_s, limit=limit, sound=sound)


def _sound(base: Document, ready: Prepared, size: int, cache: Cache) -> tuple[float, float] | None:
    """Seconds and limit without the machine's faults; None where it has none."""
    if not faulty(ready.topology):
        return None
    other = _built(base, ready.scenario, {"topology.faults": []}, cache)
    predictor = row_predictor(other.scenario, other.topology, other.scenario.collectives[0], cache)
    return predictor(size).time_s, sharpened(predictor.bound, size).seconds(size)


def _step(
    scenario: Scenario, place: int, item: TrainingItem, cache: Cache, progress: Progress | None, what_if: bool
) -> Explanation:
    from commsim.scenario.perfect import SYNTHESIZED
    from commsim.scenario.training_run import kept_times, simulated

    if not what_if:
        return Explanation(place, item.name, item.step_s, (), (), step=item, lost=item.lost)
    base = _alone(scenario, place, None)
    base.data.pop("variation", None)  # what is explained is the step of alike nodes; a note says what unlike ones cost

    def gain(change: Change) -> Gain:
        changed = _built(base, scenario, change.values, cache)
        latency = change.pace.latency if change.pace else 1.0
        spec = changed.scenario.trainings[0].training
        comm = kept_times(cache, changed.scenario, changed.topology, latency)
        _, run, memory, _ = simulated(changed.scenario, changed.topology, spec, comm)
        peak, capacity = memory.fullest.peak / GIB, memory.capacity / GIB
        misses = "" if memory.fits else f"needs {peak:.1f} GiB of {capacity:.1f} GiB"
        saved_s, overrides = item.step_s - run.step_s, _overrides(change, place, scenario)
        return Gain(change.what, run.step_s, saved_s, overrides, misses)

    topology = _built(base, scenario, {}, cache).topology
    changes = [*machine_changes(topology), *step_changes(item.step)]
    tried = _tried(changes, item.name, gain, progress)
    perfect_s = gain(Change("", {"library": SYNTHESIZED})).seconds if topology.world_size > 1 else None
    return Explanation(place, item.name, item.step_s, *tried, step=item, perfect_s=perfect_s, lost=item.lost)


def _generation(
    scenario: Scenario, place: int, item: GenerationItem, cache: Cache, progress: Progress | None, what_if: bool
) -> Explanation:
    """Of the mean time to the last token; a closed loop keeps its clients, however many replicas a change makes."""
    from commsim.scenario.generation_run import run_generation

    now_s = float(item.run.latency.mean())
    if not what_if:
        return Explanation(place, item.name, now_s, (), (), generation=item)
    base = _alone(scenario, place, None)
    asked = base.data["workload"][0]["generation"]
    of_each = asked.pop("batch", None) is not None
    if of_each:
        asked["concurrency"] = item.clients

    def gain(change: Change) -> Gain:
        changed = _built(base, scenario, change.values, cache)
        work = cast("GenerationWork", changed.scenario.workload[0])
        other, _ = run_generation(changed.scenario, changed.topology, work.generation, loads=False)
        seconds = float(other.run.latency.mean())
        values = dict(change.values)
        if of_each and other.replicas != item.replicas:
            values[f"{ITEM}.generation.batch"] = -(-item.clients // other.replicas)
        overrides = _overrides(replace(change, values=values), place, scenario)
        return Gain(change.what, seconds, now_s - seconds, overrides)

    topology = _built(base, scenario, {}, cache).topology
    crosses = item.reader is not None or item.replica.gpus > topology.ranks_per_node
    changes = [*generation_changes(item), *(network_changes(topology) if crosses else ())]
    return Explanation(place, item.name, now_s, *_tried(changes, item.name, gain, progress), generation=item)


def _rl(
    scenario: Scenario, place: int, item: RlItem, cache: Cache, progress: Progress | None, what_if: bool
) -> Explanation:
    from commsim.planner.rl_changes import rl_changes
    from commsim.scenario.rl_run import run_rl
    from commsim.scenario.training import accelerator_for

    if not what_if:
        return Explanation(place, item.name, item.step_s, (), (), rl=item)
    base = _alone(scenario, place, None)

    def gain(change: Change) -> Gain:
        changed = _built(base, scenario, change.values, cache)
        spec = cast("RlWork", changed.scenario.workload[0]).rl
        other, _ = run_rl(changed.scenario, changed.topology, spec)
        shared = spec.engines.gpus is None and not spec.offload and not spec.engines.of_a_library
        needed = other.trainer_memory_bytes + shared * spec.engines.memory_share * other.capacity_bytes
        room = other.capacity_bytes
        misses = "" if needed <= room else f"needs {needed / GIB:.1f} GiB of {room / GIB:.1f} GiB"
        overrides = _overrides(change, place, scenario)
        return Gain(change.what, other.step_s, item.step_s - other.step_s, overrides, misses)

    ready = _built(base, scenario, {}, cache)
    spec = cast("RlWork", ready.scenario.workload[0]).rl
    gpu = accelerator_for(spec.training, ready.topology, scenario.base_dir)
    changes = [*rl_changes(spec, item.gpus, gpu), *network_changes(ready.topology)]
    return Explanation(place, item.name, item.step_s, *_tried(changes, item.name, gain, progress), rl=item)


def _tried(
    changes: Sequence[Change], title: str, gain: Callable[[Change], Gain], progress: Progress | None
) -> tuple[tuple[Gain, ...], tuple[tuple[str, str], ...]]:
    """(gains, quickest first; changes that cannot be had and why)."""
    gains: list[Gain] = []
    refused: list[tuple[str, str]] = []
    for change in progress(changes, title) if progress else changes:
        try:
            gains.append(gain(change))
        except CommsimError as error:
            refused.append((change.what, _first_line(error)))
    return tuple(sorted(gains, key=lambda one: one.seconds)), tuple(refused)


def _alone(scenario: Scenario, place: int, size: int | None) -> Document:
    """The scenario with one item of its workload, of one size, and nothing to compare with."""
    written = scenario.document
    content = copy.deepcopy(written.data)
    content = {key: value for key, value in content.items() if key not in ("compare", "report")}
    content["workload"] = [content["workload"][place]]
    if size is not None:
        content["workload"][0]["sizes"] = [f"{size} B"]
    if isinstance(content.get("library"), str):  # the short form has no fields to set
        content["library"] = {"name": content["library"]}
    return replace(written, data=content, marks={}, key_marks={})


def _built(base: Document, scenario: Scenario, values: dict[str, object], cache: Cache) -> Prepared:
    """The scenario with some values changed and its topology; CommsimError where they cannot be."""
    changed, faults = check_document(with_values(base, values), scenario.base_dir)
    if changed is None or faults:
        raise_faults(faults)
    return prepare(changed, cache)


def _overrides(change: Change, place: int, scenario: Scenario) -> str:
    """The change as words for the scenario as it was written: a library named in short has no fields to set."""
    values = dict(change.values)
    written = scenario.document.data
    env = {name: values[name] for name in values if name.startswith("library.env.")}
    if env and isinstance(written, dict) and isinstance(written.get("library"), str):
        listed = ", ".join(f"{name.removeprefix('library.env.')}: {value}" for name, value in env.items())
        values = {k: v for k, v in values.items() if k not in env} | {"library": f"{{name: nccl, env: {{{listed}}}}}"}
    return replace(change, values=values).overrides.replace(f"{ITEM}.", f"workload.{place}.")


def _first_line(error: CommsimError) -> str:
    """What a refused change lacks, without the place in a file that it was never in."""
    faults = getattr(error, "faults", ())
    return str(faults[0].message if faults else error).splitlines()[0]
