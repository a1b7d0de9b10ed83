"""The closed form of a step: numbers by hand, laws, and a single step against its columns."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import step

from commsim.errors import ScenarioError
from commsim.training.accelerator import accelerator
from commsim.training.columns import Columns
from commsim.training.compute import (
    SCORES_BACKWARD,
    Passes,
    attention_passes,
    gemm_passes,
    layer_passes,
    step_compute,
)
from commsim.training.model import model
from commsim.training.operators import Gemm, Layer, attended_span, attention_gemms, dense_layer, logits, moe_layer
from commsim.training.parameters import parameters, read_values, shipped_values, values_text
from commsim.training.precision import precision
from commsim.training.spec import Step
from commsim.training.stages import chunks_of
from commsim.training.step_time import optimizer_seconds, overlapped, recompute_seconds, ring_seconds, step_time
from commsim.training.work import compute_time, optimizer_time


def _step(**changes: Any) -> Step:
    return step(**({"global_batch_size": 16} | changes))


def _flops(g: Gemm) -> Any:
    """Forward FLOPs of products."""
    return 2.0 * g.m * g.n * g.k * g.groups


def _layer_flops(layer: Layer) -> Any:
    return sum(_flops(g) for g in layer.gemms) + layer.attention.flops


def _columns(*steps: Step, nic: float = 50e9) -> Columns:
    return Columns([replace(s, nic_bytes_per_s=nic) for s in steps])


def _total(step: Step, nic: float = 50e9) -> float:
    return float(step_time(replace(step, nic_bytes_per_s=nic), shipped_values()).total)


def test_flops_of_a_layer_are_twice_its_weights_and_the_scores() -> None:
    step = _step()
    c, m = _columns(step), step.model
    flops = float(_layer_flops(dense_layer(c))[0])
    weights = m.attention_parameters + m.mlp_parameters
    scores = 4 * 4096 * (4096 + 1) / 2 * m.q_width
    assert flops == pytest.approx(2 * 4096 * weights + scores, rel=1e-12)
    assert float(_flops(logits(c)[0])[0]) == 2 * 4096 * m.vocab * m.hidden


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "qwen3-30b-a3b"])
def test_flops_of_an_expert_layer_count_the_chosen_experts(name: str) -> None:
    step = _step(model=model(name), dp=8, ep=8)
    c, m = _columns(step), step.model
    assert m.moe is not None
    layer = moe_layer(c)
    per_token = m.attention_parameters + m.moe.top_k * m.expert_parameters + m.shared_expert_parameters
    products = sum(float(_flops(g)[0]) for g in layer.gemms) / (2 * 4096)
    latent_norms = m.mla.q_lora_rank + m.mla.kv_lora_rank if m.mla else 0
    assert products == pytest.approx(per_token + m.router_parameters - latent_norms, rel=1e-12)


@pytest.mark.parametrize("tp", [2, 4, 8])
def test_tensor_parallelism_divides_the_flops(tp: int) -> None:
    whole, cut = (dense_layer(_columns(_step(tp=t))) for t in (1, tp))
    assert float(_layer_flops(cut)[0]) * tp == pytest.approx(float(_layer_flops(whole)[0]))


def test_a_step_alone_is_a_row_of_the_columns() -> None:
    steps = [_step(), _step(tp=2, dp=2, recompute="full"), _step(model=model("mixtral-8x7b"), dp=8, ep=8)]
    together = step_time(_columns(*steps), shipped_values()).total
    assert together == pytest.approx([_total(s) for s in steps], rel=1e-12)


def test_one_gpu_is_the_sum_of_its_layers() -> None:
    step = _step()
    c, values = _columns(step), shipped_values()
    time, work = step_time(c, values), step_compute(c, values)
    layers = 32 * (work.dense.forward + work.dense.backward) + work.head.forward + work.head.backward
    for part in ("tp", "ep", "cp", "pp", "bubble", "dp"):
        assert getattr(time, part)[0] == 0
    assert time.total[0] == pytest.approx(float(16 * layers[0] + time.optimizer[0] + values["constant"]))


def test_chunks_of_the_simulation_add_up_to_the_closed_form() -> None:
    step = _step(tp=2, pp=4, recompute="full")
    compute = compute_time(step)
    passes = [compute(chunk) for chunk in chunks_of(step)]
    total = sum(p.forward + p.backward_input + p.backward_weight for p in passes)
    c, values = _columns(step), shipped_values()
    work = step_compute(c, values)
    layers = 32 * (2 * work.dense.forward + work.dense.backward) + work.head.forward + work.head.backward
    assert total == pytest.approx(float(layers[0]))
    assert optimizer_time(step) == [pytest.approx(float(step_time(c, values).optimizer[0]))] * 4


def test_bubble_is_the_papers() -> None:
    plain = step_time(_columns(_step(pp=4, global_batch_size=8)), shipped_values())
    chunks = step_time(_columns(_step(pp=4, global_batch_size=8, virtual_stages=2)), shipped_values())
    assert float(plain.bubble[0]) == pytest.approx(2 * float(chunks.bubble[0]))


CASES = st.fixed_dictionaries(
    {
        "tp": st.sampled_from([1, 2, 4, 8]),
        "pp": st.sampled_from([1, 2, 4]),
        "dp": st.sampled_from([1, 2, 4, 16]),
        "micro_batch_size": st.sampled_from([1, 2, 4]),
        "sequence_parallel": st.booleans(),
        "overlap_tp": st.booleans(),
        "zero_stage": st.sampled_from([0, 1, 3]),
        "flash_attention": st.booleans(),
        "global_batch_size": st.just(64),
    }
)


@settings(max_examples=40, deadline=None)
@given(CASES, st.sampled_from(["llama3-8b", "mixtral-8x7b"]))
def test_faster_hardware_is_never_slower(case: dict[str, Any], name: str) -> None:
    step = _step(**case, model=model(name))
    gpu = step.accelerator
    faster = replace(
        gpu,
        flop_per_s=tuple((t, None if r is None else 2 * r) for t, r in gpu.flop_per_s),
        memory_bytes_per_s=2 * gpu.memory_bytes_per_s,
        nvlink_bytes_per_s=2 * gpu.nvlink_bytes_per_s,
    )
    before = _total(step)
    assert _total(replace(step, accelerator=faster), nic=100e9) <= before
    assert _total(step, nic=100e9) <= before


@settings(max_examples=40, deadline=None)
@given(CASES)
def test_recomputation_costs_time_and_overlap_saves_some(case: dict[str, Any]) -> None:
    step = _step(**case)
    assert _total(replace(step, recompute="full")) > _total(step)
    assert _total(replace(step, recompute="selective")) >= _total(step)
    hidden = _total(replace(step, overlap_tp=True, overlap_dp=True, overlap_pp=True))
    exposed = _total(replace(step, overlap_tp=False, overlap_dp=False, overlap_pp=False))
    assert hidden <= exposed


def test_parameters_are_whole() -> None:
    for p in parameters():
        assert p.start > 0 < p.value
        assert p.spread >= 0
        assert len(p.source) > 10
        assert abs(np.log(p.value / p.start)) <= 3 * p.spread + 1e-12, p.name


@given(st.floats(0, 1e3), st.floats(0, 1e3), st.floats(0.01, 1), st.floats(1, 3))
def test_overlap_is_between_its_bounds(traffic: float, window: float, least: float, slowdown: float) -> None:
    """Never below the longer of compute and traffic; without slow-down never above their sum."""
    one = np.ones(1)
    added = overlapped(traffic * one, window * one, {"exposed_dp": least, "slowdown": slowdown})[0]
    assert window + added >= max(window, traffic) * (1 - 1e-12)
    plain = overlapped(traffic * one, window * one, {"exposed_dp": least, "slowdown": 1.0})[0]
    assert plain <= traffic * (1 + 1e-12)
    assert added >= plain - 1e-9


def test_a_machines_own_values_replace_the_shipped_ones(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text("# measured\ngemm.hopper: 0.72\nhost: 1.5e-5\n")
    values = read_values(path)
    assert (values["gemm.hopper"], values["host"]) == (0.72, 1.5e-5)
    assert values["nvlink"] == shipped_values()["nvlink"]
    path.write_text(values_text(values, "again"))
    assert dict(read_values(path)) == dict(values)


def test_a_wrong_file_of_values_names_every_fault(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text("gemm.hoper: 0.7\nhost: -1\nnic: fast\n")
    with pytest.raises(ScenarioError) as caught:
        read_values(path)
    text = str(caught.value)
    assert f"{path}:1:1 'gemm.hoper': found the unknown key 'gemm.hoper', did you mean 'gemm.hopper'?" in text
    assert ":2:7 host: found -1, expected a number above 0" in text
    assert ":3:6 nic: found 'fast'" in text
    path.write_text("- 1\n")
    with pytest.raises(ScenarioError, match="expected lines such as"):
        read_values(path)


@pytest.mark.parametrize(
    ("changes", "owned", "whole"),
    [
        ({}, 1, 1),
        ({"dp": 8, "zero_stage": 1}, 1 / 8, 1),
        ({"tp": 2, "dp": 4, "zero_stage": 1}, 1 / 8, 1 / 2),
        ({"frozen_weights": True}, 0, 0),
    ],
)
def test_the_update_by_hand(changes: dict[str, Any], owned: float, whole: float) -> None:
    """Adam moves 30 bytes per owned parameter through the memory (3.35 TB/s), the gradient's norm 8 per parameter."""
    one = _step(**{"pp": 2} | changes)
    values = dict(shipped_values()) | {"hbm": 0.5, "elementwise_eager": 3.0, "scale": 1.5}
    parameters = 16 * one.model.dense_layer_parameters + one.model.output_parameters  # of the last of two stages
    seconds = parameters * (30 * owned + 8 * whole) / (3.35e12 * 0.5)
    # The norms of the layers, some ten thousandth of the weights, are not counted.
    assert optimizer_seconds(_columns(one), values)[0] == pytest.approx(seconds, rel=1e-3)
    eager = _columns(replace(one, stack="eager"))
    assert optimizer_seconds(eager, values)[0] == pytest.approx(3.0 * seconds, rel=1e-3)
    assert step_time(eager, values).optimizer[0] == pytest.approx(1.5 * 3.0 * seconds, rel=1e-3)


