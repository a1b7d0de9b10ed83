"""How far off a log is, in words."""

from __future__ import annotations

import pytest

from commsim.accuracy.reasons import off_by


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (1.0, "0 % too fast"),
        (1.04, "4 % too slow"),
        (0.96, "4 % too fast"),
        (1.3, "1.3 times too slow"),
        (0.5, "2 times too fast"),
        (0.0, "1e+09 times too fast"),
    ],
)
def test_small_errors_are_shares_and_large_ones_factors(ratio: float, words: str) -> None:
    assert off_by(ratio) == words
