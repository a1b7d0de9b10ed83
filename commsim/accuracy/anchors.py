"""A curve of which a few sizes are measured: predictions drawn through them.

A prediction that is off by a latency is off by the same seconds at every size, one that is off by a rate by seconds in
proportion to the bytes. Between two measured sizes the seconds it is off by therefore go straight over the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


def anchored(
    nbytes: Sequence[int], predicted: Sequence[Float64], known: Sequence[int], measured_s: Float64
) -> Float64:  # fmt: skip
    """Seconds of all sizes from those measured at the indices `known`, ascending, at least one.

    It is the middle one (the median, size by size) of the predictions, each (sizes,), drawn through the measured sizes,
    and of straight lines between these: one shape of the three may be wrong. A call of more bytes hardly takes less
    time, so that between two measured sizes all stay between their times. Before the first and after the last measured
    size a prediction keeps its ratio to the measurement; the line is level before the first and proportional after
    the last.
    """
    size = np.asarray(nbytes, np.float64)
    at = np.asarray(known)
    after = np.searchsorted(size[at], size, side="right")
    ends = measured_s[at[np.clip([after - 1, after], 0, at.size - 1)]]  # (2, sizes)
    shapes = [np.interp(size, size[at], measured_s[at]) * np.maximum(1.0, size / size[at[-1]])]
    for seconds in predicted:
        ratio = measured_s[at] / seconds[at]
        off = np.interp(size, size[at], measured_s[at] - seconds[at])
        between = np.clip(seconds + off, ends.min(axis=0), ends.max(axis=0))
        outside = seconds * np.where(after == 0, ratio[0], ratio[-1])
        shapes.append(np.where((after == 0) | (size > size[at[-1]]), outside, between))
    return np.asarray(np.median(shapes, axis=0))