def test_the_update_of_shards_by_hand() -> None:
    """Under ZeRO-3 a rank's norm, too, is of the eighth that it owns."""
    c = _columns(_step(dp=8, zero_stage=1), _step(dp=8, zero_stage=3))
    first, third = optimizer_seconds(c, shipped_values())
    assert third / first == pytest.approx((38 / 8) / (30 / 8 + 8))


def test_the_update_of_experts_by_hand() -> None:
    """Of 8 ranks that hold an eighth of the experts each, none shares its part: ZeRO cuts the dense weights alone."""
    one = _step(model=model("mixtral-8x7b"), pp=2, dp=8, ep=8, zero_stage=1)
    values = dict(shipped_values()) | {"hbm": 1.0}
    experts = 16 * one.model.expert_parameters  # one of eight in each of 16 layers
    dense = (
        16 * (one.model.unrouted_parameters + one.model.routed_parameters) - 8 * experts + one.model.output_parameters
    )
    seconds = (dense * (30 / 8 + 8) + experts * (30 + 8)) / 3.35e12
    assert optimizer_seconds(_columns(one), values)[0] == pytest.approx(seconds, rel=1e-3)


@pytest.mark.xfail(reason="open: the closed form takes vocabularies of one size for tied, and of two sizes for untied")
@pytest.mark.parametrize("name", ["llama3-8b", "gpt2-1558m"])
def test_the_update_of_one_stage_is_of_all_weights(name: str) -> None:
    one, values = _step(model=model(name), seq_len=1024), dict(shipped_values()) | {"hbm": 1.0}
    assert optimizer_seconds(one, values) == pytest.approx(one.model.parameters() * 38 / 3.35e12, rel=1e-3)


