"""Rows that would end after a run's time are not begun."""

from __future__ import annotations

import time

import pytest

from commsim.measure.row_times import RowTimes
from commsim.measure.run import Repeat
from commsim.measure.tasks import Task


def row(size: int, collective: str = "all_reduce") -> Repeat:
    return Repeat(Task(collective, (size,)), size, 0)


@pytest.mark.parametrize(
    ("taken", "size", "expected"),
    [
        ({}, 1 << 20, 0.0),
        ({8: 0.5}, 1 << 20, 0.5),
        ({8: 0.5}, 4, 0.0),
        ({1 << 20: 1.1, 2 << 20: 2.1}, 16 << 20, 16.1),  # alpha 0.1 s and a second per MiB
        ({8: 0.5, 1 << 20: 0.4}, 16 << 20, 0.4),
        ({8: 0.5, 2 << 20: 2.0}, 1 << 20, 0.5),
    ],
)
def test_the_next_size_goes_on_from_the_last_two(taken: dict[int, float], size: int, expected: float) -> None:
    times = RowTimes(time.monotonic(), 100.0)
    for before, seconds in taken.items():
        times.add(row(before), seconds)
    times.add(row(8, "broadcast"), 50.0)
    assert times.expected(row(size)) == pytest.approx(expected)


def test_a_row_is_too_long_that_ends_after_the_run_and_a_smaller_one_is_not() -> None:
    times = RowTimes(time.monotonic(), 100.0)
    for mib in (1, 2):
        times.add(row(mib << 20), 10.0 * mib)
    assert times.is_too_long(row(11 << 20))
    assert not times.is_too_long(row(9 << 20))
    assert not RowTimes(time.monotonic() - 1e6, None).is_too_long(row(1 << 40))
    assert RowTimes(time.monotonic() - 101.0, 100.0).is_over
