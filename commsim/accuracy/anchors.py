"""A curve of which a few sizes are measured: predictions drawn through them.

What a prediction is off by at a measured size says most of the sizes beside it. Between two of them the logarithm of
measured / predicted goes straight over the logarithm of the size; beyond the first and the last it stays.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Float64 = npt.NDArray[np.float64]


def anchored(
    nbytes: Sequence[int], predicted: Sequence[Float64], known: Sequence[int], measured_s: Float64
) -> Float64:  # fmt: skip
    """Seconds of all sizes from those measured at the indices `known`, ascending.

    Of several predictions, each (sizes,), it is the geometric mean after each has been drawn through the measured ones:
    where their shapes differ, neither is known to be right.
    """
    size = np.log(np.maximum(np.asarray(nbytes, np.float64), 1.0))
    at = list(known)
    drawn = [
        np.log(seconds) + np.interp(size, size[at], np.log(measured_s[at] / seconds[at])) for seconds in predicted
    ]  # fmt: skip
    return np.asarray(np.exp(np.mean(drawn, axis=0)))
