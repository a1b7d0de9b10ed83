"""Is a measured curve what it should be? Size by size against the prediction's band, and in one sentence."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.accuracy.compare import Comparison
from commsim.measure.records import Curve
from commsim.units import format_bytes

Float64 = npt.NDArray[np.float64]

DEFAULT_BAND = 0.15
"""Either way, of a prediction that comes without a band."""

MOST = 0.75
"""Share of sizes within the band from which on a curve is as expected: the band itself holds eight of ten."""

FAR = 0.15
"""Mean |ln(measured / predicted)| from which on a cause is looked for even within the band."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """Measured over predicted time per size, (rows,), and the band of that ratio."""

    comparison: Comparison
    low: Float64
    high: Float64
    assumed: bool  # the prediction came without a band

    @property
    def ratio(self) -> Float64:
        """Measured over predicted time: above 1 where the machine is slower."""
        return self.comparison.measured_s / self.comparison.predicted_s

    @property
    def within(self) -> npt.NDArray[np.bool_]:
        """Which sizes are as expected."""
        return (self.ratio >= self.low) & (self.ratio <= self.high)

    @property
    def state(self) -> str:
        """``as expected``, ``slower`` or ``faster``, by the sizes out of the band."""
        slow, fast = np.count_nonzero(self.ratio > self.high), np.count_nonzero(self.ratio < self.low)
        if np.count_nonzero(self.within) >= MOST * self.comparison.n:
            return "as expected"
        return "slower" if slow >= fast else "faster"

    @property
    def distance(self) -> float:
        """Mean |ln(measured / predicted)| over the sizes."""
        return float(np.mean(np.abs(np.log(self.ratio))))

    def of_size(self, i: int) -> str:
        """The verdict of one size."""
        if self.within[i]:
            return "as expected"
        factor = float(self.ratio[i])
        return f"slower x{factor:.2f}" if factor > 1 else f"faster x{1 / factor:.2f}"

    def sentence(self, cause: str = "") -> str:
        """The answer in one line."""
        n, out = self.comparison.n, ~self.within
        name = self.comparison.measured.name
        if self.state == "as expected":
            middle = float(np.median(self.ratio))
            return (
                f"{name}: as expected: {n - np.count_nonzero(out)} of {n} sizes within the band, "
                f"{middle:.2f} times the predicted time at the median size" + (f"; nearer to: {cause}" if cause else "")
            )
        side = self.ratio > self.high if self.state == "slower" else self.ratio < self.low
        factor = float(np.median(self.ratio[side]))
        factor = factor if self.state == "slower" else 1 / factor
        size = self.comparison.size_bytes[side]
        return (
            f"{name}: {self.state} than expected: x{factor:.2f} at {np.count_nonzero(side)} of {n} sizes, "
            f"{format_bytes(int(size[0]))} to {format_bytes(int(size[-1]))}"
            + (f"; likely cause: {cause}" if cause else "")
        )


def verdict(comparison: Comparison) -> Verdict:
    """The verdict of a comparison."""
    p = comparison.predicted
    if p.low_s is None or p.high_s is None or not len(p):
        ones = np.ones(comparison.n)
        return Verdict(comparison, ones / (1 + DEFAULT_BAND), ones * (1 + DEFAULT_BAND), assumed=True)
    low, high = (_at(p, factor / p.time_s, comparison) for factor in (p.low_s, p.high_s))
    return Verdict(comparison, low, high, assumed=False)


def _at(predicted: Curve, factor: Float64, comparison: Comparison) -> Float64:
    return np.asarray(np.interp(np.log(comparison.size_bytes), np.log(predicted.size_bytes), factor))
