"""Tasks and utilisation: FLOPs by hand, generation at the roofline, days and money."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import InfeasibleError
from commsim.training import tasks
from commsim.training.accelerator import accelerator
from commsim.training.model import model
from commsim.training.precision import precision
from commsim.training.spec import Step
from commsim.training.tasks import Learner, Rollout, cache_bytes_per_token, generation_seconds
from commsim.training.utilisation import attention_flops, forward_flops, hardware_flops, model_flops, peak_flop_per_s


def step(**changes: Any) -> Step:
    fields: dict[str, Any] = {
        "model": model("gpt3-175b"),
        "accelerator": accelerator("A100"),
        "precision": precision("fp16"),
        "seq_len": 2048,
        "micro_batch_size": 1,
        "global_batch_size": 1536,
        "flash_attention": False,
    }
    return Step(**(fields | changes))


def test_narayanans_formula() -> None:
    """arXiv:2104.04473, equation 3: 96 B s l h^2 (1 + s/6h + V/16lh) counts the recomputed forward as well."""
    one = step(recompute="full")
    b, s, layers, h, v = 1536, 2048, 96, 12288, one.model.vocab
    paper = 96 * b * s * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h))
    assert hardware_flops(one) == pytest.approx(paper, rel=2e-3)  # the paper leaves out biases
    assert model_flops(one) / paper == pytest.approx(3 / 4, rel=2e-2)


def test_causal_attention_counts_half_of_the_scores() -> None:
    whole, half = (forward_flops(model("llama3-8b"), 8192, causal) for causal in (False, True))
    assert whole - half == pytest.approx(32 * 2 * 8192 * 4096)


def test_experts_count_as_far_as_tokens_meet_them() -> None:
    mixtral = model("mixtral-8x7b")
    assert forward_flops(mixtral, 1) == pytest.approx(2 * mixtral.active_parameters(), rel=0.02)


def test_peaks_are_of_all_gpus() -> None:
    assert peak_flop_per_s(step(tp=8, pp=8, dp=4)) == 256 * 312e12


def test_frozen_weights_need_two_passes() -> None:
    assert model_flops(step(frozen_weights=True)) / model_flops(step()) == pytest.approx(2 / 3)


@given(tokens=st.floats(1e9, 1e13), seconds=st.floats(0.1, 100), gpus=st.integers(1, 20000))
def test_supervised_tasks_add_up(tokens: float, seconds: float, gpus: int) -> None:
    cost = tasks.supervised("pretrain", tokens, 4e6, seconds, gpus)
    assert cost.days == pytest.approx(tokens / 4e6 * seconds / 86400)
    assert cost.usd(2.0) == pytest.approx(2.0 * gpus * cost.days * 24)


def test_cache_by_hand() -> None:
    assert cache_bytes_per_token(model("llama3-8b")) == 32 * 2 * 1024 * 2
    assert cache_bytes_per_token(model("deepseek-v3")) == 61 * (512 + 64) * 2


def test_one_sequence_reads_the_weights_for_every_token() -> None:
    gpu, llama = accelerator("H100"), model("llama3-8b")
    rollout = Rollout(sequences=1, prompt=1, answer=100, memory_reach=1.0)
    cache = (1 + 50) * cache_bytes_per_token(llama)
    each = (llama.parameters() * 2 + cache) / 3.35e12
    assert generation_seconds(llama, gpu, rollout, 1) == pytest.approx(100 * each, rel=1e-3)


@given(sequences=st.integers(1, 512), answer=st.integers(1, 2048))
def test_more_gpus_never_take_longer(sequences: int, answer: int) -> None:
    gpu, opt = accelerator("A100"), model("opt-13b")
    rollout = Rollout(sequences, 256, answer)
    few, many = (generation_seconds(opt, gpu, rollout, gpus) for gpus in (4, 8))
    assert many <= few * (1 + 1e-9)


@pytest.mark.parametrize(("name", "gpus", "gibibytes"), [("opt-66b", 1, "72.0"), ("gpt3-175b", 4, "288.0")])
def test_generation_that_does_not_fit_says_so(name: str, gpus: int, gibibytes: str) -> None:
    """Nine tenths of the 80 GiB that an A100's driver reports."""
    rollout = Rollout(8, 256, 256, gpus_per_replica=gpus)
    with pytest.raises(InfeasibleError, match=rf"found {re.escape(gibibytes)} GiB; use more GPUs per replica"):
        generation_seconds(model(name), accelerator("A100"), rollout, 8)


