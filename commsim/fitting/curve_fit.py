"""A library's fields from the curves of one machine: robust least squares on planes (`commsim.fitting.planes`).

Minimised is the sum over curves of the mean over their sizes of soft-L1(ln(predicted / measured) / `SCALE`), plus the
Gaussian prior of the fields. Predicted times are the largest of the planes at hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.fitting.fields import FieldSpace

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

SCALE = 0.1
"""Log residual at which soft-L1 turns from square to linear."""

PRIOR = 0.3
"""Weight of the prior beside a curve. Sizes of a curve err together: where the model lacks something, it does so for
all small, middle or large ones. A curve of any number of sizes counts as some three measurements, each good to `SCALE`
(validation/evidence.md, "What a calibration may move", has what other weights do)."""

LEAST_S = 1e-12
"""Planes of a far point may say that a call takes no time, or less."""


@dataclass(frozen=True, eq=False)
class Rows:
    """All sizes of all curves in one table: measured times, and the planes over the fitted fields."""

    log: Int64  # (rows,) index of the curve
    measured: Float64
    constant: Float64  # (planes, rows)
    slope: Float64  # (planes, rows, fields)

    def predicted(self, x: Float64, sign: Float64, rows: Int64) -> tuple[Float64, Float64]:
        """Seconds of some rows at ln(value / start) = x, and their derivatives (rows, fields) by x.

        `sign`: that of the fields (`FieldSpace.sign`).
        """
        factor = np.exp(sign * x)
        parts = self.constant[:, rows] + self.slope[:, rows] @ factor
        top = np.argmax(parts, axis=0)
        return parts[top, np.arange(len(rows))], self.slope[top, rows] * (sign * factor)


def cost(
    seconds: Float64, measured: Float64, weight: Float64, fields: FieldSpace, center: Float64, x: Float64
) -> float:
    """What `fit` minimises, of predicted seconds at a point: twice the soft-L1 of all rows and the prior's part."""
    log = np.log(np.maximum(seconds, LEAST_S) / measured) / SCALE
    away = x - center
    prior = PRIOR * away @ np.linalg.solve(fields.covariance, away)
    return float(weight @ (2 * (np.sqrt(1 + log**2) - 1)) + prior)


def fit(
    rows: Rows, use: Int64, weight: Float64, fields: FieldSpace, center: Float64, begin: Float64 | None = None
) -> Float64:
    """ln(value / start) of every field, from some rows of given weights, drawn to `center`.

    A field that no row touches follows those of its group as the prior has it. The search begins at `begin` (default:
    `center`), which should be near where the planes touch: far from there they may say that something takes no time at
    all, and no step leads away.
    """
    from scipy.optimize import least_squares

    touched = np.flatnonzero(np.any(rows.slope[:, use] != 0, axis=(0, 1)))
    if touched.size == 0:
        return center.copy()
    covariance = fields.covariance[np.ix_(touched, touched)]
    # The prior as residuals: (x - center)' precision (x - center) = |prior (x - center)|^2.
    prior = np.linalg.cholesky(PRIOR * np.linalg.inv(covariance)).T
    target, count = np.log(rows.measured[use]), use.size

    def whole(x: Float64) -> Float64:
        out = center + fields.covariance[:, touched] @ np.linalg.solve(covariance, x - center[touched])
        out[touched] = x
        return np.asarray(out)

    def residuals(x: Float64) -> Float64:
        seconds, _ = rows.predicted(whole(x), fields.sign, use)
        log = np.log(np.maximum(seconds, LEAST_S)) - target
        return np.concatenate([log / SCALE, prior @ (x - center[touched])])

    def jacobian(x: Float64) -> Float64:
        seconds, slope = rows.predicted(whole(x), fields.sign, use)
        return np.concatenate([slope[:, touched] / np.maximum(seconds, LEAST_S)[:, None] / SCALE, prior])

    def loss(square: Float64) -> Float64:
        """Value and two derivatives: soft-L1 of the rows by their weights; the prior's part as it is."""
        root = np.sqrt(1 + square[:count])
        robust = np.stack([2 * (root - 1), 1 / root, -0.5 / root**3]) * weight
        plain = np.stack([square[count:], np.ones(touched.size), np.zeros(touched.size)])
        return np.concatenate([robust, plain], axis=1)

    start = (center if begin is None else begin)[touched]
    return whole(least_squares(residuals, start, jacobian, loss=loss, x_scale="jac").x)
