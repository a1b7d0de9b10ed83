"""LoRA cut by tensor and pipeline parallelism: weights, states, traffic and seconds of every stage, by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
from steps import step

from commsim.errors import CommsimError
from commsim.training.compute import gemm_rate
from commsim.training.finetune import (
    Kind,
    beside_base,
    fine_tune,
    finetune_step_memory,
    kept_of_tune,
    lora_calls,
    lora_moved,
    trained_of_stages,
    update_seconds,
)
from commsim.training.memory import step_memory
from commsim.training.parameters import shipped_values
from commsim.training.spec import Step, StepPlan
from commsim.training.stages import chunks_of
from commsim.training.step_run import StepProgram, step_program
from commsim.training.step_traffic import step_traffic
from commsim.training.work import ChunkSeconds, chunk_calls

VALUES = shipped_values()
ALL = ("q", "k", "v", "o", "up", "gate", "down")
H, F, KV = 4096, 14336, 1024
WIDTHS = {"q": (H, H), "k": (H, KV), "v": (H, KV), "o": (H, H), "up": (H, F), "gate": (H, F), "down": (F, H)}


def _tuned(**changes: object) -> Step:
    return step(**{"frozen_weights": True, **changes})


def _plan(one: Step) -> StepPlan:
    tune = fine_tune(one, "lora", rank=16, targets=ALL)
    return StepPlan(trainable=tune.trainable / one.tp, adapters=tune.calls)


def test_every_stage_trains_what_lies_beside_its_layers() -> None:
    one = _tuned(tp=2, pp=4)
    tune = fine_tune(one, "lora", rank=16, targets=ALL)
    assert tune.trainable == 32 * 16 * sum(a + b for a, b in WIDTHS.values())
    assert trained_of_stages(one, tune) == [tune.trainable / 8] * 4
    assert trained_of_stages(one, tune, [2, 10, 10, 10])[0] == pytest.approx(tune.trainable / 2 * 2 / 32)
    rate = 1e12
    assert update_seconds(one, tune, rate) == [pytest.approx(38 * tune.trainable / 8 / rate)] * 4


@pytest.mark.parametrize("tp", [1, 4])
def test_products_of_a_rank_read_inputs_and_write_outputs_as_cut(tp: int) -> None:
    by_hand = 0.0
    for target, (n_in, n_out) in WIDTHS.items():
        rows = target in ("o", "down")
        by_hand += 2 * (n_in / tp if rows else n_in) + 8 * (n_out if rows else n_out / tp)
    assert lora_moved(_tuned(tp=tp), ALL) == by_hand
    one = _tuned(tp=tp)
    tune = fine_tune(one, "lora", targets=ALL)
    (chunk,) = chunks_of(one)
    plain, seconds = ChunkSeconds(1.0, 1.0, 0.0), beside_base(lambda _: plain_seconds, one, tune, VALUES)(chunk)
    between = 7 * 4 * 16  # what A makes is written and read
    rate = one.accelerator.memory_bytes_per_s * VALUES["hbm"]
    assert seconds.forward - plain.forward == pytest.approx(32 * (by_hand + between) * 4096 / rate)


def test_a_rank_of_thousands_computes_as_long_as_its_products_take() -> None:
    """2 FLOPs per trained weight and token forward, twice that backward; a rank in the tens waits for memory."""
    one = _tuned()
    wide, narrow = (fine_tune(one, "lora", rank=rank, targets=("q",)) for rank in (4096, 8))
    (chunk,) = chunks_of(one)
    wide_s, narrow_s = (beside_base(lambda _: plain_seconds, one, tune, VALUES)(chunk) for tune in (wide, narrow))
    flops = 32 * 2 * 2 * 4096 * 4096 * 4096.0
    assert wide_s.forward - 1.0 == pytest.approx(flops / float(gemm_rate(one, VALUES, wide=True)))
    assert wide_s.backward_input - 1.0 == pytest.approx(2 * (wide_s.forward - 1.0))
    assert narrow_s.forward - 1.0 < 0.5 * (wide_s.forward - 1.0)


@pytest.mark.parametrize("kind", ["lora", "qlora"])
def test_a_rank_above_a_matrix_is_refused(kind: Kind) -> None:
    fine_tune(_tuned(), kind, rank=KV, targets=("q", "v"))
    with pytest.raises(CommsimError, match="found 1025, expected at most 1024"):
        fine_tune(_tuned(), kind, rank=KV + 1, targets=("q", "v"))


plain_seconds = ChunkSeconds(1.0, 1.0, 0.0)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_what_is_exchanged_by_hand(sequence_parallel: bool) -> None:
    """Columns: gather r; back, sum r, and h where no sequence parallelism does. Rows: sum r, gather h; back, sum r."""
    one = _tuned(tp=4, sequence_parallel=sequence_parallel)
    calls = [call for call in chunk_calls(one, chunks_of(one)[0], _plan(one)) if call.axis == "tp"]
    base = [call for call in chunk_calls(one, chunks_of(one)[0], StepPlan()) if call.axis == "tp"]
    tokens, r, layers = 4096 * 2, 16, 32
    gathered = layers * tokens * 3 / 4 * (5 * r + 2 * H)
    summed = layers * tokens * 3 / 4 * 2 * (2 * r + 7 * r + (0 if sequence_parallel else 5 * H))
    more = sum(call.sent_bytes for call in calls) - sum(call.sent_bytes for call in base)
    assert more == pytest.approx(gathered + summed)
    assert fine_tune(_tuned(), "lora", targets=ALL).calls == ()
    again = replace(one, recompute="full")
    forward = layers * tokens * 3 / 4 * (5 * r + 2 * H + 2 * 2 * r)
    repeated = [call for call in chunk_calls(again, chunks_of(one)[0], _plan(one)) if call.axis == "tp"]
    plain = [call for call in chunk_calls(again, chunks_of(one)[0], StepPlan()) if call.axis == "tp"]
    assert sum(c.sent_bytes for c in repeated) - sum(c.sent_bytes for c in plain) == pytest.approx(more + forward)


def test_targets_that_a_model_does_not_have_exchange_nothing() -> None:
    assert lora_calls(replace(_tuned(tp=2), model=replace(step().model, gated_mlp=False)), 16, ("gate",)) == ()


def test_memory_of_stages_is_megatrons_of_a_frozen_base_and_the_adapters() -> None:
    one = _tuned(tp=2, pp=4, sequence_parallel=True)
    tune = fine_tune(one, "lora", targets=ALL)
    base, tuned = step_memory(one), finetune_step_memory(one, tune)
    for stage, (a, b) in enumerate(zip(base.stages, tuned.stages, strict=True)):
        states, kept = tune.trainable / 8 * 16, 4096 * 16 * 7 * 2 * 8 * (4 - stage)
        assert b.peak - a.peak == pytest.approx(states + kept)
        assert sum(b.parts.values()) == pytest.approx(b.peak)
        assert "gradients" not in a.parts or a.parts["gradients"] == 0.0
    assert kept_of_tune(one, tune) > 0
    assert tuned.peak < 0.2 * step_memory(replace(one, frozen_weights=False, tp=1, pp=1, sequence_parallel=False)).peak


def _program(one: Step) -> StepProgram:
    update = update_seconds(one, fine_tune(one, "lora", targets=ALL), 1e12)
    return step_program(one, lambda _: plain_seconds, lambda *_: 1e-6, optimizer_s=update, plan=_plan(one))


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipe_v"])
def test_gradients_of_adapters_alone_are_summed(schedule: str) -> None:
    """The simulation's timeline shows what the traffic counts."""
    one = _tuned(tp=2, pp=4, dp=2, schedule=schedule, virtual_stages=2 if schedule == "dualpipe_v" else 1)
    t = _program(one).run().timeline
    trained = fine_tune(one, "lora", targets=ALL).trainable / 8
    for stage, sent in enumerate(step_traffic(one, _plan(one))):
        reduced = t.nbytes[(t.endpoint == stage) & (t.stream == 5)].sum()
        assert reduced == pytest.approx(trained * one.precision.gradient_bytes, rel=1e-6)
        assert sent["dp"] == pytest.approx(float(reduced))  # an all_reduce of two sends 2 (n - 1) / n of it
