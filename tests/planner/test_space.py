"""A space's closed forms against the step model's own, configuration by configuration."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest

from commsim.errors import CommsimError
from commsim.planner import ranking as ranking_module
from commsim.planner.ranking import Ranking, evaluated, rank_space, valid_batches
from commsim.planner.space import AXES, REASONS, Block, Space, default_axes
from commsim.training.accelerator import NOT_ALLOCATED_BYTES, accelerator
from commsim.training.compute import step_compute
from commsim.training.memory import Framework, step_memory
from commsim.training.model import model
from commsim.training.parameters import shipped_values
from commsim.training.pipeline_schedules import misfit
from commsim.training.precision import precision, with_gradients
from commsim.training.step_time import step_time

NIC = 50e9


@lru_cache(maxsize=8)
def space(name: str, gpus: int, batch: int, framework: str) -> Space:
    architecture = model(name)
    formats = {p: with_gradients(precision(p), 18) for p in ("bf16", "fp8")}
    axes = default_axes(architecture, gpus, 8, (batch,), (architecture.seq_len,))
    axes["precision"] = tuple(formats)
    gpu = accelerator("H100")
    return Space(architecture, gpu, gpus, 8, NIC, formats, axes, {}, sharded_pipelines=framework == "fsdp2")


def tiny(name: str = "gpt2-1558m", **axes: tuple[Any, ...]) -> Space:
    """One configuration on four GPUs, data parallel, but for the axes that are given."""
    values: dict[str, tuple[Any, ...]] = {
        "precision": ("bf16",), "seq_len": (512,), "global_batch_size": (16,), "schedule": ("1f1b",), "pp": (1,),
        "virtual_stages": (1,), "recompute": ("full",), "zero_stage": (1,), "ep": (1,), "micro_batch_size": (1,),
        "cp": (1,), "tp": (1,), "sequence_parallel": (False,),
    }  # fmt: skip
    return Space(model(name), accelerator("H100"), 4, 8, NIC, {"bf16": precision("bf16")}, values | axes, {})


CASES: list[tuple[str, int, int, Framework]] = [
    ("gpt3-175b", 128, 256, "megatron"),
    ("mixtral-8x7b", 64, 128, "megatron"),
    ("llama3.1-70b", 32, 64, "fsdp2"),
]


def some_blocks(of: Space, count: int) -> list[Block]:
    """Blocks with something that can run in them."""
    found = [b for b in of.blocks() if (b.reasons() == 0).any()]
    return [found[i] for i in np.random.default_rng(3).permutation(len(found))[:count]]


@pytest.mark.parametrize(("name", "gpus", "batch", "framework"), CASES)
def test_memory_and_time_are_those_of_the_step_model(name: str, gpus: int, batch: int, framework: Framework) -> None:
    of = space(name, gpus, batch, framework)
    rng = np.random.default_rng(5)
    for block in some_blocks(of, 6):
        valid = block.take(np.flatnonzero(block.reasons() == 0))
        table = evaluated(valid, framework, shipped_values())
        for i in rng.choice(valid.length, min(6, valid.length), replace=False):
            step = of.step(valid.places(int(i)))
            assert table.memory_bytes[i] == pytest.approx(step_memory(step, framework).peak, rel=1e-9)
            assert table.seconds[i] == pytest.approx(step_time(step, shipped_values()).total, rel=1e-9)


def test_what_can_run_is_what_a_step_accepts() -> None:
    """Both ways: every combination without a reason is a step that its schedule takes, every other one is refused."""
    of = space("mixtral-8x7b", 64, 128, "megatron")
    seen: Counter[str] = Counter()
    rng = np.random.default_rng(8)
    blocks = list(of.blocks())
    for b in rng.permutation(len(blocks))[:40]:
        block, reasons = blocks[b], blocks[b].reasons()
        for i in rng.choice(block.length, 25, replace=False):
            reason = int(reasons[i])
            seen[REASONS[reason]] += 1
            refused = _refused(of, block, int(i))
            if reason == 0:
                assert not refused, refused
            elif reason not in (3, 4, 8, 9):  # uneven stages, v without interleaving, ZeRO-2 and twins: our own rules
                assert refused, REASONS[reason]
    assert seen[REASONS[0]] > 0
    assert len(seen) > 4


def _refused(of: Space, block: Block, i: int) -> str:
    try:
        step = of.step(block.places(i))
    except (CommsimError, ZeroDivisionError) as error:
        return str(error) or "no copies"
    if step.world_size != of.world_size:
        return "not all ranks"
    return misfit(step.schedule, step.pp, step.num_microbatches, step.virtual_stages) or ""


def test_the_kept_are_the_best_of_all() -> None:
    """Against a plain sort of every configuration of a small space."""
    of = space("llama3.1-70b", 32, 64, "fsdp2")
    ranking = rank_space(of, "fsdp2", shipped_values(), keep=5)
    each, peaks = [], []
    for block in of.blocks():
        valid = block.take(np.flatnonzero(block.reasons() == 0))
        if valid.length and (block.reasons() == 0).any():
            table = evaluated(valid, "fsdp2", shipped_values())
            each.append(table.seconds)
            peaks.append(table.memory_bytes)
    seconds, memory = np.concatenate(each), np.concatenate(peaks)
    fits = memory <= of.accelerator.room_bytes
    assert ranking.counts["fits"] == fits.sum()
    assert ranking.walked == of.size
    assert [r.seconds for r in ranking.best[:5]] == pytest.approx(np.sort(seconds[fits])[:5])


def _first_reason(of: Space, at: dict[str, Any]) -> str:
    """The first of `REASONS` for one combination, written out with plain numbers."""
    tp, pp, cp, ep, v, zero = (at[n] for n in ("tp", "pp", "cp", "ep", "virtual_stages", "zero_stage"))
    micro, seq, batch, sp = (at[n] for n in ("micro_batch_size", "seq_len", "global_batch_size", "sequence_parallel"))
    if of.world_size % (tp * pp * cp):
        return REASONS[1]
    dp = of.world_size // (tp * pp * cp)
    m = batch // (micro * dp)
    expert_tp = tp if ep == 1 or cp * dp % ep == 0 else 1
    schedule = at["schedule"]
    rules = [
        of.model.heads % tp,
        pp * v > of.model.layers or (v > 1 and of.model.layers % (pp * v) and (of.model.layers + 2) % (pp * v)),
        (v > 1) != (schedule in ("interleaved_1f1b", "zb_v", "dualpipe_v"))
        or (schedule in ("zb_v", "dualpipe_v") and (v != 2 or m < 2 * pp))
        or (pp == 1 and schedule != "1f1b")
        or (schedule == "interleaved_1f1b" and m % pp)
        or (schedule == "dualpipe" and (pp % 2 or m % 2 or m < 2 * pp)),
        m < 1 or batch % (micro * dp),
        seq % cp or (sp and micro * seq // cp % tp),
        of.model.moe.experts % ep or tp * cp * dp % (ep * expert_tp) if of.model.moe else ep > 1,
        zero >= 2 and pp > 1 and not of.sharded_pipelines,
        (sp and tp == 1) or (zero and dp * cp == 1) or at["recompute"] == "selective",
    ]
    return next((REASONS[i] for i, rule in enumerate(rules, start=2) if rule), REASONS[0])


@pytest.mark.parametrize(
    ("name", "gpus", "batch", "framework"), [*CASES, ("llama3-8b", 4, 8, "megatron"), ("mixtral-8x7b", 6, 12, "fsdp2")]
)
def test_the_first_reason_of_every_combination(name: str, gpus: int, batch: int, framework: str) -> None:
    of = space(name, gpus, batch, framework)
    blocks, rng = list(of.blocks()), np.random.default_rng(11)
    for b in rng.permutation(len(blocks))[:60]:
        block, reasons = blocks[b], blocks[b].reasons()
        for i in rng.choice(block.length, min(block.length, 30), replace=False):
            at = {axis: of.axes[axis][place] for axis, place in block.places(int(i)).items()}
            assert REASONS[reasons[i]] == _first_reason(of, at), at


@pytest.mark.parametrize(("name", "lengths"), [("llama3-8b", [1024, 2048]), ("gpt3-175b", [2048, 2048])])
def test_a_model_is_as_long_as_its_sequences_unless_it_learned_its_positions(name: str, lengths: list[int]) -> None:
    of = tiny(name, seq_len=(1024, 2048))
    steps = [of.step(dict.fromkeys(AXES, 0) | {"seq_len": place}) for place in (0, 1)]
    assert [step.seq_len for step in steps] == [1024, 2048]
    assert [step.model.seq_len for step in steps] == lengths


def test_layers_need_not_divide_into_the_stages() -> None:
    """DeepSeek-V3 has 61 layers; of 16 stages those with four experts' layers set the pace."""
    of = space("deepseek-v3", 2048, 15360, "megatron")
    assert 16 in of.axes["pp"]
    uneven = of.step(dict.fromkeys(AXES, 0) | {"pp": of.axes["pp"].index(16)})
    layer = step_compute(uneven, shipped_values()).moe
    each = uneven.num_microbatches * (layer.forward + layer.backward)
    assert step_time(uneven, shipped_values()).compute == pytest.approx(4 * each)


