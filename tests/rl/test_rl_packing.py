"""Micro-batches of sequences of unequal length."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.rl.packing import Bins, packed_bins, padded_bins


@pytest.mark.parametrize(
    ("lengths", "replicas", "alike", "expected"),
    [
        ([60, 50, 40, 30, 20], 1, False, Bins(2, 100)),
        ([60, 50, 40, 30, 20], 2, False, Bins(1, 100)),
        ([90, 80], 1, False, Bins(2, 85)),
        ([90, 80], 1, True, Bins(2, 90)),
        ([90, 80, 70], 2, False, Bins(2, 60)),
    ],
)
def test_bins_by_hand(lengths: list[int], replicas: int, alike: bool, expected: Bins) -> None:
    assert packed_bins(lengths, 100, replicas, alike=alike) == expected


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 5), st.integers(1, 8))
def test_all_tokens_have_room_and_few_bins_are_half_empty(lengths: list[int], replicas: int, multiple: int) -> None:
    bins = packed_bins(lengths, 100, replicas, multiple)
    assert bins.each * replicas * bins.tokens >= sum(lengths)
    assert bins.tokens % multiple == 0
    least = -(-sum(lengths) // 100)
    assert bins.each <= -(-2 * least // replicas)  # no two bins that are half empty


def test_padding_counts_the_longest() -> None:
    assert padded_bins(64, 500, 4, 8, 64) == Bins(2, 512)