@pytest.mark.parametrize(
    ("name", "nbytes", "fp8", "fp4"),
    [("bf16", 2, 0, 0), ("fp16", 2, 0, 0), ("fp32", 4, 0, 0), ("fp8", 1, 1, 0), ("nvfp4", 1, 0, 1)],
)
def test_bytes_of_an_operand_of_a_product(name: str, nbytes: int, fp8: int, fp4: int) -> None:
    assert (precision(name).gemm_bytes, precision(name).fp8, precision(name).fp4) == (nbytes, fp8, fp4)


def test_kernels_of_a_layer_by_hand() -> None:
    plain, unfused, cut = _step(), _step(flash_attention=False), _step(tp=2)
    assert dense_layer(_columns(plain, unfused, cut)).kernels.tolist() == [16.0, 24.0, 20.0]


# -- the parts of a step by hand: one layer's messages over what carries them ---------------------------------

PLAIN = {
    "alpha": 0.0, "alpha_node": 0.0, "alpha_z": 0.0, "alpha_rank": 0.0, "nvlink": 0.5, "nic": 0.8, "scale": 1.0,
    "exposed_tp": 0.3, "exposed_ep": 0.5, "exposed_cp": 1.0, "exposed_pp": 0.25, "exposed_dp": 1.0, "slowdown": 1.0,
}  # fmt: skip
NVLINK, NIC = 0.5 * 450e9, 0.8 * 50e9
HIDDEN = 4096 * 4096 * 2  # bytes of a micro-batch of one sequence


