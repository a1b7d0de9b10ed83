"""From a layout that people run: what it takes, and which single changes of it bring most."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from commsim.errors import CommsimError, InfeasibleError, ScenarioError
from commsim.planner.around import single_changes
from commsim.planner.clusters import ClusterSpace
from commsim.planner.plan import Configuration, simulated
from commsim.planner.question import PlanSpec, Search
from commsim.planner.ranking import Ranked, rank_space
from commsim.planner.space import REASONS, Space
from commsim.training.communicators import GroupCalls
from commsim.training.parameters import shipped_values

SHORT = {"v": "virtual_stages", "mb": "micro_batch_size", "zero": "zero_stage", "sp": "sequence_parallel"}
"""Columns of the table by the axis that they are of."""


@dataclass(frozen=True, eq=False)
class SingleChange:
    """One other value of one axis of a layout, and the configuration that it makes."""

    axis: str
    before: Any
    value: Any
    configuration: Configuration


@dataclass(frozen=True, eq=False)
class Near:
    """A layout as it is simulated, and its single changes, the quickest first; all that are shown fit."""

    start: Configuration
    changes: tuple[SingleChange, ...]


def layout_of(text: str) -> dict[str, Any]:
    """The axes of ``tp=8, pp=16, recompute=full``, or of the first training step of a scenario's file or name.

    ScenarioError with every word that names no axis or no value of it. A named dp restricts what the rest may be.
    """
    if not text.strip():
        raise ScenarioError("--near: found nothing, expected a layout such as tp=8,pp=16 or a scenario")
    if "=" not in text:
        return _of_scenario(text)
    chosen, faults = dict[str, Any](), list[str]()
    for part in filter(None, (word.strip() for word in text.split(","))):
        name, _, value = (word.strip() for word in part.partition("="))
        axis = SHORT.get(name, name)
        try:
            if axis == "dp":
                chosen[axis] = _degree(value)
                continue
            if axis not in Search.model_fields:
                raise ScenarioError(f"expected one of {', '.join([*Search.model_fields, *SHORT, 'dp'])}")
            chosen[axis] = _value(axis, value)
        except ScenarioError as error:
            faults.append(f"--near: found {part!r:.60}, {error}")
    if faults:
        raise ScenarioError("\n".join(faults))
    return chosen


def _degree(text: str) -> int:
    if not text.isdecimal() or not 0 < len(text) < 9 or not int(text):
        raise ScenarioError("expected a whole number above zero")
    return int(text)


def _value(axis: str, text: str) -> Any:
    from pydantic import ValidationError

    words = {"yes": True, "true": True, "no": False, "false": False}
    plain: Any = int(text) if text.isdecimal() else words.get(text, text)
    try:
        return getattr(Search.model_validate({axis: [plain]}), axis)[0]
    except ValidationError as error:
        told = str(error.errors()[0]["msg"])
        raise ScenarioError(f"expected a value of {axis}: {told[:1].lower()}{told[1:]}") from None


def _of_scenario(name: str) -> dict[str, Any]:
    from commsim.scenario.load import find_scenario, load_scenarios

    for scenario in load_scenarios(find_scenario(name), []):
        for item in scenario.workload:
            spec = getattr(item, "training", None)
            if spec is not None:
                mesh = {axis: getattr(spec.mesh, axis) for axis in ("tp", "pp", "cp", "ep")}
                names = ("virtual_stages", "micro_batch_size", "zero_stage", "recompute", "sequence_parallel")
                own = {axis: getattr(spec, axis) for axis in names}
                return mesh | own | {"schedule": spec.pipeline_schedule}
    raise ScenarioError(f"--near: found no training step in {name}, expected a layout such as tp=8,pp=16 or a scenario")


def near(
    spec: PlanSpec, machine: ClusterSpace, layout: Mapping[str, Any], say: Callable[[str, int, int], None] | None = None
) -> Near:
    """The layout and its best single changes on a machine, simulated; what it leaves open takes what is quickest.

    InfeasibleError where the layout cannot run or does not fit, with what mends it.
    """
    layout = dict(layout)
    dp = layout.pop("dp", None)
    space = _with_values(machine.space, layout)
    start = _start(spec, machine, space, layout, dp)
    machine = replace(machine, space=space)
    times: dict[str, GroupCalls] = {}
    own = simulated(spec, machine, start, times)
    room = space.accelerator.room_bytes
    quickest = sorted(
        (pair for pair in single_changes(spec, space, start) if pair[1].memory_bytes <= room),
        key=lambda pair: pair[1].seconds_per_token,
    )[: spec.best]
    changes = []
    for done, (axis, other) in enumerate(quickest):
        if say is not None:
            say("simulating", done, len(quickest))
        changed = simulated(spec, machine, other, times)
        if changed.memory.fits:
            before, value = (space.axes[axis][ranked.places[axis]] for ranked in (start, other))
            changes.append(SingleChange(axis, before, value, changed))
    changes.sort(key=lambda c: c.configuration.seconds / c.configuration.ranked.tokens)
    return Near(own, tuple(changes))


def _with_values(space: Space, layout: Mapping[str, Any]) -> Space:
    """The space with the layout's values among those of its axes."""
    more = {name: (*space.axes[name], value) for name, value in layout.items() if value not in space.axes[name]}
    return replace(space, axes=space.axes | more)


