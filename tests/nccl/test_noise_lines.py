"""Noise of calls whose messages follow one another on lines: lines by hand, and the laws of chains, sends and PAT."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.engine.variation import Jitter, Variation
from commsim.nccl.noise import noise_of
from commsim.nccl.noise_lines import lines_end
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset

SETTINGS = settings(max_examples=25, deadline=None)
RNG = np.random.default_rng(0)
CALLS = st.sampled_from(["broadcast", "reduce", "all_to_all", "all_to_all_v", "scatter", "gather", "send_recv", "pat"])
SIZES = st.sampled_from([8, 100_000, 1 << 20, 16 << 20])


@cache
def _model(pat: bool) -> Predictor:
    if pat:
        return Predictor(load_preset("hgx-h100-ndr400", nodes=6, gpus_per_node=1), Options((2, 27, 5), algorithm="pat"))
    return Predictor(load_preset("hgx-h100-ndr400", nodes=2), Options())


def _later(call: str, size: int, variation: Variation, **more: Any) -> np.ndarray:
    model, collective = _model(call == "pat"), "all_gather" if call == "pat" else call
    return noise_of(model, variation, collective, model.predict(collective, size), **more)


@SETTINGS
@given(st.integers(1, 6), st.integers(1, 9), st.floats(0.1, 9), st.floats(0.0, 9))
def test_alike_pieces_go_down_a_line_one_after_the_other(lines: int, pieces: int, service: float, hop: float) -> None:
    got = lines_end(np.full((2, lines), service), np.array([hop]), pieces, 10**6, None, RNG)
    assert got == pytest.approx([lines * (service + hop) + (pieces - 1) * service] * 2)


def test_a_line_waits_for_a_slot() -> None:
    """Two slots of a line of 1 s whose hop takes 10 s: the third piece goes when the first has been delivered."""
    got = lines_end(np.ones((1, 1)), np.array([10.0]), 4, 2, None, RNG)
    assert got.tolist() == [23.0]  # 1 + 10; the third begins at 11, the fourth at 12


def test_a_slow_line_holds_up_all_before_it() -> None:
    service = np.array([[1.0, 4.0, 1.0]])
    got = lines_end(service, np.zeros(3), 5, 2, None, RNG)
    assert got.tolist() == [1 + 5 * 4 + 1]


class _Fixed(Jitter):
    """Every message is late by the mean."""

    def draws(self, rng: Any, count: int) -> Any:
        return np.full(count, self.mean_s)


@SETTINGS
@given(st.integers(1, 5), st.integers(1, 9), st.integers(2, 5), st.floats(0.0, 9))
def test_messages_late_alike_are_longer_hops(lines: int, pieces: int, slots: int, mean: float) -> None:
    service, hop = RNG.uniform(0.1, 2.0, (2, lines)), RNG.uniform(0.0, 2.0, lines)
    late = lines_end(service, hop, pieces, slots, _Fixed(mean), RNG)
    assert late == pytest.approx(lines_end(service, hop + mean, pieces, slots, None, RNG))


@SETTINGS
@given(CALLS, SIZES, st.integers(0, 99), st.floats(1e-8, 1e-4))
def test_noise_never_shortens_and_a_seed_repeats_it(call: str, size: int, seed: int, mean: float) -> None:
    variation = Variation(seed, 3, Jitter(mean), node_spread=0.05)
    later = _later(call, size, variation)
    assert (later >= 0).all()
    assert (later == _later(call, size, variation)).all()
    still = _later(call, size, Variation(seed, 2, Jitter(1e-18)))
    assert still == pytest.approx(0, abs=1e-9 * _model(call == "pat").predict("all_gather", size).kernel_s)


@SETTINGS
@given(CALLS, SIZES, st.integers(0, 99), st.floats(1e-8, 1e-5), st.floats(1.0, 100.0))
def test_more_jitter_is_never_quicker(call: str, size: int, seed: int, mean: float, times: float) -> None:
    less, more = (_later(call, size, Variation(seed, 3, Jitter(m))) for m in (mean, mean * times))
    assert (more >= less * (1 - 1e-9) - 1e-15).all()


@pytest.mark.parametrize("call", ["broadcast", "all_to_all", "pat"])
def test_nodes_twice_as_slow_take_about_twice_the_bytes(call: str) -> None:
    model, size = _model(call == "pat"), 1 << 30
    got = model.predict("all_gather" if call == "pat" else call, size)
    twice = np.full((2, model.nodes.count), 2.0)
    later = _later(call, size, Variation(0, 2, Jitter(1e-12), node_spread=0.5), factors=twice)
    assert later == pytest.approx([got.busy_s] * 2, rel=0.1)