def _part(name: str, **changes: Any) -> float:
    one = replace(_step(**changes), nic_bytes_per_s=50e9)
    return float(getattr(step_time(one, dict(shipped_values()) | PLAIN), name))


@pytest.mark.parametrize(
    ("changes", "all_reduces"),
    [
        ({}, 4),
        ({"sequence_parallel": True}, 5),
        ({"recompute": "full"}, 6),
        ({"recompute": "full", "sequence_parallel": True}, 7),
        ({"overlap_tp": True}, 4 * 0.3),
    ],
)
def test_tensor_parallel_seconds_by_hand(changes: dict[str, Any], all_reduces: float) -> None:
    each = 2 * 7 / 8 * HIDDEN / NVLINK
    assert _part("tp", tp=8, **changes) == pytest.approx(16 * 32 * all_reduces * each)


def test_tensor_parallel_over_two_nodes_is_as_fast_as_its_cards() -> None:
    assert _part("tp", tp=16) == pytest.approx(16 * 32 * 4 * 2 * 15 / 16 * HIDDEN / min(NVLINK, 8 * NIC))


@pytest.mark.parametrize(("ranks", "nodes"), [(8, 0), (16, 2), (64, 8)])
def test_a_ring_across_nodes_takes_a_latency_more_for_each_of_them(ranks: int, nodes: int) -> None:
    values = dict(shipped_values()) | {"alpha": 10.0, "alpha_node": 3.0}
    assert ring_seconds(0.0, ranks, 1.0, _step(), values) == 10.0 + 3.0 * nodes


