"""The next test: bits against known values, and that rounds end with the right answer."""

from __future__ import annotations

from collections.abc import Callable
from math import exp

import numpy as np
import pytest

from commsim.doctor.choice import _bits, _bits_together, candidates, first_round
from commsim.doctor.cluster import HostCluster
from commsim.doctor.examination import Diagnosis, Examination, examine
from commsim.doctor.forward import Unknown
from commsim.doctor.group_test import GroupTest, loads
from commsim.doctor.posterior import Priors, posterior
from commsim.doctor.suspect import PartKind, suspects_of


def test_far_outcomes_tell_their_entropy_and_equal_ones_nothing() -> None:
    assert _bits(np.repeat([0.0, 50.0], 500)) == pytest.approx(1.0, abs=0.01)
    assert _bits(np.repeat([0.0, 50.0, 100.0, 150.0], 250)) == pytest.approx(2.0, abs=0.01)
    assert _bits(np.zeros(1000)) == pytest.approx(0.0, abs=1e-9)
    assert 0.2 < _bits(np.repeat([0.0, 2.0], 500)) < 0.6  # 0.485 bits: two Gaussians two deviations apart


def test_bits_of_two_tests_are_those_of_both() -> None:
    rng = np.random.default_rng(1)
    one, two = np.tile([0.0, 50.0], 200), np.repeat([0.0, 50.0], 200)
    assert _bits_together(np.stack([one, two], 1), np.eye(2), rng) == pytest.approx(2.0, abs=0.05)
    assert _bits_together(np.stack([one, one], 1), np.eye(2), rng) == pytest.approx(1.0, abs=0.05)


CLUSTER = HostCluster(tuple(f"n{i}" for i in range(16)), 4, 4, np.arange(16) // 4, rails=True)
SUSPECTS = suspects_of(CLUSTER)


def test_candidates_can_be_run() -> None:
    tests = list(candidates(posterior([], SUSPECTS, Unknown(), Priors())))
    assert len({test.scope for test in tests}) == 3
    for test in tests:
        assert len(set(test.hosts)) == len(test.hosts) >= (1 if test.scope == "inside" else 2)
        assert len(set(test.gpus)) == len(test.gpus) >= (1 if test.scope == "across" else 2)


def test_the_first_round_asks_network_and_nvlink() -> None:
    assert [test.scope for test in first_round(CLUSTER)] == ["across", "inside"]
    assert [test.scope for test in first_round(HostCluster(("a", "b"), 1, 1))] == ["across"]


def simulated(faults: dict[int, float], seed: int) -> Callable[[list[GroupTest]], list[float]]:
    rng = np.random.default_rng(seed)

    def measure(tests: list[GroupTest]) -> list[float]:
        hosts = [host for test in tests for host in test.hosts]
        assert len(set(hosts)) == len(hosts)  # of a round
        out = []
        for test in tests:
            load = loads(test, SUSPECTS, Unknown().full(test.shape))
            slower = max([1.0, *(load[at] / share for at, share in faults.items())])
            out.append(0.025 * Unknown().expected_s(test.shape) * slower * exp(rng.normal(0.0, 0.05)))
        return out

    return measure


def diagnosed(faults: dict[int, float], seed: int, at_once: int = 1) -> Diagnosis:
    return examine(Examination(SUSPECTS, Unknown(), Priors(), at_once=at_once), simulated(faults, seed), 24)


@pytest.mark.parametrize("place", list(PartKind))
@pytest.mark.parametrize("at_once", [1, 4])
def test_a_slow_part_is_found(place: PartKind, at_once: int) -> None:
    at = int(np.flatnonzero(SUSPECTS.place == place)[-2])
    diagnosis = diagnosed({at: 0.3}, seed=int(place), at_once=at_once)
    assert diagnosis.sure
    assert diagnosis.blamed == (at,)
    first = diagnosis.suspicions[0]
    assert first.at == at
    assert first.share == pytest.approx(0.3, rel=0.25)
    assert first.gain > 1.5
    if at_once > 1:
        assert diagnosis.rounds < len(diagnosis.observed)


def test_two_slow_parts_are_found() -> None:
    faults = {3: 0.2, int(np.flatnonzero(SUSPECTS.place == PartKind.LINK)[5]): 0.4}
    assert set(diagnosed(faults, seed=5).blamed) == set(faults)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_found_where_nothing_is_slow(seed: int) -> None:
    diagnosis = diagnosed({}, seed)
    assert diagnosis.blamed == ()
    assert diagnosis.healthy > 0.9
