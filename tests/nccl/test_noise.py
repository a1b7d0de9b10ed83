"""Noise under NCCL: the laws of draws, and a ring and a node by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commsim as cs
from commsim.engine.variation import Jitter, Variation
from commsim.errors import ScenarioError
from commsim.nccl import noise
from commsim.nccl.lower import lower_ring
from commsim.nccl.noise import noise_of, ring_ends
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.timing import ring_wavefront
from commsim.topology.presets import load_preset

SIZES = st.sampled_from([8, 100_000, 1 << 20, 16 << 20])
SETTINGS = settings(max_examples=25, deadline=None)


@cache
def _model(nodes: int, algorithm: str | None) -> Predictor:
    return Predictor(load_preset("hgx-h100-ndr400", nodes=nodes), Options(algorithm=algorithm))


def _later(nodes: int, algorithm: str | None, size: int, variation: Variation, collective: str = "all_reduce") -> Any:
    model = _model(nodes, algorithm)
    return noise_of(model, variation, collective, model.predict(collective, size))


@SETTINGS
@given(st.sampled_from([1, 2, 3]), st.sampled_from(["ring", "tree"]), SIZES, st.integers(0, 99), st.floats(1e-8, 1e-4))
def test_noise_never_shortens_and_a_seed_repeats_it(
    nodes: int, algorithm: str, size: int, seed: int, mean: float
) -> None:
    variation = Variation(seed, 3, Jitter(mean), node_spread=0.05)
    if nodes == 1 and algorithm == "tree":
        algorithm = "ring"
    later = _later(nodes, algorithm, size, variation)
    assert later.shape == (3,)
    assert (later > 0).all()
    assert (later == _later(nodes, algorithm, size, variation)).all()
    assert (later != _later(nodes, algorithm, size, replace(variation, seed=seed + 100))).any()


@SETTINGS
@given(st.sampled_from([1, 2]), SIZES, st.integers(0, 99), st.floats(1e-8, 1e-4), st.floats(1.0, 100.0))
def test_more_jitter_is_never_quicker(nodes: int, size: int, seed: int, mean: float, times: float) -> None:
    less, more = (_later(nodes, "ring", size, Variation(seed, 3, Jitter(m))) for m in (mean, mean * times))
    assert (more >= less * (1 - 1e-12)).all()


@SETTINGS
@given(st.sampled_from([1, 2, 4]), SIZES, st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]))
def test_no_noise_is_the_plain_ring(nodes: int, size: int, collective: str) -> None:
    model = _model(nodes, "ring")
    got = model.predict(collective, size)
    plan = lower_ring(model.nodes, model.lowered(collective, size, "ring", got.protocol))
    end = ring_ends(plan, Variation(), np.ones((2, plan.ranks)), np.random.default_rng(0))
    assert end == pytest.approx([ring_wavefront(plan)[0]] * 2, rel=1e-9)
    assert (noise_of(model, Variation(), collective, got) == 0).all()


@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_jitter_of_no_length_costs_nothing(algorithm: str) -> None:
    got = _model(2, algorithm).predict("all_reduce", 1 << 20)
    assert _later(2, algorithm, 1 << 20, Variation(1, 2, Jitter(1e-18))) == pytest.approx(0, abs=1e-9 * got.kernel_s)


def test_a_ring_waits_in_each_step_for_the_latest_message() -> None:
    """8 B over 8 ranks: 14 steps of 8 messages; a way round takes at least 14 of the means, and the latest costs more."""
    later = _later(1, "ring", 8, Variation(1, 400, Jitter(1e-6, "uniform")))
    assert 14e-6 < np.median(later) < 14 * 2e-6


def test_all_nodes_twice_as_slow_take_twice_the_busy_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variation, "node_factors", lambda self, rng, shape: np.full(shape, 2.0))
    model, variation = _model(2, "ring"), Variation(0, 1, node_spread=0.5)
    for algorithm, collective in ((None, "all_to_all"), ("ring", "all_reduce")):
        one = _model(2, algorithm)
        got = one.predict(collective, 1 << 30)
        assert noise_of(one, variation, collective, got)[0] == pytest.approx(got.busy_s, rel=0.05)
    # What would take too many steps has the busy part.
    monkeypatch.setattr(noise, "MOST_DRAWS", 10)
    got = model.predict("all_reduce", 1 << 30)
    assert noise_of(model, variation, "all_reduce", got) == pytest.approx(got.busy_s)


def test_what_takes_too_long_or_has_no_messages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    jitter = Variation(0, 1000, Jitter(1e-6))
    with pytest.raises(ScenarioError, match="fewer repeats, a smaller size or a smaller machine"):
        _later(4, "ring", 8 << 30, jitter)
    with pytest.raises(ScenarioError, match="fewer repeats, a smaller size or a smaller machine"):
        _later(8, "tree", 16 << 20, jitter)
    with pytest.raises(ScenarioError, match="NVLSTree: its time is a closed form.*NCCL_ALGO=Ring or Tree"):
        _later(2, "nvls_tree", 1 << 20, jitter)
    with pytest.raises(ScenarioError, match="expected node_spread alone"):
        _later(2, None, 1 << 20, jitter, "all_to_all")


def _run(*changes: str) -> Any:
    return cs.run(
        {
            "name": "noise",
            "topology": {"preset": "hgx-h100-ndr400", "nodes": 4},
            "library": {"name": "nccl", "version": "2.26.2"},
            "workload": [{"collective": "all_reduce", "sizes": "64 MiB"}],
            "variation": {"node_spread": "2 %", "seed": 3},
        },
        *changes,
    )


def test_a_row_has_the_median_and_the_percentile_and_says_what_the_slowest_node_costs() -> None:
    result = _run()
    (row,) = result.items[0].rows
    (plain,) = _run("variation=null").items[0].rows
    assert plain.p99_s is None
    assert plain.time_s < row.time_s < row.p99_s
    assert any("loses" in text and "slowest of 4 nodes" in text for text in result.warnings)
    ring = "library.env.NCCL_ALGO=Ring"
    (noisy,) = _run(ring, "variation.jitter={mean: 2 us}").items[0].rows
    assert noisy.lower_bound_s < _run(ring).items[0].rows[0].time_s < noisy.time_s < noisy.p99_s


@pytest.mark.parametrize("spread", ["0 %", "-1 %", "200 %", "x %", "nan"])
def test_a_spread_is_a_share(spread: str) -> None:
    with pytest.raises(ScenarioError, match=r"variation\.node_spread"):
        _run(f"variation.node_spread='{spread}'")
