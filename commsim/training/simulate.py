"""A training step as simpy processes: per pipeline stage a compute stream, its sends, and its gradients.

What it is not: the passes' own seconds come from `commsim.training.work`, the order of passes from a pipeline `Order`.

One replica stands for all by symmetry; a replica with stragglers is run beside it, and gradients wait for both. Sends,
gradient collectives and what passes exchange take the time of the library's model, of all groups of a stage at once.
Where they share links that have not enough for all, each goes on as fast as these let it (`commsim.engine.sharing`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commsim.engine.sharing import Sharing
from commsim.engine.timeline import Timeline
from commsim.training.flows import Flow
from commsim.training.pipeline import Action, Order, run
from commsim.training.work import ChunkWork

STREAMS = ("compute", "tp", "cp", "ep", "pp", "dp")
"""Streams of a stage, as the timeline numbers them."""

NAMES = ("F", "B", "I", "W", "tp", "cp", "ep", "send", "reduce", "gather", "optimizer")

_CODES = {name: code for code, name in enumerate(NAMES)}

Process = Generator[Any, Any, None]


@dataclass(frozen=True)
class StepCosts:
    """What the simulation needs beside the schedule: flows between stages and of gradients, and fixed times.

    ``sends[src stage, dst stage]``; ``reduces[stage]`` lists, for each chunk of the stage, its gradient buckets in the
    order in which they fill; ``gathers[stage]`` Muon's momenta, and the parameters' way back (ZeRO-1 and 2).
    ``optimizer_s`` per stage.
    ``inside[stage, chunk, kind]``: what a pass exchanges over cards that others use as well.
    """

    sends: Mapping[tuple[int, int], Flow]
    reduces: Sequence[Sequence[Sequence[Flow]]]
    gathers: Sequence[Sequence[Flow]]
    optimizer_s: Sequence[float]
    overlap_dp: bool = True
    overlap_pp: bool = True
    every_micro_batch: bool = False  # gradients leave after each micro-batch: ZeRO-2, DDP without no_sync
    inside: Mapping[tuple[int, int, str], Flow] = field(default_factory=dict)
    slowdown: float = 1.0  # of compute while communication runs: SMs and memory are shared
    constant_s: float = 0.0  # between steps: data, logging, the norm of gradients
    sharing: Sharing | None = None  # of the flows; None where none meets another


@dataclass
class StepRun:
    """A simulated step. ``stage_*`` arrays are per stage of the first replica, in seconds."""

    step_s: float
    timeline: Timeline
    compute_s: np.ndarray[Any, Any]
    exposed_s: dict[str, np.ndarray[Any, Any]]  # by axis: what lies inside the passes
    bubble_s: np.ndarray[Any, Any]  # idle although nothing is sent: the schedule's own
    pp_s: float  # longer because stages send, and because passes share cards with others
    dp_s: float  # longer because of gradients and parameters
    optimizer_s: float
    constant_s: float = 0.0  # between steps
    contended: bool = False  # some transfers meet on links that have not enough for all
    ends: dict[str, float] = field(default_factory=dict)
    slowed_s: dict[tuple[int, Action], list[float]] = field(default_factory=dict)  # passes, bucket by bucket, longer by

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
) -> StepRun:
    """Run one step; ``works[stage, chunk]``; ``stragglers``: stage of a second replica -> factor on its compute."""
    replicas = [dict.fromkeys(range(order.stages), 1.0)]
    if stragglers:
        replicas.append({s: stragglers.get(s, 1.0) for s in range(order.stages)})
    runs = _Simulation(order, works, machine, replicas)
    return runs.result()


class _Simulation:
    """The processes of one step and what they write down."""

    def __init__(
        self,
        order: Order,
        works: Mapping[tuple[int, int], ChunkWork],
        machine: StepCosts,
        replicas: list[dict[int, float]],
    ) -> None:
        import simpy

        from commsim.engine.under_way import CallsUnderWay

        self.order, self.works, self.machine, self.replicas = order, works, machine, replicas
        self.env: Any = simpy.Environment()
        self.calls = None if machine.sharing is None else CallsUnderWay(self.env, machine.sharing)
        self._rows: list[tuple[float, float, int, int, int, int]] = []
        # By (replica, stage, action): what the action made has arrived at the stage that needs it.
        self._arrived: defaultdict[tuple[int, int, Action], Any] = defaultdict(lambda: simpy.Event(self.env))
        # By (stage, action, bucket): the replicas that have filled it, and the event that all have.
        self._joined: defaultdict[Any, tuple[list[int], Any]] = defaultdict(lambda: ([], simpy.Event(self.env)))
        self._sending: dict[tuple[int, int, int], Any] = {}  # the end of the last message of a replica to a stage
        self._dp_until = [0.0] * order.stages  # when the gradients that are under way will be summed
        self._slowed: dict[tuple[int, Action], list[float]] = {}  # compute is longer by that beside gradients
        self._last = last_of(order)
        self._seconds = {
            (place, kind): work.of(kind).seconds(machine.slowdown)
            for place, work in works.items()
            for kind in ("F", "B", "I", "W")
        }
        self.pipeline_end = 0.0
        self.gradients_end = 0.0
        stages = [self.env.process(self._stage(r, s)) for r in range(len(replicas)) for s in range(order.stages)]
        reduced = [self.env.process(self._reduces(s)) for s in range(order.stages)]
        self.env.process(self._update(stages, reduced))
        self.env.run()
        self.end = float(self.env.now)

    def _write(self, start: float, replica: int, stage: int, stream: int, name: str, nbytes: float = 0.0) -> None:
        endpoint = replica * self.order.stages + stage
        self._rows.append((start, self.env.now, endpoint, stream, _CODES[name], round(nbytes)))

    # -- processes ---------------------------------

    def _stage(self, replica: int, stage: int) -> Process:
        """The compute stream of a stage: its actions in order, each when its inputs have arrived."""
        env, order, machine = self.env, self.order, self.machine
        known: dict[tuple[int, str], tuple[float, Flow | None]] = {}
        held: list[Action] = []  # what leaves with the next action
        for at, action in enumerate(order.actions[stage]):
            for other, needed in order.awaited[stage][at]:
                event = self._arrived[replica, other, needed]
                if not event.processed:
                    yield event
            start = env.now
            passed = action.chunk, action.kind
            if passed not in known:
                known[passed] = self._pass_of(replica, stage, action)
            seconds, flow = known[passed]
            beside = None
            if flow is not None and self.calls is not None:
                beside = self.calls.start(flow.shared, flow.seconds)
            if self._to_reduce(stage, action):
                yield from self._backward_with_buckets(replica, stage, action, seconds)
            else:
                yield env.timeout(seconds + self._longer(replica, stage, action, seconds))
            if flow is not None and beside is not None:
                yield from self._held_up(start + seconds, flow.seconds, beside)
            self._write(start, replica, stage, 0, action.kind)
            held.append(action)
            if order.is_joint(stage, action):
                continue
            for one in held:
                peer = self.order.goes_to(stage, one)
                if peer is None:
                    self._arrived[replica, stage, one].succeed()
                else:
                    sent = env.process(self._send(replica, stage, peer, one))
                    if not machine.overlap_pp:
                        yield sent
            held.clear()

    def _pass_of(self, replica: int, stage: int, action: Action) -> tuple[float, Flow | None]:
        """Seconds of a pass, and what it exchanges where others may hold it up."""
        work = self.works[stage, action.chunk].of(action.kind)
        longer = (self.replicas[replica][stage] - 1.0) * work.compute
        flow = self.machine.inside.get((stage, action.chunk, action.kind))
        if replica or flow is None or self.calls is None or not self.calls.meets(flow.shared):
            flow = None
        return self._seconds[(stage, action.chunk), action.kind] + longer, flow

    def _held_up(self, planned: float, alone_s: float, beside: Any) -> Process:
        """Wait as much beyond the planned end as the pass's own exchange took longer than alone."""
        if not beside.processed:
            yield beside
        late = planned + beside.value - alone_s - self.env.now
        if late > 0:
            yield self.env.timeout(late)

    def _send(self, replica: int, stage: int, peer: int, action: Action) -> Process:
        """To one stage messages follow one another. What all replicas send is the first one's call."""
        before, sent = self._sending.get((replica, stage, peer)), self.env.event()
        self._sending[replica, stage, peer] = sent
        if before is not None and not before.processed:
            yield before
        start = self.env.now
        flow = self.machine.sends[stage, peer]
        yield from flow.carry(self.env, self.calls if replica == 0 else None)
        sent.succeed()
        self._write(start, replica, stage, 4, "send", flow.nbytes)
        arrived = self._arrived[replica, stage, action]
        if flow.then_s:
            self.env.process(self._gathered(flow, arrived))
        else:
            arrived.succeed()

    def _gathered(self, flow: Flow, arrived: Any) -> Process:
        """What the ranks of the stage that a message goes to do before they can use it."""
        yield self.env.timeout(flow.then_s)
        arrived.succeed()

    def _to_reduce(self, stage: int, action: Action) -> bool:
        return completes_gradients(self.machine, self._last, stage, action)

    def _backward_with_buckets(self, replica: int, stage: int, action: Action, seconds: float) -> Process:
        """A backward whose buckets fill one after the other; each joins those of the other replicas."""
        flows = self.machine.reduces[stage][action.chunk]
        total = sum(flow.nbytes for flow in flows) or 1.0
        for i, flow in enumerate(flows):
            piece = seconds * flow.nbytes / total
            yield self.env.timeout(piece + self._longer(replica, stage, action, piece))
            self._join((stage, action, i), replica)
            if self.machine.overlap_dp and replica == 0:
                self._dp_until[stage] = max(self.env.now, self._dp_until[stage]) + flow.seconds

    def _longer(self, replica: int, stage: int, action: Action, seconds: float) -> float:
        """Seconds by which a pass is longer since gradients move beside it: they take SMs and memory bandwidth."""
        beside = min(max(self._dp_until[stage] - self.env.now, 0.0), seconds * self.machine.slowdown)
        longer = beside * (1.0 - 1.0 / self.machine.slowdown)
        if replica == 0:
            self._slowed.setdefault((stage, action), []).append(float(longer))
        return float(longer)

    def _join(self, key: Any, replica: int) -> None:
        present, event = self._joined[key]
        present.append(replica)
        if len(present) == len(self.replicas):
            event.succeed()

    def _reduces(self, stage: int) -> Process:
        """The gradient stream of a stage: bucket after bucket, each when all replicas have filled it."""
        buckets = [
            (self._joined[stage, action, i][1], flow)
            for action in self.order.actions[stage]
            if self._to_reduce(stage, action)
            for i, flow in enumerate(self.machine.reduces[stage][action.chunk])
        ]
        if not self.machine.overlap_dp:
            yield self.env.all_of([event for event, _ in buckets])
        for event, flow in buckets:
            if not event.processed:
                yield event
            start = self.env.now
            yield from flow.carry(self.env, self.calls)
            self._write(start, 0, stage, 5, "reduce", flow.nbytes)

    def _update(self, stages: list[Any], reduced: list[Any]) -> Process:
        """When all stages are through and all gradients are summed (their norm needs all): update, parameters back."""
        yield self.env.all_of(stages)
        self.pipeline_end = self.env.now
        yield self.env.all_of(reduced)
        self.gradients_end = self.env.now
        yield self.env.all_of([self.env.process(self._finish(s)) for s in range(self.order.stages)])
        yield self.env.timeout(self.machine.constant_s)

    def _finish(self, stage: int) -> Process:
        start = self.env.now
        yield self.env.timeout(self.machine.optimizer_s[stage])
        self._write(start, 0, stage, 0, "optimizer")
        for flow in self.machine.gathers[stage]:
            start = self.env.now
            yield from flow.carry(self.env, self.calls)
            self._write(start, 0, stage, 5, "gather", flow.nbytes)

    # -- what came out ---------------------------------

    def result(self) -> StepRun:
        order = self.order
        factors = self.replicas[-1]

        def alone(stage: int, action: Action) -> float:
            work = self.works[stage, action.chunk].of(action.kind)
            return self._seconds[(stage, action.chunk), action.kind] + (factors[stage] - 1.0) * work.compute

        quiet = run(order, alone)
        compute = np.zeros(order.stages)
        exposed: dict[str, np.ndarray[Any, Any]] = {}
        for stage, mine in enumerate(order.actions):
            seconds, by_axis = self._added(stage, mine, factors[stage])
            compute[stage] = seconds
            for axis, longer in by_axis.items():
                exposed.setdefault(axis, np.zeros(order.stages))[stage] = longer
        busy = compute + sum(exposed.values(), start=np.zeros(order.stages))
        update = max(self.machine.optimizer_s, default=0.0)
        # What gradients slow compute by is theirs; it adds up where the pipeline's last passes wait for one another.
        beside = run(order, lambda stage, action: alone(stage, action) + sum(self._slowed.get((stage, action), ())))
        slowed = min(beside.makespan_s, self.pipeline_end) - quiet.makespan_s
        return StepRun(
            step_s=self.end,
            timeline=Timeline.from_rows(self._rows, NAMES),
            compute_s=compute,
            exposed_s=exposed,
            bubble_s=quiet.makespan_s - busy,
            pp_s=self.pipeline_end - quiet.makespan_s - slowed,
            dp_s=self.end - self.pipeline_end - update - self.machine.constant_s + slowed,
            optimizer_s=update,
            constant_s=self.machine.constant_s,
            contended=self.calls is not None,
            ends={"pipeline": self.pipeline_end, "gradients": self.gradients_end, "step": self.end},
            slowed_s=self._slowed,
        )

    def _added(self, stage: int, actions: Sequence[Action], factor: float) -> tuple[float, dict[str, float]]:
        """Seconds of compute of a stage's passes, and of what lies open of their exchanges by axis."""
        known: dict[tuple[int, str], tuple[float, list[tuple[str, float]]]] = {}
        compute, exposed = 0.0, dict[str, float]()
        for action in actions:
            passed = action.chunk, action.kind
            if passed not in known:
                work, slowdown = self.works[stage, action.chunk].of(action.kind), self.machine.slowdown
                axes = [("ep" if e.axis == "etp" else e.axis, e.exposed(slowdown)) for e in work.exchanges]
                known[passed] = work.compute * factor, axes
            seconds, axes = known[passed]
            compute += seconds
            for axis, longer in axes:
                exposed[axis] = exposed.get(axis, 0.0) + longer
        return compute, exposed


def completes_gradients(machine: StepCosts, last: list[set[Action]], stage: int, action: Action) -> bool:
    """Whether an action completes gradients that are then summed; ``last`` from `last_of`."""
    if not machine.reduces[stage][action.chunk]:
        return False
    if machine.every_micro_batch:
        return action.kind in ("B", "W")
    return action in last[stage]


def last_of(order: Order) -> list[set[Action]]:
    """Per stage the actions after which a chunk's gradients are complete: its last B or W."""
    return [set({a.chunk: a for a in mine if a.kind in ("B", "W")}.values()) for mine in order.actions]
