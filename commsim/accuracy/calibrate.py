"""Robust least squares of the channel model's fields on measured curves.

One objective everywhere: the mean over the sizes of a curve of soft-L1(ln(predicted / measured) / 0.1), summed over
curves of equal weight, plus the Gaussian prior of the fields (`starts.yaml`). Predicted times are the largest of the
planes at hand (`commsim.accuracy.planes`); damped Gauss-Newton steps with reweighting find the minimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from commsim.accuracy.cases import Case
from commsim.accuracy.fields import Field, Space, space
from commsim.accuracy.planes import Planes, explored, times, unique

J = TypeVar("J")
R = TypeVar("R")

Float64 = npt.NDArray[np.float64]

SCALE = 0.1
"""Log residual at which soft-L1 turns from square to linear."""

PRIOR = 0.09
"""Weight of the prior against one curve: a field that is off by its width costs as much as a curve off by 3 %."""

Progress = Callable[[Iterable[object], str, int], Iterable[object]]


@dataclass(frozen=True, eq=False)
class Log:
    """A measured curve to be fitted or scored."""

    case: Case
    nbytes: tuple[int, ...]
    time_s: Float64


@dataclass(frozen=True, eq=False)
class Rows:
    """All sizes of all logs in one table: measured times, and the planes over the fitted fields."""

    log: npt.NDArray[np.int64]  # (rows,) index of the log
    size: npt.NDArray[np.int64]
    measured: Float64
    constant: Float64  # (planes, rows)
    slope: Float64  # (planes, rows, fields)

    def predicted(self, x: Float64, rows: npt.NDArray[np.int64]) -> tuple[Float64, Float64]:
        """Seconds of some rows at ln(value / start) = x, and their derivatives (rows, fields) by x."""
        fitted = space()
        factor = np.exp(fitted.sign * x)
        parts = self.constant[:, rows] + self.slope[:, rows] @ factor
        top = np.argmax(parts, axis=0)
        at = np.arange(len(rows))
        return parts[top, at], self.slope[top, rows] * (fitted.sign * factor)

    def of_logs(self, logs: Iterable[int]) -> npt.NDArray[np.int64]:
        """The rows of some logs."""
        return np.flatnonzero(np.isin(self.log, list(logs)))


def stack(logs: Sequence[Log], several: Sequence[Mapping[int, Planes]]) -> Rows:
    """The rows of logs with the planes of each point of contact: a mapping from the log's index."""
    fitted = len(space().fields)
    log = np.concatenate([np.full(len(entry.nbytes), i) for i, entry in enumerate(logs)])
    constant = np.zeros((len(several), log.size))
    slope = np.zeros((len(several), log.size, fitted))
    for k, found in enumerate(several):
        for i, entry in enumerate(logs):
            rows = np.flatnonzero(log == i)
            at = {n: j for j, n in enumerate(found[i].nbytes)}
            pick = np.array([at[n] for n in entry.nbytes])
            constant[k, rows] = found[i].constant[pick]
            slope[k][np.ix_(rows, found[i].field)] = found[i].slope[pick]
    return Rows(
        log,
        np.concatenate([np.array(e.nbytes) for e in logs]),
        np.concatenate([e.time_s for e in logs]),
        constant,
        slope,
    )


