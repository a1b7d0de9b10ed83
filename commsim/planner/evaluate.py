"""The rows of points: what every process of a sweep does, wherever it runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commsim.errors import CommsimError
from commsim.planner.sweep import Point, Sweep

if TYPE_CHECKING:
    from commsim.scenario.predictors import Cache

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
        return PointAnswer(point.number, point.values, run(prepare(scenario, cache), cache=cache).records())
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


def start_worker(sweep: Sweep) -> None:
    """Makes this process a worker of the sweep."""
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
