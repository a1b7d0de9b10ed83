"""Speed of the event engine in ops (messages) per second of CPU time; run by ``make bench``.

The ring on a non-blocking switch: 2(N-1)N ops of two hops. ``heap`` forces the event heap, ``in_order`` is the pass
without one.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from reference import slowness

from commsim.collectives.ring import ring_all_reduce
from commsim.engine.program import Program
from commsim.engine.simulate import simulate

pytestmark = pytest.mark.benchmark_bar


def _ring(n: int, channels: int = 1, pipeline: int = 1) -> Program:
    """Rank r sends over link r into the switch and link N + r + 1 out of it: 50 GB/s, 1 us, 64 KiB per message."""
    schedule = ring_all_reduce(n, 65536 * n * channels * pipeline, channels, pipeline=pipeline)
    ptr, idx = schedule.dependencies()
    ranks = np.arange(n)
    return Program(
        nbytes=schedule.payload_bytes(),
        route=schedule.src,
        delay_s=np.zeros(schedule.rows),
        succ_ptr=ptr,
        succ_idx=idx,
        route_ptr=np.arange(n + 1, dtype=np.int64) * 2,
        route_link=np.stack([ranks, n + (ranks + 1) % n], axis=1).ravel().astype(np.int32),
        link_bandwidth=np.full(2 * n, 50e9),
        link_latency=np.full(2 * n, 0.5e-6),
    )


@pytest.mark.parametrize(
    ("method", "n", "channels", "pipeline", "least_mops"),
    [
        ("heap", 64, 1, 1, 3.0),
        ("heap", 256, 1, 1, 3.0),
        ("heap", 1024, 1, 1, 3.0),
        ("heap", 64, 16, 8, 2.5),
        ("in_order", 64, 1, 1, 30.0),
        ("in_order", 256, 1, 1, 30.0),
        ("in_order", 1024, 1, 1, 30.0),
        ("in_order", 64, 16, 8, 30.0),
    ],
)
def test_ring(benchmark: Any, method: str, n: int, channels: int, pipeline: int, least_mops: float) -> None:
    p = _ring(n, channels, pipeline)
    in_order = method == "in_order"
    seconds: list[float] = []

    def run() -> None:
        before = time.process_time()
        assert simulate(p, in_order=in_order).method == method
        seconds.append(time.process_time() - before)

    benchmark.pedantic(run, rounds=max(5, min(200, 2_000_000 // p.rows)), warmup_rounds=1)
    mops = p.rows / float(np.median(seconds[1:])) / 1e6
    benchmark.extra_info["million_ops_per_cpu_second"] = round(mops, 2)
    assert mops >= least_mops / slowness()