def _start(spec: PlanSpec, machine: ClusterSpace, space: Space, layout: Mapping[str, Any], dp: int | None) -> Ranked:
    """The quickest combination of what the layout says, by its places in the whole space."""
    one = replace(space, axes=space.axes | {name: (value,) for name, value in layout.items()})
    cuts = [one] if dp is None else _with_degree(one, dp)
    rankings = [rank_space(cut, spec.memory, shipped_values(), keep=1) for cut in cuts]
    starts = [(cut, ranking.best[0]) for cut, ranking in zip(cuts, rankings, strict=True) if ranking.best]
    if not starts:
        lean = [pair for pair in zip(cuts, rankings, strict=True) if pair[1].leanest is not None] or [
            (cuts[0], rankings[0])
        ]
        cut, ranking = min(lean, key=lambda pair: pair[1].leanest.memory_bytes if pair[1].leanest else 0.0)
        raise InfeasibleError(_why_not(spec, machine, cut, ranking.leanest, ranking.counts))
    cut, best = min(starts, key=lambda pair: pair[1].seconds_per_token)
    places = {name: space.axes[name].index(cut.axes[name][i]) for name, i in best.places.items()}
    return replace(best, places=places)


_CUTS = ("tp", "pp", "cp")
"""What cuts a replica of the model over GPUs: dp is what they leave of the machine."""


def _with_degree(space: Space, dp: int) -> list[Space]:
    """The space for every way to cut a replica that leaves dp of them; ScenarioError where none does."""
    cuts = list(product(*(space.axes[name] for name in _CUTS)))
    fitting = [cut for cut in cuts if math.prod(cut) * dp == space.world_size]
    if not fitting:
        possible = sorted({space.world_size // math.prod(c) for c in cuts if space.world_size % math.prod(c) == 0})
        words = ", ".join(map(str, possible)) or "another tp, pp or cp"
        raise ScenarioError(
            f"--near: found dp={dp}, but {space.world_size} GPUs by tp*pp*cp leave dp={words}; expected such a dp"
        )
    return [
        replace(space, axes=space.axes | {name: (value,) for name, value in zip(_CUTS, cut, strict=True)})
        for cut in fitting
    ]


def _why_not(
    spec: PlanSpec, machine: ClusterSpace, space: Space, leanest: Ranked | None, counts: Mapping[str, int]
) -> str:
    from commsim.planner.nearest import would_fit

    if leanest is not None:
        return f"the layout does not fit{would_fit(spec, [(replace(machine, space=space), leanest)])}"
    if not counts:
        raise CommsimError("found no value of an axis, expected one of each")
    reasons = sorted((r for r in counts if r not in (REASONS[0], REASONS[-1])), key=lambda r: -counts[r])
    return f"the layout cannot run on {machine.title}: {reasons[0]}"
