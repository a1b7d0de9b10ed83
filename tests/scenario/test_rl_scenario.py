"""``rl:`` items: what may be said, what comes out, saved answers read back, and the best split."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commsim import api
from commsim.cli import app
from commsim.errors import ScenarioError
from commsim.report.read_saved import read_saved
from commsim.scenario.rl_result import STAGES, RlItem

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "scenarios" / "rl").glob("*.yaml"))


def scenario(**changes: Any) -> dict[str, Any]:
    """A small step on eight GPUs; keys with dots go deeper."""
    rl: dict[str, Any] = {
        "prompts": 8,
        "samples": 4,
        "prompt_len": 100,
        "answer": {"mean": 200.0, "most": 500},
        "training": {"model": "qwen2.5-0.5b", "seq_len": 1024, "global_batch_size": 16, "zero_stage": 1},
        "engines": {},
    }
    for path, value in changes.items():
        *folders, name = path.split("__")
        block = rl
        for folder in folders:
            block = block.setdefault(folder, {})
        block[name] = value
    return {"name": "small", "topology": {"preset": "hgx-h100"}, "workload": [{"rl": rl}]}


def run(**changes: Any) -> RlItem:
    return api.run(scenario(**changes)).rl[0]


@pytest.mark.slow
@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_what_ships_runs(path: Path) -> None:
    item = api.run(path).rl[0]
    assert sum(item.step.shown().values()) == pytest.approx(item.step_s)
    assert item.step.seconds("rollout") >= item.most_s >= item.half_s


def test_phases_follow_from_the_algorithm() -> None:
    names = [phase.name for phase in run().step.phases]
    assert names == [
        "rollout", "old log probs", "reference", "actor update", "weights to engines", "offload", "controller",
    ]  # fmt: skip
    ppo = [phase.name for phase in run(algorithm="ppo").step.phases]
    assert {"reward model", "values", "critic update"} <= set(ppo)
    short = [phase.name for phase in run(reference=False, old_log_probs=False, offload=False).step.phases]
    assert short == ["rollout", "actor update", "weights to engines", "controller"]


def test_a_step_ahead_is_shorter_than_one_in_step() -> None:
    apart = {"engines__gpus": 4}
    in_step, ahead = run(**apart), run(**apart, behind=1)
    assert ahead.step_s < in_step.step_s
    assert ahead.step_s >= max(in_step.step.seconds("rollout"), in_step.step.seconds("update"))
    assert (ahead.gpus, ahead.engine_gpus, ahead.engines) == (8, 4, 4)


def test_more_answers_take_longer_and_updates_follow() -> None:
    few, many = run(), run(prompts=32)
    assert (few.updates, many.updates) == (2, 8)
    assert all(many.step.seconds(stage) >= few.step.seconds(stage) for stage in STAGES)


def test_gathering_for_every_token_is_what_the_hybrid_engine_avoids() -> None:
    deepspeed = {
        "training__zero_stage": 3,
        "training__framework": "deepspeed",
        "training__stack": "eager",
        "engines__framework": "deepspeed",
        "offload": False,
    }
    once, every = run(**deepspeed), run(**deepspeed, engines__gather="every_token")
    assert every.step.seconds("rollout") > once.step.seconds("rollout")
    assert every.step.seconds("sync") == 0.0 < once.step.seconds("sync")


def test_log_probabilities_cost_the_host() -> None:
    assert run(engines__log_probs=True).step.seconds("rollout") > run().step.seconds("rollout")


def test_point_to_point_sends_less_than_a_broadcast() -> None:
    apart = {"engines__gpus": 4, "engines__tp": 4}
    assert run(**apart, sync="point_to_point").step.seconds("sync") < run(**apart).step.seconds("sync")


def test_a_task_has_hours_and_a_price() -> None:
    item = run(steps=100, gpu_hour_usd=2.0)
    assert item.hours is not None
    assert item.hours == pytest.approx(100 * item.step_s / 3600)
    assert item.usd == pytest.approx(item.hours * 8 * 2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"behind": 1}, "workload.0.rl.engines.gpus: found gpus left out and behind 1"),
        ({"critic": "opt-350m"}, "workload.0.rl.critic: found opt-350m, expected none with grpo"),
        ({"training__global_batch_size": 20}, "found 20, expected a divisor of prompts * samples = 32"),
        (
            {"samples": 1_000_000},
            "workload.0.rl.samples: found prompts * samples = 8,000,000 requests, expected at most",
        ),
        ({"answer__mean": 600.0}, "workload.0.rl.answer.mean: found a mean of 600.0, expected at most 500"),
        ({"engines__gpus": 8}, "found 8 GPUs of engines and 0 of other models, expected fewer than the machine's 8"),
        ({"engines__gpus": 6, "engines__tp": 4}, "found 4 GPUs for an engine, expected a divisor of the 6 that"),
        ({"training__mesh": {"tp": 2, "pp": 3}}, "the trainer has 8 GPUs"),
        ({"engines__precision": "bf17"}, "workload.0.rl.engines.precision: found the format 'bf17'"),
        ({"training__model": "qwen9"}, "workload.0.rl.training.model"),
        ({"training__packed": [5]}, "found lengths, expected none: they follow from `answer`"),
    ],
)
def test_what_does_not_go_together_is_said_at_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        run(**changes)
    assert message in str(caught.value)


def test_engines_whose_gpu_has_no_units_for_the_format_are_warned_of() -> None:
    warnings = api.run(scenario(engines__precision="nvfp4")).warnings
    assert any("has no units for nvfp4: only weights have that type" in one for one in warnings)


def test_an_engine_without_room_is_said_at_the_item() -> None:
    with pytest.raises(ScenarioError, match=r"workload\.0\.rl: found .* GiB of weights of llama3-70b"):
        run(training__model="llama3-70b", training__mesh={"tp": 8})


def test_values_are_read_back() -> None:
    item = run(behind=1, engines__gpus=4, steps=10)
    assert RlItem.read(json.loads(json.dumps(item.to_dict()))).to_dict() == item.to_dict()


@pytest.mark.slow
def test_saved_answers_are_read_back_and_drawn(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(scenario(behind=1, engines__gpus=4, steps=10)))
    written = tmp_path / "out"
    done = CliRunner().invoke(app, ["run", str(path), "-o", str(written), "--plot", "--html"])
    assert done.exit_code == 0, done.output
    assert "one step ahead of a trainer (dp4)" in done.output
    names = {p.name for p in written.iterdir()}
    assert {"rl.csv", "phases.csv", "rl-step.png", "rollout.png", "report.html"} <= names
    item = read_saved(written).of_kind("rl")[0]
    assert item.to_dict() == api.run(scenario(behind=1, engines__gpus=4, steps=10)).rl[0].to_dict()
    drawn = CliRunner().invoke(app, ["plot", str(written), "--kind", "rollout", "-o", str(tmp_path / "r.png")])
    assert drawn.exit_code == 0, drawn.output


@pytest.mark.slow
def test_plan_finds_the_best_split(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(json.dumps(scenario()))
    done = CliRunner().invoke(app, ["plan", str(path), "-o", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 0, done.output
    answer = json.loads(done.output)
    steps = [split["step_s"] for split in answer["splits"]]
    assert steps == sorted(steps)
    assert {split["behind"] for split in answer["splits"]} == {0, 1}
    best = api.run(tmp_path / "out" / "scenario.yaml").rl[0]
    assert best.step_s == pytest.approx(steps[0])


def test_plan_of_several_items_is_refused(tmp_path: Path) -> None:
    twice = scenario()
    twice["workload"] *= 2
    path = tmp_path / "twice.json"
    path.write_text(json.dumps(twice))
    done = CliRunner().invoke(app, ["plan", str(path)])
    assert isinstance(done.exception, ScenarioError)
    assert "found several items, expected one rl item" in str(done.exception)
