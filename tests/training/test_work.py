"""The passes of a chunk: what they compute and exchange, by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from steps import step

from commsim.training import traffic
from commsim.training.activations import layer_kept
from commsim.training.compute import elementwise_seconds
from commsim.training.finetune import FineTune, beside_base
from commsim.training.model import model
from commsim.training.parameters import shipped_values
from commsim.training.spec import StepPlan
from commsim.training.stages import Chunk, chunk_weights, chunks_of
from commsim.training.step_run import mesh_of
from commsim.training.work import ChunkSeconds, chunk_calls, chunk_work


def seconds(chunk: Chunk) -> ChunkSeconds:
    """Of any chunk."""
    return ChunkSeconds(1.0, 1.5, 0.5)


def test_ranks_of_an_expert_gather_its_tokens_and_sum() -> None:
    """Blocks of 100 B of four ranks: an all_gather and a reduce_scatter of 400 B forward, the same backward."""
    for recompute, back in ((False, 2.0), (True, 4.0)):
        calls = traffic.expert_parallel(2, 100.0, 1, 4, recompute=recompute)
        assert sorted((c.phase, c.collective, c.nbytes, c.ranks, c.count) for c in calls) == [
            ("backward", "all_gather", 400.0, 4, back),
            ("backward", "reduce_scatter", 400.0, 4, back),
            ("forward", "all_gather", 400.0, 4, 2.0),
            ("forward", "reduce_scatter", 400.0, 4, 2.0),
        ]


def test_what_ends_early_does_not_repeat_the_last_exchange() -> None:
    """Of two sums forward and backward the first is repeated; of dispatch and combine the first."""
    for early, sums, exchanges in ((False, 8.0, 8.0), (True, 6.0, 6.0)):
        tp = traffic.tensor_parallel(2, 100.0, 4, sequence_parallel=False, recompute=True, early=early)
        ep = traffic.expert_parallel(2, 100.0, 4, 1, recompute=True, early=early)
        assert [c.count for c in (*tp, *ep) if c.phase == "backward"] == [sums, exchanges]


@pytest.mark.parametrize("hidden", [False, True])
def test_zero_3_gathers_twice_and_scatters_once(hidden: bool) -> None:
    """At 1 B/s a gather takes the bytes of the weights; the backward gathers them again and scatters the gradients."""
    one = step(dp=8, zero_stage=3, overlap_dp=hidden)
    (chunk,) = chunks_of(one)
    work = chunk_work(one, mesh_of(one), chunk, seconds(chunk), lambda name, nbytes, ranks: nbytes, StepPlan())
    weights = chunk_weights(one, chunk)
    gather = (weights.dense + weights.expert) * one.precision.weight_bytes
    scatter = (weights.dense + weights.expert) * one.precision.gradient_bytes
    (forward,) = [e for e in work.F.exchanges if e.axis == "dp"]
    (backward,) = [e for e in work.I.exchanges if e.axis == "dp"]
    assert forward.seconds == pytest.approx(gather)
    assert backward.seconds == pytest.approx(gather + scatter)
    assert (forward.window, backward.window) == pytest.approx((0.9, 1.8) if hidden else (0.0, 0.0))


def test_a_method_beside_a_base_moves_its_bytes_once_forward_and_twice_backward() -> None:
    """1 GB/s, 10 B a token and 4,096 tokens; NF4's weights are read in half a byte and written in two, thrice."""
    one = step()
    (chunk,) = chunks_of(one)
    tune = FineTune(1e6, moved_bytes=10.0)
    values = {**shipped_values(), "hbm": 1e9 / one.accelerator.memory_bytes_per_s}
    plain = beside_base(seconds, one, tune, values)(chunk)
    moved = 4096 * 10.0 / 1e9
    assert (plain.forward, plain.backward_input) == pytest.approx((1.0 + moved, 1.5 + 2 * moved))
    again = beside_base(seconds, replace(one, recompute="full"), tune, values)(chunk)
    assert (again.forward, again.backward_input) == pytest.approx((1.0 + moved, 1.5 + 3 * moved))
    packed = beside_base(seconds, one, replace(tune, base_bytes=0.5), values)(chunk)
    m = one.model
    unpacked = (m.parameters() - 2 * m.vocab * m.hidden - m.hidden) * 2.5 / 1e9
    assert packed.forward == pytest.approx(1.0 + moved + unpacked, rel=1e-3)
    assert packed.backward_input - packed.forward == pytest.approx(0.5 + moved)


