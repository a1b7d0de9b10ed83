"""Errors by hand, and the laws of the comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.accuracy.compare import BANDS, compare
from commsim.errors import LogFormatError
from commsim.measure.records import Curve, Kind


def curve(kind: Kind, size: list[int], time: list[float], collective: str = "all_reduce", n: int | None = 8) -> Curve:
    return Curve(kind, collective, n, kind, np.array(size, np.int64), np.array(time, np.float64))


def test_errors_by_hand() -> None:
    size = [1024, 2**20, 2**26, 2**27]
    c = compare(curve("predicted", size, [1.1, 1.0, 0.5, 1.2]), curve("measured", size, [1.0, 2.0, 1.0, 1.0]))
    assert c.error == pytest.approx([0.1, -0.5, -0.5, 0.2])
    assert c.mape == pytest.approx(0.325)
    assert c.median_log_ratio == pytest.approx((np.log(0.5) + np.log(1.1)) / 2)
    assert (c.n, c.outside) == (4, 0)
    assert [c.band_mape(name) for name, _, _ in BANDS] == pytest.approx([0.1, 0.5, 0.35, 0.2])


def test_a_size_between_is_interpolated_in_log_log_and_flagged() -> None:
    c = compare(curve("predicted", [1024, 4096], [1.0, 4.0]), curve("measured", [1024, 2048], [1.0, 2.0]))
    assert c.error == pytest.approx([0, 0])
    assert c.interpolated.tolist() == [False, True]


def test_sizes_outside_are_counted_not_extrapolated() -> None:
    c = compare(curve("predicted", [64, 128], [1.0, 1.0]), curve("measured", [8, 64, 256, 512], [1.0, 1.0, 1.0, 1.0]))
    assert (c.n, c.outside) == (1, 3)


@pytest.mark.parametrize(
    ("measured", "message"),
    [
        (curve("measured", [64], [1.0], "all_gather"), "measures all_gather, but predicted predicts all_reduce"),
        (curve("measured", [64], [1.0], n=16), "measures 16 ranks, but predicted predicts 8"),
        (curve("measured", [1], [1.0]), "no size in common"),
    ],
)
def test_curves_that_do_not_belong_together(measured: Curve, message: str) -> None:
    with pytest.raises(LogFormatError, match=message):
        compare(curve("predicted", [64], [1.0]), measured)


def test_a_log_without_ranks_is_compared_with_a_note() -> None:
    c = compare(curve("predicted", [64], [1.0], "broadcast"), curve("measured", [64], [1.0], "broadcast", None))
    assert "taken as 8" in c.notes[0]


def test_a_disturbed_size_is_named() -> None:
    size = (64, 128, 256)
    predicted = curve("predicted", list(size), [1.0] * 3)
    measured = replace(curve("measured", list(size), [1.0, 4.0, 1.0]), in_place_time_s=np.ones(3))
    c = compare(predicted, measured)
    assert c.notes[0].startswith("out of place took longer than in place (times 4.00 at 128 B): something else")
    assert c.error == pytest.approx([0, -0.75, 0])  # of the out-of-place time still
    assert compare(predicted, replace(measured, in_place_time_s=measured.time_s)).notes == ()


def test_the_edges_of_the_bands_belong_below() -> None:
    size = [32 * 2**10, 32 * 2**10 + 1, 16 * 2**20, 16 * 2**20 + 1, 64 * 2**20, 64 * 2**20 + 1]
    one = [1.0] * len(size)
    c = compare(curve("predicted", size, one), curve("measured", size, one))
    assert [c.band_n(name) for name, _, _ in BANDS] == [1, 2, 3, 1]


times = st.lists(st.floats(1e-7, 1e3), min_size=1, max_size=30)


@given(times, st.floats(0.1, 10))
def test_a_scaled_curve_has_that_error_everywhere(time: list[float], factor: float) -> None:
    size = [2 ** (3 + i) for i in range(len(time))]
    measured = curve("measured", size, time)
    c = compare(curve("predicted", size, [factor * t for t in time]), measured)
    assert c.error == pytest.approx(factor - 1, abs=1e-9)
    assert c.median_log_ratio == pytest.approx(np.log(factor), abs=1e-9)
    assert compare(measured, measured).mape == 0
