"""Measured training steps against the closed form: errors, and the parameters that a machine's own steps suggest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.accuracy.training_rows import TrainingRow
from commsim.errors import CalibrationError
from commsim.training.columns import Columns
from commsim.training.compute import Values
from commsim.training.parameters import parameters, values_text
from commsim.training.spec import Step
from commsim.training.step_time import step_time

Float64 = npt.NDArray[np.float64]

SPREAD_OF_SOURCES, SPREAD_OF_ROWS = 0.10, 0.038
"""Standard deviations, in ln, of a source's common error and of a row's own: what one row says about its source. The
latter is what is left of a published source, in the median, once all its rows calibrate with it (1.48 of the median
deviation; with 0.06 it is 0.041)."""

_SHARES = np.concatenate([[0.0], np.geomspace(1e-4, 1.0, 161)])
"""Of the spreads' squares, those that are tried."""

_SCALE = 0.08
"""Error in ln at which a row's weight begins to fall, as in the fit to published rows."""

_STEP, _ROUNDS = 1e-3, 8

_FAR = 4.0
"""Times that a row may be off: of published rows all but a few of a thousand are within."""


def free_parameters() -> dict[str, float]:
    """By name, how far a machine's own parameter may be from what ships, in ln: the spreads of `parameters.yaml`, and
    the scale on everything, which is its clocks and software."""
    return {p.name: p.spread for p in parameters() if p.spread > 0} | {"scale": SPREAD_OF_SOURCES}


def slopes(steps: Columns, values: Values) -> Float64:
    """d ln(seconds) / d ln(parameter), one row for each step and one column for each of `free_parameters`."""
    at = np.log(step_time(steps, values).total)
    return np.stack(
        [
            (np.log(step_time(steps, dict(values) | {name: values[name] * np.exp(_STEP)}).total) - at) / _STEP
            for name in free_parameters()
        ],
        axis=1,
    )


def suggested(slope: Float64, error: Float64) -> Float64:
    """ln(parameter / shipped) that rows suggest, whose ``error`` is ln(measured / predicted).

    The most likely values where parameters are normal and rows have errors of their own (`SPREAD_OF_ROWS`, with a long
    tail). How far parameters are off is taken from the rows: of the spreads of `free_parameters` the share, at most
    all, under which these errors are likeliest (empirical Bayes). So errors like a row's own move nothing, and larger
    ones more the larger they are.
    """
    spread = np.array(list(free_parameters().values()))
    weight = np.ones(len(error))
    for _ in range(_ROUNDS):
        each = np.sqrt(weight) / SPREAD_OF_ROWS
        left, size, right = np.linalg.svd(slope * spread * each[:, None], full_matrices=False)
        seen = left.T @ (each * error)
        variance = 1.0 + np.outer(_SHARES, size**2)
        share = _SHARES[(np.log(variance) + seen**2 / variance).sum(axis=1).argmin()]
        moved = spread * (right.T @ (share * size / (1.0 + share * size**2) * seen))
        weight = 1.0 / np.sqrt(1.0 + ((error - slope @ moved) / _SCALE) ** 2)
    return np.asarray(moved, np.float64)


@dataclass(frozen=True)
class TrainingCalibration:
    """What measured rows of one machine and stack change: the values, and errors by row in percent.

    ``held_out``: of rows that the calibration does not know, each by the others; empty for a single row. Where these
    are no nearer than as shipped, nothing moves.
    """

    values: Values
    before: Mapping[str, float]
    after: Mapping[str, float]
    held_out: Mapping[str, float]
    left_out: Mapping[str, str]  # rows that cannot be used, with the reason
    moved: Mapping[str, float]  # value over shipped, of parameters that moved by half a percent or more

    def text(self, generation: str = "") -> str:
        """The file that `commsim.training.parameters.read_values` reads; its steps are of a generation of GPU."""
        n = len(self.before)
        title = f"Calibrated with {n} measured step{'s' if n != 1 else ''}: {', '.join(list(self.before)[:8])}"
        return values_text(self.values, f"{title}\n{self.verdict()}", generation)

    def verdict(self) -> str:
        """A sentence on the error that is left, of rows left out where there are several."""
        before, after = (_median(errors) for errors in (self.before, self.after))
        if not self.held_out:
            return (
                f"error {before:.1f} % before, {after:.1f} % after; one row tells nothing of the error on others "
                "(docs: Accuracy of training steps)"
            )
        kept = "" if self.moved else "; so the shipped values stay"
        return (
            f"error of rows left out, each predicted with the others: median {_median(self.held_out):.1f} %, "
            f"{before:.1f} % as shipped{kept}"
        )


