"""A program of traces as streams: every rank's GPU, host and memory, and the transfers between ranks.

An operation starts when all that it depends on has ended and what it occupies is free: compute runs on one stream of
the GPU, host work on one of the host; the calls of a process group follow one another, as on one NCCL communicator, and
begin when the last member has come; messages leave when they are sent, those to the same rank one after the other, and
a receiver may come later.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from commsim.chakra.flows import SharedLinks
from commsim.chakra.program import TraceOperation, TraceProgram
from commsim.errors import ScenarioError

if TYPE_CHECKING:
    from commsim.engine.timeline import Timeline

Float64 = npt.NDArray[np.float64]

STREAMS = ("compute", "cpu", "memory", "collective", "send", "recv")


@dataclass(frozen=True, eq=False)
class TraceRun:
    """When every operation ran; arrays (operations,). ``before``: the one whose end let it start, -1 at time 0.

    ``came``: seconds at which a recv was waited for.
    """

    program: TraceProgram
    start_s: Float64
    end_s: Float64
    before: npt.NDArray[np.int64]
    came_s: Float64
    contended: bool

    @property
    def seconds(self) -> float:
        """The end of the last operation."""
        return float(self.end_s.max(initial=0.0))

    def timeline(self) -> Timeline:
        """A row per operation and rank that takes time, by start."""
        from commsim.engine.timeline import Timeline

        names: dict[str, int] = {}
        rows = []
        for index, operation in enumerate(self.program.operations):
            if operation.kind == "none":
                continue
            start, end = self.span(index)
            code = names.setdefault(operation.name, len(names))
            stream = STREAMS.index(operation.kind)
            rows += [(start, end, rank, stream, code, operation.nbytes) for rank, _ in operation.members]
        return Timeline.from_rows(rows, tuple(names) or ("none",))

    def span(self, index: int) -> tuple[float, float]:
        """(start, end) of an operation; of a recv from when bytes were under way and it was waited for."""
        operation = self.program.operations[index]
        start, end = float(self.start_s[index]), float(self.end_s[index])
        if operation.source >= 0:
            start = min(end, max(float(self.start_s[operation.source]), float(self.came_s[index])))
        return start, end


@dataclass(slots=True)
class _Line:
    """What operations occupy one at a time: ``order`` for those that must run in it, else the lowest index first."""

    strict: bool
    order: list[int] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    next: int = 0
    busy: bool = False


def simulate(program: TraceProgram, shared: SharedLinks | None = None) -> TraceRun:
    """Run a program; with ``shared`` transfers that meet on links slow each other down. ScenarioError where ranks wait
    for each other for ever."""
    return _TraceSimulation(program, shared).run()


class _TraceSimulation:
    def __init__(self, program: TraceProgram, shared: SharedLinks | None) -> None:
        from commsim.engine.clock import EventClock
        from commsim.engine.under_way import CallsUnderWay

        self.program, self.shared = program, shared
        self.contended = shared is not None and shared.contended
        self.clock = EventClock()
        self.calls = CallsUnderWay(self.clock, shared.sharing) if shared is not None and shared.contended else None
        count = len(program.operations)
        self.start, self.end, self.came = np.zeros(count), np.full(count, -1.0), np.zeros(count)
        self.before = np.full(count, -1, np.int64)
        self.waits = [operation.waits for operation in program.operations]
        self.lines = [
            _Line(strict=key is not None and key[0] == "collective", order=order)
            for key, order in zip(program.keys, program.order, strict=True)
        ]
        self._zero: deque[int] = deque()  # operations that end now, in turn: no recursion

    def run(self) -> TraceRun:
        for index, waits in enumerate(self.waits):
            if not waits:
                self._ready(index, -1)
        self._settle()
        self.clock.run()
        left = np.flatnonzero(self.end < 0)
        if left.size:
            raise self._stuck(left)
        return TraceRun(self.program, self.start, self.end, self.before, self.came, self.contended)

    def _ready(self, index: int, because: int) -> None:
        """All that an operation depends on has ended."""
        self.before[index] = because
        operation = self.program.operations[index]
        if operation.line < 0:
            self._begin(index, operation)
            return
        line = self.lines[operation.line]
        if not line.strict:
            heappush(line.ready, index)
        self._next(line, because)

    def _next(self, line: _Line, because: int) -> None:
        """Start the next operation of a line if it is free and one may."""
        if line.busy:
            return
        if line.strict:
            if line.next == len(line.order) or self.waits[line.order[line.next]]:
                return
            index = line.order[line.next]
            line.next += 1
        elif line.ready:
            index = heappop(line.ready)
        else:
            return
        line.busy = True
        self.before[index] = because
        self._begin(index, self.program.operations[index])

    def _begin(self, index: int, operation: TraceOperation) -> None:
        self.start[index] = self.clock.now
        key = self.program.keys[operation.line] if operation.line >= 0 else None
        number = self.shared.number(key, operation) if self.shared is not None and key is not None else -1
        if self.calls is not None and self.calls.meets(number):
            self.calls.start(number, operation.seconds, self._passed, index)
        elif operation.seconds > 0:
            self.clock.after(operation.seconds, self._passed, index)
        else:
            self._zero.append(index)

    def _passed(self, index: int) -> None:
        self._zero.append(index)
        self._settle()

    def _settle(self) -> None:
        while self._zero:
            self._ended(self._zero.popleft())

    def _ended(self, index: int) -> None:
        operation, now = self.program.operations[index], self.clock.now
        self.end[index] = now
        if operation.line >= 0:
            self.lines[operation.line].busy = False
        for after in operation.after:
            self._met(after, index)
        for rank, position in operation.members:
            trace = self.program.traces[rank]
            assert trace is not None
            for follower in trace.followers[position]:
                after = self.program.operation[rank][follower]
                self.came[after] = now
                self._met(after, index)
        if operation.line >= 0:
            self._next(self.lines[operation.line], index)

    def _met(self, index: int, because: int) -> None:
        self.waits[index] -= 1
        if not self.waits[index]:
            self._ready(index, because)

    def _stuck(self, left: npt.NDArray[np.int64]) -> ScenarioError:
        """Names what waits for what, once round where it is a circle."""
        faults = []
        for index in left[:6].tolist():
            operation = self.program.operations[index]
            rank, position = operation.members[0]
            trace = self.program.traces[rank]
            assert trace is not None
            node = trace.nodes[position]
            on = next((d for d in node.deps if self.end[self.program.operation[rank][trace.place[d]]] < 0), None)
            if on is not None:
                text = f"rank {rank} waits for ever for node {on}"
            elif operation.source >= 0:
                text = f"rank {rank} waits for ever for a message of rank {node.peer}"
            else:
                text = f"rank {rank} waits for ever for others before {operation.name}"
            faults.append(trace.fault(node, text))
        return ScenarioError(faults)


def critical_path(run: TraceRun, rank: int) -> list[int]:
    """Operations from time 0 to a rank's last end, each of which let the next one start; in order of time."""
    mine = [index for index in run.program.operation[rank] if index >= 0]
    path = []
    at = max(mine, key=lambda index: run.end_s[index], default=-1)
    while at >= 0:
        path.append(at)
        at = int(run.before[at])
    return path[::-1]
