"""Published steps of reinforcement learning: where rows come from, what their page says, DeepSpeed-Chat's hours."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.scenario.rl import RlSpec
from study.rl import Score, rows_of, scenario_of
from study.rl_chat import chat_scenario, chat_scores
from study.rl_report import page

PAGE = Path(__file__).resolve().parents[2] / "docs" / "accuracy-rl.md"
STEPS, CHAT = list(rows_of("steps.csv")), list(rows_of("deepspeed_chat.csv"))


def test_every_row_has_an_id_of_its_own_and_a_source() -> None:
    ids = [cells["id"] for cells in STEPS + CHAT]
    assert len(set(ids)) == len(ids)
    assert all(cells["url"].startswith("https://") for cells in STEPS + CHAT)
    assert {cells["seen"] for cells in STEPS} == {"built", "held"}
    assert len(STEPS) >= 10
    assert len(CHAT) >= 9


def test_rows_are_chosen_by_what_their_ids_begin_with() -> None:
    assert [cells["id"] for cells in rows_of("steps.csv", ["nemo-01", "dschat"])] == ["nemo-01", "dschat-log"]


@pytest.mark.parametrize("cells", STEPS, ids=lambda cells: cells["id"])
def test_a_row_is_a_scenario(cells: dict[str, str]) -> None:
    spec = RlSpec.model_validate(scenario_of(cells)["workload"][0]["rl"])
    assert spec.sequences == int(cells["prompts"]) * int(cells["samples"])
    assert spec.prompt_len + spec.answer.mean_tokens == pytest.approx(float(cells["total_len"]))


@pytest.mark.parametrize("cells", CHAT, ids=lambda cells: cells["id"])
def test_a_row_of_hours_is_a_scenario(cells: dict[str, str]) -> None:
    spec = RlSpec.model_validate(chat_scenario(cells)["workload"][0]["rl"])
    assert (spec.engines.framework, spec.updates) == ("deepspeed", 1)


def test_the_page_has_every_row_and_its_reason() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert all(cells["id"] in text for cells in STEPS + CHAT)
    parts = {"step": 10.0, "generation": 5.0, "scoring": 2.0, "update": 3.0}
    steps = [Score(cells, {"step": 10.0}, parts, {"rollout": 5.0, "update": 5.0}) for cells in STEPS[:-1]]
    steps.append(Score(STEPS[-1], {"step": 10.0}, reason="too large"))
    chat = [Score({**cells, "step_s": "1"}, {"step": 2.0}, {"step": 1.0}, {"rollout": 1.0}) for cells in CHAT]
    written = page(steps, chat)
    assert "no answer: too large" in written
    assert f"| all | {len(STEPS) - 1} | 0.0 | 100 % |" in written


@pytest.mark.slow
def test_deepspeed_chats_hours() -> None:
    """The bar of its tables."""
    ratios = [score.ratio for score in chat_scores()]
    assert len(ratios) == len(CHAT)
    assert min(ratios) > 0.6
    assert max(ratios) < 1.5