def _median(errors: Mapping[str, float]) -> float:
    return float(np.median(np.abs(list(errors.values()))))


def calibrate_from_rows(rows: Sequence[TrainingRow], values: Values) -> TrainingCalibration:
    """The parameters that measured rows of one machine and software stack suggest; one row is enough.

    CalibrationError without any row that can be predicted, and where unlike rows have one id.
    """
    known = [(row.id, row.step, row.measured_s) for row in rows if row.step and row.measured_s]
    names = [name for name, _, _ in known]
    used = set(names)
    left_out = {row.id: row.reason or "no measured time, rate, TFLOP/s or MFU" for row in rows if row.id not in used}
    known, dropped = _plausible(known, values)
    left_out |= dropped
    names = [name for name, _, _ in known]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise CalibrationError(f"found several steps of the id {', '.join(map(repr, twice[:3]))}, expected one")
    if not known:
        reasons = "; ".join(f"{k}: {v}" for k, v in list(left_out.items())[:3])
        raise CalibrationError(f"no row can be used: {reasons or 'there is none'}")
    table = Columns([step for _, step, _ in known])
    measured = np.array([seconds for _, _, seconds in known])
    error = np.log(measured / step_time(table, values).total)
    slope = slopes(table, values)
    before = _percent(names, error)
    held_out = _percent(names, _held_out(slope, error)) if len(known) > 1 else {}
    factor = dict(zip(free_parameters(), np.exp(suggested(slope, error)).tolist(), strict=True))
    if held_out and _median(held_out) > _median(before):
        factor = {}
    best = dict(values) | {name: values[name] * f for name, f in factor.items()}
    after = _percent(names, np.log(measured / step_time(table, best).total))
    moved = {name: f for name, f in factor.items() if abs(f - 1) >= 0.005}
    return TrainingCalibration(best, before, after, held_out, left_out, moved)


def _plausible(
    known: list[tuple[str, Step, float]], values: Values
) -> tuple[list[tuple[str, Step, float]], dict[str, str]]:
    """The rows that count, and why others do not: copies, and times that no software explains."""
    kept: list[tuple[str, Step, float]] = []
    dropped = {}
    for name, step, measured in known:
        predicted = float(step_time(step, values).total)
        if (twin := next((n for n, s, m in kept if (s, m) == (step, measured)), None)) is not None:
            dropped[f"{name} (again)" if name == twin else name] = f"the same step and time as {twin}"
        elif not 1 / _FAR < predicted / measured < _FAR:
            dropped[name] = (
                f"measured {measured:.4g} s where {predicted:.4g} s are predicted, over {_FAR:g} times apart: another "
                "machine, step or unit"
            )
        else:
            kept.append((name, step, measured))
    return kept, dropped


def _held_out(slope: Float64, error: Float64) -> Float64:
    """ln(measured / predicted) of every row by what the others suggest."""
    left = np.empty(len(error))
    for i in range(len(error)):
        others = np.arange(len(error)) != i
        left[i] = error[i] - slope[i] @ suggested(slope[others], error[others])
    return left


def _percent(names: Sequence[str], error: Float64) -> dict[str, float]:
    """Signed errors of predictions in percent, by row."""
    return dict(zip(names, (100.0 * np.expm1(-error)).tolist(), strict=True))
