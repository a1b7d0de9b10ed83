"""Forwards and updates of a trainer, and what shared GPUs move."""

from __future__ import annotations

from typing import Any

import pytest

from commsim.rl.passes import forward_seconds, update_seconds
from commsim.rl.transfers import Moved, held_bytes
from commsim.training.accelerator import accelerator
from commsim.training.model import model
from commsim.training.precision import precision
from commsim.training.spec import Step
from commsim.training.step_run import StepProgram, step_program
from commsim.training.work import compute_time, optimizer_time


def program(**changes: Any) -> StepProgram:
    fields: dict[str, Any] = {"micro_batch_size": 1, "global_batch_size": 16, "seq_len": 2048, "dp": 2}
    step = Step(model("llama3-8b"), accelerator("H100"), precision("bf16"), **(fields | changes))
    return step_program(step, compute_time(step), lambda *_: 0.0, optimizer_s=optimizer_time(step))


def test_a_forward_is_that_of_every_micro_batch() -> None:
    one = program()
    work = one.works[0, 0].F.compute
    assert forward_seconds(one) == pytest.approx(8 * work)
    assert forward_seconds(one) < one.run().step_s / 2.5


def test_stages_wait_for_the_first_micro_batch() -> None:
    """Two stages of half a model each: nine halves where one GPU has eight wholes."""
    piped = program(pp=2, dp=1, global_batch_size=8)
    stages = [piped.works[stage, 0].F.compute for stage in (0, 1)]
    assert forward_seconds(piped) == pytest.approx(sum(stages) + 7 * max(stages))


def test_updates_are_training_steps() -> None:
    assert update_seconds(program(), 3) == pytest.approx(3 * program().run().step_s)


def test_states_are_cut_over_their_copies() -> None:
    whole, cut = (held_bytes(program(zero_stage=stage, dp=8).step) for stage in (0, 1))
    assert whole[0] == cut[0] == pytest.approx(2 * model("llama3-8b").parameters(), rel=0.1)
    assert cut[1] == pytest.approx(whole[1] / 8)
    assert held_bytes(program(zero_stage=3, dp=8).step)[0] == pytest.approx(whole[0] / 8)


def test_pinned_copies_run_at_the_rate_of_the_slot() -> None:
    assert Moved(pinned_out=50e9, pinned_back=50e9).seconds(50e9) == pytest.approx(2.0)
    assert Moved(out=5e9).seconds(50e9) > Moved(back=5e9).seconds(50e9) > Moved(pinned_out=5e9).seconds(50e9)
    assert (Moved(1.0) + Moved(2.0, 3.0)) == Moved(3.0, 3.0)
