"""The spread of numbers of several systems: Student's t of two degrees of freedom."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from commsim.accuracy.healthy import Tail


def tail_of(known: Sequence[tuple[str, float]]) -> Tail:
    """The likeliest Student t of two degrees of freedom of values by system; systems weigh alike."""
    from scipy.optimize import minimize

    count = Counter(system for system, _ in known)
    x, weight = np.array([m for _, m in known]), np.array([1.0 / count[system] for system, _ in known])

    def cost(at: np.ndarray) -> float:
        z = (x - at[0]) / math.exp(at[1])
        return float(np.sum(weight * (1.5 * np.log1p(z * z / 2.0) + at[1])))

    best = minimize(cost, np.array([np.median(x), math.log(0.1)]), method="Nelder-Mead").x
    return Tail(middle=round(float(best[0]), 4), scale=round(math.exp(float(best[1])), 4), systems=len(count))
