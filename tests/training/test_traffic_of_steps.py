"""Bytes of a step: the closed forms of data parallelism, the papers' ratios, activations by axis."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import step

from commsim.training import traffic
from commsim.training.model import model
from commsim.training.spec import StepPlan
from commsim.training.stages import Chunk
from commsim.training.traffic import sent_bytes
from commsim.training.work import chunk_calls

sizes = st.floats(1e3, 1e12)


@given(p=sizes, g=sizes, n=st.integers(2, 4096), m=st.integers(1, 64))
def test_data_parallel_closed_forms(p: float, g: float, n: int, m: int) -> None:
    """Issue F, item 3: in units of (N-1)/N."""
    unit = (n - 1) / n
    expected = {
        "ddp": 2 * g,
        "zero1": g + p,
        "zero2": m * g + p,
        "zero3": m * (2 * p + g),
    }
    for scheme, value in expected.items():
        calls = traffic.data_parallel(scheme, p, g, n, m)  # type: ignore[arg-type]
        assert sent_bytes(calls) == pytest.approx(unit * value)


@given(phi=sizes, n=st.integers(2, 1024))
def test_zero3_moves_one_and_a_half_times_ddp(phi: float, n: int) -> None:
    ratio = sent_bytes(traffic.data_parallel("zero3", phi, phi, n)) / sent_bytes(
        traffic.data_parallel("ddp", phi, phi, n)
    )
    assert ratio == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("scheme", "p_times", "g_times", "sums"), [("zero1", 1, 1, 1), ("zero2", 1, "m", "m"), ("zero3", "2m", "m", 1)]
)
@given(p=sizes, g=sizes, shard=st.integers(1, 16), replicas=st.integers(1, 16), m=st.integers(1, 8))
def test_hybrid_shard_is_zero_inside_and_ddp_outside(
    scheme: traffic.Scheme,
    p_times: int | str,
    g_times: int | str,
    sums: int | str,
    p: float,
    g: float,
    shard: int,
    replicas: int,
    m: int,
) -> None:
    times = {1: 1, "m": m, "2m": 2 * m}
    calls = traffic.hybrid_shard(scheme, p, g, shard, replicas, m)
    inside = (times[p_times] * p + times[g_times] * g) * (shard - 1) / shard
    assert sent_bytes(c for c in calls if c.collective != "all_reduce") == pytest.approx(inside)
    assert sent_bytes(c for c in calls if c.collective == "all_reduce") == pytest.approx(
        times[sums] * 2 * g / shard * (replicas - 1) / replicas
    )


def test_one_parameter_server_carries_everything() -> None:
    received, sent = traffic.server_bytes(10.0, 20.0, workers=64)
    assert (received, sent) == (1280.0, 640.0)
    assert sent_bytes(traffic.data_parallel("parameter_server", 10.0, 20.0, 64)) == 30.0


@pytest.mark.parametrize(
    ("stage", "pp", "framework", "refused"),
    [(2, 2, "deepspeed", True), (3, 4, "deepspeed", True), (1, 4, "deepspeed", False), (3, 4, "fsdp2", False)],
)
def test_sharded_gradients_with_a_pipeline(stage: int, pp: int, framework: str, refused: bool) -> None:
    assert (traffic.refuse_sharded_gradients(stage, pp, framework) is not None) == refused


@given(layers=st.integers(1, 100), nbytes=sizes, tp=st.integers(2, 64), m=st.integers(1, 64))
def test_sequence_parallelism_costs_what_the_second_gather_costs(layers: int, nbytes: float, tp: int, m: int) -> None:
    """Korthikanti et al. 2022, section 4.2.2: an all_reduce is a reduce_scatter and an all_gather."""
    plain, sequence = (
        sent_bytes(traffic.tensor_parallel(layers * m, nbytes, tp, sequence_parallel=sp, recompute=False))
        for sp in (False, True)
    )
    unit = layers * m * nbytes * (tp - 1) / tp
    assert plain == pytest.approx(8 * unit)
    assert sequence == pytest.approx(10 * unit)


@given(layers=st.integers(1, 10), q=sizes, kv=sizes, cp=st.integers(2, 16), m=st.integers(1, 8))
def test_context_parallel_closed_forms(layers: int, q: float, kv: float, cp: int, m: int) -> None:
    one = layers * m
    ring = sent_bytes(traffic.context_parallel("ring", one, q, kv, cp))
    gather = sent_bytes(traffic.context_parallel("all_gather", one, q, kv, cp))
    ulysses = sent_bytes(traffic.context_parallel("ulysses", one, q, kv, cp))
    assert ring == pytest.approx(3 * one * (cp - 1) * kv)
    assert gather == pytest.approx(ring)  # the same bytes, in fewer calls
    assert ulysses == pytest.approx(2 * one * (2 * q + kv) * (cp - 1) / cp)


def test_a_group_of_one_sends_nothing() -> None:
    alone = traffic.AxisCalls("tp", "all_reduce", 5.0, 1)
    assert (alone.sent_bytes, sent_bytes([alone])) == (0.0, 0.0)


def test_experts_dispatch_and_combine() -> None:
    """Two layers of Mixtral, tokens of 4,096 elements in 16 bit to two experts each; the busiest rank sets the time."""
    one = step(model=model("mixtral-8x7b"), dp=4, ep=4)
    chunk = Chunk(0, 0, 0, 2, embeds=False, outputs=False)
    even = sent_bytes(c for c in chunk_calls(one, chunk, StepPlan()) if c.axis == "ep")
    assert even == pytest.approx(2 * 4 * 4096 * 2 * 4096 * 2 * 3 / 4)
    busy = replace(one, imbalance=1.5)
    assert sent_bytes(chunk_calls(busy, chunk, StepPlan())) == pytest.approx(1.5 * even)
    assert sent_bytes(chunk_calls(busy, chunk, StepPlan(capacity_factor=1.25))) == pytest.approx(1.25 * even)
