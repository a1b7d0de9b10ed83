"""Sizes and times of a training step by hand."""

from __future__ import annotations

import pytest
from steps import step

from commsim.training.activations import _attention, _every_second_product
from commsim.training.advice import finetune_advice
from commsim.training.finetune import FineTune
from commsim.training.model import model
from commsim.training.parameters import shipped_values
from commsim.training.precision import precision, with_gradients
from commsim.training.spec import Step
from commsim.training.step_run import message_bytes
from commsim.training.step_time import StepTime, step_time


def _time(one: Step) -> StepTime:
    return step_time(one, shipped_values())


def test_the_ranks_of_a_job_are_the_product_of_its_mesh() -> None:
    assert step(tp=8, pp=2, cp=4, dp=4).world_size == 256


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_message_holds_the_hidden_states_of_a_micro_batch(sequence_parallel: bool) -> None:
    """2 sequences of 4,096 tokens, halved by cp, 4,096 wide, 2 bytes each, a slice for each of tp."""
    one = step(micro_batch_size=2, tp=4, cp=2, pp=2, sequence_parallel=sequence_parallel)
    assert message_bytes(one) == 2 * 4096 / 2 * 4096 * 2 / 4


def test_zero_1_gathers_two_bytes_where_an_all_reduce_sends_gradients_of_four_again() -> None:
    """Reduce_scatter and all_gather: 4 + 4 bytes a parameter without ZeRO, 4 + 2 with it, but for the latency."""
    fields = {"dp": 8, "overlap_dp": False, "precision": with_gradients(precision("bf16"), 18)}
    plain, first = (_time(step(zero_stage=stage, **fields)).dp for stage in (0, 1))
    assert first / plain == pytest.approx(6 / 8, rel=0.01)


def test_a_stage_of_half_the_layers_exchanges_half_as_much_among_tp() -> None:
    whole, half = (_time(step(tp=2, pp=pp)).tp for pp in (1, 2))
    assert half == pytest.approx(whole / 2)


def test_tp_cuts_what_experts_exchange() -> None:
    fields = {"model": model("mixtral-8x7b"), "dp": 8, "ep": 8}
    whole, half = (_time(step(tp=tp, expert_tp=1, **fields)).ep for tp in (1, 2))
    assert 0.5 * whole <= half < 0.6 * whole


def test_latent_attention_keeps_low_rank_vectors_and_full_heads() -> None:
    """DeepSeek-V3 on one token of one rank: 2 x 1536, 2 x 512 and 64 latent; 128 heads of 2 x 192 and 2 x 128."""
    one = step(model=model("deepseek-v3"), seq_len=1, flash_attention=False)
    latent = 2 * 1536 + 2 * 512 + 64
    heads = 128 * (2 * 192 + 2 * 128)
    assert _attention(one, one.rank_tokens) == 2 * (latent + heads)


def test_layerwise_checkpoints_are_the_input_attentions_output_and_every_second_product() -> None:
    """Llama 3 8B on one token: twice 4,096; 4,096 and 32 statistics of 4 bytes; half of 4096 + 2 x 1024 + 2 x 14336."""
    one = step(seq_len=1)
    products = 4096 + 2 * 1024 + 14336 * 2
    assert _every_second_product(one) == 2 * 2 * 4096 + (2 * 4096 + 32 * 4) + 0.5 * 2 * products


@pytest.mark.parametrize(("dp", "advised"), [(1, False), (64, True)])
def test_one_replica_is_not_told_to_share_its_weights(dp: int, advised: bool) -> None:
    one = step(model=model("llama3-70b"), dp=dp, zero_stage=0, micro_batch_size=1)
    assert any("zero_stage: 3" in text for text in finetune_advice(one, FineTune(1e6))) is advised
