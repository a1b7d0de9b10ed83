"""One pool of processes for all that is shared out: sweeps, proofs of algorithms, predictions of many logs."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeVar

from commsim.errors import CommsimError

if TYPE_CHECKING:
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing.process import BaseProcess
    from multiprocessing.synchronize import Lock

J = TypeVar("J")
R = TypeVar("R")


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Lost:
    """In place of a result: a process died or had no memory before the job was done."""


LOST: Final = Lost()


class Pool:
    """`count` processes, started when there is work for them, that end with the ``with`` block however it is left.

    A process begins with ``begin(*arguments)`` and keeps what it has in memory from job to job. Ctrl-C is left to this
    process, and a process of the pool ends with this one, also when this one is killed.
    """

    def __init__(
        self, count: int, begin: Callable[..., None] | None = None, arguments: tuple[object, ...] = ()
    ) -> None:
        self.count, self._begin, self._arguments = count, begin, arguments
        self._executor: ProcessPoolExecutor | None = None
        self._others: set[BaseProcess] = set()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def map(self, work: Callable[[J], R], jobs: Sequence[J]) -> Iterator[R]:
        """The results in the order of the jobs; in this process if one is enough. A lost job is a CommsimError."""
        if self.count == 1 or len(jobs) < 2:
            yield from map(work, jobs)
            return
        early: dict[int, R] = {}
        place = 0
        for at, result in self.finished(work, jobs):
            if isinstance(result, Lost):
                raise CommsimError("a process ended without a result: out of memory, or killed")
            early[at] = result
            while place in early:
                yield early.pop(place)
                place += 1

    def finished(self, work: Callable[[J], R], jobs: Iterable[J]) -> Iterator[tuple[int, R | Lost]]:
        """(place of the job, result) of every job as they finish.

        When a process dies, nobody knows at which job: all that were begun are lost, and those not begun with them.
        The next call starts new processes.
        """
        from concurrent.futures import FIRST_COMPLETED, wait
        from concurrent.futures.process import BrokenProcessPool

        running: dict[Future[R], int] = {}
        waiting = enumerate(jobs)
        broken = False
        while not broken:
            # A few ahead of the processes, so that an interrupt leaves little behind.
            while not broken and len(running) < 2 * self.count and (job := next(waiting, None)) is not None:
                try:
                    running[self._started().submit(work, job[1])] = job[0]
                except (BrokenProcessPool, OSError):  # OSError: one died while another was started
                    broken = True
                    yield job[0], LOST
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                at = running.pop(future)
                try:
                    result: R | Lost = future.result()
                except BrokenProcessPool:
                    broken, result = True, LOST
                except MemoryError:
                    result = LOST
                yield at, result
        if broken:
            self._stop()
            for at in (*running.values(), *(at for at, _ in waiting)):
                yield at, LOST

    def _started(self) -> ProcessPoolExecutor:
        if self._executor is None:
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            self._others = set(multiprocessing.active_children())
            self._executor = ProcessPoolExecutor(
                self.count,
                multiprocessing.get_context("spawn"),
                initializer=_begin,
                initargs=(multiprocessing.get_context("spawn").Lock(), self._begin, self._arguments),
            )
        return self._executor

    def _stop(self) -> None:
        """End the processes now: an interrupt does not wait for what they work on."""
        if self._executor is None:
            return
        from multiprocessing import active_children

        self._executor.shutdown(wait=False, cancel_futures=True)
        self._executor = None
        for process in set(active_children()) - self._others:
            process.terminate()
            process.join()
            while process.is_alive():  # the executor's own thread may be the one that the system tells of its end
                time.sleep(0.01)


class OneOfAll(logging.Filter):
    """Of what each process of a pool would log by itself, lets one process say it: the first to take the turn."""

    def __init__(self, turn: Lock) -> None:
        super().__init__()
        self._turn = turn

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged: one that says so (`once`) by the first process alone."""
        return not getattr(record, "once", False) or self._turn.acquire(block=False)


def _begin(turn: Lock, begin: Callable[..., None] | None, arguments: tuple[object, ...]) -> None:
    logging.getLogger("commsim").addFilter(OneOfAll(turn))
    begin_process(begin, arguments)


def begin_process(begin: Callable[..., None] | None, arguments: tuple[object, ...]) -> None:
    """Makes this a process of a pool: deaf to Ctrl-C, ended with its parent, begun with ``begin(*arguments)``."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _end_with_parent()
    if begin is not None:
        begin(*arguments)


def _end_with_parent() -> None:
    """End this process when its parent ends, however that does: one that is killed cannot stop its pool."""
    import multiprocessing
    import threading
    from multiprocessing.connection import wait

    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def leave() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=leave, daemon=True).start()
