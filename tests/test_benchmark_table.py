"""The table of benchmarks: its rows and ratios, and SimGrid beside it where it is installed."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
import table
import workloads
from workloads import WORKLOADS


def test_a_ratio_above_one_says_how_many_times_faster() -> None:
    seconds = next(w for w in WORKLOADS if w.name == "w1-1024")
    assert "| 2.0x, 12x |" in table.row(seconds, 0.25, {"A": "0.5 s", "B": "3 s"})
    rate = next(w for w in WORKLOADS if w.name == "fair-random-64")
    assert "| 5.0x |" in table.row(rate, 13.5, {"SimGrid": "2.7 kop/s"})
    assert table.row(rate, 13.5, {}).endswith("| - | - |")


def test_four_hops_are_what_is_left_of_ways_over_a_spine() -> None:
    """Of 256 ranks, 64 to a leaf: none inside a node (the own part too), two under a leaf, four over a spine."""
    program = workloads._four_hops()
    hops, times = np.unique(np.diff(program.route_ptr)[program.route], return_counts=True)
    assert dict(zip(hops.tolist(), times.tolist(), strict=True)) == {0: 256 * 8, 2: 256 * 56, 4: 256 * 192}


@pytest.mark.skipif(
    shutil.which("g++") is None or not table.SIMGRID_HEADER.exists(),
    reason="SimGrid (libsimgrid-dev) and g++ are not installed",
)
def test_simgrid_gives_the_closed_form_beside_us() -> None:
    assert table.number(table.simgrid([8], rounds=1)["w1-8"]) < 5
