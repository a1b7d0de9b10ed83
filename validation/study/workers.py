"""Predictions of many logs on several processes: the planes of each, or the times of each at its own field values."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt

from commsim.accuracy.fields import Field, space
from commsim.errors import CommsimError, ScenarioError
from commsim.processes import follow_parent
from study.case import Case
from study.case_planes import CasePlanes, attempted, explored, unique
from study.pooled_fit import Log

if TYPE_CHECKING:
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing.process import BaseProcess

R = TypeVar("R")

Float64 = npt.NDArray[np.float64]
Job = tuple[Case, list[int], dict[Field, float]]
Progress = Callable[[Iterable[object], str, int], Iterable[object]]


class Workers:
    """`count` processes that live as long as the ``with`` block; one works in this process. `progress` shows them.

    A process keeps the graphs it has searched, so that a second prediction of a machine is quicker than the first.
    """

    def __init__(self, count: int = 2, progress: Progress | None = None) -> None:
        self.count, self.progress = count, progress
        self._pool: ProcessPoolExecutor | None = None
        self._others: set[BaseProcess] = set()

    def __enter__(self) -> Workers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._pool is None:
            return
        from multiprocessing import active_children

        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in set(active_children()) - self._others:  # an interrupt does not wait for what they work on
            process.terminate()
            process.join()
            while process.is_alive():  # the pool's own thread may be the one that the system tells of its end
                time.sleep(0.01)
        self._pool = None

    def planes(self, logs: Sequence[Log], at: Sequence[Float64], label: str = "slopes") -> list[CasePlanes | str]:
        """The planes of every log at its own point; why not, where a log cannot be predicted."""
        results: list[CasePlanes | str] = [""] * len(logs)
        for members, _, made in self._each(_planes_job, logs, at, label):
            for i in members:
                results[i] = made
        return results

    def times(self, logs: Sequence[Log], at: Sequence[Float64], label: str = "predictions") -> list[Float64]:
        """Predicted seconds of every log at its own point."""
        results = self.attempts(logs, at, label)
        for entry, seconds in zip(logs, results, strict=True):
            if isinstance(seconds, str):
                raise ScenarioError(f"case {entry.case.slug}: {seconds}")
        return [seconds for seconds in results if not isinstance(seconds, str)]

    def attempts(self, logs: Sequence[Log], at: Sequence[Float64], label: str) -> list[Float64 | str]:
        """The same for logs of which some may not be predictable: why not, where one is not."""
        results: list[Float64 | str] = [""] * len(logs)
        for members, sizes, seconds in self._each(_times_job, logs, at, label):
            place = {n: j for j, n in enumerate(sizes)}
            for i in members:
                results[i] = seconds if isinstance(seconds, str) else seconds[[place[n] for n in logs[i].nbytes]]
        return results

    def _each(
        self, work: Callable[[Job], R], logs: Sequence[Log], at: Sequence[Float64], label: str
    ) -> list[tuple[list[int], list[int], R]]:
        """(logs, sizes, result) of every job: logs of one machine at one point share it; many ranks begin first."""
        jobs: list[Job] = []
        members: list[list[int]] = []
        for _, indices in unique([entry.case for entry in logs]):
            points: dict[bytes, list[int]] = {}
            for i in indices:
                points.setdefault(at[i].tobytes(), []).append(i)
            for same in points.values():
                sizes = sorted({n for i in same for n in logs[i].nbytes})
                jobs.append((logs[same[0]].case, sizes, space().values(at[same[0]])))
                members.append(same)
        order = sorted(range(len(jobs)), key=lambda k: -jobs[k][0].n_ranks)
        results = self._map(work, [jobs[k] for k in order])
        shown = results if self.progress is None else self.progress(results, label, len(jobs))
        return [(members[k], jobs[k][1], result) for k, result in zip(order, shown, strict=True)]  # type: ignore[misc]

    def _map(self, work: Callable[[Job], R], jobs: Sequence[Job]) -> Iterable[R]:
        if self.count == 1 or len(jobs) < 2:
            return map(work, jobs)
        if self._pool is None:
            import multiprocessing
            from concurrent.futures import ProcessPoolExecutor

            self._others = set(multiprocessing.active_children())
            spawn = multiprocessing.get_context("spawn")
            self._pool = ProcessPoolExecutor(self.count, spawn, initializer=follow_parent)
        return _shared_out(self._pool, work, jobs)


def _shared_out(pool: ProcessPoolExecutor, work: Callable[[Job], R], jobs: Sequence[Job]) -> Iterator[R]:
    from concurrent.futures.process import BrokenProcessPool

    ended = CommsimError("a process that predicts logs ended without a result: out of memory, or killed")
    try:
        results = pool.map(work, jobs)
    except (BrokenProcessPool, OSError):  # OSError: it ended while another was started, whose pipes the pool then shuts
        raise ended from None
    try:
        yield from results
    except BrokenProcessPool:
        raise ended from None


def _planes_job(job: Job) -> CasePlanes | str:
    return explored(*job)


def _times_job(job: Job) -> Float64 | str:
    return attempted(*job)