def fit(
    rows: Rows,
    use: npt.NDArray[np.int64],
    *,
    center: Float64 | None = None,
    weight: float | None = None,
    prior: float = PRIOR,
    steps: int = 60,
) -> Float64:
    """ln(value / start) of every field from some rows, drawn to `center` (default: the starts).

    A log's rows weigh 1 / their number, or `weight` each. Fields that no row touches stay where the prior has them.
    """
    fitted = space()
    x0 = np.zeros(len(fitted.fields)) if center is None else center
    if use.size == 0:
        return x0.copy()
    count = np.bincount(rows.log[use])
    w = np.full(use.size, weight) if weight is not None else 1.0 / count[rows.log[use]]
    target = np.log(rows.measured[use])

    def cost(x: Float64, seconds: Float64) -> float:
        z = ((np.log(seconds) - target) / SCALE) ** 2
        return float(w @ (2 * (np.sqrt(1 + z) - 1)) + prior * _quadratic(fitted, x - x0))

    x, damping = x0.copy(), 1e-3
    seconds, derivative = rows.predicted(x, use)
    best = cost(x, seconds)
    for _ in range(steps):
        residual = (np.log(seconds) - target) / SCALE
        jacobian = derivative / seconds[:, None] / SCALE
        robust = w / np.sqrt(1 + residual**2)
        normal = jacobian.T @ (jacobian * robust[:, None]) + prior * fitted.precision
        gradient = jacobian.T @ (robust * residual) + prior * fitted.precision @ (x - x0)
        improved = False
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            new = x + np.clip(step, -1.0, 1.0)
            there, slopes = rows.predicted(new, use)
            value = cost(new, there)
            if value < best:
                improved = True
                break
            damping *= 4
        if not improved:
            break
        gain, x, seconds, derivative, best = best - value, new, there, slopes, value
        damping = max(damping / 10, 1e-9)
        if gain < 1e-6 * max(1.0, best):
            break
    return x


def _quadratic(fitted: Space, d: Float64) -> float:
    return float(d @ fitted.precision @ d)


def all_planes(
    logs: Sequence[Log], x: Float64, workers: int = 2, progress: Progress | None = None
) -> dict[int, Planes]:
    """The planes of every log at one point, each prediction made once."""
    values = space().values(x)
    groups = [
        (case, sorted({n for i in at for n in logs[i].nbytes}), values) for case, at in unique([e.case for e in logs])
    ]
    found: list[Planes | str] = parallel(_planes_job, groups, workers, progress, "slopes")
    out: dict[int, Planes | str] = {}
    for (_, at), one in zip(unique([e.case for e in logs]), found, strict=True):
        out |= dict.fromkeys(at, one)
    return out


def all_times(
    logs: Sequence[Log],
    at: Sequence[Float64],
    workers: int = 2,
    progress: Progress | None = None,
    label: str = "predictions",
) -> list[Float64]:
    """Predicted seconds of every log at its own field values."""
    groups: list[Job] = []
    members: list[list[int]] = []
    for _, indices in unique([e.case for e in logs]):
        # Logs of one machine at the same point are one prediction.
        points: dict[bytes, list[int]] = {}
        for i in indices:
            points.setdefault(at[i].tobytes(), []).append(i)
        for same in points.values():
            sizes = sorted({n for i in same for n in logs[i].nbytes})
            groups.append((logs[same[0]].case, sizes, space().values(at[same[0]])))
            members.append(same)
    found = parallel(_times_job, groups, workers, progress, label)
    out: list[Float64] = [np.zeros(0)] * len(logs)
    for (_, sizes, _), same, seconds in zip(groups, members, found, strict=True):
        place = {n: j for j, n in enumerate(sizes)}
        for i in same:
            out[i] = seconds[[place[n] for n in logs[i].nbytes]]
    return out


Job = tuple[Case, list[int], dict[Field, float]]


def _planes_job(job: Job) -> Planes | str:
    return explored(*job)


def _times_job(job: Job) -> Float64:
    case, sizes, values = job
    return times(case, sizes, [values])[0]


def parallel(work: Callable[[J], R], jobs: Sequence[J], workers: int, progress: Progress | None, label: str) -> list[R]:
    """The results of `work` on every job, in order; long jobs (many ranks) are begun first."""
    order = sorted(range(len(jobs)), key=lambda i: -_cost(jobs[i]))
    ordered = [jobs[i] for i in order]
    if workers > 1 and len(jobs) > 1:
        import multiprocessing

        with multiprocessing.get_context("spawn").Pool(workers) as pool:
            found = list(_shown(pool.imap(work, ordered), progress, label, len(jobs)))
    else:
        found = list(_shown(map(work, ordered), progress, label, len(jobs)))
    results: dict[int, R] = dict(zip(order, found, strict=True))
    return [results[i] for i in range(len(jobs))]


def _cost(job: object) -> int:
    case = job[0] if isinstance(job, tuple) else job
    return case.n_ranks if isinstance(case, Case) else 0


def _shown(items: Iterable[R], progress: Progress | None, label: str, total: int) -> Iterable[R]:
    return items if progress is None else progress(items, label, total)  # type: ignore[return-value]