def test_the_only_configuration_of_a_space_is_kept() -> None:
    ranking = rank_space(tiny(), "megatron", shipped_values(), keep=1)
    assert len(ranking.best) == ranking.counts["fits"] == 1


def test_one_that_fills_the_memory_to_the_last_byte_is_one_of_the_topmost_eighth() -> None:
    of = tiny(micro_batch_size=(1, 2))
    both = rank_space(of, "megatron", shipped_values())
    peaks = [r.memory_bytes for r in both.best]
    assert min(peaks) > 7 / 8 * max(peaks)
    gpu = replace(of.accelerator, memory_bytes=max(peaks) + NOT_ALLOCATED_BYTES)  # type: ignore[arg-type]
    full = replace(of, accelerator=gpu)
    ranking = rank_space(full, "megatron", shipped_values(), keep=1)
    assert ranking.counts["fits"] == 2
    assert ranking.best == both.best[:1]


def test_a_batch_that_is_full_waits_for_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranking_module, "BATCH", 1)
    of = tiny(micro_batch_size=(1, 2, 4))
    assert [block.length for block in valid_batches(of, Ranking())] == [1, 1, 1]


def test_what_there_is_to_choose_by_hand() -> None:
    """Llama 3 8B, 32 layers, on two nodes of eight: 32 and 34 layers divide into the chunks."""
    axes = default_axes(model("llama3-8b"), 16, 8, (8, 24), (4096, 2048))
    assert axes["pp"] == (1, 2, 4, 8, 16)
    assert axes["virtual_stages"] == (1, 2, 4, 8, 16)
    assert default_axes(model("llama3-8b"), 34, 2, (8,), (4096,))["pp"] == (1, 2, 17)
    assert axes["cp"] == (1, 2, 4, 8)  # at least 512 tokens to a rank
    assert axes["tp"] == (1, 2, 4, 8)
    assert axes["micro_batch_size"] == (1, 2, 4, 8, 16)
    assert axes["ep"] == (1,)
    assert axes["zero_stage"] == (0, 1, 2, 3)
    assert default_axes(model("mixtral-8x7b"), 6, 6, (1,), (512,))["ep"] == (1, 2, 4)
    assert default_axes(model("mixtral-8x7b"), 6, 6, (1,), (512,))["tp"] == (1, 2, 3, 6)
