"""Running the points of a sweep: in this process, on local processes, on a dask cluster. The rows are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commsim.errors import CommsimError
from commsim.memory import allow, limit_bytes
from commsim.planner.sweep import Point, Sweep
from commsim.processes import Lost, Pool

if TYPE_CHECKING:
    from commsim.scenario.predictors import Cache

MOST_IN_CHUNK = 64
"""Points that go to a worker at once: neighbours share topologies; more would be lost with the process."""

_CHUNKS_PER_WORKER = 8


ERROR_CHARACTERS = 500


@dataclass(frozen=True)
class PointAnswer:
    """The records of one point as `Result.records` gives them, or the reason why there are none."""

    number: int
    values: dict[str, Any]
    rows: list[dict[str, Any]]
    error: str | None = None


def evaluate(sweep: Sweep, points: Iterable[Point], cache: Cache) -> list[PointAnswer]:
    """The answers of the points in order; a point that fails is an answer with its error."""
    return [_answer(sweep, point, cache) for point in points]


def _answer(sweep: Sweep, point: Point, cache: Cache) -> PointAnswer:
    from commsim.document import raise_faults, with_values
    from commsim.scenario.load import check_document
    from commsim.scenario.run import prepare, run

    try:
        scenario, faults = check_document(with_values(sweep.base, point.values), sweep.base_dir)
        if faults or scenario is None:
            raise_faults(faults)
        result = run(prepare(scenario, cache), cache=cache, notes=False)
        return PointAnswer(point.number, point.values, result.records())
    except CommsimError as error:
        reason = str(error)
    except MemoryError:
        reason = "out of memory"
    except Exception as error:  # one point must not end a sweep of thousands
        reason = f"a fault of commsim, not of the input: {type(error).__name__}: {error}"
    return PointAnswer(point.number, point.values, [], " ".join(reason.split())[:ERROR_CHARACTERS])


class _Worker:
    """What a process keeps from one call to the next: a pool hands its workers nothing else."""

    sweep: Sweep
    cache: Cache | None = None


_worker = _Worker()


def start_worker(sweep: Sweep, memory_bytes: int | None) -> None:
    """Makes this process a worker of the sweep, whose points may take so much memory."""
    allow(memory_bytes)
    _worker.sweep = sweep


def in_worker(points: list[Point]) -> list[PointAnswer]:
    """`evaluate` in a process that `start_worker` prepared."""
    return on_cluster(_worker.sweep, points)


def on_cluster(sweep: Sweep, points: list[Point]) -> list[PointAnswer]:
    """`evaluate` with the cache of this process, which a dask worker keeps from call to call."""
    from commsim.scenario.predictors import Cache

    if _worker.cache is None:
        _worker.cache = Cache()
    return evaluate(sweep, points, _worker.cache)


def chunks(points: list[Point], workers: int) -> Iterator[list[Point]]:
    """The points in runs of neighbours, several per worker so that none waits long for the last."""
    size = max(1, min(MOST_IN_CHUNK, len(points) // (_CHUNKS_PER_WORKER * workers)))
    for at in range(0, len(points), size):
        yield points[at : at + size]


def run_local(sweep: Sweep, points: list[Point], workers: int) -> Iterator[list[PointAnswer]]:
    """Answers as they finish, from so many processes. A point whose process dies twice is an error, not the end."""
    if workers == 1 or len(points) == 1:
        from commsim.scenario.predictors import Cache

        cache = Cache()
        for point in points:
            yield evaluate(sweep, [point], cache)
        return
    limit = limit_bytes()
    with Pool(workers, start_worker, (sweep, limit and limit // workers)) as pool:
        work = list(chunks(points, workers))
        while work:
            lost: list[list[Point]] = []
            yield from _answered(pool, work, lost)
            if all(len(chunk) == 1 for chunk in lost):
                yield from _one_by_one(pool, lost)
                return
            work = [[point] for chunk in lost for point in chunk]


def _answered(pool: Pool, work: list[list[Point]], lost: list[list[Point]]) -> Iterator[list[PointAnswer]]:
    """Answers as they finish; chunks that a dead process leaves without one go to `lost`."""
    for at, answers in pool.finished(in_worker, work):
        if isinstance(answers, Lost):
            lost.append(work[at])
        else:
            yield answers


def _one_by_one(pool: Pool, chunks: list[list[Point]]) -> Iterator[list[PointAnswer]]:
    """One point at a time: the one that ends its process is the one that is running."""
    for chunk in chunks:
        died: list[list[Point]] = []
        yield from _answered(pool, [chunk], died)
        for [point] in died:
            yield [PointAnswer(point.number, point.values, [], "its process died (out of memory?)")]


def run_cluster(sweep: Sweep, points: list[Point], address: str) -> Iterator[list[PointAnswer]]:
    """Answers as they finish, from the workers of a dask scheduler at `address` (``tcp://host:8786``)."""
    try:
        from distributed import Client, as_completed
    except ImportError:
        raise CommsimError("--cluster needs dask: pip install 'commsim[cluster]'") from None
    try:
        client = Client(address, timeout=10)
    except (OSError, ValueError, TypeError) as fault:
        raise CommsimError(f"--cluster {address}: no dask scheduler answered within 10 s ({fault})") from None
    with client:
        workers = max(1, sum(client.nthreads().values()))
        handle = client.scatter(sweep, broadcast=True)
        work = chunks(points, workers)
        futures = as_completed(
            (client.submit(on_cluster, handle, chunk, pure=False, retries=2) for chunk in _first(work, 4 * workers)),
            with_results=True,
        )
        for _, answers in futures:
            yield answers
            for chunk in _first(work, 1):
                futures.add(client.submit(on_cluster, handle, chunk, pure=False, retries=2))


def _first(work: Iterable[list[Point]], count: int) -> Iterator[list[Point]]:
    for _, chunk in zip(range(count), work, strict=False):
        yield chunk
