"""Curve: what it guarantees and what it derives."""

from __future__ import annotations

import numpy as np
import pytest

from commsim.collectives.semantics import busbw_factor
from commsim.measure.records import Curve, collective_name


def curve(collective: str = "all_reduce", n_ranks: int | None = 8) -> Curve:
    size = np.array([8, 1024, 2**20], np.int64)
    return Curve("c", collective, n_ranks, "measured", size, np.array([1e-5, 2e-5, 3e-5]))


def test_bandwidths_by_hand() -> None:
    assert curve().algbw()[2] == pytest.approx(2**20 / 3e-5)
    assert curve().busbw()[2] == pytest.approx(1.75 * 2**20 / 3e-5)


@pytest.mark.parametrize(
    ("collective", "factor"),
    [
        ("all_reduce", 1.5),
        ("all_gather", 0.75),
        ("reduce_scatter", 0.75),
        ("all_to_all", 0.75),
        ("gather", 0.75),
        ("scatter", 0.75),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
    ],
)
def test_busbw_factor(collective: str, factor: float) -> None:
    assert busbw_factor(collective, 4) == factor


def test_unknown_ranks_matter_only_where_the_factor_needs_them() -> None:
    assert curve("broadcast", None).factor() == 1
    with pytest.raises(ValueError, match="needs the number of ranks"):
        curve("all_reduce", None).busbw()


@pytest.mark.parametrize(
    ("size", "time", "fault"),
    [
        ([8, 8], [1.0, 1.0], "ascend"),
        ([0, 8], [1.0, 1.0], "above zero"),
        ([8, 16], [1.0, np.nan], "finite"),
        ([8, 16], [0.0, 1.0], "above zero"),
        ([8, 16], [1.0], "shape"),
    ],
)
def test_a_curve_refuses_what_is_no_curve(size: list[int], time: list[float], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        Curve("c", "all_reduce", 8, "measured", np.array(size, np.int64), np.array(time))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("AllReduce", "all_reduce"),
        ("all_reduce_perf", "all_reduce"),
        ("alltoall", "all_to_all"),
        ("sendrecv_perf", "send_recv"),
        ("reduce", "reduce"),
        ("ReduceScatter", "reduce_scatter"),
        ("nonsense", None),
    ],
)
def test_collective_names(text: str, name: str | None) -> None:
    assert collective_name(text) == name


def test_of_two_times_that_lie_apart_the_lower_is_fitted_to() -> None:
    """Disturbed at 1 KiB; 20 % is luck; a time in place of nothing or of 0 says nothing."""
    size = np.array([8, 1024, 4096, 2**20, 2**21], np.int64)
    time, in_place = np.array([1.2, 9, 3, 3, 3]) * 1e-5, np.array([1, 2, 9, np.nan, 0]) * 1e-5
    disturbed = Curve("c", "all_reduce", 8, "measured", size, time, in_place)
    assert disturbed.disturbed().tolist() == [False, True, False, False, False]
    assert disturbed.undisturbed_s() == pytest.approx([1.2e-5, 2e-5, 3e-5, 3e-5, 3e-5])
    usual = Curve("c", "all_reduce", 8, "measured", size, time, time * [0.5, 0.5, 0.5, 1, 1])  # other work in place
    assert not usual.disturbed().any()
    assert usual.undisturbed_s().tolist() == time.tolist()
    some = Curve("c", "all_reduce", 8, "measured", size, time, time * [0.5, 0.5, 1, 1, 1])
    assert some.disturbed().tolist() == [True, True, False, False, False]
    rounded = Curve("c", "all_reduce", 8, "measured", size, time, in_place, time_from="busbw")
    assert not rounded.disturbed().any()
    copying = Curve("c", "all_gather", 8, "measured", size, time, in_place)  # out of place it does more
    assert copying.undisturbed_s().tolist() == time.tolist()
    assert curve().undisturbed_s().tolist() == curve().time_s.tolist()


def test_between_keeps_all_columns_together() -> None:
    part = curve().between(9, 2**20)
    assert part.size_bytes.tolist() == [1024, 2**20]
    assert part.time_s.tolist() == [2e-5, 3e-5]
