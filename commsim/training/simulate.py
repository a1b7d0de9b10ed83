"""A simulated training step: what came out, by cause.

What it is not: the passes' own seconds come from `commsim.training.work`, the order of passes from a pipeline `Order`.
What happens when is `commsim.training.streams`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from commsim.engine.timeline import Timeline
from commsim.training.pipeline import Order, run_of
from commsim.training.step_costs import StepCosts
from commsim.training.streams import NAMES, StepStreams
from commsim.training.work import ChunkWork


@dataclass
class StepRun:
    """A simulated step. ``stage_*`` arrays are per stage of the first replica, in seconds."""

    step_s: float
    rows: list[tuple[float, float, int, int, int, int]]  # of the timeline
    compute_s: np.ndarray[Any, Any]
    exposed_s: dict[str, np.ndarray[Any, Any]]  # by axis: what lies inside the passes
    bubble_s: np.ndarray[Any, Any]  # idle although nothing is sent: the schedule's own
    pp_s: float  # longer because stages send, and because passes share cards with others
    dp_s: float  # longer because of gradients and parameters
    optimizer_s: float
    constant_s: float = 0.0  # between steps
    contended: bool = False  # some transfers meet on links that have not enough for all
    ends: dict[str, float] = field(default_factory=dict)
    slowed_s: dict[int, list[float]] = field(default_factory=dict)  # of actions by number, longer by, bucket by bucket

    @cached_property
    def timeline(self) -> Timeline:
        """What the streams of all stages did."""
        return Timeline.from_rows(self.rows, NAMES)

    def breakdown(self) -> dict[str, float]:
        """Seconds by cause, of the mean stage; they add up to the step."""
        parts = {"compute": float(self.compute_s.mean())}
        parts |= {axis: float(column.mean()) for axis, column in self.exposed_s.items()}
        parts["dp"] = parts.get("dp", 0.0) + self.dp_s
        parts |= {"pp": self.pp_s, "bubble": float(self.bubble_s.mean()), "optimizer": self.optimizer_s}
        parts |= {"constant": self.constant_s}
        return {name: seconds if abs(seconds) > 1e-12 * self.step_s else 0.0 for name, seconds in parts.items()}


def simulate(
    order: Order,
    works: Mapping[tuple[int, int], ChunkWork],
    machine: StepCosts,
    stragglers: Mapping[int, float] | None = None,
    slow: Mapping[int, float] | None = None,
) -> StepRun:
    """Run one step; ``works[stage, chunk]``; ``stragglers``: stage of a second replica -> factor on its compute.

    ``slow``: the same of all replicas, which then are alike.
    """
    replicas = [dict.fromkeys(range(order.stages), 1.0) | dict(slow or {})]
    if stragglers:
        replicas.append({s: stragglers.get(s, 1.0) for s in range(order.stages)})
    return _result(StepStreams(order, works, machine, replicas))


def _result(streams: StepStreams) -> StepRun:
    """What a run step says."""
    order, machine, works = streams.order, streams.machine, streams.works
    factors = streams.replicas[-1]
    alone: list[float] = []
    compute = np.zeros(order.stages)
    exposed: dict[str, np.ndarray[Any, Any]] = {}
    for stage, mine in enumerate(order.actions):
        known = {
            (chunk, kind): streams.pass_s[(stage, chunk), kind]
            + (factors[stage] - 1.0) * works[stage, chunk].of(kind).compute
            for chunk, kind in {(action.chunk, action.kind) for action in mine}
        }
        alone += [known[action.chunk, action.kind] for action in mine]
        compute[stage], by_axis = _added(streams, stage, factors[stage])
        for axis, longer in by_axis.items():
            exposed.setdefault(axis, np.zeros(order.stages))[stage] = longer
    quiet = run_of(order, alone)
    busy = compute + sum(exposed.values(), start=np.zeros(order.stages))
    update = max(machine.optimizer_s, default=0.0)
    # What gradients slow compute by is theirs; it adds up where the pipeline's last passes wait for one another.
    longer_s = [sum(streams.slowed.get(number, ())) for number in range(len(alone))]
    beside = run_of(order, [a + b for a, b in zip(alone, longer_s, strict=True)]) if any(longer_s) else quiet
    slowed_s = min(beside.makespan_s, streams.pipeline_end) - quiet.makespan_s
    return StepRun(
        step_s=streams.end,
        rows=streams.rows,
        compute_s=compute,
        exposed_s=exposed,
        bubble_s=quiet.makespan_s - busy,
        pp_s=streams.pipeline_end - quiet.makespan_s - slowed_s,
        dp_s=streams.end - streams.pipeline_end - update - machine.constant_s + slowed_s,
        optimizer_s=update,
        constant_s=machine.constant_s,
        contended=bool(streams.calls),
        ends={"pipeline": streams.pipeline_end, "gradients": streams.gradients_end, "step": streams.end},
        slowed_s=streams.slowed,
    )


def _added(streams: StepStreams, stage: int, factor: float) -> tuple[float, dict[str, float]]:
    """Seconds of compute of a stage's passes, and of what lies open of their exchanges by axis."""
    known: dict[tuple[int, str], tuple[float, list[tuple[str, float]]]] = {}
    compute, exposed = 0.0, dict[str, float]()
    for action in streams.order.actions[stage]:
        passed = action.chunk, action.kind
        if passed not in known:
            work, slowdown = streams.works[stage, action.chunk].of(action.kind), streams.machine.slowdown
            axes = [("ep" if e.axis == "etp" else e.axis, e.exposed(slowdown)) for e in work.exchanges]
            known[passed] = work.compute * factor, axes
        seconds, axes = known[passed]
        compute += seconds
        for axis, longer in axes:
            exposed[axis] = exposed.get(axis, 0.0) + longer
    return compute, exposed
