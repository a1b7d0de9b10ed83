"""What is advised fits, by the memory model itself, and the cheapest comes first."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from steps import step

from commsim.errors import CommsimError
from commsim.training.activations import layer_kept, recomputed
from commsim.training.advice import advice, finetune_advice
from commsim.training.columns import Columns
from commsim.training.finetune import FineTune, finetune_step_memory
from commsim.training.memory import step_memory
from commsim.training.model import model
from commsim.training.offload import Offload
from commsim.training.parameters import shipped_values
from commsim.training.precision import precision
from commsim.training.recompute import module_shares
from commsim.training.spec import Step
from commsim.training.step_time import step_time
from commsim.training.utilisation import hardware_flops, model_flops
from commsim.units import GIB


def _gpt3(**changes: Any) -> Step:
    shape = {"model": model("gpt3-175b"), "seq_len": 2048, "precision": precision("bf16"), "tp": 8, "pp": 8, "dp": 8}
    return step(**(shape | changes))


def _values(text: str) -> tuple[dict[str, Any], tuple[str, ...], float, float]:
    """(fields, what is offloaded, GiB, percent slower) of a line of advice."""
    words, needs, lasts = re.fullmatch(r"(.*) \(([\d.]+) GiB, the step (.*)\)", text).groups()  # type: ignore[union-attr]
    fields = yaml.safe_load(f"{{{words}}}")
    moved = tuple(name for name, value in fields.pop("offload", {}).items() if value)
    percent = 0 if lasts == "as long" else int(lasts.split()[0]) * (1 if lasts.endswith("% longer") else -1)
    return fields, moved, float(needs), float(percent)


@pytest.mark.parametrize(
    "changes",
    [
        {"flash_attention": False},
        {"pp": 4, "dp": 4, "micro_batch_size": 4},
        {"tp": 4, "pp": 4, "dp": 8, "zero_stage": 1},
        {"pp": 1, "dp": 64, "sequence_parallel": True},
        {"model": model("llama3-70b"), "tp": 1, "pp": 1, "dp": 8, "seq_len": 8192},
    ],
)
def test_every_line_fits_with_what_it_says(changes: dict[str, Any]) -> None:
    one = _gpt3(**changes)
    memory = step_memory(one)
    assert not memory.fits
    lines = advice(one, memory)
    assert lines
    order = []
    for fields, moved, gibibytes, percent in map(_values, lines):
        offload = Offload(optimizer="optimizer" in moved, activations="activations" in moved) if moved else None
        other = step_memory(replace(one, **fields), offload=offload)
        assert other.fits
        assert f"{other.peak / GIB:.1f}" == f"{gibibytes:.1f}"
        together = len(fields.keys() - {"dp"}) + len(moved)
        order.append((together, percent))
    assert order == sorted(order)


def test_single_changes_are_enough_where_one_fits() -> None:
    one = _gpt3(flash_attention=False)
    lines = advice(one, step_memory(one))
    for fields in ({"recompute": "full"}, {"recompute": "selective"}, {"sequence_parallel": True}):
        fits = step_memory(replace(one, **fields)).fits
        words = ", ".join(f"{n}: {str(v).lower()}" for n, v in fields.items())
        assert any(line.startswith(f"{words} (") for line in lines) is fits


def test_what_fits_needs_no_advice() -> None:
    one = _gpt3(recompute="full", zero_stage=1)
    memory = step_memory(one)
    assert memory.fits
    assert advice(one, memory) == []


def test_hints_keep_the_layers_of_the_stages() -> None:
    layers = [8, *[13] * 6, 10]
    one = _gpt3(flash_attention=False, dp=8)
    hints = advice(one, step_memory(one, layers=layers), layers=layers)
    full = step_memory(replace(one, recompute="full"), layers=layers).peak / GIB
    assert any(hint.startswith(f"recompute: full ({full:.1f} GiB") for hint in hints)
    assert not any(hint.startswith("pp:") for hint in hints)  # so many chunks do not go with these layers


def test_a_frozen_base_is_advised_what_fits() -> None:
    one = step(model=model("llama-65b"), seq_len=2048, dp=8, frozen_weights=True, micro_batch_size=2)
    tune = FineTune(1e6)
    assert not finetune_step_memory(one, tune).fits
    lines = finetune_advice(one, tune)
    assert any("zero_stage: 3" in line for line in lines)
    for line in lines:
        if "kind: qlora" in line:
            continue
        fields, moved, gibibytes, _ = _values(line)
        other = finetune_step_memory(replace(one, **fields), tune, Offload(False, activations=True) if moved else None)
        assert other.fits
        assert other.peak / GIB == pytest.approx(gibibytes, abs=0.05)


def test_offloaded_activations_cost_what_their_copies_outlast_the_passes() -> None:
    """On a slot of PCIe a long sequence's checkpoints hide; without recomputation they do not."""
    one = step(model=model("llama3-8b"), precision=precision("pure-bf16"), seq_len=65536, micro_batch_size=1)
    lines = [line for line in advice(one, step_memory(one, "fsdp2"), "fsdp2") if "offload.activations" in line]
    for line in lines:
        assert _values(line)[3] >= 0.0


