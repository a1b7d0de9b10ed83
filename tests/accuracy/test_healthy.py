"""What healthy machines look like: the shares against scipy's Student t, and what is made of a curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.accuracy.healthy import RARE, Healthy, Tail, healthy, parts_of

SMALL, LARGE = (Tail(middle=0.0, scale=scale, systems=30) for scale in (0.13, 0.05))
KNOWN = Healthy(small=SMALL, large=LARGE, own_small=SMALL, own_large=LARGE, bands=(SMALL, SMALL, LARGE, LARGE))


@given(x=st.floats(-3, 3), middle=st.floats(-0.2, 0.2), scale=st.floats(0.01, 1.0))
def test_the_share_is_that_of_student_t(x: float, middle: float, scale: float) -> None:
    from scipy.stats import t

    spread = Tail(middle=middle, scale=scale, systems=3)
    assert spread.above(x) == pytest.approx(float(t.sf((x - middle) / scale, 2)), abs=1e-9)


@pytest.mark.parametrize(
    ("large", "small", "slow", "fast", "tells"),
    [
        (1.0, 1.0, [False, False], [False, False], True),
        (1.5, 1.0, [True, False], [False, False], True),
        (1.0, 9.0, [False, True], [False, False], True),
        (0.5, 1.0, [False, False], [True, False], True),
        (1.3, 1.0, [False, False], [False, False], True),
    ],
)
def test_a_curve_is_judged_by_the_medians_of_its_parts(
    large: float, small: float, slow: list[bool], fast: list[bool], tells: bool
) -> None:
    rows = np.array([False] * 3 + [True] * 4)
    ratio = np.log(np.where(rows, large, small))
    parts = list(parts_of(rows, ratio, KNOWN))
    assert [p.name for p in parts] == ["large", "small"]
    assert [p.is_slow for p in parts] == slow
    assert [p.is_fast for p in parts] == fast
    assert parts[0].tells == tells


def test_a_part_without_sizes_is_none() -> None:
    (only,) = parts_of(np.array([True]), np.array([0.0]), KNOWN)
    assert (only.name, only.sizes) == ("large", 1)


def test_what_ships_tells_a_machine_half_as_fast_by_large_messages() -> None:
    spread = healthy().large
    assert spread.systems > 25
    assert spread.above(math.log(2.0)) < RARE["large"] < spread.above(math.log(1.25))
