"""Verdicts on curves: parts by healthy machines, sizes that cannot be judged, and headlines that agree with rows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.accuracy.compare import compare
from commsim.accuracy.verdict import Verdict, verdict
from commsim.accuracy.whatif import FITS, Tried, named
from commsim.measure.records import Curve
from commsim.report.verdict import answer_line

SIZES = np.array([1 << k for k in range(12, 31, 2)], np.int64)
TIMES = np.asarray(SIZES * 1e-9, np.float64)
SMALL = SIZES <= 1 << 20


def judged(
    small: float = 1.0, large: float = 1.0, band: float = 1.5, large_band: float = 1.5, *, shipped: bool = True
) -> Verdict:
    """Of a curve whose small and large messages take so many times the predicted time, within such bands."""
    time, wide = TIMES, np.where(SMALL, band, large_band)
    predicted = Curve("p", "all_reduce", 8, "predicted", SIZES, time, low_s=time / wide, high_s=time * wide)
    measured = Curve("m", "all_reduce", 8, "measured", SIZES, time * np.where(SMALL, small, large))
    return verdict(compare(predicted, measured), as_shipped=shipped)


@pytest.mark.parametrize(
    ("small", "large", "band", "state", "words"),
    [
        (3.3, 1.0, 1.5, "unjudged", "cannot judge: x3.30 up to 1 MiB, where healthy machines differ"),
        (9.0, 1.0, 1.5, "slower", "slower than expected: x9.00 up to 1 MiB ("),
        (3.3, 2.0, 1.5, "slower", "slower than expected: x2.00 above 64 MiB ("),
        (1.0, 2.2, 3.0, "unjudged", "cannot judge: x2.20 above 64 MiB, within a band so wide"),
        (1.0, 4.0, 3.0, "slower", "slower than expected: x4.00 above 64 MiB ("),
        (1.1, 1.1, 1.5, "as expected", "as expected: 10 of 10 sizes within the band, 1.10 times"),
    ],
)
def test_the_headline_is_of_the_part_that_is_slow(
    small: float, large: float, band: float, state: str, words: str
) -> None:
    one = judged(small, large, large_band=band)
    assert one.state == state
    assert one.sentence().startswith(f"m: {words}")


@pytest.mark.parametrize("small", [3.3, 9.0])
def test_that_large_messages_are_as_expected_is_said_beside_small_ones(small: float) -> None:
    assert "; above 1 MiB as expected: x1.00" in judged(small).sentence()


@given(small=st.floats(0.1, 20.0), large=st.floats(0.1, 20.0), band=st.floats(1.05, 4.0), wide=st.floats(1.05, 4.0))
def test_no_headline_contradicts_its_rows(small: float, large: float, band: float, wide: float) -> None:
    one = judged(small, large, band, wide)
    rows = [one.of_size(i) for i in range(one.comparison.n)]
    first = one.sentence().removeprefix("m: ")
    if first.startswith("as expected"):
        assert 2 * rows.count("as expected") >= len(rows) - rows.count("cannot judge") > 0
    if first.startswith(("slower", "faster")):
        part = SMALL if "up to 1 MiB (" in first else ~SMALL
        assert 2 * sum(row == "cannot judge" for row, of in zip(rows, part, strict=True) if of) <= part.sum()


def test_only_sizes_that_can_be_judged_are_counted() -> None:
    one = judged(band=1.5, large_band=3.0)
    assert [one.of_size(i) for i in np.flatnonzero(~SMALL).tolist()] == ["cannot judge"] * 5
    assert one.sentence().startswith("m: as expected: 5 of 5 judged sizes within the band (5 cannot be judged)")


@pytest.mark.parametrize("shipped", [True, False])
def test_where_no_size_can_be_judged_nothing_is(shipped: bool) -> None:
    one = judged(band=3.0, large_band=3.0, shipped=shipped)
    assert one.state == "unjudged"
    assert one.sentence().startswith("m: cannot judge: within a band so wide")


def _tried(*causes: tuple[str, float, float]) -> list[Tried]:
    return [Tried(cause, cause, SIZES, TIMES, score, chance) for cause, score, chance in causes]


@pytest.mark.parametrize(
    ("score", "own", "is_named"),
    [(0.1, 0.5, True), (FITS + 0.01, 2.0, False), (0.3, 0.29, False)],
)
def test_a_cause_is_named_where_it_fits_and_better_than_the_prediction(
    score: float, own: float, is_named: bool
) -> None:
    tried = _tried(("few channels", score, 0.9), ("as predicted", own, 0.0))
    assert [t.cause for t in named(tried)] == ["few channels"] * is_named
    line = answer_line(judged(large=4.0), tried)
    assert line.endswith(
        "likely cause: few channels (90 %, off by 11 %)" if is_named else "no cause that is known fits well enough"
    )


def test_a_size_whose_rows_disagree_counts_for_nothing_among_others() -> None:
    torn = SIZES == 1 << 28
    predicted = Curve("p", "all_reduce", 8, "predicted", SIZES, TIMES, low_s=TIMES / 1.5, high_s=TIMES * 1.5)
    low, high = TIMES, np.where(torn, 9.0, 1.0) * TIMES
    measured = Curve("m", "all_reduce", 8, "measured", SIZES, (low + high) / 2, low_s=low, high_s=high)
    one = verdict(compare(predicted, measured), as_shipped=True)
    assert one.state == "as expected"
    assert [one.of_size(int(i)) for i in np.flatnonzero(torn)] == ["cannot judge"]
    assert one.sentence().startswith("m: as expected: 9 of 9 judged sizes within the band (1 cannot be judged), ")


@pytest.mark.parametrize(("share", "state"), [(0.995, "faster"), (0.98, "wrong")])
def test_a_time_is_wrong_below_the_bound_by_more_than_its_digits(share: float, state: str) -> None:
    bound = TIMES / 4
    predicted = Curve("p", "all_reduce", 8, "predicted", SIZES, TIMES, lower_bound_s=bound)
    small = np.where(SIZES < 1 << 20, 0.1, share)
    measured = Curve("m", "all_reduce", 8, "measured", SIZES, bound * small)
    assert verdict(compare(predicted, measured), bounded=True).state == state
    assert verdict(compare(predicted, measured)).state == "faster"  # of a library whose bound is not known
