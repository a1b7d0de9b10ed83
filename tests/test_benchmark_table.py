"""The table of benchmarks: its rows and ratios, and SimGrid beside it where it is installed."""

from __future__ import annotations

import shutil

import pytest
import table
from workloads import WORKLOADS


def test_a_ratio_above_one_says_how_many_times_faster() -> None:
    seconds = next(w for w in WORKLOADS if w.name == "w1-1024")
    assert "| 2.0x, 12x |" in table.row(seconds, 0.25, {"A": "0.5 s", "B": "3 s"})
    rate = next(w for w in WORKLOADS if w.name == "fair-random-64")
    assert "| 5.0x |" in table.row(rate, 13.5, {"SimGrid": "2.7 kop/s"})
    assert table.row(rate, 13.5, {}).endswith("| - | - |")


@pytest.mark.skipif(
    shutil.which("g++") is None or not table.SIMGRID_HEADER.exists(),
    reason="SimGrid (libsimgrid-dev) and g++ are not installed",
)
def test_simgrid_gives_the_closed_form_beside_us() -> None:
    assert table.number(table.simgrid([8], rounds=1)["w1-8"]) < 5
