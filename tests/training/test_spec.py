"""Training steps, number formats and accelerators: what is refused, and counts by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commsim.errors import ScenarioError
from commsim.training.accelerator import accelerator, accelerator_names
from commsim.training.model import model
from commsim.training.precision import PRECISIONS, precision, with_gradients
from commsim.training.spec import Step


def _step(**changes: Any) -> Step:
    fields: dict[str, Any] = {
        "model": model("gpt3-175b"),
        "accelerator": accelerator("A100"),
        "precision": precision("fp16"),
        "seq_len": 2048,
        "micro_batch_size": 1,
        "global_batch_size": 64,
        "tp": 8,
        "pp": 8,
    }
    return Step(**(fields | changes))


def test_counts_of_a_step() -> None:
    step = _step(dp=4, virtual_stages=3)
    assert (step.world_size, step.num_microbatches, step.tokens) == (256, 16, 131072)


def test_copies_of_an_expert() -> None:
    """16 ranks of a stage hold eight experts in two groups, each expert over two ranks: four copies."""
    assert (
        _step(model=model("mixtral-8x7b"), tp=4, dp=4, pp=1, ep=2, expert_tp=2, precision=precision("bf16")).expert_dp
        == 4
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dp": 3}, r"global_batch_size = 64.*1 \* 3 = 3, such as 63"),
        ({"tp": 7}, "tp = 7, expected a divisor of heads = 96"),
        ({"virtual_stages": 13}, r"8 \* 13 = 104"),
        ({"pp": 1, "virtual_stages": 2}, "without a pipeline"),
        ({"ep": 2}, "has no experts"),
        ({"recompute": "some"}, "expected one of none, selective, layerwise, full"),
        ({"zero_stage": 4}, "expected 0, 1, 2 or 3"),
        ({"cp": 3}, "expected a multiple of cp"),
        ({"precision": precision("fp8")}, "has no fp8 rate"),
        ({"dp": 0}, "dp = 0, expected at least 1"),
        (
            {"model": model("mixtral-8x7b"), "ep": 3, "dp": 3, "global_batch_size": 3},
            "ep = 3, expected a divisor of experts",
        ),
    ],
)
def test_impossible_steps_say_why(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        _step(**changes)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "1f1b"),
        ({"virtual_stages": 3}, "interleaved_1f1b"),
        ({"schedule": "zb_h1"}, "zb_h1"),
        ({"schedule": "interleaved_1f1b", "virtual_stages": 3}, "interleaved_1f1b"),
    ],
)
def test_several_chunks_make_1f1b_the_interleaved_one(changes: dict[str, Any], name: str) -> None:
    assert _step(**changes).run_schedule == name


def test_embedding_and_output_may_be_stages_of_their_own() -> None:
    most = _step(tp=1, pp=98, virtual_stages=1)
    assert most.pp == most.model.layers + 2
    with pytest.raises(ScenarioError, match=r"pp \* virtual_stages = 99 \* 1 = 99"):
        _step(tp=1, pp=99)


def test_all_faults_come_at_once() -> None:
    with pytest.raises(ScenarioError, match=r"recompute.*zero_stage.*tp = 7"):
        _step(recompute="x", zero_stage=9, tp=7)


@pytest.mark.parametrize(("variant", "total"), [(16, 16), (18, 18), (20, 20)])
def test_bytes_per_parameter_of_mixed_precision(variant: int, total: int) -> None:
    assert with_gradients(precision("fp16"), variant).state_bytes("adam") == total


def test_bytes_per_parameter_of_the_others() -> None:
    assert precision("fp32").state_bytes("adam") == 16
    assert precision("pure-bf16").state_bytes("adam") == 8
    assert precision("fp64").state_bytes("adam") == 32
    assert precision("bf16").state_bytes("sgd") == 8
    assert precision("bf16").state_bytes("adam-8bit") == 10


def test_generations_support_their_types() -> None:
    supported = {
        g: [p for p in PRECISIONS.values() if accelerator(g).supports(p.gemm)] for g in ("V100", "A100", "H100", "B200")
    }
    names = {g: {p.name for p in found} for g, found in supported.items()}
    assert "bf16-fp32" not in names["V100"]
    assert "fp8-bf16-fp32" not in names["A100"]
    assert "fp4-bf16-fp32" not in names["H100"]
    assert names["B200"] == set(PRECISIONS)


@pytest.mark.parametrize(
    ("name", "mebibytes"),
    [("H100", 81559), ("A100", 81920), ("A100-40GB", 40960), ("A6000", 49140), ("RTX-4090", 24564), ("B200", 183359)],
)
def test_memory_is_what_the_driver_reports(name: str, mebibytes: int) -> None:
    """As nvidia-smi prints it (sources: accelerators.yaml), less 1 GiB for the driver and a CUDA context."""
    gpu = accelerator(name)
    assert gpu.memory_bytes == mebibytes * 1024**2
    assert gpu.room_bytes == (mebibytes - 1024) * 1024**2
    assert f"{mebibytes / 1024:.1f} GiB of {gpu.name} by nvidia-smi" in gpu.room_words
    assert gpu.room_words.endswith("less 1 GiB for driver and CUDA context")


def test_memory_of_a_datasheet_says_so() -> None:
    gpu = accelerator("H100-SXM5-96GB-HBM2e")
    assert gpu.memory_bytes == 96e9
    assert "by datasheet, less" in gpu.room_words


def test_every_accelerator_is_whole() -> None:
    for name in accelerator_names():
        found = accelerator(name)
        assert found.peak("fp16") > found.peak("fp32") > 0
        assert found.memory_bytes_per_s > 1e11
        assert found.source
    with pytest.raises(ScenarioError, match="H100"):
        accelerator("H10")


@pytest.mark.parametrize("generation", [3, 4, 5, 6])
def test_a_slot_carries_most_of_the_rate_of_its_lanes(generation: int) -> None:
    """16 lanes of PCIe 3 carry 15.75 GB/s after their encoding, and each generation twice that of the one before."""
    card = replace(accelerator("A100"), nvlink_bytes_per_s=0.0, pcie_gen=generation)
    assert 0.75 < card.near_bytes_per_s / (15.75e9 * 2 ** (generation - 3)) < 0.8
