"""Claims under `scenarios/seeds`: the computed value and the verdict of every one."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import CommsimError
from commsim.scenario.load import load_scenarios
from commsim.scenario.quantities import FUNCTIONS
from commsim.scenario.run import run
from commsim.scenario.workload.claim import ClaimItem, ClaimWork

SEEDS = sorted((Path(__file__).resolve().parents[2] / "scenarios" / "seeds").glob("*.yaml"))

PINNED = {
    ("bloom-176b", 0): (3.29076, "reproduced"),
    ("bytes-per-parameter", 0): (2607.7, "reproduced"),
    ("bytes-per-parameter", 1): (75, "reproduced"),
    ("bytes-per-parameter", 2): (16, "reproduced"),
    ("bytes-per-parameter", 3): (20, "reproduced"),
    ("bytes-per-parameter", 4): (16, "reproduced"),
    ("deepspeed-chat-64-a100", 0): (0.929445, "not"),
    ("deepspeed-chat-64-a100", 1): (237.938, "not"),
    ("deepspeed-chat-64-a100", 2): (2.97864, "not"),
    ("deepspeed-chat-64-a100", 3): (762.532, "not"),
    ("deepspeed-chat-64-a100", 4): (4.89814, "not"),
    ("deepspeed-chat-64-a100", 5): (1253.92, "not"),
    ("deepspeed-chat-64-a100", 6): (15.8508, "holds"),
    ("deepspeed-chat-64-a100", 7): (4057.8, "holds"),
    ("deepspeed-chat-8-a100", 0): (5.27343, "not"),
    ("deepspeed-chat-8-a100", 1): (169.593, "not"),
    ("deepspeed-chat-8-a100", 2): (7.35589, "holds"),
    ("deepspeed-chat-8-a100", 3): (236.566, "holds"),
    ("deepspeed-chat-8-a100", 4): (23.269, "not"),
    ("deepspeed-chat-8-a100", 5): (748.333, "not"),
    ("deepspeed-chat-8-a100", 6): (38.1002, "holds"),
    ("deepspeed-chat-8-a100", 7): (1225.3, "holds"),
    ("fine-tuning", 0): (66.6667, "holds"),
    ("fine-tuning", 1): (40.3415, "holds"),  # two layers are whole at a time
    ("fine-tuning", 2): (48.936, "holds"),
    ("llama-65b", 0): (23.6506, "holds"),
    ("one-v100", 0): (23.971, "not"),
    ("one-v100", 1): (76.4733, "not"),
    ("one-v100", 2): (257.879, "not"),
    ("one-v100", 3): (124.809, "not"),
    ("pipeline-bubble", 0): (0.21875, "reproduced"),
    ("pipeline-bubble", 1): (0.21875, "reproduced"),
    ("pipeline-bubble", 2): (0.0546875, "reproduced"),
    ("pipeline-bubble", 3): (0.0729167, "reproduced"),
    ("pipeline-bubble", 4): (64, "reproduced"),
    ("recomputation", 0): (34.7428, "reproduced"),
    ("recomputation", 1): (1.97851, "reproduced"),
    ("recomputation", 2): (1, "reproduced"),
    ("ring-and-server", 0): (1.00706, "reproduced"),
    ("ring-and-server", 1): (8.11111, "reproduced"),
    ("ring-and-server", 2): (32.5079, "reproduced"),
    ("ring-and-server", 3): (29.5312, "reproduced"),
    ("tp-inside", 0): (2.17915, "reproduced"),
    ("zero", 0): (120, "reproduced"),
    ("zero", 1): (31.4062, "reproduced"),
    ("zero", 2): (16.6406, "reproduced"),
    ("zero", 3): (1.875, "reproduced"),
    ("zero", 4): (1.5, "reproduced"),
    ("zero", 5): (12, "not"),
    ("zero", 6): (64, "reproduced"),
    ("zero", 7): (64, "not"),
}
"""(file, place): value and verdict; agreement is not a goal, only that both stay what they are said to be."""

BY_OPERATORS = (
    "bloom-176b",
    "deepspeed-chat-64-a100",
    "deepspeed-chat-8-a100",
    "llama-65b",
    "one-v100",
    "recomputation",
    "tp-inside",
)
"""Files whose values follow the fitted parameters of the operator model, and may move by as much as those do."""


def _claims(path: Path) -> tuple[ClaimItem, ...]:
    (scenario,) = load_scenarios(path)
    return run(scenario).claims


@pytest.mark.parametrize("path", SEEDS, ids=lambda p: p.stem)
def test_values_and_verdicts_stay(path: Path) -> None:
    claims = _claims(path)
    pinned = {place: value for (name, place), value in PINNED.items() if name == path.stem}
    assert len(claims) == len(pinned) > 0
    for place, item in enumerate(claims):
        value, verdict = pinned[place]
        assert item.value == pytest.approx(value, rel=0.15 if path.stem in BY_OPERATORS else 1e-4), item.text
        assert item.verdict.startswith(verdict), item.text
        assert item.holds == (verdict != "not")


def test_every_quantity_is_used_by_a_shipped_claim() -> None:
    works = [work for path in SEEDS for one in load_scenarios(path) for work in one.workload]
    used = {work.claim.quantity for work in works if isinstance(work, ClaimWork)}
    assert used == set(FUNCTIONS)


def test_a_wrong_printed_value_is_not_reproduced() -> None:
    path = next(p for p in SEEDS if p.stem == "zero")
    (scenario,) = load_scenarios(path, ["workload.1.claim.printed=[30.0]"])
    assert run(scenario).claims[1].verdict.startswith("not reproduced")


def test_what_is_printed() -> None:
    shown = CliRunner().invoke(app, ["run", "seeds/zero", "--no-files"])
    assert shown.exit_code == 0, shown.output
    for words in (
        "claim     ",
        "source    Rajbhandari",
        "printed   1.9 GB",
        "computed  1.875 GB",
        "verdict   reproduced",
    ):
        assert words in shown.output


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("workload.0.claim.quantity=zero_gigabites", "did you mean 'zero_gigabytes'?"),
        ("workload.0.claim.printed=[]", "expected at least 1 items"),
        ("workload.0.claim.printed=[2.0, 1.0]", "first end is above its last"),
        ("workload.0.claim.inputs={ranks: 64, stage: 1}", "found no number 'parameters', which zero_gigabytes needs"),
        ("workload.0.claim.quantity=training_days", "found no training, which training_days needs"),
        ("library=none", "found a claim with library none, expected library nccl"),
    ],
)
def test_what_makes_no_sense_is_refused(override: str, message: str) -> None:
    path = next(p for p in SEEDS if p.stem == "zero")
    with pytest.raises(CommsimError) as found:
        run(load_scenarios(path, [override])[0])
    assert message in str(found.value)
