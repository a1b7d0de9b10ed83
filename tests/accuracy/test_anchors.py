"""Predictions drawn through measured sizes."""

from __future__ import annotations

import numpy as np
import pytest

from commsim.accuracy.anchors import anchored


def test_a_factor_between_two_anchors_is_interpolated_by_hand() -> None:
    predicted = np.array([1.0, 2.0, 3.0, 4.0])
    measured = np.array([2.0, np.nan, 24.0, np.nan])  # twice at 1 B, eight times at 256 B
    found = anchored([1, 16, 256, 4096], [predicted], [0, 2], measured)
    assert found == pytest.approx([2.0, 8.0, 24.0, 32.0])


def test_two_predictions_meet_in_the_middle_and_at_the_anchors() -> None:
    a, b = np.array([1.0, 4.0, 1.0]), np.array([5.0, 5.0, 5.0])
    found = anchored([1, 16, 256], [a, b], [0, 2], np.array([1.0, np.nan, 1.0]))
    assert found == pytest.approx([1.0, 2.0, 1.0])
