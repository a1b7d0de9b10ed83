"""Streams of a rehearsed GPU: what was put there, done once all ranks have come, at times of the virtual clock."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from commsim.measure.gpu import Stream

if TYPE_CHECKING:
    from rehearsal.collectives import Operation
    from rehearsal.layer import Rehearsal

_PAUSE_S = 2e-4, 1e-2
"""Between two looks at what other ranks have posted, the longer the more were in vain: many ranks share few cores."""


@dataclass
class Batch:
    """Equal operations in a row, of which the last one moves data; when the first and the last were put there."""

    operation: Operation
    count: int
    first_s: float
    last_s: float
    posted: bool = False


class RehearsedStream(Stream):
    """A queue of batches; `finished` moves it on as far as the other ranks allow."""

    def __init__(self, layer: Rehearsal, pointer: int) -> None:
        self.layer, self.pointer = layer, pointer
        self.free_s = 0.0  # when the GPU is through with what it has finished
        self._queue: list[Batch] = []
        self._pause_s = _PAUSE_S[0]
        self._captured: list[Operation] | None = None

    def put(self, operation: Operation) -> None:
        """Takes one operation, which a capture keeps for its graph."""
        if self._captured is not None:
            self._captured.append(operation)
            return
        self.layer.now_s += self.layer.settings.launch_s
        self._append(operation)

    def _append(self, operation: Operation) -> None:
        now = self.layer.now_s
        last = self._queue[-1] if self._queue else None
        if last is not None and not last.posted and last.operation.same_as(operation):
            last.operation, last.count, last.last_s = operation, last.count + 1, now
        else:
            self._queue.append(Batch(operation, 1, now, now))

    def finished(self) -> bool:
        if self._captured is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        while self._queue:
            end = self._queue[0].operation.progress(self._queue[0], self.free_s)
            if end is None:
                time.sleep(self._pause_s)
                self._pause_s = min(1.2 * self._pause_s, _PAUSE_S[1])
                return False
            self._pause_s = _PAUSE_S[0]
            self.free_s = end
            self._queue.pop(0)
        self.layer.now_s = max(self.layer.now_s, self.free_s)
        return True

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self._captured = []
        try:
            work()
            graph = self._captured
        finally:
            self._captured = None

        def launch() -> None:
            self.layer.now_s += self.layer.settings.launch_s
            for operation in graph:
                self._append(operation)

        return launch
