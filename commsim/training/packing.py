"""Documents packed into sequences: how far a token of one attends, and how much more the busiest replica has to do.

Lengths are a sample: every one is as likely as the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist, fmean

import numpy as np

from commsim.training.columns import Number


def attended_length(lengths: Sequence[int]) -> float:
    """The length of the document of the mean token: attention's work is that of sequences so long.

    A document of l tokens takes l^2 of it and l of the tokens: sum l^2 / sum l (Megatron-LM, `seqlen_squared_sum`).

    >>> attended_length((100, 300))
    250.0
    """
    return sum(x * x for x in lengths) / sum(lengths)


def busiest(lengths: Sequence[int], tokens: Number, ranks: Number) -> Number:
    """Attention's work of the busiest of so many replicas over the mean, each with so many tokens of documents.

    The sum of l^2 over the documents of so many tokens is about normal, with the variance of l^2 - a l for each of
    them, a the `attended_length` (a ratio estimator: replicas have as many tokens, not as many documents).
    """
    a, mean = attended_length(lengths), fmean(lengths)
    each = fmean((x * x - a * x) ** 2 for x in lengths) ** 0.5 / (a * mean)
    return 1.0 + each * np.sqrt(mean / tokens) * expected_maximum(ranks)


def expected_maximum(count: Number) -> Number:
    """The expected largest of so many standard normal numbers, between powers of two by their logarithm.

    >>> [round(float(expected_maximum(n)), 2) for n in (1, 2, 1024)]
    [0.0, 0.56, 3.25]
    """
    maxima = _maxima()
    return np.interp(np.log2(count), np.arange(len(maxima)), maxima)


@lru_cache(maxsize=1)
def _maxima() -> tuple[float, ...]:
    """Of 1, 2, 4 ... 2^20: the mean of the quantiles of u^(1/n)."""
    normal, points = NormalDist(), 2000
    return tuple(fmean(normal.inv_cdf(((i + 0.5) / points) ** (1.0 / 2**k)) for i in range(points)) for k in range(21))