def test_a_module_of_another_architecture_is_refused() -> None:
    with pytest.raises(CommsimError, match=r"recompute_modules = mla_up_proj, .* llama3-8b has no latent attention"):
        step(recompute="selective", recompute_modules=("mla_up_proj",))
    with pytest.raises(CommsimError, match="recompute_modules = 'gelu', expected some of core_attn"):
        step(recompute="selective", recompute_modules=("gelu",))
    with pytest.raises(CommsimError, match="optimizer_in_backward with 64 micro-batches, expected 1"):
        step(optimizer_in_backward=True)


def test_modules_are_computed_again_by_their_share_of_a_forward() -> None:
    """DeepSeek-V3: up-projections of 1,536 and 512 wide latents over all products of a token."""
    one = step(model=model("deepseek-v3"), recompute="selective", recompute_modules=("mla_up_proj",))
    products, kernels = module_shares(one)
    up = 61 * (1536 * 128 * 192 + 512 * 128 * 256)
    shape = one.model
    everything = 61 * (shape.attention_parameters - 1536 - 512) + 3 * shape.mlp_parameters
    everything += 58 * (8 * shape.expert_parameters + shape.shared_expert_parameters + shape.router_parameters)
    assert products == pytest.approx(up / everything, rel=1e-6)
    assert 0.0 < kernels < 0.5
    assert module_shares(replace(one, recompute_modules=("core_attn",))) == (0.0, 0.0)


@pytest.mark.parametrize("modules", [("layernorm",), ("moe_act",), ("shared_experts",), ("mlp",), ("moe",)])
def test_every_module_saves_memory_and_costs_time(modules: tuple[str, ...]) -> None:
    one = step(model=model("deepseek-v3"), dp=64, ep=64, tp=1)
    less = replace(one, recompute="selective", recompute_modules=modules)
    assert step_memory(less).fullest.parts["activations"] < step_memory(one).fullest.parts["activations"]
    values = shipped_values()
    assert float(step_time(less, values).compute) > float(step_time(one, values).compute)


def test_hardware_flops_count_the_products_of_modules() -> None:
    one = step(model=model("llama3-8b"), recompute="selective", recompute_modules=("mlp",))
    again = hardware_flops(one) - model_flops(one)
    assert again == pytest.approx(2.0 * one.tokens * 32 * one.model.mlp_parameters, rel=1e-4)


def test_modules_of_a_table_of_steps_are_those_of_each() -> None:
    choices = (
        ("core_attn",),
        ("mlp",),
        ("moe_act", "layernorm"),
        ("moe", "moe_act"),
        ("shared_experts", "mla_up_proj"),
    )
    fields: dict[str, Any] = {"model": model("deepseek-v3"), "recompute": "selective"}
    table = step(**fields, recompute_modules=Columns(choices))
    alone = [step(**fields, recompute_modules=modules) for modules in choices]
    for i in range(2):
        shares = np.broadcast_to(module_shares(table)[i], len(choices))
        assert shares == pytest.approx([module_shares(one)[i] for one in alone])
    kept = recomputed(layer_kept(table, 60, dropout=False), table)
    assert kept == pytest.approx([recomputed(layer_kept(one, 60, dropout=False), one) for one in alone])
