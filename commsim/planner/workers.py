"""Running the points of a sweep: in this process, on local processes, on a dask cluster. The rows are the same."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from commsim.errors import CommsimError
from commsim.planner.evaluate import PointAnswer, evaluate, in_worker, on_cluster, start_worker
from commsim.planner.sweep import Point, Sweep

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
    work = list(chunks(points, workers))
    while work:
        lost: list[list[Point]] = []
        yield from _pool(sweep, work, workers, lost)
        alone = [[point] for chunk in lost for point in chunk]
        if lost and all(len(chunk) == 1 for chunk in lost):
            # One at a time now: the point that ends its process is the one that is running.
            alone = []
            for chunk in lost:
                died: list[list[Point]] = []
                yield from _pool(sweep, [chunk], 1, died)
                if died:
                    yield [PointAnswer(chunk[0].number, chunk[0].values, [], "its process died (out of memory?)")]
        work = alone


def _pool(sweep: Sweep, work: list[list[Point]], workers: int, lost: list[list[Point]]) -> Iterator[list[PointAnswer]]:
    """Answers of a pool of processes; chunks whose process died are added to `lost`."""
    import multiprocessing
    from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
    from concurrent.futures.process import BrokenProcessPool

    pool = ProcessPoolExecutor(
        max_workers=min(workers, len(work)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=start_worker,
        initargs=(sweep,),
    )
    running: dict[Future[list[PointAnswer]], list[Point]] = {}
    waiting = iter(work)
    try:
        while True:
            # A few ahead of the workers, so that an interrupt leaves little behind.
            while len(running) < 2 * workers and (chunk := next(waiting, None)) is not None:
                running[pool.submit(in_worker, chunk)] = chunk
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                chunk = running.pop(future)
                try:
                    answers = future.result()
                except BrokenProcessPool:
                    lost.append(chunk)
                else:
                    yield answers
            if lost:
                lost += [*running.values(), *waiting]
                return
    except BrokenProcessPool:  # while submitting
        lost += [*([chunk] if chunk is not None else []), *running.values(), *waiting]
    finally:
        _stop(pool)


def _stop(pool: Any) -> None:
    """Ends a pool now: what still runs would not be waited for."""
    processes = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for process in processes:
        process.terminate()
    for process in processes:
        process.join()


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
