"""How far off a log is, in words, and the causes that its times speak for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commsim.processes import Pool
from study.cases import case_of
from study.log import Log
from study.reasons import Miss, explain, off_by

SIZES = (2**20, 2**22, 2**24)


@pytest.fixture(autouse=True)
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """No other condition can be predicted."""
    monkeypatch.setattr("study.reasons.times", lambda case, sizes: "unknown")


def _reason(predicted: list[float], time: list[float], undisturbed: list[float]) -> str:
    row = {
        "slug": "one",
        "collective": "all_reduce",
        "n_ranks": "8",
        "machine": "hgx-h100",
        "nodes": "1",
        "gpus_per_node": "8",
        "launch": "process_per_gpu",
        "nccl_version": "2.26.2",
    }
    log = Log(case_of(row, Path()), SIZES, np.array(time), np.array(undisturbed))
    miss = Miss(log, np.array(predicted), np.ones(3, np.bool_), ["ring/Simple"] * 3)
    return explain([miss], [[]], Pool(1))[0]


@pytest.mark.parametrize(
    ("ratio", "words"),
    [
        (1.0, "0 % too fast"),
        (1.04, "4 % too slow"),
        (0.96, "4 % too fast"),
        (1.3, "1.3 times too slow"),
        (0.5, "2 times too fast"),
        (0.0, "1e+09 times too fast"),
    ],
)
def test_small_errors_are_shares_and_large_ones_factors(ratio: float, words: str) -> None:
    assert off_by(ratio) == words


def test_a_disturbed_size_is_a_cause() -> None:
    times = [1e-4, 2e-4, 3e-4]
    assert "out of place was disturbed (0 % instead of 25 %" in _reason(times, [1e-4, 8e-4, 3e-4], times)
    assert "disturbed" not in _reason(times, [2e-4, 4e-4, 6e-4], [2e-4, 4e-4, 6e-4])
    assert "disturbed" not in _reason(times, [2e-4, 8e-4, 6e-4], [2e-4, 4e-4, 6e-4])  # hardly better without


def test_errors_of_both_directions_are_not_their_middle() -> None:
    times = [1e-4, 2e-4, 3e-4]
    assert "30 % off both ways" in _reason([0.6e-4, 2e-4, 4.5e-4], times, times)
    assert "1.2 times too slow" in _reason([0.9e-4, 2.4e-4, 3.6e-4], times, times)
