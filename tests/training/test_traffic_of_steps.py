"""Bytes of a step: the closed forms of data parallelism, the papers' ratios, activations by axis."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.training import traffic
from commsim.training.traffic import sent_bytes

sizes = st.floats(1e3, 1e12)


@given(p=sizes, g=sizes, n=st.integers(2, 4096), m=st.integers(1, 64))
def test_data_parallel_closed_forms(p: float, g: float, n: int, m: int) -> None:
    """Issue F, item 3: in units of (N-1)/N."""
    unit = (n - 1) / n
    expected = {
        ("ddp", True): 2 * g,
        ("ddp", False): 2 * m * g,
        ("zero1", True): g + p,
        ("zero1_all_reduce", True): 2 * g + p,
        ("zero2", True): m * g + p,
        ("zero3", True): m * (2 * p + g),
    }
    for (scheme, no_sync), value in expected.items():
        calls = traffic.data_parallel(scheme, p, g, n, m, no_sync=no_sync)  # type: ignore[arg-type]
        assert sent_bytes(calls) == pytest.approx(unit * value)
    kept = traffic.data_parallel("zero3", p, g, n, m, keep_gathered=True)
    whole = traffic.data_parallel("zero3", p, g, n, m)
    assert sent_bytes(whole) - sent_bytes(kept) == pytest.approx(m * p * unit)


@given(phi=sizes, n=st.integers(2, 1024))
def test_zero3_moves_one_and_a_half_times_ddp(phi: float, n: int) -> None:
    ratio = sent_bytes(traffic.data_parallel("zero3", phi, phi, n)) / sent_bytes(
        traffic.data_parallel("ddp", phi, phi, n)
    )
    assert ratio == pytest.approx(1.5)


@given(p=sizes, g=sizes, shard=st.integers(1, 16), replicas=st.integers(1, 16), m=st.integers(1, 8))
def test_hybrid_shard_is_zero3_inside_and_ddp_outside(p: float, g: float, shard: int, replicas: int, m: int) -> None:
    calls = traffic.hybrid_shard(p, g, shard, replicas, m)
    inside = m * (2 * p + g) * (shard - 1) / shard
    assert sent_bytes(calls, "dp_shard") == pytest.approx(inside)
    assert sent_bytes(calls, "dp_replicate") == pytest.approx(2 * g / shard * (replicas - 1) / replicas)


def test_one_parameter_server_carries_everything() -> None:
    received, sent = traffic.server_bytes(10.0, 20.0, workers=64)
    assert (received, sent) == (1280.0, 640.0)
    assert sent_bytes(traffic.data_parallel("parameter_server", 10.0, 20.0, 64)) == 30.0


@given(total=st.floats(1, 1e4), cap=st.floats(1, 100), first=st.floats(0.1, 10))
def test_buckets_hold_all_gradients(total: float, cap: float, first: float) -> None:
    sizes = traffic.buckets(total, cap, first)
    assert sum(sizes) == pytest.approx(total)
    assert sizes[0] <= first
    assert all(size <= cap for size in sizes[1:])


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
        sent_bytes(traffic.tensor_parallel(layers, nbytes, tp, m, sequence_parallel=sp, recompute=False))
        for sp in (False, True)
    )
    unit = layers * m * nbytes * (tp - 1) / tp
    assert plain == pytest.approx(8 * unit)
    assert sequence == pytest.approx(10 * unit)


@given(layers=st.integers(1, 10), q=sizes, kv=sizes, cp=st.integers(2, 16), m=st.integers(1, 8))
def test_context_parallel_closed_forms(layers: int, q: float, kv: float, cp: int, m: int) -> None:
    one = layers * m
    ring = sent_bytes(traffic.context_parallel("ring", layers, q, kv, cp, m))
    gather = sent_bytes(traffic.context_parallel("all_gather", layers, q, kv, cp, m))
    ulysses = sent_bytes(traffic.context_parallel("ulysses", layers, q, kv, cp, m))
    assert ring == pytest.approx(3 * one * (cp - 1) * kv)
    assert gather == pytest.approx(ring)  # the same bytes, in fewer calls
    assert ulysses == pytest.approx(2 * one * (2 * q + kv) * (cp - 1) / cp)


def test_experts_dispatch_and_combine() -> None:
    calls = traffic.expert_parallel(2, 100.0, 8.0, top_k=2, ep=4, etp=1, micro_batches=3)
    assert sent_bytes(calls, "ep") == pytest.approx(2 * 3 * 4 * 100 * 2 * 8 * 3 / 4)
    busy = traffic.expert_parallel(2, 100.0, 8.0, 2, 4, 1, 3, imbalance=1.5, capacity_factor=1.25)
    assert sent_bytes(busy) == pytest.approx(1.25 * sent_bytes(calls))


@given(pp=st.integers(2, 8), v=st.integers(1, 4), m=st.integers(1, 16))
def test_interleaving_multiplies_what_stages_send(pp: int, v: int, m: int) -> None:
    total = sum(sent_bytes(traffic.pipeline_parallel(1.0, s, pp, v, m)) for s in range(pp))
    assert total == 2 * m * (pp * v - 1)
