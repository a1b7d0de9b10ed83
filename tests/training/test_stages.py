"""Layers on stages: splits, and weights that add up to the model's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from steps import stage_weights

from commsim.errors import ScenarioError
from commsim.training.accelerator import accelerator
from commsim.training.model import model
from commsim.training.precision import precision
from commsim.training.spec import Step
from commsim.training.stages import chunks_of, split_layers, telling_stages


def step(name: str, **changes: Any) -> Step:
    fields: dict[str, Any] = {
        "model": model(name),
        "accelerator": accelerator("H100"),
        "precision": precision("bf16"),
        "seq_len": 2048,
        "micro_batch_size": 1,
        "global_batch_size": 64,
    }
    return Step(**(fields | changes))


@given(layers=st.integers(1, 200), chunks=st.integers(1, 32))
def test_splits_hold_all_layers_evenly(layers: int, chunks: int) -> None:
    counts = split_layers(layers, chunks)
    assert sum(counts) == layers
    assert max(counts) - min(counts) <= 1


def test_llama_405b_gives_the_ends_a_layer_less() -> None:
    counts = split_layers(126, 16)
    assert counts == [7, *[8] * 14, 7]


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-70b", "mixtral-8x7b", "gpt2-1558m"])
@pytest.mark.parametrize("pp", [1, 4])
def test_weights_of_all_stages_are_the_models(name: str, pp: int) -> None:
    one = step(name, pp=pp)
    copied = one.model.vocab * one.model.hidden if one.model.tied_embeddings and pp > 1 else 0
    total = sum(w.total for w in stage_weights(one))
    assert total == pytest.approx(one.model.parameters() + copied, rel=1e-9)


def test_tp_and_ep_cut_what_they_should() -> None:
    whole, cut = step("mixtral-8x7b"), step("mixtral-8x7b", tp=2, dp=4, ep=4, expert_tp=2)
    assert stage_weights(cut)[0].expert == pytest.approx(stage_weights(whole)[0].expert / 8)
    assert stage_weights(cut)[0].dense == pytest.approx(stage_weights(whole)[0].dense / 2, rel=1e-2)


def test_layers_that_do_not_add_up_are_refused() -> None:
    with pytest.raises(ScenarioError, match="7\\+8 = 15 layers on 2 stages, expected 96 layers"):
        chunks_of(step("gpt3-175b", pp=2), [7, 8])


@given(layers=st.integers(1, 130), pp=st.sampled_from([1, 2, 3, 4, 8, 16]), v=st.sampled_from([1, 2, 5]))
def test_no_stage_has_more_layers_than_the_telling_ones(layers: int, pp: int, v: int) -> None:
    assume(pp * v <= layers + 2)
    one = step("llama3-8b", model=replace(model("llama3-8b"), layers=layers), pp=pp, virtual_stages=v if pp > 1 else 1)
    chunks = chunks_of(one)
    most = max(sum(c.layers for c in chunks if c.stage == s) for s in range(pp))
    told = telling_stages(one)
    assert max(float(share.layers) for _, share in told) == most
    for stage, share in told:
        assert share.layers == sum(c.layers for c in chunks if c.stage == stage)
        assert (bool(share.embeds), bool(share.outputs)) == (stage == 0, stage == pp - 1)


@pytest.mark.parametrize("pp", [8, 16, 32])
def test_the_telling_stages_have_the_most_layers_of_experts(pp: int) -> None:
    """DeepSeek-V3 begins with three dense layers: the second of 32 stages has two of them."""
    one = step("deepseek-v3", pp=pp)
    chunks = chunks_of(one)
    most = max(sum(c.moe_layers(one.model) for c in chunks if c.stage == s) for s in range(pp))
    assert max(float(share.moe) for _, share in telling_stages(one)) == most