def test_activations_of_experts_by_hand() -> None:
    """Mixtral: two experts a token; every copy's input stays, and what its MLP makes until its last product."""
    one = step(model=model("mixtral-8x7b"), dp=8, ep=8, imbalance=1.5)
    rows, width, ffn = 4096 * 2 * 1.5, 4096, 14336
    router, experts = 4096 * 8 * 8, rows * (width + 3 * ffn) * 2
    dense = replace(one, model=model("llama3-8b"), ep=1)  # the same attention, and an MLP of the same width
    mlp = 4096 * 3 * ffn * 2
    beside = layer_kept(dense, 0, dropout=False).nbytes - mlp
    assert layer_kept(one, 0, dropout=False).nbytes == pytest.approx(beside + router + experts)


@pytest.mark.parametrize(("stack", "factor"), [("eager", 3.0), ("compiled", 0.5), ("tuned", 1.0)])
def test_elementwise_kernels_move_their_bytes(stack: str, factor: float) -> None:
    values = dict(shipped_values()) | {
        "elementwise": 2.0, "elementwise_eager": 3.0, "elementwise_compiled": 0.5, "hbm": 0.8,
    }  # fmt: skip
    one = step(stack=stack)
    taken = elementwise_seconds(1e9, one, values)
    assert float(taken) == pytest.approx(2e9 * factor / (0.8 * one.accelerator.memory_bytes_per_s))


def test_what_eager_torch_keeps_of_a_layer_by_hand() -> None:
    """Llama 3 8B: h 4096, queries 4096, keys and values 1024 each, 32 heads, f 14336, a gated MLP and RMS norms."""
    one = step(stack="eager", frozen_weights=True)
    norms, attention = 2 * 6 * 4096, 2 * (4096 + 2048) + 2 * (4096 + 1024) + 2 * 4096 + 4 * 32
    frozen = norms + attention + 3 * 2 * 14336
    assert layer_kept(one, 0, dropout=False).nbytes == 4096 * frozen
    read = 2 * 2 * 4096 + 2 * 4096 + 2 * 14336  # by queries, keys and values; up and gate; the output; down
    trained = replace(one, frozen_weights=False)
    assert layer_kept(trained, 0, dropout=False).nbytes == 4096 * (frozen + read)
    assert layer_kept(one, 0, dropout=False, reads=True).nbytes == 4096 * (frozen + read)
    fused = 2 * 2 * 4096 + 2 * (4096 + 2048) + 2 * 4096 + 4 * 32 + 2 * 2 * 14336
    assert layer_kept(replace(one, stack="tuned"), 0, dropout=False).nbytes == 4096 * fused


@pytest.mark.parametrize(("context", "widths"), [("ring", 2 * 1024), ("ulysses", 2 * 4096 + 2 * 1024)])
def test_context_parallelism_moves_the_heads_of_a_rank(context: Literal["ring", "ulysses"], widths: int) -> None:
    """Llama 3 8B: 1,024 tokens of four ranks, half of the heads, in 16 bit; queries are 4,096 wide, keys 1,024."""
    one = step(cp=4, tp=2, context_parallel=context)
    (chunk,) = chunks_of(one)
    calls = [call for call in chunk_calls(one, chunk, StepPlan()) if call.axis == "cp"]
    assert {call.nbytes for call in calls} == {1024 * widths / 2 * 2}
