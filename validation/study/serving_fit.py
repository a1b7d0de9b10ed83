"""Fits what hosts and graphs take to measured runs: parameters of `commsim/generation/parameters.yaml` with a spread.

Residuals are those of logarithms with a robust loss, time per token and time to the first token alike; a parameter is
held to its start by its spread. Every architecture weighs as much as the square root of its rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from commsim.generation.parameters import generation_parameters, generation_values
from commsim.generation.replica import Replica
from commsim.generation.steady import ClosedLoop, LoopTimes, steady_times
from commsim.generation.step import StepModel
from commsim.generation.terms import Kernels, kernels
from commsim.training.compute import Values
from study.serving_rows import ServingRow

Float64 = npt.NDArray[np.float64]

PRIOR = 0.3
"""Weight of a parameter's logarithm over its start, in its spread."""

ROBUST = 0.1
"""Logarithmic error from which on a row counts less (soft L1)."""

FIRST = 0.5
"""Weight of a time to the first token beside a time per token: it hangs on how requests happen to meet."""


class Predictions:
    """Times of loops by parameters; what kernels take is computed once for each replica and batch."""

    def __init__(self, terms: Kernels | None = None) -> None:
        self._terms = terms or kernels()
        self._models: dict[Replica, StepModel] = {}

    def times(self, replica: Replica, loop: ClosedLoop, values: Values) -> LoopTimes:
        """Of a replica under a load."""
        if replica not in self._models:
            self._models[replica] = StepModel(replica, kernels=self._terms)
        return steady_times(self._models[replica].with_values(values), loop)

    def of_rows(self, rows: Sequence[ServingRow], values: Values) -> list[LoopTimes]:
        """Of rows, those of one replica and load once."""
        known: dict[tuple[Replica, ClosedLoop], LoopTimes] = {}
        for row in rows:
            key = (row.replica, row.loop)
            if key not in known:
                known[key] = self.times(*key, values)
        return [known[row.replica, row.loop] for row in rows]


def free_parameters() -> tuple[str, ...]:
    """The names of those that are fitted."""
    return tuple(p.name for p in generation_parameters() if p.spread)


def fitted(rows: Sequence[ServingRow], predictions: Predictions) -> Values:
    """The parameters that rows say; others as shipped."""
    from scipy.optimize import least_squares

    of = {p.name: p for p in generation_parameters()}
    names = free_parameters()
    starts = np.log([of[name].start for name in names])
    spreads = np.array([of[name].spread for name in names])
    weight = _weights(rows)
    measured = np.log([[row.each_s, row.first_s or np.nan] for row in rows])

    def residuals(x: Float64) -> Float64:
        times = predictions.of_rows(rows, values_of(names, x))
        off = np.log([[t.each_s, t.first_s] for t in times]) - measured
        off = np.where(np.isnan(off), 0.0, off) * weight[:, None] * np.array([1.0, FIRST])
        return np.concatenate([_robust(off.ravel()), PRIOR * (x - starts) / spreads])

    fit = least_squares(residuals, starts, x_scale=spreads, diff_step=0.02, xtol=1e-3, ftol=1e-4, max_nfev=15)
    return values_of(names, fit.x)


def _robust(off: Float64) -> Float64:
    """Residuals whose squares are the soft L1 loss."""
    return np.asarray(np.sign(off) * ROBUST * np.sqrt(2.0 * (np.sqrt(1.0 + (off / ROBUST) ** 2) - 1.0)), np.float64)


def values_of(names: Sequence[str], x: Float64) -> Values:
    """Values by name, those named in logarithms."""
    shipped: Mapping[str, float] = generation_values()
    return {**shipped, **dict(zip(names, np.exp(x).tolist(), strict=True))}


def _weights(rows: Sequence[ServingRow]) -> Float64:
    """Of rows: runs listed several times count once, architectures by the square root of their rows."""
    same = Counter((row.replica, row.loop) for row in rows)
    runs = Counter(row.architecture for row in {(row.replica, row.loop): row for row in rows}.values())
    mean = np.mean([n**0.5 for n in runs.values()])
    return np.array([(mean / runs[row.architecture] ** 0.5 / same[row.replica, row.loop]) ** 0.5 for row in rows])
