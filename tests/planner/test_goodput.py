"""Checkpoints and failures: Daly's interval against a search, his expected time against a simulated run."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.planner.goodput import Reliability, best_interval_s, checkpoint_seconds, goodput, outlook


@given(st.floats(1, 600), st.floats(3600, 1e6))
def test_no_other_interval_is_much_better(checkpoint: float, mtbf: float) -> None:
    best = goodput(best_interval_s(checkpoint, mtbf), checkpoint, 300, mtbf)
    others = [goodput(t, checkpoint, 300, mtbf) for t in np.geomspace(checkpoint / 2, 10 * mtbf, 2000)]
    assert best >= max(others) * (1 - 2e-3)


def test_the_interval_by_hand() -> None:
    """A checkpoint of a minute, a failure an hour: sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + d / 2M / 9) - d."""
    assert best_interval_s(60, 3600) == pytest.approx(657.2671 * (1 + 0.0912871 / 3 + 0.00833333 / 9) - 60, rel=1e-6)
    assert best_interval_s(7200, 3600) == 3600


@given(st.floats(1, 600), st.floats(3600, 1e6), st.floats(0, 3600))
def test_failures_never_help(checkpoint: float, mtbf: float, restart: float) -> None:
    at = [goodput(best_interval_s(checkpoint, m), checkpoint, restart, m) for m in (mtbf, 2 * mtbf, math.inf)]
    assert 0 <= at[0] <= at[1] <= at[2] <= 1


def test_the_expected_time_is_that_of_simulated_runs() -> None:
    """Failures are exponential; a segment of work and its checkpoint is repeated until it is through."""
    interval, checkpoint, restart, mtbf = 1800.0, 120.0, 300.0, 5400.0
    rng = np.random.default_rng(1)
    kept = 20_000
    clock = 0.0
    for _ in range(kept):
        while (failure := rng.exponential(mtbf)) < interval + checkpoint:
            clock += failure
            while (again := rng.exponential(mtbf)) < restart:
                clock += again
            clock += restart
        clock += interval + checkpoint
    assert goodput(interval, checkpoint, restart, mtbf) == pytest.approx(kept * interval / clock, rel=0.02)


def test_the_defaults_give_the_published_rate_of_failures() -> None:
    """Llama 3: 419 interruptions in 54 days on 16,384 GPUs, one in three hours."""
    mtbf = Reliability().mtbf_s(16_384, 16_384, 2_048)
    assert 54 * 86_400 / mtbf == pytest.approx(419)


def test_a_checkpoint_takes_the_slower_of_nodes_and_storage() -> None:
    assert checkpoint_seconds(1e12, 500e9) == pytest.approx(2.0)
    assert checkpoint_seconds(1e12, 500e9, 100e9) == pytest.approx(10.0)
    view = outlook(Reliability(), 1024, 1024, 128, 10.0, 300.0)
    assert view.goodput == goodput(view.interval_s, 10.0, 300.0, view.mtbf_s)
