"""Published steps on the simulation: of which rows there is a machine, and one of them by its own figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_steps import simulated

from study.training import training_steps
from study.training_rows import read_published


def test_a_published_step_of_several_nodes_comes_out_near_what_was_measured() -> None:
    """Narayanan et al. 2021: 18B on 256 A100, tp 8, dp 32."""
    row = next(row for row in read_published(training_steps()) if row.id == "sc21-0004")
    assert row.step is not None
    got = simulated(row.step)
    assert got is not None
    assert got == pytest.approx(row.measured_s, rel=0.1)
    assert simulated(replace(row.step, dp=1)) is None  # one node
    slower = simulated(replace(row.step, nic_bytes_per_s=row.step.nic_bytes_per_s / 20))
    assert slower is not None
    assert slower > got
