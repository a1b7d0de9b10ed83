"""A curve of which a few sizes are measured: predictions drawn through them.

A prediction that is off by a latency is off by the same seconds at every size, one that is off by a rate by seconds in
proportion to the bytes. The seconds it is off by therefore go straight over the bytes, from one measured size to the
next and on beyond the last.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


def anchored(
    nbytes: Sequence[int], predicted: Sequence[Float64], known: Sequence[int], measured_s: Float64
) -> Float64:  # fmt: skip
    """Seconds of all sizes from those measured at the indices `known`: one or more, sizes ascending, times above zero.

    It is the middle one (the median, size by size) of several shapes, of which some may be wrong where others are not:
    the straight line through the measured sizes (Hockney's latency and rate), and each of the predictions, (sizes,),
    drawn through them and as it stands, which a measured size that was disturbed, or went by another algorithm than
    its neighbours, does not pull along. More bytes hardly take less time, or more than in proportion: every shape is
    kept between the times measured around it, and before the first and beyond the last measured size between the time
    of that one and the same in proportion to the bytes.
    """
    size = np.asarray(nbytes, np.float64)
    at = np.asarray(known)
    x, y = size[at], measured_s[at]
    before = np.searchsorted(x, size, side="right")  # measured sizes up to each one
    bounds = np.sort(
        [
            np.where(before > 0, y[np.maximum(before, 1) - 1], y[0] * size / x[0]),
            np.where(before < x.size, y[np.minimum(before, x.size - 1)], y[-1] * size / x[-1]),
        ],
        axis=0,
    )
    shapes = [_straight(size, x, y) if x.size > 1 else bounds[1]]
    for seconds in predicted:
        shapes += [seconds, seconds + _straight(size, x, y - seconds[at])]
    return np.asarray(np.median(np.clip(shapes, *bounds), axis=0))


def _straight(size: Float64, x: Float64, y: Float64) -> Float64:
    """Level before the first point, straight between neighbours, and on as between the last two (of one: level)."""
    slope = (y[-1] - y[-2]) / (x[-1] - x[-2]) if x.size > 1 else 0.0
    return np.asarray(np.interp(size, x, y) + slope * np.maximum(0.0, size - x[-1]))