def test_expert_parallel_seconds_by_hand() -> None:
    """Two of eight experts: four exchanges a layer, half of them in the open."""
    experts: dict[str, Any] = {"model": model("mixtral-8x7b"), "dp": 8, "ep": 8}
    assert _part("ep", **experts) == pytest.approx(2 * 32 * 4 * 0.5 * 7 / 8 * 2 * HIDDEN / NVLINK)
    gpu = replace(accelerator("H100"), nvlink_domain=4)
    # Of two nodes of four ranks half of the copies go to the other one.
    far, near = 1 / 2 * 2 * HIDDEN / NIC, 3 / 8 * 2 * HIDDEN / NVLINK
    halves = _part("ep", **experts, accelerator=gpu, gpus_per_node=4)
    assert halves == pytest.approx(2 * 32 * 4 * 0.5 * (near**8 + far**8) ** (1 / 8))


def test_context_parallel_seconds_by_hand() -> None:
    """Keys and values of 8 heads of 128 go round three times a layer; nothing hides where all is exposed."""
    kv = 4096 / 4 * 2 * 1024 * 2
    assert _part("cp", cp=4) == pytest.approx(16 * 32 * 3 * 3 * kv / NVLINK)


@pytest.mark.parametrize(("changes", "shown"), [({}, 0.25), ({"overlap_pp": False}, 1.0)])
def test_messages_between_stages_by_hand(changes: dict[str, Any], shown: float) -> None:
    """Slices of 1/8 over the cards, gathered on the other side over NVLink; forward and backward, two chunks each."""
    each = HIDDEN / 8 / NIC + 7 / 8 * HIDDEN / NVLINK
    cut = {"pp": 4, "tp": 8, "virtual_stages": 2, "schedule": "interleaved_1f1b"}
    assert _part("pp", **cut, **changes) == pytest.approx(2 * 2 * 16 * each * shown)
    inside = HIDDEN / NVLINK  # two stages in one node
    assert _part("pp", pp=2, **changes) == pytest.approx(2 * 16 * inside * shown)


@pytest.mark.parametrize(("zero", "gradients", "parameters"), [(0, 2, 0), (1, 1, 1), (3, 1, 2)])
def test_gradients_and_parameters_by_hand(zero: int, gradients: int, parameters: int) -> None:
    """Of two stages, in 16 bit over a node: an all_reduce; scattered and gathered; per micro-batch under ZeRO-3."""
    one = _step(pp=2, dp=8, zero_stage=zero)
    weights = 16 * one.model.dense_layer_parameters + one.model.output_parameters
    rounds = (gradients + parameters) * (one.num_microbatches if zero == 3 else 1)
    seconds = rounds * 7 / 8 * 2 * weights / NVLINK
    changes = {"pp": 2, "dp": 8, "zero_stage": zero}
    assert _part("dp", **changes, overlap_dp=False) == pytest.approx(seconds, rel=1e-3)  # norms are not counted
    assert _part("dp", **changes) == pytest.approx(seconds, rel=1e-3)  # of which all is in the open


def test_a_single_layer_of_experts_takes_as_long_as_each_of_many() -> None:
    many = _step(model=model("mixtral-8x7b"))
    assert many.model.moe is not None
    single = replace(many, model=replace(many.model, moe=replace(many.model.moe, dense_layers=31)))
    passes = [step_compute(one, shipped_values()).moe.forward for one in (single, many)]
    assert passes[0] == passes[1]


# -- operators by hand ---------------------------------


def _bytes(layer: Layer) -> dict[str, float]:
    return {name: float(nbytes) for name, nbytes in layer.elementwise.items()}


def test_bytes_of_element_wise_operators_by_hand() -> None:
    """Llama 3 8B: 4,096 tokens over tp 2, hidden 4,096, an MLP of 14,336 and queries, keys and values of 6,144."""
    t, h, f, qkv = 4096, 4096, 14336, 6144
    one = _step(tp=2)
    assert _bytes(dense_layer(one)) == pytest.approx(
        {"norms": t * h * 14, "activation": t * f / 2 * 6, "rotary": t * qkv / 2 * 5, "casts": 0}
    )
    assert float(logits(one)[1]) == t * 128256 / 2 * 24
    narrow = _step(tp=2, sequence_parallel=True, flash_attention=False, precision=precision("fp8"))
    cast = t * (qkv + h) / 2 + t * f / 2 * 2 + 2 * t * h
    there = _bytes(dense_layer(narrow))
    assert (there["norms"], there["casts"]) == pytest.approx((t * h * 22 / 2, 3 * cast))
    plain = replace(one.model, gated_mlp=False)
    assert _bytes(dense_layer(replace(one, model=plain)))["activation"] == pytest.approx(t * f / 2 * 4)


