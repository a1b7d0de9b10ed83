"""Rates as whole numbers of one unit: limits and tree packings need arithmetic without rounding."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from commsim.topology.kinds import Int64

Rate = int | float | Fraction

_SIMPLE = 10_000
"""Largest denominator that a rate in bytes/s is taken to have been meant with: 50 GB/s over three spines."""
_MEANT = 1e-13
"""Share by which a float may miss the fraction that it is taken for: its own rounding and that of a few products."""
_MOST = 1 << 40
"""Units that the largest rate has at most, so that products with thousands of ranks stay within 63 bits."""


def exact(rate: Rate) -> Fraction:
    """The fraction that a rate was meant as: itself, or the simple one that its float rounds, or whole bytes/s.

    >>> exact(100e9 / 3), exact(12.5e9)
    (Fraction(100000000000, 3), Fraction(12500000000, 1))
    """
    if isinstance(rate, (int, Fraction)):
        return Fraction(rate)
    simple = Fraction(rate).limit_denominator(_SIMPLE)
    return simple if abs(simple - Fraction(rate)) <= _MEANT * Fraction(rate) else Fraction(max(1, round(rate)))


def in_units(rates: Sequence[Fraction]) -> tuple[Int64, Fraction]:
    """The rates as whole numbers of the largest unit that divides all of them, and that unit.

    Where this takes more than 40 bits, to the nearest unit of the 40.

    >>> units, unit = in_units([Fraction(50), Fraction(100, 3)])
    >>> units.tolist(), unit
    ([3, 2], Fraction(50, 3))
    """
    distinct = {id(rate): rate for rate in rates}  # a million have a few objects, and to hash a fraction is slow
    if not distinct:
        return np.zeros(0, np.int64), Fraction(1)
    below = math.lcm(*(rate.denominator for rate in distinct.values()))
    unit = Fraction(math.gcd(*(int(rate * below) for rate in distinct.values())), below)
    most = max(distinct.values())
    if most > _MOST * unit:
        unit = most / _MOST
    whole = {one: max(1, round(rate / unit)) for one, rate in distinct.items()}
    return np.array([whole[id(rate)] for rate in rates], np.int64), unit
