"""How probable each of some explanations makes a measured curve, by how far machines are from their predictions.

An explanation is a predicted curve. In each band of sizes the median of ln(measured / predicted) is as likely as on
healthy machines (`Healthy.bands`: Student's t of two degrees of freedom), bands apart; above 1 MiB, where a cause costs
time, as on published degraded logs against their simulated cause (`Healthy.degraded`), predicted less well. Before the
curve is seen a kind of cause is as probable as published degraded systems make it (`log_prior`), the prediction as
kinds are in the mean; one more kind is none of them: any factor is as likely.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from commsim.accuracy.causes import KINDS
from commsim.accuracy.healthy import BAND_ENDS, Healthy, healthy

Float64 = npt.NDArray[np.float64]

AS_PREDICTED = "as predicted"
"""The kind of the prediction itself."""

NONE = "none of these"
"""The kind of a cause that is none of those tried."""

NONE_OF_THESE = -math.log(math.log(64.0) + math.log(4.0))
"""Log density in a band of a cause that is none of those tried: from a quarter of the time to 64 times, alike."""


def band_of(size_bytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The band of sizes (`BAND_ENDS`) that each size is in."""
    return np.searchsorted(np.asarray(BAND_ENDS), size_bytes, side="left").astype(np.int64)


def log_likelihood(size_bytes: npt.NDArray[np.int64], off: Float64, cost: Float64, known: Healthy) -> float:
    """Log density of a curve that is `off` an explanation by ln(measured / predicted), (rows,).

    `cost`: by what ln(time) of the explanation differs from the prediction. Where a cause costs nothing its times are
    as sure as the prediction's; where it does they are so, or as unsure as those of degraded logs, with equal odds.
    """
    band = band_of(size_bytes)
    first = len(known.bands) - len(known.degraded)  # of the bands above 1 MiB
    total = 0.0
    for b in np.unique(band):
        at, tail = band == b, known.bands[b]
        x = float(np.median(off[at]))
        logs = [tail.log_density(x)]
        if b >= first and abs(float(np.median(cost[at]))) > tail.scale:
            logs.append(known.degraded[b - first].log_density(x))
        total += float(np.logaddexp.reduce(logs)) - math.log(len(logs))
    return total


def log_prior(kind: str, known: Healthy) -> float:
    """Log of how much more probable than kinds in the mean a kind is among published degraded systems (Laplace)."""
    if kind == AS_PREDICTED:
        return 0.0
    mean = 1.0 + sum(known.causes.values()) / (len(KINDS) + 1)
    return math.log((1.0 + known.causes.get(kind, 0.0)) / mean)


def posterior(
    size_bytes: npt.NDArray[np.int64],
    log_time: Float64,
    explanations: Sequence[tuple[str, Float64]],
    known: Healthy | None = None,
) -> list[float]:
    """The probability of each explanation, a kind and its log times; what lacks to 1 is that it is none of them."""
    known = known or healthy()
    of_kind = Counter(kind for kind, _ in explanations)
    own = next((times for kind, times in explanations if kind == AS_PREDICTED), np.full(len(log_time), -np.inf))
    logs = [
        log_likelihood(size_bytes, log_time - times, times - own, known)
        + log_prior(kind, known)
        - math.log(of_kind[kind])
        for kind, times in explanations
    ]
    logs.append(NONE_OF_THESE * np.unique(band_of(size_bytes)).size + log_prior(NONE, known))
    weights = np.exp(np.asarray(logs) - max(logs))
    return [float(p) for p in (weights / weights.sum())[:-1]]
