"""Measured training steps against the closed form: errors, and the scale that a machine's own steps suggest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.accuracy.training_measured import measured
from commsim.accuracy.training_rows import TrainingRow
from commsim.errors import CalibrationError
from commsim.training.columns import Columns, columns
from commsim.training.compute import Values
from commsim.training.parameters import values_text
from commsim.training.step_time import step_time

Float64 = npt.NDArray[np.float64]

SPREAD_OF_SOURCES, SPREAD_OF_ROWS = 0.10, 0.06
"""Standard deviations, in ln, of a source's common error and of a row's own: what one row says about its source."""


@dataclass(frozen=True, eq=False)
class MeasuredRows:
    """Rows that can be predicted, as columns, with what was measured."""

    rows: Sequence[TrainingRow]
    columns: Columns
    measured: Float64  # seconds
    source: npt.NDArray[np.str_]

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, index: npt.NDArray[np.int64]) -> MeasuredRows:
        """Some of the rows."""
        return MeasuredRows(
            [self.rows[i] for i in index], self.columns.take(index), self.measured[index], self.source[index]
        )


def table_of(rows: Sequence[TrainingRow]) -> MeasuredRows:
    """The rows that have a step and a measured time."""
    known = [(row, time) for row in rows if row.step is not None and (time := measured(row)) is not None]
    steps = [row.step for row, _ in known if row.step is not None]
    return MeasuredRows(
        [row for row, _ in known],
        columns(steps),
        np.array([time for _, time in known], np.float64),
        np.array([row.source.name for row, _ in known], np.str_),
    )


def errors(table: MeasuredRows, predicted: Float64) -> Float64:
    """Signed error of every row in percent."""
    return 100.0 * (predicted - table.measured) / table.measured


@dataclass(frozen=True)
class TrainingCalibration:
    """What measured rows of one machine and stack change: the values with their scale, and errors before and after."""

    values: Values
    scale: float
    before: Mapping[str, float]  # signed error by row, percent
    after: Mapping[str, float]
    left_out: Mapping[str, str]  # rows that cannot be used, with the reason

    def text(self) -> str:
        """The file that `commsim.training.parameters.read_values` reads."""
        n = len(self.before)
        median = float(np.median(np.abs(list(self.after.values()))))
        title = f"Calibrated with {n} measured step{'s' if n != 1 else ''}: {', '.join(list(self.before)[:8])}"
        return values_text(
            self.values, f"{title}\nscale on predicted times {self.scale:.4g}; error left {median:.1f} %"
        )


def calibrate_from_rows(rows: Sequence[TrainingRow], values: Values) -> TrainingCalibration:
    """The scale on predicted times that measured rows of one machine and software stack suggest; one row is enough.

    The more rows, the less the scale is drawn to 1: `SPREAD_OF_ROWS` averages out. CalibrationError without any row
    that can be predicted.
    """
    table = table_of(rows)
    used = {row.id for row in table.rows}
    left_out = {row.id: row.reason or "no measured time, rate, TFLOP/s or MFU" for row in rows if row.id not in used}
    if not len(table):
        raise CalibrationError("no row can be used: " + "; ".join(f"{k}: {v}" for k, v in list(left_out.items())[:3]))
    predicted = step_time(table.columns, values).total
    log = np.log(table.measured / predicted)
    share = SPREAD_OF_SOURCES**2 / (SPREAD_OF_SOURCES**2 + SPREAD_OF_ROWS**2 / len(log))
    scale = float(np.exp(share * np.median(log)))
    before, after = (errors(table, predicted * factor) for factor in (1.0, scale))
    names = [row.id for row in table.rows]
    return TrainingCalibration(
        dict(values) | {"scale": values["scale"] * scale},
        scale,
        dict(zip(names, before.tolist(), strict=True)),
        dict(zip(names, after.tolist(), strict=True)),
        left_out,
    )