def test_an_expert_layer_by_hand() -> None:
    """Mixtral over ep 4 and sequence parallelism of 2, its experts whole: 2,048 tokens, two copies each."""
    one = _step(model=model("mixtral-8x7b"), tp=2, dp=4, ep=4, sequence_parallel=True, precision=precision("fp8"))
    layer, rows, h, f = moe_layer(one), 2048 * 2, 4096, 14336
    assert _bytes(layer) == pytest.approx(
        {
            "norms": 2048 * h * 14,
            "activation": rows * f * 6,
            "rotary": 4096 * 6144 / 2 * 5,
            "permute": rows * h * 2 * 8,
            "router": 2048 * 8 * 4 * 6,
            "casts": 3 * (4096 * (6144 + h) / 2 + rows * (f + h) + 4096 * h),
        }
    )
    products = {g.name: [g.m, g.n, g.k, g.groups] for g in layer.gemms}
    assert products["experts_up"] == [rows / 2, 2 * f, h, 2]  # of two local experts, gate and up
    assert products["experts_down"] == [rows / 2, h, f, 2]
    assert products["router"] == [2048, 8, h, 1]
    assert float(layer.kernels) == 16 + 4 + 30 + 4 * 2


def test_the_attention_core_by_hand() -> None:
    one = _step(tp=2)
    core, seq, heads = dense_layer(one).attention, 4096, 16
    assert float(core.flops) == 2 * seq * (seq + 1) / 2 * heads * (128 + 128)
    assert float(core.nbytes) == 2 * seq * (2 * 4096 + 2 * 1024) / 2
    assert float(core.scores) == seq * seq * heads
    unfused = replace(one, flash_attention=False)
    assert float(dense_layer(unfused).attention.flops) == 2 * seq * seq * heads * 256  # a batched product has no mask


