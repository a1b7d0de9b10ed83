"""What happens when in a training step: per pipeline stage a compute stream, its sends, and its gradients.

What it is not: it gives no causes and no shares; `commsim.training.simulate` reads them off.

One replica stands for all by symmetry; a replica with stragglers is run beside it, and gradients wait for both. Each
has the links to itself and its like, gradients those of both. Sends, gradient collectives and what passes exchange
take the time of the library's model, of all groups of a stage at once. Where they share links that have not enough
for all, each goes on as fast as these let it (`commsim.engine.sharing`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from commsim.engine.clock import EventClock, Then
from commsim.engine.under_way import CallsUnderWay
from commsim.training.flows import Flow
from commsim.training.pipeline import Action, Order
from commsim.training.step_costs import StepCosts, completes_gradients, last_of
from commsim.training.work import ChunkWork

STREAMS = ("compute", "tp", "cp", "ep", "pp", "dp")
"""Streams of a stage, as the timeline numbers them."""

NAMES = ("F", "B", "I", "W", "tp", "cp", "ep", "send", "reduce", "gather", "optimizer")

_CODES = {name: code for code, name in enumerate(NAMES)}


@dataclass(slots=True, eq=False)
class _Lane:
    """The compute stream of a stage of a replica: where it is, and the pass that it does."""

    replica: int
    stage: int
    endpoint: int
    passes: dict[tuple[int, str], tuple[float, Flow | None]]
    at: int = 0  # the place of the pass among the stage's actions
    start: float = 0.0
    seconds: float = 0.0
    flow: Flow | None = None  # what the pass exchanges where others may hold it up
    beside_s: float | None = None  # what that took, once it has ended
    waits: bool = False  # for it
    bucket: int = 0  # of gradients that is filling
    held: list[int] = field(default_factory=list)  # what leaves with the next action


@dataclass(slots=True, eq=False)
class _Way:
    """From a stage of a replica to another, where messages follow one another."""

    replica: int
    stage: int
    flow: Flow
    waiting: deque[tuple[int, _Lane | None]] = field(default_factory=deque)  # actions, and who waits for their end
    begun: float = 0.0


@dataclass(slots=True, eq=False)
class _Gradients:
    """The gradient stream of a stage: its buckets (action, number, flow), and how many are summed."""

    stage: int
    buckets: list[tuple[int, int, Flow]]
    done: int = 0
    busy: bool = False
    begun: float = 0.0


@dataclass(slots=True, eq=False)
class _Joint:
    """A transfer on the links of several replicas: on how many it is not through, and what its end calls."""

    left: int
    then: Then
    what: object


class StepStreams:
    """Runs one step; `end`, `pipeline_end` and `gradients_end` in seconds, `rows` of its timeline, `slowed`: of
    actions, by number, the seconds by which they were longer beside gradients, bucket by bucket."""

    def __init__(
        self,
        order: Order,
        works: Mapping[tuple[int, int], ChunkWork],
        machine: StepCosts,
        replicas: list[dict[int, float]],
    ) -> None:
        self.order, self.works, self.machine, self.replicas = order, works, machine, replicas
        self.clock = EventClock()
        sharing = machine.sharing
        # The links of each replica, on which its passes and sends meet each other and what all exchange.
        self.calls = [] if sharing is None else [CallsUnderWay(self.clock, sharing) for _ in replicas]
        self.rows: list[tuple[float, float, int, int, int, int]] = []
        self.slowed: dict[int, list[float]] = {}
        self.pass_s = {
            (place, kind): work.of(kind).seconds(machine.slowdown)
            for place, work in works.items()
            for kind in ("F", "B", "I", "W")
        }
        self.pipeline_end = self.gradients_end = 0.0
        self._arrived: set[tuple[int, int]] = set()  # replica and action: its product is at the stage that needs it
        self._awaited: dict[tuple[int, int], list[_Lane]] = {}
        self._filled: dict[tuple[int, int], int] = {}  # by action and bucket, of how many replicas
        self._ways: dict[tuple[int, int, int], _Way] = {}
        self._dp_until = [0.0] * order.stages  # when the gradients that are under way will be summed
        last = last_of(order)
        self._completes = [
            [completes_gradients(machine, last, stage, action) for action in mine]
            for stage, mine in enumerate(order.actions)
        ]
        self._gradients = [self._gradients_of(stage) for stage in range(order.stages)]
        lanes = [
            _Lane(replica, stage, replica * order.stages + stage, {})
            for replica in range(len(replicas))
            for stage in range(order.stages)
        ]
        self._lanes_left, self._sums_left, self._updates_left = len(lanes), order.stages, order.stages
        for lane in lanes:
            self._begin(lane)
        for gradients in self._gradients:
            self._sum_on(gradients)
        self.clock.run()
        self.end = self.clock.now

    def _write(self, start: float, endpoint: int, stream: int, name: str, nbytes: float = 0.0) -> None:
        self.rows.append((start, self.clock.now, endpoint, stream, _CODES[name], round(nbytes)))

    def _carry(self, flow: Flow, calls: list[CallsUnderWay], then: Then, what: object) -> None:
        """Calls `then(what)` when a transfer is through on the links of all these."""
        if calls and calls[0].meets(flow.shared):
            joint = _Joint(len(calls), then, what)
            for one in calls:
                one.start(flow.shared, flow.seconds, _ended, joint)
        elif flow.seconds > 0:
            self.clock.after(flow.seconds, then, what)
        else:
            then(what)

    # -- passes ---------------------------------

    def _begin(self, lane: _Lane) -> None:
        """The next action of a stage, when its inputs have arrived."""
        mine = self.order.actions[lane.stage]
        if lane.at == len(mine):
            self._lanes_left -= 1
            if not self._lanes_left:
                self.pipeline_end = self.clock.now
                self._update()
            return
        number = self.order.first[lane.stage] + lane.at
        for needed in self.order.awaited[number]:
            if (lane.replica, needed) not in self._arrived:
                self._awaited.setdefault((lane.replica, needed), []).append(lane)
                return
        action, lane.start = mine[lane.at], self.clock.now
        passed = action.chunk, action.kind
        if passed not in lane.passes:
            lane.passes[passed] = self._pass_of(lane, action)
        lane.seconds, lane.flow = seconds, flow = lane.passes[passed]
        lane.beside_s = None
        if flow is not None:
            self.calls[lane.replica].start(flow.shared, flow.seconds, self._exchanged, lane)
        if self._completes[lane.stage][lane.at]:
            lane.bucket = 0
            self._fill(lane)
        else:
            self.clock.after(seconds + self._longer(lane, seconds), self._passed, lane)

    def _pass_of(self, lane: _Lane, action: Action) -> tuple[float, Flow | None]:
        """Seconds of a pass, and what it exchanges where others may hold it up."""
        place = lane.stage, action.chunk
        longer = (self.replicas[lane.replica][lane.stage] - 1.0) * self.works[place].of(action.kind).compute
        flow = self.machine.inside.get((lane.stage, action.chunk, action.kind))
        if flow is None or not self.calls or not self.calls[0].meets(flow.shared):
            flow = None
        return self.pass_s[place, action.kind] + longer, flow

    def _longer(self, lane: _Lane, seconds: float) -> float:
        """Seconds by which a pass is longer since gradients move beside it: they take SMs and memory bandwidth."""
        slowdown = self.machine.slowdown
        beside = min(max(self._dp_until[lane.stage] - self.clock.now, 0.0), seconds * slowdown)
        longer = float(beside * (1.0 - 1.0 / slowdown))
        if lane.replica == 0:
            self.slowed.setdefault(self.order.first[lane.stage] + lane.at, []).append(longer)
        return longer

    def _fill(self, lane: _Lane) -> None:
        """The next bucket of a backward whose buckets fill one after the other."""
        flows = self.machine.reduces[lane.stage][self.order.actions[lane.stage][lane.at].chunk]
        if lane.bucket == len(flows):
            self._passed(lane)
            return
        total = sum(flow.nbytes for flow in flows) or 1.0
        piece = lane.seconds * flows[lane.bucket].nbytes / total
        self.clock.after(piece + self._longer(lane, piece), self._filled_one, lane)

    def _filled_one(self, lane: _Lane) -> None:
        """A bucket is full: it joins those of the other replicas."""
        stage, bucket = lane.stage, lane.bucket
        flow = self.machine.reduces[stage][self.order.actions[stage][lane.at].chunk][bucket]
        key = self.order.first[stage] + lane.at, bucket
        self._filled[key] = self._filled.get(key, 0) + 1
        self._sum_on(self._gradients[stage])
        if self.machine.overlap_dp and lane.replica == 0:
            self._dp_until[stage] = max(self.clock.now, self._dp_until[stage]) + flow.seconds
        lane.bucket += 1
        self._fill(lane)

    def _exchanged(self, lane: _Lane) -> None:
        """What a pass exchanges is through."""
        lane.beside_s = self.clock.now - lane.start
        if lane.waits:
            lane.waits = False
            self._passed(lane)

    def _passed(self, lane: _Lane) -> None:
        """Compute has ended: the pass is as much longer as its own exchange took longer than alone."""
        if lane.flow is not None:
            if lane.beside_s is None:
                lane.waits = True
                return
            late = lane.start + lane.seconds + lane.beside_s - lane.flow.seconds - self.clock.now
            if late > 0:
                self.clock.after(late, self._done, lane)
                return
        self._done(lane)

    def _done(self, lane: _Lane) -> None:
        """A pass has ended: what it made leaves, with what was held back for it."""
        action, stage = self.order.actions[lane.stage][lane.at], lane.stage
        self._write(lane.start, lane.endpoint, 0, action.kind)
        lane.held.append(self.order.first[stage] + lane.at)
        lane.at += 1
        if self.order.is_joint(stage, action):
            self._begin(lane)
        else:
            self._leave(lane)

    def _leave(self, lane: _Lane) -> None:
        """Sends what a stage holds; without overlap it waits for the end of each message."""
        while lane.held:
            number = lane.held.pop(0)
            peer = self.order.peers[number]
            if peer is not None:
                self._send(lane, peer, number)
                if not self.machine.overlap_pp:
                    return
            else:
                self._arrive((lane.replica, number))
        self._begin(lane)

    # -- messages ---------------------------------

    def _send(self, lane: _Lane, peer: int, number: int) -> None:
        place = lane.replica, lane.stage, peer
        if place not in self._ways:
            self._ways[place] = _Way(lane.replica, lane.stage, self.machine.sends[lane.stage, peer])
        way = self._ways[place]
        way.waiting.append((number, None if self.machine.overlap_pp else lane))
        if len(way.waiting) == 1:
            self._send_on(way)

    def _send_on(self, way: _Way) -> None:
        """The next message of a way. What all replicas like this one send is one call."""
        way.begun = self.clock.now
        self._carry(way.flow, self.calls[way.replica : way.replica + 1], self._sent, way)

    def _sent(self, way: _Way) -> None:
        number, waiting = way.waiting[0]
        endpoint = way.replica * self.order.stages + way.stage
        self._write(way.begun, endpoint, 4, "send", way.flow.nbytes)
        if way.flow.then_s:  # what the ranks of the stage do before they can use it
            self.clock.after(way.flow.then_s, self._arrive, (way.replica, number))
        else:
            self._arrive((way.replica, number))
        way.waiting.popleft()
        if way.waiting:
            self._send_on(way)
        if waiting is not None:
            self._leave(waiting)

    def _arrive(self, what: tuple[int, int]) -> None:
        self._arrived.add(what)
        for lane in self._awaited.pop(what, ()):
            self._begin(lane)

    # -- gradients and the update ---------------------------------

    def _gradients_of(self, stage: int) -> _Gradients:
        buckets = [
            (self.order.first[stage] + at, i, flow)
            for at, action in enumerate(self.order.actions[stage])
            if self._completes[stage][at]
            for i, flow in enumerate(self.machine.reduces[stage][action.chunk])
        ]
        return _Gradients(stage, buckets)

    def _sum_on(self, one: _Gradients) -> None:
        """The next bucket of a stage, when all replicas have filled it; without overlap, when they have filled all."""
        if one.busy:
            return
        if one.done == len(one.buckets):
            self._sums_left -= 1
            one.busy = True  # it has ended
            self._update()
            return
        ahead = one.buckets[one.done : one.done + 1] if self.machine.overlap_dp or one.done else one.buckets
        if all(self._filled.get((number, i), 0) == len(self.replicas) for number, i, _ in ahead):
            one.busy, one.begun = True, self.clock.now
            self._carry(one.buckets[one.done][2], self.calls, self._summed, one)

    def _summed(self, one: _Gradients) -> None:
        self._write(one.begun, one.stage, 5, "reduce", one.buckets[one.done][2].nbytes)
        one.done, one.busy = one.done + 1, False
        self._sum_on(one)

    def _update(self) -> None:
        """When all stages are through and all gradients are summed (their norm needs all): update, parameters back."""
        if self._lanes_left or self._sums_left:
            return
        self.gradients_end = self.clock.now
        for stage in range(self.order.stages):
            self.clock.after(self.machine.optimizer_s[stage], self._updated, (stage, self.clock.now))

    def _updated(self, what: tuple[int, float]) -> None:
        stage, start = what
        self._write(start, stage, 0, "optimizer")
        self._gather((stage, 0))

    def _gather(self, what: tuple[int, int]) -> None:
        """The parameters' way back to a stage, flow by flow."""
        stage, at = what
        flows = self.machine.gathers[stage]
        if at < len(flows):
            self._carry(flows[at], self.calls, self._gathered, (stage, at, self.clock.now))
            return
        self._updates_left -= 1
        if not self._updates_left:
            self.clock.after(self.machine.constant_s, _nothing, None)

    def _gathered(self, what: tuple[int, int, float]) -> None:
        stage, at, start = what
        self._write(start, stage, 5, "gather", self.machine.gathers[stage][at].nbytes)
        self._gather((stage, at + 1))


def _ended(joint: _Joint) -> None:
    """What the end of a transfer calls on the links of each replica."""
    joint.left -= 1
    if not joint.left:
        joint.then(joint.what)


def _nothing(_: object) -> None:
    """What the end of a step calls."""
