"""The performance bars, one test each; run by ``make bench``.

Bars are CPU time, and move with the machine's speed of the moment (`reference.slowness`): busy neighbours count little.
"""

from __future__ import annotations

from typing import Any

import pytest
from reference import slowness
from workloads import WORKLOADS, Workload, pipeline

pytestmark = pytest.mark.benchmark_bar


@pytest.mark.parametrize("workload", WORKLOADS, ids=lambda w: w.name)
def test_bar(benchmark: Any, workload: Workload) -> None:
    before = slowness()
    value = benchmark.pedantic(workload.measure, rounds=1)
    factor = max(before, slowness())
    benchmark.extra_info[workload.unit] = round(value, 4)
    said = f"{value:.4g} {workload.unit}, the bar is {workload.bar:g}, on a machine {factor:.2f} times as slow as its"
    assert workload.holds(value, factor), said


def test_the_pipeline_has_ten_thousand_collectives() -> None:
    assert 10_000 <= pipeline(per_gpu=False)()() == pipeline(per_gpu=True)()() <= 11_000
