"""What healthy machines look like: the shares against scipy's Student t, and what is made of a curve."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.accuracy.healthy import RARE, Healthy, Tail, healthy, parts_of

SMALL, LARGE = (Tail(middle=0.0, scale=scale, systems=30) for scale in (0.13, 0.04))
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
    sizes = np.array([8, 1 << 10, 1 << 20, 2 << 20, 4 << 20, 8 << 20, 16 << 20])
    ratio = np.log(np.where(sizes > 1 << 20, large, small))
    parts = list(parts_of(sizes, ratio, KNOWN))
    assert [p.name for p in parts] == ["large", "small"]
    assert [p.is_slow for p in parts] == slow
    assert [p.is_fast for p in parts] == fast
    assert parts[0].tells == tells


def test_a_part_without_sizes_is_none() -> None:
    (only,) = parts_of(np.array([2 << 20]), np.array([0.0]), KNOWN)
    assert (only.name, only.sizes, only.words) == ("large", 1, "above 1 MiB")


@pytest.mark.parametrize(
    ("last", "words", "slow"), [(1.45, "above 64 MiB", True), (1.0, "above 1 MiB", False), (0.6, "above 64 MiB", False)]
)
def test_of_large_messages_those_count_that_fewer_machines_are_like(last: float, words: str, slow: bool) -> None:
    known = KNOWN.model_copy(update={"bands": (SMALL, SMALL, LARGE, Tail(middle=0.0, scale=0.03, systems=30))})
    sizes = np.array([2 << 20, 4 << 20, 8 << 20, 128 << 20, 256 << 20])
    ratio = np.log([1.05, 1.05, 1.05, last, last])
    (part,) = parts_of(sizes, ratio, known)
    assert (part.words, part.is_slow) == (words, slow)


def test_one_node_is_held_against_machines_of_one_node() -> None:
    narrow = Tail(middle=0.0, scale=0.02, systems=20)
    known = KNOWN.model_copy(update={"one_node": (narrow, narrow)})
    of_one, of_several = (
        next(parts_of(np.array([1 << 30]), np.log([1.3]), known, one_node=one_node)) for one_node in (True, False)
    )
    assert of_one.spread is narrow
    assert of_one.is_slow
    assert not of_several.is_slow


def test_what_ships_tells_a_machine_half_as_fast_by_large_messages() -> None:
    spread = healthy().large
    assert spread.systems > 25
    assert all(one.scale < spread.scale for one in healthy().one_node)
    assert spread.above(math.log(2.0)) < RARE["large"] < spread.above(math.log(1.25))
