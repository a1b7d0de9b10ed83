"""The posterior against enumeration with integrals done by sums, and laws that it keeps."""

from __future__ import annotations

from itertools import combinations
from math import exp, log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import multivariate_normal

from commsim.doctor.cluster import HostCluster
from commsim.doctor.forward import Unknown
from commsim.doctor.group_test import GroupTest
from commsim.doctor.posterior import SLOWDOWNS, WIDTH, Observation, Priors, covariance, posterior
from commsim.doctor.suspect import suspects_of

CLUSTER = HostCluster(("a", "b", "c", "d"), 1, 1)
SUSPECTS = suspects_of(CLUSTER)
PRIORS = Priors(noise=0.1)
FORWARD = Unknown(scope_spread=0.3, shape_spread=0.1)


def observation(hosts: tuple[int, ...], slower: float) -> Observation:
    test = GroupTest("across", hosts, (0,), 1 << 30)
    return Observation(test, FORWARD.expected_s(test.shape) * slower)


def by_enumeration(observed: list[Observation]) -> tuple[float, list[float]]:
    """P(healthy) and of each host, over every set of up to two hosts and a Gaussian of slowdowns in each range."""
    y = np.array([log(each.seconds / FORWARD.expected_s(each.test.shape)) for each in observed])
    spread = covariance([each.test.shape for each in observed], FORWARD, PRIORS)
    grid = np.linspace(-3.5, 3.5, 29)
    bell = np.exp(-0.5 * grid**2) / np.exp(-0.5 * grid**2).sum()
    points = (SLOWDOWNS[:, None] + WIDTH / 12**0.5 * grid).ravel()
    chance = np.tile(bell, len(SLOWDOWNS)) / len(SLOWDOWNS)
    middle = np.repeat(SLOWDOWNS, grid.size)
    odds = PRIORS.faults / 4 / (1 - PRIORS.faults / 4)
    law = multivariate_normal(np.zeros(y.size), spread)
    weights: dict[tuple[int, ...], float] = {(): float(law.pdf(y))}
    for host in range(4):
        hit = np.array([host in each.test.hosts for each in observed])
        weights[host,] = odds * float((chance * law.pdf(y - points[:, None] * hit)).sum())
    for one, two in combinations(range(4), 2):
        a = np.array([one in each.test.hosts for each in observed])
        b = np.array([two in each.test.hosts for each in observed])
        i, j = (at.ravel() for at in np.meshgrid(np.arange(points.size), np.arange(points.size)))
        part = 0.5 + 0.5 * np.sign(middle[i] - middle[j])  # the range decides which of two counts, as in the model
        both = (part * points[i] + (1 - part) * points[j])[:, None] * (a & b)
        mean = both + points[i][:, None] * (a & ~b) + points[j][:, None] * (b & ~a)
        weights[one, two] = odds**2 * float((chance[i] * chance[j] * law.pdf(y - mean)).sum())
    total = sum(weights.values())
    each = [sum(w for hosts, w in weights.items() if host in hosts) / total for host in range(4)]
    return weights[()] / total, each


@pytest.mark.parametrize(
    "observed",
    [
        [((0, 1, 2, 3), 1.0)],
        [((0, 1, 2, 3), 2.0), ((0, 1), 1.9), ((2, 3), 1.05)],
        [((0, 1), 1.2), ((1, 2), 1.0), ((2, 3), 3.0)],
        [((0, 1), 1.0), ((2, 3), 1.0)],
    ],
)
def test_the_posterior_is_that_of_enumeration(observed: list[tuple[tuple[int, ...], float]]) -> None:
    seen = [observation(hosts, slower) for hosts, slower in observed]
    healthy, each = by_enumeration(seen)
    state = posterior(seen, SUSPECTS, FORWARD, PRIORS)
    assert state.healthy == pytest.approx(healthy, abs=2e-3)
    assert state.probability() == pytest.approx(each, abs=2e-3)
    assert state.of_hosts() == pytest.approx(each, abs=2e-3)  # hosts of one part


HOSTS = st.sets(st.integers(0, 3), min_size=2).map(lambda hosts: tuple(sorted(hosts)))
RESULTS = st.lists(st.tuples(HOSTS, st.floats(0.8, 8.0)), min_size=1, max_size=4)


@settings(max_examples=25, deadline=None)
@given(results=RESULTS, order=st.randoms())
def test_the_order_of_tests_does_not_count(results: list[tuple[tuple[int, ...], float]], order: object) -> None:
    seen = [observation(hosts, slower) for hosts, slower in results]
    shuffled = list(seen)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    one, two = (posterior(each, SUSPECTS, FORWARD, PRIORS) for each in (seen, shuffled))
    assert one.weight.sum() == pytest.approx(1.0)
    assert one.probability() == pytest.approx(two.probability(), abs=1e-6)
    assert sum(weight for _, weight in one.answers()) == pytest.approx(1.0)


def test_one_by_one_is_all_at_once() -> None:
    seen = [observation((0, 1, 2, 3), 2.1), observation((0, 1), 1.0), observation((0, 2), 2.0)]
    state = None
    for k in range(len(seen)):
        state = posterior(seen[: k + 1], SUSPECTS, FORWARD, PRIORS, state)
    assert state is not None
    assert state.probability() == pytest.approx(posterior(seen, SUSPECTS, FORWARD, PRIORS).probability(), abs=1e-5)


def test_suspects_that_no_test_told_apart_have_the_same_probability() -> None:
    state = posterior([observation((0, 1), 3.0), observation((2, 3), 1.0)], SUSPECTS, Unknown(), PRIORS)
    p = state.probability()
    assert p[0] == p[1] > 0.4
    assert p[2] == p[3] < 0.1


def test_tests_that_contradict_each_other_fit_no_hypothesis() -> None:
    """A pair is slow whose hosts are quick with others."""
    pairs = [((0, 1), 1.0), ((2, 3), 1.0), ((0, 2), exp(1.2)), ((1, 3), 1.0), ((0, 3), 1.0), ((1, 2), 1.0)]
    assert posterior([observation(*pair) for pair in pairs], SUSPECTS, FORWARD, Priors()).fit < 1e-6
    assert posterior([observation(hosts, 1.0) for hosts, _ in pairs], SUSPECTS, FORWARD, Priors()).fit > 0.5
