"""A prediction against a measurement, size by size, with one definition of error everywhere.

error = (t_predicted - t_measured) / t_measured on the out-of-place time (in-place where only that exists,
converted from the bus bandwidth where only that exists), one row per measured size above zero. The median
signed log ratio ln(t_predicted / t_measured) stands beside the mean absolute percentage error (MAPE): MAPE
alone rewards predictions that are too low, since no error of a prediction that is too low exceeds 100 %.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from commsim.collectives.semantics import REDUCING
from commsim.errors import LogFormatError
from commsim.measure.records import Curve, FloatArray, IntArray
from commsim.nccl.operation import Operation
from commsim.units import format_size

# Name, smallest size above which (exclusive), largest size up to which (inclusive) a row belongs to the band.
BANDS: tuple[tuple[str, int, int], ...] = (
    ("small", 0, 32 * 2**10),
    ("mid", 32 * 2**10, 16 * 2**20),
    ("large", 16 * 2**20, 2**62),
    ("above_64mib", 64 * 2**20, 2**62),  # a part of `large`: where the bandwidth alone decides
)
BAND_LABELS = {
    "small": "<= 32 KiB",
    "mid": "32 KiB .. 16 MiB",
    "large": "> 16 MiB",
    "above_64mib": "> 64 MiB",
}


@dataclass(frozen=True, eq=False)
class Comparison:
    """Rows and figures of one predicted curve against one measured curve; arrays have shape (rows,)."""

    predicted: Curve
    measured: Curve
    size_bytes: IntArray
    predicted_s: FloatArray
    measured_s: FloatArray
    interpolated: npt.NDArray[np.bool_]  # predicted at neighbouring sizes only
    torn: npt.NDArray[np.bool_]  # rows of the measured table disagree
    outside: int  # measured sizes that lie outside the predicted range and are not compared
    notes: tuple[str, ...] = ()

    @property
    def n(self) -> int:
        """Number of compared rows."""
        return len(self.size_bytes)

    @property
    def error(self) -> FloatArray:
        """Signed relative error of the time: above zero where the prediction is slower than the machine."""
        return (self.predicted_s - self.measured_s) / self.measured_s

    @property
    def mape(self) -> float:
        """Mean absolute relative error of all rows as a fraction (0.15 is 15 %)."""
        return float(np.mean(np.abs(self.error)))

    @property
    def median_log_ratio(self) -> float:
        """Median of ln(t_predicted / t_measured): the bias, below zero where predictions are too fast."""
        return float(np.median(np.log(self.predicted_s / self.measured_s)))

    def in_band(self, band: str) -> npt.NDArray[np.bool_]:
        """Which rows lie in a band of `BANDS`."""
        for name, above, up_to in BANDS:
            if name == band:
                return (self.size_bytes > above) & (self.size_bytes <= up_to)
        raise KeyError(f"found the band {band!r}, expected one of {', '.join(name for name, _, _ in BANDS)}")

    def band_n(self, band: str) -> int:
        """Number of rows in a band."""
        return int(np.count_nonzero(self.in_band(band)))

    def band_mape(self, band: str) -> float | None:
        """MAPE of a band as a fraction, None where it has no row."""
        rows = self.in_band(band)
        return float(np.mean(np.abs(self.error[rows]))) if np.any(rows) else None

    def summary(self) -> dict[str, object]:
        """The figures as plain values, for JSON."""
        return {
            "predicted": self.predicted.name,
            "measured": self.measured.name,
            "collective": self.measured.collective,
            "n_ranks": self.predicted.n_ranks,
            "n": self.n,
            "outside": self.outside,
            "interpolated": int(np.count_nonzero(self.interpolated)),
            "mape": self.mape,
            "median_log_ratio": self.median_log_ratio,
            "bands": {name: {"n": self.band_n(name), "mape": self.band_mape(name)} for name, _, _ in BANDS},
            "measured_time": self.measured.time_from,
            "skipped_lines": self.measured.skipped_lines,
            "notes": [*self.measured.notes, *self.notes],
        }


def compare(predicted: Curve, measured: Curve) -> Comparison:
    """Compare two curves of the same collective on the same number of ranks.

    A measured size between two predicted ones is interpolated in log(time) over log(size) and flagged. Raises
    LogFormatError where the curves are not of the same kind or have no size in common.
    """
    if predicted.collective != measured.collective:
        raise LogFormatError(
            f"{measured.name} measures {measured.collective}, but {predicted.name} predicts {predicted.collective}"
        )
    notes = []
    if disturbance := measured.disturbance():
        notes.append(f"{disturbance}; compared is the out-of-place time")
    if torn := measured.torn_words():
        notes.append(f"{torn}; such a size cannot be judged")
    if measured.n_ranks is None:
        notes.append(f"the log does not say how many ranks it ran on; taken as {predicted.n_ranks}")
        measured = replace(measured, n_ranks=predicted.n_ranks)
    elif predicted.n_ranks != measured.n_ranks:
        raise LogFormatError(
            f"{measured.name} measures {measured.n_ranks} ranks, but {predicted.name} predicts {predicted.n_ranks}"
        )
    if other := _other_operation(predicted, measured):
        notes.append(other)
    if len(predicted) == 0:
        raise LogFormatError(f"{predicted.name} predicts no size")
    low, high = predicted.size_bytes[0], predicted.size_bytes[-1]
    inside = (measured.size_bytes >= low) & (measured.size_bytes <= high)
    if not np.any(inside):
        raise LogFormatError(
            f"{measured.name} measures {_span(measured)}, but {predicted.name} predicts {_span(predicted)}: "
            "no size in common"
        )
    size = measured.size_bytes[inside]
    exact = np.isin(size, predicted.size_bytes)
    at_size = predicted.seconds_at(size)
    at_size[exact] = predicted.time_s[np.searchsorted(predicted.size_bytes, size[exact])]
    return Comparison(
        predicted=predicted,
        measured=measured,
        size_bytes=size,
        predicted_s=at_size,
        measured_s=measured.time_s[inside],
        interpolated=~exact,
        torn=measured.torn()[inside],
        outside=int(np.count_nonzero(~inside)),
        notes=tuple(notes),
    )


def _other_operation(predicted: Curve, measured: Curve) -> str:
    """That the two were asked for what NCCL may choose differently for; blank where it would not, or is not known."""
    if measured.collective not in REDUCING or not (predicted.dtype and (measured.dtype or measured.redop)):
        return ""
    asked = Operation.named(predicted.dtype, predicted.redop)
    done = Operation.named(measured.dtype or asked.dtype, measured.redop or asked.redop)
    if asked.alike(done):
        return ""
    return f"the log is of {done.one}, the prediction of {asked.one}: NCCL may choose another algorithm"


def _span(curve: Curve) -> str:
    if not len(curve):
        return "no size"
    first, last = (format_size(int(curve.size_bytes[end])) for end in (0, -1))
    return f"{first} to {last}"
