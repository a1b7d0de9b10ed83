"""Published runs that fit on a GPU, and what they took there: no value here has been used to set a constant."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from commsim.training.accelerator import accelerator
from commsim.training.finetune import Kind, fine_tune, finetune_step_memory
from commsim.training.memory import StepMemory, step_memory, whole_gradients
from commsim.training.model import Model, model
from commsim.training.offload import Offload
from commsim.training.pipeline_schedules import build
from commsim.training.precision import precision, with_gradients
from commsim.training.spec import Step
from commsim.units import GIB

ALL = ("q", "k", "v", "o", "up", "gate", "down")
ON_HOST = Offload(optimizer=False, activations=True)


def _step(name: str | Model, gpu: str, formats: str = "pure-bf16", **changes: Any) -> Step:
    fields: dict[str, Any] = {"seq_len": 2048, "micro_batch_size": 2, "global_batch_size": 2}
    architecture = model(name) if isinstance(name, str) else name
    return Step(architecture, accelerator(gpu), precision(formats), **(fields | changes))


def _tuned(step: Step, kind: Kind, offload: Offload | None = None, **choices: Any) -> StepMemory:
    return finetune_step_memory(step, fine_tune(step, kind, **choices), offload)


def test_qlora_of_65b_fits_in_48_gb() -> None:
    """Dettmers et al. 2023 (arXiv:2305.14314), abstract. Micro-batch 1 and 16 + 512 tokens, rank 64 beside all matrices
    and checkpointing are those of artidoro/qlora, scripts/finetune_guanaco_65b.sh; its AdamW is paged, in 32 bit."""
    shape = {"seq_len": 528, "micro_batch_size": 1, "global_batch_size": 1}
    one = _step("llama-65b", "A6000", "bf16", **shape, recompute="full", frozen_weights=True, optimizer="paged-adam")
    qlora, lora = (_tuned(one, kind, rank=64, targets=ALL) for kind in ("qlora", "lora"))
    assert qlora.fits
    assert not lora.fits
    assert _tuned(replace(one, optimizer="adam"), "qlora", rank=64, targets=ALL).fits  # without paging, too


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_lora_of_7b_fits_in_24_gb(recompute: str) -> None:
    """LitGPT's table (commit 26857050): Llama 2 7B, micro-batch 2 of 512 tokens, 20.0 GB on an A10G of 24 GB."""
    one = _step("llama2-7b", "RTX-4090", "bf16", seq_len=512, recompute=recompute, frozen_weights=True)
    assert _tuned(one, "lora", rank=8).fits
    assert not step_memory(replace(one, frozen_weights=False), "ddp").fits  # all weights trained, in mixed precision


def test_zero_offload_trains_13b_on_one_v100() -> None:
    """Ren et al. 2021 (arXiv:2101.06840), abstract: over 13 B parameters on one V100 of 32 GB. 65 layers of 4,096 and
    1,024 tokens are 13.3 B."""
    wide = Model(
        "13b", 65, 4096, 16384, 32, 32, 128, 50257, 1024, bias="all", positions="learned", tied_embeddings=True
    )
    assert wide.parameters() == pytest.approx(13.3e9, rel=0.01)
    shape = {"seq_len": 1024, "micro_batch_size": 1, "global_batch_size": 1, "zero_stage": 2, "recompute": "full"}
    one = _step(wide, "V100", "fp16", **shape, flash_attention=False, stack="eager")
    assert step_memory(one, "deepspeed", offload=Offload()).fits
    assert not step_memory(one, "deepspeed").fits


# -- torchtune, README (commit 30b8519e8): batch 2 packed to 2,048 tokens, compiled; chunked loss, checkpointing ------

_TUNE: dict[str, Any] = {"recompute": "full", "stack": "compiled", "loss_chunks": 8, "fused_loss": True}


def test_torchtune_full_finetuning_of_8b_takes_18_9_gib_on_one_4090() -> None:
    """`llama3_1/8B_full_single_device.yaml`: PagedAdamW8bit, optimizer_in_bwd, dtype bf16."""
    one = _step("llama3.1-8b", "RTX-4090", optimizer="paged-adam-8bit", optimizer_in_backward=True, **_TUNE)
    memory = step_memory(one, "fsdp2")
    assert memory.fits
    assert memory.peak / GIB == pytest.approx(18.9, rel=0.08)
    assert not step_memory(replace(one, optimizer_in_backward=False), "fsdp2").fits
    assert not step_memory(replace(one, precision=precision("bf16")), "fsdp2").fits  # fp32 parameters


@pytest.mark.parametrize(("kind", "targets", "gibibytes"), [("lora", ("q", "v"), 16.2), ("qlora", ALL, 7.4)])
def test_torchtune_lora_and_qlora_of_8b_on_one_4090(kind: Kind, targets: tuple[str, ...], gibibytes: float) -> None:
    """`8B_lora_single_device.yaml` and `8B_qlora_single_device.yaml`, rank 8. The README does not say whether what is
    kept lay on the host (`enable_activation_offloading`)."""
    one = _step("llama3.1-8b", "RTX-4090", frozen_weights=True, **_TUNE)
    here, there = (_tuned(one, kind, offload, rank=8, targets=targets) for offload in (None, ON_HOST))
    assert here.fits
    assert there.peak < here.peak
    assert here.peak / GIB == pytest.approx(gibibytes, rel=0.08)
    assert there.peak / GIB == pytest.approx(gibibytes, rel=0.1)


def test_torchtune_lora_of_70b_takes_27_6_gib_on_eight_a100() -> None:
    """`llama3_1/70B_lora.yaml`: rank 16 beside queries, keys and values, FSDP."""
    shape: dict[str, Any] = {"dp": 8, "global_batch_size": 16, "zero_stage": 3, "frozen_weights": True}
    memory = _tuned(_step("llama3.1-70b", "A100", **shape, **_TUNE), "lora", rank=16, targets=("q", "k", "v"))
    assert memory.fits
    assert memory.peak / GIB == pytest.approx(27.6, rel=0.1)


