"""Running the points of a sweep: in this process, on local processes, on a dask cluster. The rows are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from commsim.errors import CommsimError
from commsim.planner.evaluate import PointAnswer, evaluate, in_worker, on_cluster, start_worker
from commsim.planner.sweep import Point, Sweep
from commsim.processes import Lost, Pool

MOST_IN_CHUNK = 64
"""Points that go to a worker at once: neighbours share topologies; more would be lost with the process."""

_CHUNKS_PER_WORKER = 8


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
    with Pool(workers, start_worker, (sweep,)) as pool:
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
