"""How probable explanations are: against scipy's Student t, the laws of probability, and what is known of causes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.accuracy.causes import KINDS
from commsim.accuracy.healthy import BAND_ENDS, Healthy, Sizes, Tail, beside, healthy
from commsim.accuracy.posterior import AS_PREDICTED, NONE, NONE_OF_THESE, band_of, log_likelihood, log_prior, posterior

SIZES = np.array([8, 1 << 18, 1 << 24, 1 << 30])
FLAT = np.log(np.array([2e-5, 4e-5, 4e-4, 2e-2]))


def tail(scale: float, middle: float = 0.0) -> Tail:
    return Tail(middle=middle, scale=scale, systems=9)


KNOWN = Healthy(
    small=tail(0.1),
    large=tail(0.05),
    own_small=tail(0.05),
    own_large=tail(0.06),
    bands=tuple(tail(s) for s in (0.14, 0.12, 0.08, 0.04)),
    degraded=(tail(0.25), tail(0.2)),
)


@given(x=st.floats(-3, 3), middle=st.floats(-0.2, 0.2), scale=st.floats(0.01, 1.0))
def test_the_density_is_that_of_student_t(x: float, middle: float, scale: float) -> None:
    from scipy.stats import t

    expected = float(t.logpdf((x - middle) / scale, 2)) - math.log(scale)
    assert tail(scale, middle).log_density(x) == pytest.approx(expected, abs=1e-9)


def test_every_size_is_of_one_band() -> None:
    ends = [n for end in BAND_ENDS for n in (end, end + 1)]
    assert band_of(np.array([1, *ends, 1 << 40])).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_band_counts_once_however_many_sizes_it_has() -> None:
    many = np.repeat(SIZES, 5)
    off = np.log(np.array([1.1, 1.2, 1.3, 1.4]))
    for cost in (0.0, 1.0):
        one = log_likelihood(SIZES, off, np.full(4, cost), KNOWN)
        assert log_likelihood(many, np.repeat(off, 5), np.full(20, cost), KNOWN) == pytest.approx(one)


def test_a_cause_that_costs_nothing_is_as_sure_as_the_prediction() -> None:
    off = np.full(4, 0.02)
    free, dear = (log_likelihood(SIZES, off, np.full(4, cost), KNOWN) for cost in (0.0, 1.0))
    assert free > dear
    assert free == pytest.approx(sum(tail.log_density(0.02) for tail in KNOWN.bands))


@given(st.lists(st.floats(-2, 2), min_size=1, max_size=6), st.floats(-3, 3))
def test_probabilities_leave_room_for_what_was_not_tried(offs: list[float], factor: float) -> None:
    explanations = [(f"kind {i}", FLAT + off) for i, off in enumerate(offs)]
    chances = posterior(SIZES, FLAT + factor, explanations, KNOWN)
    assert all(0 <= p <= 1 for p in chances)
    assert sum(chances) < 1.0
    order = np.argsort([abs(factor - off) for off in offs])
    assert chances[order[0]] == pytest.approx(max(chances))


def test_what_is_healthy_is_as_predicted_and_what_nothing_explains_is_none() -> None:
    slower = FLAT + np.log([1.0, 1.0, 2.0, 2.0])
    explanations = [(AS_PREDICTED, FLAT), ("rate", slower)]
    assert posterior(SIZES, FLAT, explanations, KNOWN)[0] > 0.9
    assert posterior(SIZES, slower, explanations, KNOWN)[1] > 0.9
    assert sum(posterior(SIZES, FLAT + math.log(30.0), explanations, KNOWN)) < 0.05
    assert pytest.approx(-math.log(math.log(256.0))) == NONE_OF_THESE


def test_forms_of_a_kind_share_its_prior() -> None:
    slower = FLAT + math.log(2.0)
    two = posterior(SIZES, slower, [("nics", slower), ("nics", slower), ("rate", slower)], KNOWN)
    assert two[0] + two[1] == pytest.approx(two[2])


def test_kinds_that_published_machines_had_are_more_probable() -> None:
    slower = FLAT + math.log(2.0)
    known = KNOWN.model_copy(update={"causes": {"nics": 3.0}})
    nics, rate = posterior(SIZES, slower, [("nics", slower), ("rate", slower)], known)
    assert nics == pytest.approx(4 * rate)
    priors = [math.exp(log_prior(kind, healthy())) for kind in (*KINDS, NONE)]
    assert np.mean(priors) == pytest.approx(1.0)
    assert log_prior(AS_PREDICTED, healthy()) == 0.0


def test_other_logs_of_a_machine_count_where_they_tell_more() -> None:
    small = Sizes("small", 5, 0.4, KNOWN.small)
    narrow = beside(small, [0.38, 0.42], KNOWN)
    assert narrow.own
    assert narrow.spread.middle == pytest.approx(0.4)
    assert narrow.spread.scale == KNOWN.own_small.scale
    assert narrow.as_slow == pytest.approx(0.5)
    large = Sizes("large", 5, 0.4, KNOWN.large)
    assert beside(large, [0.38], KNOWN) is large  # they differ as much as machines do
    assert beside(small, [], KNOWN) is small


def test_what_ships_is_whole() -> None:
    known = healthy()
    assert len(known.bands) == len(BAND_ENDS) + 1
    assert len(known.degraded) == 2
    assert known.own_small.scale < known.small.scale
