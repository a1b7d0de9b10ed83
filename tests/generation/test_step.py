"""A step of an engine: what it holds whatever the model, and its dependence on the batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.errors import ScenarioError
from commsim.generation.batch import Batch
from commsim.generation.formats import formats
from commsim.generation.memory import replica_memory
from commsim.generation.replica import Engine, Replica
from commsim.generation.step import StepModel
from commsim.training.accelerator import accelerator
from commsim.training.model import model

REPLICAS = {
    "dense": Replica(model("llama-3-70b"), accelerator("H100"), tp=8),
    "experts": Replica(model("qwen3-235b-a22b"), accelerator("H200"), tp=4, moe_ep=4, formats=formats("fp8_block")),
    "latent": Replica(
        model("deepseek-r1"), accelerator("B200"), Engine("sglang"), tp=8, formats=formats("nvfp4", cache="fp8")
    ),
    "attention dp": Replica(
        model("deepseek-v3"), accelerator("GB200"), Engine("tensorrt_llm"), attention_dp=16, moe_ep=16
    ),
    "linear": Replica(model("qwen3.5-397b-a17b"), accelerator("B200"), Engine("sglang"), tp=8),
    "windows": Replica(model("gpt-oss-120b"), accelerator("H100"), tp=2, formats=formats("bf16", "mxfp4")),
}
MODELS = {name: StepModel(replica) for name, replica in REPLICAS.items()}


@pytest.mark.parametrize("name", MODELS)
def test_parts_are_positive_and_sum_up(name: str) -> None:
    step = MODELS[name].seconds(Batch(64, 1500.0))
    assert all(s >= 0.0 for s in step.parts.values())
    assert step.total_s == pytest.approx(sum(step.parts.values()))
    assert 1e-3 < step.total_s < 0.2


@pytest.mark.parametrize("name", MODELS)
def test_no_step_is_faster_than_its_weights_and_cache_leave_memory(name: str) -> None:
    replica = REPLICAS[name]
    memory = replica_memory(replica)
    batch = Batch(1024, 4096.0)
    cache = batch.sequences / replica.attention_dp * memory.sequence_bytes(batch.cached)
    least = (memory.weights_bytes + cache) / replica.gpu.memory_bytes_per_s
    assert MODELS[name].seconds(batch).total_s > 0.8 * least


@pytest.mark.parametrize("name", MODELS)
@settings(max_examples=15, deadline=None)
@given(st.integers(1, 512), st.floats(1.0, 3e4), st.integers(1, 8192))
def test_more_work_takes_longer(name: str, sequences: int, cached: float, prompt: int) -> None:
    of = MODELS[name]
    base = of.seconds(Batch(sequences, cached)).gpu_s
    assert of.seconds(Batch(sequences, 2 * cached)).gpu_s >= base
    assert of.seconds(Batch(sequences, cached, prompt, 1)).gpu_s > base


@pytest.mark.parametrize("name", ["dense", "experts", "latent"])
def test_time_is_nearly_linear_in_the_cache(name: str) -> None:
    ends = [MODELS[name].seconds(Batch(64, cached)).total_s for cached in (2000.0, 3000.0, 4000.0)]
    assert ends[1] == pytest.approx((ends[0] + ends[2]) / 2, rel=0.01)


def test_a_smaller_replica_of_the_same_gpus_takes_longer() -> None:
    one = REPLICAS["dense"]
    assert StepModel(replace(one, tp=4)).seconds(Batch(64, 1500.0)).gpu_s > MODELS["dense"].seconds(
        Batch(64, 1500.0)
    ).gpu_s  # fmt: skip


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        ({"sequences": 0}, "found a step without tokens"),
        ({"sequences": -1}, "found sequences = -1"),
        ({"sequences": 1, "prompt_tokens": 5}, "found 5 tokens of 0 prompts"),
    ],
)
def test_a_batch_says_what_is_wrong(batch: dict[str, int], text: str) -> None:
    with pytest.raises(ScenarioError, match=text):
        Batch(**batch)


def test_a_replica_says_what_is_wrong() -> None:
    with pytest.raises(ScenarioError, match=r"found moe_tp \* moe_ep = 2 \* 8, expected tp \* attention_dp = 8 \* 1"):
        Replica(model("deepseek-v3"), accelerator("B200"), tp=8, moe_tp=2, moe_ep=8)
    with pytest.raises(ScenarioError, match="found the framework 'trt'"):
        Engine("trt")  # type: ignore[arg-type]
    with pytest.raises(ScenarioError, match="found the format 'fp3'"):
        formats("fp3")


def test_a_replica_that_does_not_fit_has_no_room() -> None:
    memory = replica_memory(Replica(model("deepseek-v3"), accelerator("H100"), tp=4, formats=formats("fp8_block")))
    assert not memory.fits
    assert memory.most_sequences(1024) == 0


def test_a_released_parameter_changes_what_it_names_alone() -> None:
    of = MODELS["experts"]
    batch = Batch(16, 1500.0)
    base = of.seconds(batch)
    slower = of.with_values({**of.values, "host.step.vllm": of.values["host.step.vllm"] + 1e-3}).seconds(batch)
    assert slower.host == pytest.approx(base.host + 1e-3)
    assert slower.gpu_s == base.gpu_s
    uneven = of.with_values({**of.values, "routing.spread": 2.0}).seconds(batch)
    assert uneven.experts < base.experts
    assert uneven.products == base.products
