"""Predictions drawn through measured sizes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from study.anchors import anchored

SIZES = [1, 100, 200, 300, 600]
NAN = np.nan


def test_by_hand() -> None:
    """Known at 100 B and 300 B; the line through both, and two predictions as they stand and drawn through them."""
    measured = np.array([NAN, 20.0, NAN, 40.0, NAN])
    # 10 s too fast at 100 B, 30 s at 300 B: 20 s between and 60 s at 600 B. At 1, 200 and 600 B it stands at 9, 20 and
    # 40 s (no less than the size before took) and is drawn to 19, 30 and 72.
    low = np.array([9.0, 10.0, 10.0, 10.0, 12.0])
    # 10 s too slow everywhere: 20, 40 and 80 s (no more than the next size took, or twice that of half the bytes), and
    # drawn 14, 38 and 80.
    high = np.array([24.0, 30.0, 48.0, 50.0, 90.0])
    # The line: 20, 30 and 70 s.
    assert anchored(SIZES, [low, high], [1, 3], measured) == pytest.approx([19.0, 20.0, 30.0, 40.0, 72.0])


def test_one_measured_size() -> None:
    """Twice as fast as measured at 100 B: 10 s off; beyond, a line would be in proportion to the bytes."""
    measured = np.array([NAN, 20.0, NAN, NAN, NAN])
    found = anchored(SIZES, [np.array([8.0, 10.0, 15.0, 50.0, 60.0])], [1], measured)
    # At 1 B of 20, 8 and 18; at 200 B of 40, 20 (no less than measured) and 25; then of 60, 50 and 60; of 120, 60, 70.
    assert found == pytest.approx([18.0, 20.0, 25.0, 60.0, 70.0])


def test_three_measured_sizes_go_on_as_between_the_last_two() -> None:
    """The line, which is the middle of itself and two predictions that take no time: 10 s a byte from 3 to 4 B."""
    measured = np.array([1.0, 3.0, 13.0, NAN, NAN])
    nothing = np.array([0.0, 0.0, 0.0, 0.0, 0.0])
    # Drawn through they are the line; as they stand they are at the lower bound.
    assert anchored([1, 3, 4, 5, 8], [nothing], [0, 1, 2], measured) == pytest.approx([1.0, 3.0, 13.0, 16.25, 26.0])
    gentle = np.array([1.0, 3.0, 4.0, NAN, NAN])
    assert anchored([1, 3, 4, 5, 8], [nothing], [0, 1, 2], gentle) == pytest.approx([1.0, 3.0, 4.0, 5.0, 8.0])
    flat = np.array([1.0, 3.0, 3.25, NAN, NAN])
    assert anchored([1, 3, 4, 5, 8], [nothing], [0, 1, 2], flat) == pytest.approx([1.0, 3.0, 3.25, 3.5, 4.25])
    assert anchored([1, 3, 4, 5, 8], [], [0, 1, 2], flat) == pytest.approx([1.0, 3.0, 3.25, 3.5, 4.25])


def test_what_a_prediction_is_off_by_goes_on_growing() -> None:
    """4, 5 and 6 s too slow at 1, 2 and 3 B; so 7 and 8 at 4 and 5 B, where the line is at 7 and 8 s."""
    prediction, measured = np.array([8.0, 10.0, 12.0, 14.5, 16.0]), np.array([4.0, 5.0, 6.0, NAN, NAN])
    assert anchored([1, 2, 3, 4, 5], [prediction], [0, 1, 2], measured)[3:] == pytest.approx([7.5, 8.0])


@pytest.mark.parametrize("known", [[0, 22], [3, 15]])
def test_a_latency_and_a_rate_are_found(known: list[int]) -> None:
    """Two measured sizes bring a prediction of the right shape onto the curve, between them and beyond."""
    nbytes = 2.0 ** np.arange(8, 31)
    shape = np.maximum(10.0, nbytes / 1e5) + 0.2 * np.sin(np.log(nbytes))  # with a knee and a wave
    real = 7 + shape + nbytes / 3e4
    measured = np.where(np.isin(np.arange(23), known), real, NAN)
    found = anchored([int(n) for n in nbytes], [shape, real], known, measured)
    inside = slice(known[0], None)
    assert found[inside] == pytest.approx(real[inside])


@given(
    st.lists(st.floats(0.1, 100), min_size=5, max_size=5),
    st.lists(st.floats(0.1, 100), min_size=5, max_size=5),
    st.lists(st.floats(0.1, 100), min_size=5, max_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True),
)
def test_through_what_is_measured_and_bounded_by_it(
    a: list[float], b: list[float], measured: list[float], known: list[int]
) -> None:
    known = sorted(known)
    seen = np.where(np.isin(np.arange(5), known), measured, NAN)
    found = anchored(SIZES, [np.array(a), np.array(b)], known, seen)
    assert found[known] == pytest.approx(seen[known])
    assert (found > 0).all()
    for first, last in pairwise(known):
        ends = sorted((seen[first], seen[last]))
        assert (found[first : last + 1] >= ends[0] * (1 - 1e-9)).all()
        assert (found[first : last + 1] <= ends[1] * (1 + 1e-9)).all()
    ratio = np.array(SIZES) / np.array(SIZES)[[known[0], known[-1]], None]
    first, last = known[0], known[-1]
    assert (found[:first] <= seen[first] * (1 + 1e-9)).all()
    assert (found[:first] >= seen[first] * ratio[0, :first] * (1 - 1e-9)).all()
    assert (found[last:] >= seen[last] * (1 - 1e-9)).all()
    assert (found[last:] <= seen[last] * ratio[1, last:] * (1 + 1e-9)).all()
