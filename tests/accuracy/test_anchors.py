"""Predictions drawn through measured sizes."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.accuracy.anchors import anchored

SIZES = [1, 100, 200, 300, 600]
NAN = np.nan


def test_by_hand() -> None:
    """Known at 100 B and 300 B; two shapes that differ, and the line between the two."""
    measured = np.array([NAN, 20.0, NAN, 40.0, NAN])
    # 10 s too fast at 100 B, 30 s at 300 B: 20 s between. Twice and four times too fast.
    low = np.array([9.0, 10.0, 10.0, 10.0, 12.0])
    # 10 s too slow everywhere.
    high = np.array([24.0, 30.0, 48.0, 50.0, 90.0])
    # At 200 B: 30 by the line, 30 and 38; at 1 B: 20, 18, 16; at 600 B: 80, 48, 72.
    assert anchored(SIZES, [low, high], [1, 3], measured) == pytest.approx([18.0, 20.0, 30.0, 40.0, 72.0])


def test_a_latency_and_a_rate_are_found() -> None:
    """Two measured sizes bring a prediction of the right shape onto the curve, whatever its latency and rate."""
    nbytes = 2.0 ** np.arange(8, 31)
    shape = np.maximum(10.0, nbytes / 1e5) + 5 * np.sin(nbytes)  # with a knee and a wave
    real = 7 + shape + nbytes / 3e4
    known = [0, 22]
    found = anchored(
        [int(n) for n in nbytes], [shape, shape], known, np.where(np.isin(np.arange(23), known), real, NAN)
    )
    assert found == pytest.approx(np.clip(real, real[0], real[-1]))


@given(
    st.lists(st.floats(0.1, 100), min_size=5, max_size=5),
    st.lists(st.floats(0.1, 100), min_size=5, max_size=5),
    st.lists(st.floats(0.1, 100), min_size=5, max_size=5),
    st.lists(st.integers(0, 4), min_size=1, max_size=5, unique=True),
)
def test_through_what_is_measured_and_never_beyond_it_between(
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
