"""Robust least squares of the channel model's fields on the curves of many machines.

The objective is that of `commsim.accuracy.curve_fit`, which fits one machine; curves may weigh differently here.
Damped Gauss-Newton steps with reweighting find the minimum: the shipped parameters and all recorded figures are theirs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.accuracy.curve_fit import ADAPTED, LEAST_S, SCALE, Rows
from commsim.accuracy.fields import space
from commsim.accuracy.planes import Planes
from study.case import Case

Float64 = npt.NDArray[np.float64]

POOLED = 20.0
"""Weight of the prior in a fit of many machines: their curves are many and alike, and wrong in common."""

_STEPS = 60


@dataclass(frozen=True, eq=False)
class Log:
    """A measured curve: its `time_s` are scored, its `undisturbed_s` (`Curve.undisturbed_s`) fitted to."""

    case: Case
    nbytes: tuple[int, ...]
    time_s: Float64
    undisturbed_s: Float64


def stack(logs: Sequence[Log], several: Sequence[Mapping[int, Planes]]) -> Rows:
    """The rows of logs with the planes of each point of contact: a mapping from the log's index.

    The first mapping holds every log; a plane that a later one lacks lies below all others.
    """
    fitted = len(space().fields)
    log = np.concatenate([np.full(len(entry.nbytes), i) for i, entry in enumerate(logs)])
    constant = np.full((len(several), log.size), -np.inf)
    slope = np.zeros((len(several), log.size, fitted))
    for k, planes in enumerate(several):
        for i in planes:
            rows = np.flatnonzero(log == i)
            at = {n: j for j, n in enumerate(planes[i].nbytes)}
            pick = np.array([at[n] for n in logs[i].nbytes])
            constant[k, rows] = planes[i].constant[pick]
            slope[k][np.ix_(rows, planes[i].field)] = planes[i].slope[pick]
    return Rows(log, np.concatenate([e.undisturbed_s for e in logs]), constant, slope)


def fit(
    rows: Rows,
    use: npt.NDArray[np.int64],
    weight: Float64,
    *,
    center: Float64 | None = None,
    prior: float = ADAPTED,
) -> Float64:
    """ln(value / start) of every field from some rows of given weights, drawn to `center` (default: the starts).

    A field that no row touches follows those of its group as the prior has it.
    """
    fitted = space()
    x0 = np.zeros(len(fitted.fields)) if center is None else center
    touched = np.flatnonzero(np.any(rows.slope[:, use] != 0, axis=(0, 1)))
    if touched.size == 0:
        return x0.copy()
    covariance = fitted.covariance[np.ix_(touched, touched)]
    precision = prior * np.linalg.inv(covariance)
    constant, slope = rows.constant[:, use], rows.slope[:, use][:, :, touched]
    sign, target, at = fitted.sign[touched], np.log(rows.measured[use]), np.arange(use.size)
    origin = x0[touched]

    def model(x: Float64) -> tuple[Float64, Float64, float]:
        factor = np.exp(sign * x)
        parts = constant + slope @ factor
        top = np.argmax(parts, axis=0)
        seconds = np.maximum(parts[top, at], LEAST_S)
        residual = (np.log(seconds) - target) / SCALE
        cost = weight @ (2 * (np.sqrt(1 + residual**2) - 1)) + (x - origin) @ precision @ (x - origin)
        return residual, slope[top, at] * (sign * factor) / seconds[:, None] / SCALE, float(cost)

    x, damping = origin, 1e-3
    residual, jacobian, best = model(x)
    for _ in range(_STEPS):
        robust = weight / np.sqrt(1 + residual**2)
        normal = jacobian.T @ (jacobian * robust[:, None]) + precision
        gradient = jacobian.T @ (robust * residual) + precision @ (x - origin)
        for _ in range(8):
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
            new = x + np.clip(step, -1.0, 1.0)
            there = model(new)
            if there[2] < best:
                break
            damping *= 4
        else:
            break
        gain = best - there[2]
        x, (residual, jacobian, best) = new, there
        damping = max(damping / 10, 1e-9)
        if gain < 1e-5 * max(1.0, best):
            break
    out = x0 + fitted.covariance[:, touched] @ np.linalg.solve(covariance, x - origin)
    out[touched] = x
    return np.asarray(out)


def weights(rows: Rows, use: npt.NDArray[np.int64], systems: Sequence[str]) -> Float64:
    """Weights of rows: curves of a system share its weight, which grows with the root of their number."""
    logs = np.unique(rows.log[use])
    counts: dict[str, int] = {}
    for i in logs:
        counts[systems[i]] = counts.get(systems[i], 0) + 1
    rows_of = np.bincount(rows.log[use], minlength=len(systems))
    return np.array([1.0 / (rows_of[i] * counts[systems[i]] ** 0.5) for i in rows.log[use]])
