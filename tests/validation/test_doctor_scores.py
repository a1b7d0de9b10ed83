"""The doctor's page: clusters with faults are simulated by the predictor, and few trials end right."""

from __future__ import annotations

import doctor
import numpy as np
import pytest

from commsim.doctor.group_test import GroupTest
from commsim.doctor.suspect import PartKind


@pytest.mark.parametrize("count", [0, 1])
def test_trials_of_eight_hosts_end_right_and_in_time(count: int) -> None:
    rng = np.random.default_rng(7)
    trials = [doctor.trial(8, count, rng) for _ in range(3)]
    assert all(trial.right for trial in trials), [trial.words for trial in trials]
    assert all(trial.tests <= trial.budget for trial in trials)


def test_a_simulated_test_is_as_slow_as_its_slowest_ring() -> None:
    """A card at a fifth of its rate shows in its own ring alone, and the slowest ring counts."""
    _, suspects, _ = doctor.machine(8)
    at = int(np.flatnonzero((suspects.place == PartKind.NIC) & (suspects.host == 3) & (suspects.part == 6))[0])
    times = {}
    for name, faults in (("healthy", {}), ("slow", {at: 0.2})):
        run = doctor.Simulated(8, faults, np.random.default_rng(0))
        for gpus in ((6, 7), (0, 1)):
            times[name, gpus] = run([GroupTest("across", tuple(range(8)), gpus, 1 << 30)] * 20)
    ratio = {gpus: np.median(times["slow", gpus]) / np.median(times["healthy", gpus]) for gpus in ((6, 7), (0, 1))}
    assert ratio[6, 7] == pytest.approx(5, rel=0.1)
    assert ratio[0, 1] == pytest.approx(1, rel=0.05)


def test_the_table_counts() -> None:
    made = [
        doctor.Trial(4, "nic", 1, True, True, 0.9, 6, 6, ""),
        doctor.Trial(4, "nic", 1, False, True, 0.9, 8, 8, ""),
    ]
    assert "| a slow nic | 2 | 50.0 | 0.410 | 7.0 | 8 | 7.0 |" in doctor.table(made)