@pytest.mark.parametrize("chunked", [False, True])
def test_the_span_of_windows_is_that_of_a_mask(chunked: bool) -> None:
    """24 of 32 layers with a window of 48 of 192 tokens: the mean row of every layer's mask."""
    some = replace(_step().model, window=48, window_layers=24, chunked=chunked)
    to, of = np.meshgrid(np.arange(192), np.arange(192))
    near = (of // 48 == to // 48) if chunked else of - to < 48
    causal = of >= to
    rows = (24 * (causal & near).sum(axis=1).mean() + 8 * causal.sum(axis=1).mean()) / 32
    assert float(attended_span(some, 192, True)) == pytest.approx(rows)
    assert float(attended_span(some, 40, True)) == pytest.approx(41 / 2)  # shorter than the window
    assert float(attended_span(some, 192, False)) == (24 * 48 + 8 * 192) / 32


def test_seconds_of_attention_by_hand() -> None:
    """Fused: 32 heads of 32 tiles, 1024 over 132 SMs, and half of the longest at the end; backward 2.5 times the FLOPs
    at 0.85 of the rate; unfused through memory."""
    one = _step()
    v = dict(shipped_values()) | {
        "attention.hopper": 0.5, "hbm": 0.5, "score_bytes": 10.0, "batched": 1.0,
        "gemm.hopper": 0.75, "attention_open.hopper": 0.5, "attention_start": 0.0,
    }  # fmt: skip
    core = dense_layer(one).attention
    forward, backward = attention_passes(core, one, v)
    key = 128 * 4 * 128 * 132 / (0.5 * 989e12)  # whatever of it is the softmax
    tiles, moved = key * (1024 / 132 * (2048.5 + 96) + 4096 / 2), float(core.nbytes) / (0.5 * 3.35e12)
    seconds = math.hypot(tiles, moved)
    assert (forward, backward) == pytest.approx((seconds, 2.5 / 0.85 * seconds), rel=2e-3)
    slower, _ = attention_passes(core, replace(one, attention_kernel="open"), v)
    assert slower == pytest.approx(math.hypot(2 * tiles, moved), rel=2e-3)
    plain = replace(one, flash_attention=False)
    core = dense_layer(plain).attention
    products = float(core.flops) / (0.75 * 989.4e12 * 128 / 192)
    scores = 10.0 * float(core.scores) / (3.35e12 * 0.5)
    expected = (products + scores, 2 * products + 1.3 * scores)
    assert attention_passes(core, plain, v) == pytest.approx(expected, rel=2e-3)


def test_a_layer_is_its_kernels_or_its_host_by_hand() -> None:
    """Nothing but launches: 16 kernels forward, 1.3 times as long backward; graphs make them cheap."""
    v = dict(shipped_values()) | {"host": 1.0, "host_graphs": 0.25, "host_compiled": 0.5}
    for changes, seconds in (({}, 16.0), ({"cuda_graphs": True}, 4.0), ({"stack": "compiled"}, 8.0)):
        one = _step(**changes)
        passes = layer_passes(dense_layer(one), one, v)
        assert (passes.forward, passes.backward) == pytest.approx((seconds, 1.3 * seconds))


def test_a_second_forward_by_hand() -> None:
    passes = Passes(forward=16.0, backward=0.0, weight=0.0, attention=4.0, gemm=8.0, memory=2.0)
    again = {r: recompute_seconds(passes, _step(recompute=r)) for r in ("none", "selective", "layerwise", "full")}
    assert again == pytest.approx({"none": 0.0, "selective": 0.0, "layerwise": 0.35 * 8 + 0.5 * 2, "full": 16.0})
    assert recompute_seconds(passes, _step(recompute="selective", flash_attention=False)) == 4.0
    shorter = replace(passes, last=3.0)
    for changes, seconds in (({}, 13.0), ({"frozen_weights": True}, 16.0), ({"recompute": "none"}, 0.0)):
        assert recompute_seconds(shorter, _step(**({"recompute": "full", "early_stop": True} | changes))) == seconds


def test_the_last_product_of_a_dense_layer_is_its_part_of_the_forward() -> None:
    v = dict(shipped_values()) | {"host": 0.0}
    one = _step()
    layer = dense_layer(one)
    (down,) = (gemm_passes(g, one, v)[0] for g in layer.gemms if g.name == "mlp_down")
    passes = layer_passes(layer, one, v)
    assert passes.last == pytest.approx(down)
    assert 0.1 < passes.last / passes.forward < 0.3


@pytest.mark.parametrize(("zero", "window"), [(0, 0.8), (3, 0.9)])
def test_what_does_not_fit_beside_compute_is_in_the_open(zero: int, window: float) -> None:
    slow = dict(shipped_values()) | PLAIN | {"exposed_dp": 0.0, "nvlink": 1e-3, "alpha_z": 1e-3, "alpha_rank": 1e-4}
    one = _step(dp=8, zero_stage=zero)
    alone, beside = (step_time(replace(one, overlap_dp=o), slow) for o in (False, True))
    micro, rounds = alone.compute / one.num_microbatches, one.num_microbatches if zero == 3 else 1
    assert beside.dp == pytest.approx(alone.dp - rounds * window * micro)
    launches = 3 * 32 * (1e-3 + 8 * 1e-4) * rounds if zero == 3 else 0.0  # of 32 layers
    without = step_time(replace(one, overlap_dp=False), slow | {"alpha_z": 0.0, "alpha_rank": 0.0}).dp
    assert alone.dp - without == pytest.approx(launches)


@pytest.mark.parametrize("q_rank", [0, 1536])
def test_products_of_latent_attention_are_its_weights(q_rank: int) -> None:
    """With a low rank for queries and, as in DeepSeek-V2-Lite, with a direct projection."""
    whole = model("deepseek-v2")
    assert whole.mla is not None
    one = _step(model=replace(whole, mla=replace(whole.mla, q_lora_rank=q_rank)))
    products = sum(float(_flops(g)) for g in attention_gemms(one)) / (2 * 4096)
    norms = q_rank + whole.mla.kv_lora_rank
    assert products == pytest.approx(one.model.attention_parameters - norms, rel=1e-12)
    shapes = {g.name: float(_flops(g)) for g in attention_gemms(one)}
    cut = {g.name: float(_flops(g)) for g in attention_gemms(replace(one, tp=4))}
    assert cut == pytest.approx(
        {n: f if n == "latent_down" else f / 4 for n, f in shapes.items()}
    )  # whole on each rank


@pytest.mark.parametrize(
    ("name", "changes", "more"),
    [
        ("ep", {"model": model("mixtral-8x7b"), "dp": 8, "ep": 8}, 3 / 2),
        ("cp", {"cp": 4, "context_parallel": "all_gather"}, 4 / 3),
        ("cp", {"cp": 4, "context_parallel": "ulysses"}, 3 / 2),
    ],
)
def test_full_recomputation_repeats_what_the_forward_exchanges(name: str, changes: dict[str, Any], more: float) -> None:
    assert _part(name, **changes, recompute="full") == pytest.approx(more * _part(name, **changes), rel=0.01)


@pytest.mark.parametrize(
    ("micro", "tp", "flash", "alone"),
    [(1, 8, False, True), (2, 8, False, False), (1, 4, False, False), (1, 8, True, False)],
)
def test_the_softmax_of_two_heads_is_torchs(micro: int, tp: int, flash: bool, alone: bool) -> None:
    """Megatron-LM fuses it for a multiple of four heads of a micro-batch: GPT-2 350M has 16 on all ranks. Torch's takes
    five kernels for one, and 33 bytes more per score."""
    shape: dict[str, Any] = {"model": model("gpt2-350m"), "seq_len": 1024, "flash_attention": flash}
    one = step(**shape, accelerator=accelerator("A100"), micro_batch_size=micro, tp=tp, global_batch_size=8)
    assert dense_layer(one).kernels == (16 if flash else 24) + 4 + 4 * alone
    core, values = dense_layer(one).attention, shipped_values()
    seconds, back = attention_passes(core, one, values)
    fused = replace(one, model=replace(one.model, heads=64, kv_heads=64))
    expected, expected_back = attention_passes(core, fused, values)
    moved = 33.0 * micro * 1024 * 1024 * 16 / tp / (one.accelerator.memory_bytes_per_s * values["hbm"]) * alone
    assert seconds == pytest.approx(expected + moved)
    assert back == pytest.approx(expected_back + SCORES_BACKWARD * moved)


def test_a_clamped_activation_costs_what_its_kernels_move_whatever_the_length() -> None:
    """GPT-OSS before graphs: 54 bytes per activated element and 8 per element of the output, and launches."""

    def one(seq_len: int, **more: Any) -> Step:
        return _step(model=model("gpt-oss-20b"), seq_len=seq_len, dp=8, ep=8, **more)

    for seq_len in (2048, 8192):
        fused, plain = (moe_layer(one(seq_len, cuda_graphs=graphs)) for graphs in (True, False))
        rows = seq_len * 4
        assert plain.elementwise["clamp"] == pytest.approx(rows * 2880 * (54 + 8))
        assert fused.elementwise["clamp"] == 0
        assert plain.kernels - fused.kernels == 12 + 2 * 4
        assert plain.attention.flops == fused.attention.flops
    assert moe_layer(one(2048, stack="eager")).elementwise["clamp"] == 0
