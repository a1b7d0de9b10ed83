"""Kernels of a step by hand, by bounds, and by their laws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.generation.batch import Batch
from commsim.generation.collectives import Collectives, preset_nccl
from commsim.generation.decode_attention import DecodeAttention, DecodeTerms, decode_attention_seconds
from commsim.generation.experts import busiest_rank, family, touched_experts
from commsim.generation.formats import FORMATS, format_of, formats, peak_of
from commsim.generation.grouped import Grouped, GroupedTerms, grouped_seconds
from commsim.generation.parameters import generation_parameters
from commsim.generation.products import Product, product_time
from commsim.generation.replica import Engine, Replica
from commsim.generation.step import StepModel
from commsim.generation.terms import FAMILIES, Kernels, kernels
from commsim.training.accelerator import accelerator
from commsim.training.kernels import Throughput
from commsim.training.model import model

GPU = Throughput(1e15, 3e12, 128)
TERMS = DecodeTerms(start=1e-6, sm=2.0, split_keys=256, combine=1e-6)


def attention(pairs: float = 64, keys: float = 4096, queries: float = 8) -> DecodeAttention:
    return DecodeAttention(pairs, queries, keys, widths=256, key_bytes=512)


@settings(max_examples=50)
@given(st.integers(1, 4096), st.integers(1, 100_000), st.sampled_from([1, 4, 8, 16, 128]))
def test_attention_over_a_cache_is_no_faster_than_its_bytes(pairs: int, keys: int, queries: int) -> None:
    a = attention(pairs, keys, queries)
    seconds = float(decode_attention_seconds(a, GPU, TERMS))
    assert seconds >= float(a.nbytes) / GPU.bytes_per_s
    assert seconds >= float(a.pairs * a.keys * a.key_flops) / GPU.flop_per_s / 1.001


@settings(max_examples=50)
@given(st.integers(1, 4096), st.integers(1, 100_000))
def test_a_longer_cache_takes_longer(pairs: int, keys: int) -> None:
    short, long = (float(decode_attention_seconds(attention(pairs, k), GPU, TERMS)) for k in (keys, 2 * keys))
    assert long > short


def test_one_sequence_is_cut_among_the_sms() -> None:
    whole = float(decode_attention_seconds(attention(1, 65536), GPU, DecodeTerms(1e-6, 2.0, 10**9, 1e-6)))
    cut = float(decode_attention_seconds(attention(1, 65536), GPU, TERMS))
    assert whole > 20 * cut


def test_attention_takes_arrays_as_it_takes_numbers() -> None:
    pairs = np.array([1.0, 64.0, 4096.0])
    many = decode_attention_seconds(DecodeAttention(pairs, 8, 4096, 256, 512), GPU, TERMS)
    assert many == pytest.approx([float(decode_attention_seconds(attention(p), GPU, TERMS)) for p in pairs])


@settings(max_examples=50)
@given(st.floats(0.0, 3.0), st.integers(1, 4096))
def test_no_more_experts_are_met_than_there_are_and_than_tokens_go_to(spread: float, tokens: int) -> None:
    touched = touched_experts(32, 256, 8, tokens, spread)
    assert 0 < touched <= 32
    assert touched <= tokens * 8 / 8 + 1e-9
    assert touched <= touched_experts(32, 256, 8, tokens, 0.0) + 1e-9


def test_ranks_of_experts_are_not_equally_loaded() -> None:
    assert busiest_rank(32, 8, 0.0) == 1.0
    assert busiest_rank(256, 1, 1.0) == 1.0
    assert 1.0 < busiest_rank(64, 4, 0.5) < busiest_rank(4, 64, 0.5)


@settings(max_examples=30)
@given(st.integers(1, 8192), st.integers(1, 256))
def test_grouped_products_are_no_faster_than_their_bytes_and_flops(rows: int, groups: int) -> None:
    g = Grouped(rows, min(groups, rows), 1024.0, 4096.0, nbytes=groups * 1024.0 * 4096.0)
    seconds = float(grouped_seconds(g, GPU, GroupedTerms(side=40.0, overhead=0.0, tail=0.0)))
    assert seconds >= g.nbytes / GPU.bytes_per_s
    assert seconds >= 2.0 * rows * 1024.0 * 4096.0 / GPU.flop_per_s


@pytest.mark.parametrize(
    ("framework", "gpu", "kind", "attention_dp", "whose"),
    [
        ("vllm", "B200", "fp8_block", False, "trtllm"),
        ("vllm", "H100", "fp8_block", False, "triton"),
        ("vllm", "H100", "fp8", False, "cutlass"),
        ("vllm", "A100", "int4", False, "marlin"),
        ("tensorrt_llm", "H200", "fp8_block", False, "cutlass"),
        ("tensorrt_llm", "B200", "fp8_block", True, "deepgemm"),
        ("tensorrt_llm", "B200", "bf16", False, "cutlass"),
    ],
)
def test_whose_experts(framework: str, gpu: str, kind: str, attention_dp: bool, whose: str) -> None:
    assert family(framework, accelerator(gpu).generation, format_of(kind), attention_dp=attention_dp) == whose


def test_a_product_of_one_row_is_the_traffic_of_its_weight() -> None:
    gpu = accelerator("H100")
    made = product_time(Product("up", 1.0, 28672.0, 8192.0, FORMATS["bf16"]), gpu, kernels(), "vllm")
    least = 28672 * 8192 * 2.0 / gpu.memory_bytes_per_s
    assert least < made.work < 1.4 * least
    assert 0 < made.launch < 1e-5


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("operator", FAMILIES)
def test_every_format_has_kernels_or_others_that_stand_for_them(operator: str, kind: str) -> None:
    terms = kernels().of(operator, FAMILIES[operator][0], FORMATS[kind].kernel)
    assert terms["launch"] > 0


def test_the_nearest_kernels_stand_for_unmeasured_ones() -> None:
    some = Kernels({"experts.triton.fp8_block": {"launch": 1.0}, "experts.trtllm.bf16": {"launch": 2.0}})
    assert some.of("experts", "marlin", "fp8")["launch"] == 1.0
    assert some.of("experts", "trtllm", "int4")["launch"] == 2.0


def test_a_gpu_without_a_narrow_type_multiplies_in_a_wider_one() -> None:
    assert peak_of(accelerator("A100"), format_of("fp8")) == accelerator("A100").half_peak
    assert peak_of(accelerator("H100"), format_of("nvfp4")) == accelerator("H100").peak("fp8")
    assert formats("fp8").cache_bytes == 2.0


@pytest.mark.parametrize("gpu", ["V100", "A100", "H100", "B200"])
@pytest.mark.parametrize("kind", ["fp8", "fp8_block", "nvfp4", "mxfp4"])
def test_without_units_for_a_type_only_weights_are_narrow(gpu: str, kind: str) -> None:
    one = accelerator(gpu)
    has = one.supports(format_of(kind).product)
    narrow, wide = (StepModel(Replica(model("llama-3-8b"), one, formats=formats(name))) for name in (kind, "bf16"))
    run = narrow.replica.formats.weights
    assert (run == format_of(kind)) is has
    assert (f"{one.name} has no units for {kind}" in narrow.replica.wide_products) is not has
    assert wide.replica.wide_products == ""
    if not has:
        reads, answers = Batch(0, 0.0, 2048, 1), Batch(8, 1024.0)
        assert narrow.seconds(reads).total_s == pytest.approx(wide.seconds(reads).total_s, rel=0.1)
        assert narrow.seconds(answers).total_s < wide.seconds(answers).total_s


@pytest.mark.parametrize("gpu", ["A100", "H100", "B200", "GB200", "L40S"])
@pytest.mark.parametrize("framework", ["vllm", "sglang", "tensorrt_llm", "hf"])
def test_all_reduces_grow_with_their_size_on_any_gpu(gpu: str, framework: str) -> None:
    one = accelerator(gpu)
    c = Collectives(one, Engine(framework), preset_nccl(one.name))  # type: ignore[arg-type]
    times = [c.all_reduce(4, nbytes) for nbytes in (1e3, 1e5, 1e7, 1e8)]
    assert times == sorted(times)
    assert 1e-6 < times[0] < 1e-4
    assert c.all_reduce(1, 1e6) == c.all_gather(1, 1e6) == c.reduce_scatter(4, 0.0) == 0.0


def test_parameters_have_sources_and_frameworks_the_same_ones() -> None:
    parameters = generation_parameters()
    assert all(len(p.source) > 30 and p.value > 0 for p in parameters)
    of = {name: {p.name.rsplit(".", 1)[0] for p in parameters if p.name.endswith(name)} for name in ("vllm", "sglang")}
    assert of["vllm"] == of["sglang"] == {f"host.{part}" for part in ("step", "sequence", "request", "kernel", "first")}
