"""nccl-tests' loop on libnccl itself: what NCCL takes, without torch's launches around it.

As BenchTime of nccl-tests (src/common.cu, 2.19.6): warm-up, n calls one after the other, one synchronisation, the time
over n; the row holds the mean over the ranks. Each call works on another part of the buffers, so that a small message
does not come out of a cache. With graphs the n calls are captured once and launched several times.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from commsim.measure.communicator import Communicator
from commsim.measure.libnccl import SUCCESS
from commsim.measure.nccl_calls import Calls, calls, layout
from commsim.measure.pattern import CHUNK_BYTES, Pattern, pattern_of
from commsim.measure.run import Repeat, Run
from commsim.measure.timing import Sample, barrier, counted
from commsim.measure.traffic import Bytes

_GRAIN = 2 << 20  # CUDA's granularity of memory that can be mapped by others
_CHECK_CHUNKS = 16  # a tile, and the doubles of a comparison with a tolerance


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


class Buffers:
    """The two buffers of a rank on its GPU, of one size, allocated and registered as nccl-tests does it.

    `send` and `receive` are bytes as torch tensors.
    """

    def __init__(self, communicator: Communicator, nbytes: int, device: Any) -> None:
        self.nbytes = -(-nbytes // _GRAIN) * _GRAIN
        self._communicator, self._device = communicator, device
        self._pointers: list[int] = []
        self._handles: list[int] = []
        self._windows = False
        try:
            self.send, self.receive = self._allocate(), self._allocate()
        except BaseException:
            self.close()
            raise

    def _allocate(self) -> Any:
        nccl = self._communicator.nccl
        if not nccl.has("ncclMemAlloc"):  # before 2.19
            return torch.empty(self.nbytes, dtype=torch.uint8, device=self._device)
        pointer = nccl.allocate(self.nbytes)
        self._pointers.append(pointer)
        return self._communicator.layer.tensor_at(pointer, self.nbytes, self._device)

    def register(self, how: str) -> str:
        """Registers both buffers with all ranks, ``buffer`` or ``window``; returns what NCCL made of it."""
        nccl, handle = self._communicator.nccl, self._communicator.handle
        self._windows = how == "window"
        for tensor in (self.send, self.receive):
            self._handles.append(nccl.register(handle, tensor.data_ptr(), self.nbytes, window=self._windows))
        return how if all(self._handles) else f"{how}, of which NCCL makes no use here"

    def close(self) -> None:
        """Gives the memory back."""
        nccl, handle = self._communicator.nccl, self._communicator.handle
        end = "ncclCommWindowDeregister" if self._windows else "ncclCommDeregister"
        for registered in filter(None, self._handles):
            nccl.call(end, handle, registered, communicator=handle)
        self._handles.clear()
        with suppress(AttributeError):  # the first of them could not be had
            del self.send, self.receive
        for pointer in self._pointers:
            nccl.free(pointer)
        self._pointers.clear()


def largest(communicator: Communicator, wanted: int, needed: int, ranks_per_gpu: int, device: Any) -> Buffers | None:
    """Buffers of `wanted` bytes, or of as many as all ranks can have; None where some rank cannot have `needed`.

    All ranks of the run call it together, and all get the same. A sixteenth of a GPU's memory is left to NCCL's own
    buffers (nccl-tests leaves as much: run in src/common.cu, 2.19.6), and some chunks to the check.
    """
    communicator.layer.release_memory()
    free, total = communicator.layer.memory()
    limit = max(0, (free - total // 16) // ranks_per_gpu - _CHECK_CHUNKS * CHUNK_BYTES) // 2
    while True:
        nbytes = max(needed, wanted)
        buffers = None
        if needed <= nbytes <= limit:
            try:
                buffers = Buffers(communicator, nbytes, device)
            except Exception as error:
                if not communicator.layer.is_out_of_memory(error):
                    raise
        on_all = torch.tensor([int(buffers is not None)])
        dist.all_reduce(on_all, dist.ReduceOp.MIN)
        if int(on_all):
            return buffers
        if buffers is not None:
            buffers.close()
        if nbytes <= needed:
            return None
        wanted = nbytes // 2
