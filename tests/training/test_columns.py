"""Tables of steps: each element is the step alone, and what is put in another's place counts for all."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import step

from commsim.errors import CommsimError
from commsim.training.columns import Columns, where
from commsim.training.compute import step_compute
from commsim.training.model import model
from commsim.training.operators import logits
from commsim.training.parameters import shipped_values
from commsim.training.spec import RULES, Step, broken
from commsim.training.step_time import step_time


def some_steps() -> list[Step]:
    return [
        step(global_batch_size=16),
        step(tp=2, dp=2, recompute="full", stack="eager"),
        step(model=model("deepseek-v2"), dp=8, ep=8, pp=4, schedule="dualpipe"),
    ]


def test_attributes_of_objects_are_columns_too() -> None:
    table = Columns(some_steps())
    assert table.tp.tolist() == [1, 2, 1]
    assert table.model.hidden.tolist() == [4096, 4096, 5120]
    assert table.model.latent.kv_lora_rank.tolist() == [0, 0, 512]
    assert (table.recompute == "full").tolist() == [False, True, False]
    assert (table.stack != "eager").tolist() == [True, False, True]
    assert table.take(np.array([2, 0])).model.routing.experts.tolist() == [160, 1]
    assert len(table) == 3
    with pytest.raises(AttributeError):
        _ = table.nothing


def test_a_value_in_anothers_place_changes_what_is_read_and_not_what_follows() -> None:
    table = Columns(some_steps()).replaced({"model.vocab": 8, "recompute": "none"})
    assert table.model.vocab.tolist() == [8, 8, 8]
    assert table.take(np.array([1])).recompute.take(np.array([0])) == "none"
    assert table.model.embedding_parameters.tolist() == [s.model.embedding_parameters for s in some_steps()]
    assert logits(table)[0].n.tolist() == [8, 4, 8]


def test_a_plain_condition_gives_plain_numbers() -> None:
    assert type(where(True, 1, 2)) is int
    assert where(np.array([True, False]), 1, 2).tolist() == [1, 2]


CUTS = st.fixed_dictionaries(
    {
        "tp": st.integers(1, 9),
        "pp": st.integers(1, 12),
        "cp": st.integers(1, 4),
        "dp": st.integers(1, 6),
        "ep": st.integers(1, 8),
        "expert_tp": st.integers(1, 2),
        "virtual_stages": st.integers(1, 5),
        "micro_batch_size": st.integers(1, 3),
        "sequence_parallel": st.booleans(),
    }
)


@given(st.lists(CUTS, min_size=1, max_size=8), st.sampled_from(["llama3-8b", "mixtral-8x7b"]))
def test_a_table_breaks_rules_where_a_step_of_its_own_is_refused(cuts: list[dict[str, Any]], name: str) -> None:
    arrays = {field: np.array([cut[field] for cut in cuts]) for field in cuts[0]}
    table = step(model=model(name), seq_len=60, **arrays)
    wrong = np.broadcast_to(broken(table, *(rule.field for rule in RULES)), len(cuts))
    for cut, refused in zip(cuts, wrong.tolist(), strict=True):
        try:
            step(model=model(name), seq_len=60, **cut)
        except CommsimError:
            assert refused, cut
        else:
            assert not refused, cut


@pytest.mark.parametrize(
    ("schedule", "v"), [("1f1b", 1), ("zb_h1", 1), ("dualpipe", 1), ("zb_v", 2), ("dualpipe_v", 2)]
)
def test_a_table_with_a_schedule_each_takes_the_time_of_each(schedule: str, v: int) -> None:
    one = step(pp=4, dp=2, model=model("mixtral-8x7b"), ep=2, schedule=schedule, virtual_stages=v)
    each: dict[str, Any] = {
        "schedule": Columns(("zb_h1", schedule)),
        "virtual_stages": np.array([1, v]),
        "tp": np.array([1, 1]),
    }
    table = replace(one, **each)
    assert step_time(table, shipped_values()).total[1] == pytest.approx(step_time(one, shipped_values()).total)


def test_the_bubble_of_each_schedule_by_hand() -> None:
    """With four stages 1F1B 3 (F + B), ZB-H1 3 (F + B - 2 W), DualPipe F&B + B - 3 W with F&B = F + B."""
    times = {s: step_time(step(pp=4, schedule=s), shipped_values()) for s in ("1f1b", "zb_h1", "dualpipe")}
    work = step_compute(step(pp=4), shipped_values())
    passes, weight, forward = (work.of_stage(step(pp=4), pick) for pick in (
        lambda p: p.forward + p.backward, lambda p: p.weight, lambda p: p.forward,
    ))  # fmt: skip
    assert times["zb_h1"].bubble < times["1f1b"].bubble
    head = (work.head.forward + work.head.backward) / 4
    assert times["zb_h1"].bubble == pytest.approx(3 * (passes + head - 2 * weight))
    backward = (passes + head) * (passes - forward) / passes
    assert times["dualpipe"].bubble == pytest.approx(passes + head + backward - 3 * weight)
    bent = {s: step_time(step(pp=4, schedule=s, virtual_stages=2), shipped_values()) for s in ("zb_v", "dualpipe_v")}
    # 3 (F&B + B - 3 W) of chunks, which are half a stage; 3 I of chunks, where I is the longest of F, I and W.
    assert bent["dualpipe_v"].bubble == pytest.approx(3 / 2 * (passes + head + backward - 3 * weight))
    inputs = backward - weight
    assert inputs > max(weight, (passes + head) - backward)
    assert bent["zb_v"].bubble == pytest.approx(3 * inputs / 2)