def test_torchtunes_ladder_of_savings() -> None:
    """README, optimization flags: full fine-tuning of Llama 3.2 3B, batch 2 of 4,096 tokens, bf16, GiB active."""
    steps: list[tuple[dict[str, Any], Offload | None, float]] = [
        ({"stack": "compiled"}, None, 51.0),
        ({"loss_chunks": 8}, None, 42.9),
        ({"recompute": "full"}, None, 24.9),
        ({"optimizer_in_backward": True}, None, 23.1),
        ({}, ON_HOST, 21.8),
        ({"optimizer": "adam-8bit"}, ON_HOST, 17.6),
    ]
    one = _step("llama3.2-3b", "A100", seq_len=4096)
    for changes, offload, gibibytes in steps:
        one = replace(one, **changes)
        assert step_memory(one, "fsdp2", offload=offload).peak / GIB == pytest.approx(gibibytes, rel=0.1)


# -- DeepSeek-V3 ---------------------------------


def _deepseek_v3(**changes: Any) -> Step:
    """As trained (DeepSeek-AI 2024, arXiv:2412.19437): sections 3.1 (16 stages, 64-way experts, ZeRO-1 on 2,048 GPUs),
    3.2 (DualPipe), 3.2.3 (norms and up-projections made again), 3.3.3 (activations in FP8, SwiGLU's output made again,
    moments in bf16), 4.2 (4,096 tokens, 15,360 sequences)."""
    fields: dict[str, Any] = {
        "seq_len": 4096, "micro_batch_size": 1, "global_batch_size": 15360, "dp": 128, "pp": 16, "ep": 64,
        "zero_stage": 1, "schedule": "dualpipe", "optimizer": "adam-bf16", "fp8_activations": True,
        "recompute": "selective", "recompute_modules": ("core_attn", "mla_up_proj", "layernorm", "moe_act"),
    }  # fmt: skip
    one = _step("deepseek-v3", "H800", "fp8", **(fields | changes))
    return replace(one, precision=with_gradients(one.precision, 18))  # section 3.3.3: fp32 gradients


def test_deepseek_v3_as_trained_fits() -> None:
    assert step_memory(_deepseek_v3()).fits


@pytest.mark.parametrize(
    "changes",
    [
        {"recompute": "none"},
        {"recompute_modules": ("core_attn",)},
        {"fp8_activations": False},
    ],
)
def test_deepseek_v3_without_one_of_its_savings_takes_more(changes: dict[str, Any]) -> None:
    assert step_memory(_deepseek_v3(**changes)).peak > 1.2 * step_memory(_deepseek_v3()).peak


def test_dualpipes_copies_share_one_optimizer() -> None:
    both = step_memory(_deepseek_v3()).stages[3].parts
    alone = step_memory(_deepseek_v3(zero_stage=0)).stages[3].parts
    assert both["weights"] == alone["weights"]
    dense_and_experts = both["optimizer"], alone["optimizer"]
    assert dense_and_experts[1] > 2 * dense_and_experts[0]


# -- Llama 3 405B ---------------------------------


def _llama_405b(**changes: Any) -> Step:
    """As trained on 16,384 GPUs (arXiv:2407.21783, table 4 and section 3.3.2): nothing is recomputed, parameters stay
    gathered, gradients are fp32 and sharded, chunks of one layer but for the first and last."""
    fields: dict[str, Any] = {
        "seq_len": 8192, "micro_batch_size": 1, "global_batch_size": 2048, "tp": 8, "pp": 16, "dp": 128,
        "virtual_stages": 8, "schedule": "interleaved_1f1b", "sequence_parallel": True, "zero_stage": 2,
    }  # fmt: skip
    one = _step("llama3.1-405b", "H100", "bf16", **(fields | changes))
    return replace(one, precision=with_gradients(one.precision, 18))


def test_llama_3_405b_as_trained_fits() -> None:
    assert step_memory(_llama_405b()).fits
    assert not step_memory(_llama_405b(zero_stage=1)).fits


@pytest.mark.parametrize(
    ("changes", "share"),
    [
        ({}, 2 / 8),  # a chunk's leave while the next one's are made
        ({"virtual_stages": 1, "schedule": "1f1b"}, 1.0),
        ({"global_batch_size": 4096}, 1.0),  # two rounds: every chunk comes back
        ({"virtual_stages": 2, "schedule": "zb_v", "global_batch_size": 8192}, 1.0),
    ],
)
def test_gradients_of_a_pipeline_stay_whole_until_their_last_micro_batch(changes: dict[str, Any], share: float) -> None:
    cut, whole = (step_memory(_llama_405b(zero_stage=z, **changes)).stages[1].parts["gradients"] for z in (2, 1))
    assert cut == pytest.approx(whole * (share + (1 - share) / 128))


def test_chunks_whose_gradients_are_open_are_those_of_the_order_of_passes() -> None:
    """The share by the schedule's own actions: chunks between their first backward and their last, and the one before,
    whose gradients are being summed."""
    one = _llama_405b()
    for actions in build(one.run_schedule, one.pp, one.num_microbatches, one.virtual_stages).actions:
        backwards = [action.chunk for action in actions if action.kind == "B"]
        spans = [(backwards.index(c), len(backwards) - backwards[::-1].index(c)) for c in range(one.virtual_stages)]
        open_at_once = max(sum(first <= at < last for first, last in spans) for at in range(len(backwards)))
        assert (open_at_once + 1) / one.virtual_stages == whole_gradients(one)