def test_rlhf_and_verifiable_rewards() -> None:
    gpu, actor, critic = accelerator("A100"), model("opt-6.7b"), model("opt-350m")
    rollout = Rollout(1024, 256, 256)
    ppo = tasks.ppo(100, Learner(actor, 40.0), Learner(critic, 2.0), gpu, 8, rollout)
    assert [p.name for p in ppo.phases] == ["generation", "scoring", "actor update", "critic update"]
    assert ppo.phases[2].seconds == 40.0
    assert sum(tasks.share(ppo.phases).values()) == pytest.approx(1.0)
    grpo = tasks.verifiable_rewards(100, Learner(actor, 20.0), gpu, 8, rollout)
    assert ppo.seconds - grpo.seconds > 0
    assert grpo.tokens == 100 * 1024 * 512


def test_scoring_by_hand() -> None:
    """A forward over a million tokens on four A100 that reach half of 312 TFLOP/s."""
    llama = model("llama3-8b")
    flops = 1e6 * (2 * (llama.parameters() - llama.vocab * llama.hidden) + 32 * 4 * 1024 * 4096 / 2)
    seconds = tasks.scoring_seconds(llama, accelerator("A100"), 1e6, 4, reach=0.5)
    assert seconds == pytest.approx(flops / (4 * 312e12 * 0.5), rel=2e-3)
    assert tasks.scoring_seconds(llama, accelerator("V100"), 1e6, 1, 1.0) == pytest.approx(flops / 125e12, rel=2e-3)


@given(tokens=st.floats(1, 1e9), gpus=st.integers(1, 4096), reach=st.floats(0.1, 1.0))
def test_scoring_takes_twice_as_long_for_twice_the_tokens_or_half_the_gpus(
    tokens: float, gpus: int, reach: float
) -> None:
    llama, gpu = model("llama3-8b"), accelerator("H100")
    once = tasks.scoring_seconds(llama, gpu, tokens, gpus, reach)
    assert tasks.scoring_seconds(llama, gpu, 2 * tokens, gpus, reach) == pytest.approx(2 * once)
    assert tasks.scoring_seconds(llama, gpu, tokens, 2 * gpus, reach) == pytest.approx(once / 2)
    assert tasks.scoring_seconds(llama, gpu, tokens, gpus, reach / 2) == pytest.approx(2 * once)


def test_what_is_computed_again_by_hand() -> None:
    """Full recomputation repeats the layers and not the output matrix; selective the scores of unfused attention."""
    one = step(model=model("llama3-8b"), recompute="full")
    m = one.model
    layers = 32 * (2 * (m.attention_parameters + m.mlp_parameters) + 4 * 2048 * 4096)
    assert hardware_flops(one) - model_flops(one) == pytest.approx(1536 * 2048 * layers, rel=1e-4)  # norms are counted
    scores = 1536 * 2048 * 32 * 4 * 2048 * 4096
    chosen = step(model=model("llama3-8b"), recompute="selective")
    assert hardware_flops(chosen) - model_flops(chosen) == pytest.approx(scores)
    fused = step(model=model("llama3-8b"), recompute="selective", flash_attention=True)
    assert hardware_flops(fused) == model_flops(fused)


def test_flops_of_windows_are_those_of_the_tokens_in_them() -> None:
    """24 of gpt-oss's layers: half attend to 128 tokens, half to all, or under the mask to half of them."""
    one = model("gpt-oss-20b")
    each = 2 * one.heads * 2 * one.head_dim
    assert attention_flops(one, 4096) == each * (4096 + 128) / 2
    assert attention_flops(one, 4096, causal=True) == each * (2048 + 128) / 2
    assert attention_flops(one, 100, causal=True) == each * 50
