"""nccl-tests' loop on libnccl itself: what NCCL takes, without torch's launches around it.

As BenchTime of nccl-tests (src/common.cu, 2.19.6): warm-up, n calls one after the other, one synchronisation, the time
over n; the row holds the mean over the ranks. Each call works on another part of the buffers, so that a small message
does not come out of a cache. With graphs the n calls are captured once and launched several times.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from commsim.measure.communicator import Communicator
from commsim.measure.libnccl import SUCCESS
from commsim.measure.nccl_buffers import Buffers, largest
from commsim.measure.nccl_calls import Calls, calls, layout
from commsim.measure.pattern import Pattern, pattern_of
from commsim.measure.run import Repeat, Run
from commsim.measure.timing import Sample, barrier, counted
from commsim.measure.traffic import Bytes


class NcclLoop:
    """One rank's part in timing the collectives of a run through libnccl."""

    def __init__(self, run: Run, communicator: Communicator, device: Any) -> None:
        self.run, self.communicator, self.device = run, communicator, device
        self.registered = "none"
        self._buffers: Buffers | None = None
        self._rows = [point for point in run.points() if run.through_libnccl(point.task)]

    def prepare(self, point: Repeat) -> str | None:
        """Gets the buffers that a row needs, together with all ranks; returns why it cannot be, the same on all."""
        needed = self._span(point)
        if self._buffers is not None and self._buffers.nbytes >= needed:
            return None
        self.release()
        wanted = max(map(self._span, self._rows))
        self._buffers = largest(self.communicator, wanted, needed, self.run.ranks_per_gpu, self.device)
        if self._buffers is None:
            return "out of memory: a GPU has no room for the two buffers"
        if self.run.register != "none":
            self.registered = self._buffers.register(self.run.register)
        return None

    def sample(self, point: Repeat, place: str, traffic: Callable[[], Bytes | None]) -> Sample:
        """Seconds of one call on this rank, wrong elements and bytes sent, out of place (``oop``) or in place."""
        run = self.run
        plan = self._plan(point, place)
        plan.fill()
        for i in range(max(1, run.warmup)):
            plan.issue(i)
        self.communicator.wait()
        single = run.mode == "single"
        work = self._launches(plan) if run.graph else lambda: plan.each(run.iterations)
        rounds = run.iterations * max(1, run.graph)

        def together() -> float:
            barrier()
            return self._one_by_one(plan) if single else self._timed(work)

        seconds, sent = counted(together, traffic, rounds, 2 + run.iterations * single)
        wrong = self._check(plan) if run.check else 0
        return Sample([seconds / rounds], wrong, sent)

    def once(self, point: Repeat, place: str) -> None:
        """Calls a row's collective once, untimed: for NCCL to choose, and to log what."""
        plan = self._plan(point, place)
        plan.issue(0)
        self.communicator.wait()

    def release(self) -> None:
        """Gives the buffers back, for others to use the memory."""
        if self._buffers is not None:
            self._buffers.close()
            self._buffers = None

    def _timed(self, work: Callable[[], None]) -> float:
        clock = self.communicator.layer.clock
        start = clock()
        work()
        self.communicator.wait()
        return clock() - start

    def _one_by_one(self, plan: _Plan) -> float:
        """Seconds of all calls, each waited for and followed by a barrier, which is not counted (nccl-tests: -z 3)."""
        seconds = 0.0
        for number in range(self.run.iterations):
            seconds += self._timed(partial(plan.issue, number))
            barrier()
        return seconds

    def _launches(self, plan: _Plan) -> Callable[[], None]:
        """`graph` launches of a CUDA graph of all calls."""
        launch = self.communicator.stream.capture(lambda: plan.each(self.run.iterations))

        def work() -> None:
            for _ in range(self.run.graph):
                launch()

        return work

    def _check(self, plan: _Plan) -> int:
        """Wrong elements after one more call on fresh data, through a graph if that is what was timed."""
        once: Callable[[], None] = lambda: plan.issue(0)  # noqa: E731
        if self.run.graph:
            once = self.communicator.stream.capture(once)
        plan.fill()
        barrier()
        once()
        self.communicator.wait()
        return plan.wrong()

    def _span(self, point: Repeat) -> int:
        return layout(self._pattern(point), 0, point.size).span

    def _pattern(self, point: Repeat) -> Pattern:
        return pattern_of(point.task, point.size, self.communicator.size)

    def _plan(self, point: Repeat, place: str) -> _Plan:
        if self._buffers is None:
            raise RuntimeError("sample without prepare")
        return _Plan(self.communicator, self._buffers, self._pattern(point), point, place == "ip", self.run.iterations)


class _Plan:
    """A row on one rank: its calls, one set for every part of the buffers, and the data of the first part."""

    def __init__(
        self, communicator: Communicator, buffers: Buffers, pattern: Pattern, point: Repeat, in_place: bool, count: int
    ) -> None:
        self._communicator, self._pattern = communicator, pattern
        rank = communicator.rank
        cut = layout(pattern, rank, point.size)
        parts = max(1, min(buffers.nbytes // cut.span, count))
        first, last = (cut.sent_in_place, cut.received_in_place) if in_place else (0, 0)
        self._send = (buffers.receive if in_place else buffers.send)[first : first + cut.sent]
        self._receive = buffers.receive[last : last + cut.received]
        self._calls: list[Calls] = [
            calls(
                communicator.nccl,
                point.task,
                pattern,
                rank,
                self._send.data_ptr() + part * cut.span,
                self._receive.data_ptr() + part * cut.span,
                communicator.handle,
                communicator.stream.pointer,
            )
            for part in range(parts)
        ]

    def issue(self, number: int) -> None:
        """Puts one call on the stream; raises NcclError where NCCL refuses it."""
        for function, arguments in self._calls[number % len(self._calls)]:
            code = function(*arguments)
            if code != SUCCESS:
                raise self._communicator.nccl.error(function.__name__, code, self._communicator.handle)

    def each(self, count: int) -> None:
        """Puts so many calls on the stream."""
        for number in range(count):
            self.issue(number)

    def fill(self) -> None:
        """Sets the first part of the buffers: nothing received yet, and the pattern to be sent."""
        self._receive.zero_()
        p, rank = self._pattern, self._communicator.rank
        if p.collective != "scatter" or rank == p.root:
            p.fill(rank, self._send.view(p.dtype))
        self._communicator.layer.synchronize()  # NCCL works on a stream of its own

    def wrong(self) -> int:
        """Elements of the first part that are not what they must be."""
        return self._pattern.wrong(self._communicator.rank, self._receive.view(self._pattern.dtype))
