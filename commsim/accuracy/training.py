"""Measured training steps against the closed form: errors, and the scale that a machine's own steps suggest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from commsim.accuracy.training_rows import TrainingRow
from commsim.errors import CalibrationError
from commsim.training.columns import Columns
from commsim.training.compute import Values
from commsim.training.parameters import values_text
from commsim.training.step_time import step_time

SPREAD_OF_SOURCES, SPREAD_OF_ROWS = 0.10, 0.06
"""Standard deviations, in ln, of a source's common error and of a row's own: what one row says about its source."""


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
    known = [(row.id, row.step, row.measured_s) for row in rows if row.step and row.measured_s]
    names = [name for name, _, _ in known]
    used = set(names)
    left_out = {row.id: row.reason or "no measured time, rate, TFLOP/s or MFU" for row in rows if row.id not in used}
    if not known:
        raise CalibrationError("no row can be used: " + "; ".join(f"{k}: {v}" for k, v in list(left_out.items())[:3]))
    measured = np.array([seconds for _, _, seconds in known])
    ratio = step_time(Columns([step for _, step, _ in known]), values).total / measured
    share = SPREAD_OF_SOURCES**2 / (SPREAD_OF_SOURCES**2 + SPREAD_OF_ROWS**2 / len(known))
    scale = float(np.exp(-share * np.median(np.log(ratio))))
    before, after = (100.0 * (ratio * factor - 1.0) for factor in (1.0, scale))
    return TrainingCalibration(
        dict(values) | {"scale": values["scale"] * scale},
        scale,
        dict(zip(names, before.tolist(), strict=True)),
        dict(zip(names, after.tolist(), strict=True)),
        left_out,
    )
