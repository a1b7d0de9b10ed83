"""Plans of serving: the search, its bounds, what it writes, and what is refused."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import commsim as cs
from commsim.cli import app
from commsim.errors import CommsimError, InfeasibleError, ScenarioError
from commsim.planner.serving import ServingAnswer, ServingChoice, machines_of, scenario_of, search
from commsim.planner.serving_question import ServingSpec, read_serving
from commsim.report.page import html
from commsim.report.serving_plan import ServingPlan, plot_front
from commsim.scenario.generation import GenerationSpec

SERVE: dict[str, Any] = {
    "generation": {"model": "llama-3-8b", "prompt": 512, "answer": 64},
    "clusters": [{"name": "board", "topology": {"preset": "hgx-h100"}, "gpu_hour_usd": 2.0}],
    "search": {"tp": [1, 2], "batch": [1, 8, 32]},
}


def _file(folder: Path, **changes: Any) -> Path:
    path = folder / "p.yaml"
    path.write_text(json.dumps({"name": "p", "serve": SERVE | changes}))
    return path


def _answer(folder: Path, **changes: Any) -> tuple[ServingSpec, ServingAnswer]:
    path, answer = _file(folder, **changes), ServingAnswer()
    question, document = read_serving(path)
    search(question.serve, machines_of(question.serve, document, path.parent), answer)
    return question.serve, answer


def test_every_cut_and_load_is_simulated_and_the_best_one_runs_as_a_scenario(tmp_path: Path) -> None:
    spec, answer = _answer(tmp_path)
    assert {(c.spec.mesh.tp, c.batch) for c in answer.choices} == {(t, b) for t in (1, 2) for b in (1, 8, 32)}
    best = answer.ranked[0]
    assert best.tokens_per_s_per_gpu == max(c.tokens_per_s_per_gpu for c in answer.choices)
    assert best.usd_per_million == pytest.approx(2.0 / 3600 / best.tokens_per_s_per_gpu * 1e6)
    (tmp_path / "best.yaml").write_text(json.dumps(scenario_of(best, spec, "p")))
    count = f"workload.0.generation.requests={4 * best.batch * best.replicas}"
    (item,) = cs.run(tmp_path / "best.yaml", count).answers
    assert item.tokens_per_s_per_gpu == pytest.approx(best.tokens_per_s_per_gpu, rel=0.02)  # type: ignore[attr-defined]


def test_a_bound_takes_the_most_that_keeps_it(tmp_path: Path) -> None:
    _, free = _answer(tmp_path)
    times = sorted(c.tpot_s for c in free.choices)
    bound = f"{times[len(times) // 2] * 1e3!r} ms"
    _, bounded = _answer(tmp_path, most_tpot=bound)
    best, within = bounded.ranked[0], [c for c in bounded.choices if c.meets]
    assert best.meets
    assert (
        best.tokens_per_s_per_gpu == max(c.tokens_per_s_per_gpu for c in within) < free.ranked[0].tokens_per_s_per_gpu
    )
    _, none = _answer(tmp_path, most_tpot="1 us")
    assert none.ranked[0].tpot_s == min(c.tpot_s for c in none.choices)
    assert not none.ranked[0].meets


def test_loads_grow_until_more_give_nothing(tmp_path: Path) -> None:
    _, answer = _answer(tmp_path, search={"tp": 8})
    rates = [c.tokens_per_s_per_gpu for c in answer.choices]
    assert [c.batch for c in answer.choices][:7] == [1, 2, 4, 8, 12, 16, 24]
    assert all(b > 1.01 * a for a, b in pairwise(rates[:-1]))


def _choice(tpot: float, rate: float) -> ServingChoice:
    spec = GenerationSpec(model="llama-3-8b", prompt={"tokens": 1}, answer={"tokens": 2})  # type: ignore[arg-type]
    return ServingChoice("m", 0, spec, 8, 1, 1, 0.1, tpot, rate, 0.1, 0.1, True)


def test_no_other_choice_is_better_for_users_and_for_gpus_than_one_of_the_front() -> None:
    choices = [_choice(t, r) for t, r in ((1.0, 1.0), (2.0, 5.0), (2.0, 3.0), (3.0, 4.0), (4.0, 6.0))]
    assert [(c.tpot_s, c.tokens_per_s_per_gpu) for c in ServingAnswer(choices).front] == [(1, 1), (2, 5), (4, 6)]


def test_the_answer_says_what_is_best_and_why(tmp_path: Path) -> None:
    spec, answer = _answer(tmp_path, most_tpot="1 us")
    plan = ServingPlan("p <1>", spec, answer, "name: x\n", 1.0)
    assert plan.answer[0] == "No choice has at most 1 us per output token; the quickest for users is shown."
    assert "llama-3-8b in bf16 on board (8 GPUs): " in plan.answer[1]
    assert "late" in plan.table()
    assert len(plan.listed) == 2
    assert plot_front(plan).axes
    text = html(plan.page())
    assert "p &lt;1&gt;" in text


def test_the_command_writes_what_it_finds(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["plan", str(_file(tmp_path)), "-o", str(tmp_path / "o"), "serve.search.tp=2"])
    assert done.exception is None, done.output
    assert "tokens/s per GPU" in done.stdout
    document = json.loads((tmp_path / "o" / "serving.json").read_text())
    assert [row["tp"] for row in document["loads"]] == [2, 2, 2]
    assert {"best.yaml", "front.png", "front.svg"} <= {file.name for file in (tmp_path / "o").iterdir()}
    shown = CliRunner().invoke(app, ["plan", str(_file(tmp_path)), "--json", "--no-files", "serve.search.tp=2"])
    assert json.loads(shown.stdout)["loads"] == document["loads"]


def test_where_no_choice_keeps_the_bounds_the_status_is_1_and_no_best_one_is_written(tmp_path: Path) -> None:
    bounded = [str(_file(tmp_path, most_tpot="1 ns")), "serve.search={tp: 2, batch: 1}"]
    (tmp_path / "best.yaml").write_text("of a question before")
    done = CliRunner().invoke(app, ["plan", *bounded, "-o", str(tmp_path)])
    assert done.exit_code == 1
    assert done.stdout.startswith("No choice has at most 1 ns per output token; the quickest for users is shown.")
    assert not (tmp_path / "best.yaml").exists()
    assert [row["meets"] for row in json.loads((tmp_path / "serving.json").read_text())["loads"]] == [False]
    shown = CliRunner().invoke(app, ["plan", *bounded, "--json", "--no-files"])
    assert (shown.exit_code, json.loads(shown.stdout)["loads"][0]["meets"]) == (1, False)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"generation": {**SERVE["generation"], "batch": 4}}, "serve.generation.batch: found batch, which the plan"),
        ({"generation": {"model": "nope", "prompt": 1, "answer": 2}}, "serve.generation.model"),
        ({"generation": {**SERVE["generation"], "framework": "hf"}}, "found hf, expected a serving framework"),
        ({"clusters": [{"topology": {"preset": "hgx-h1000"}}]}, "hgx-h1000"),
        ({"clusters": 2 * SERVE["clusters"]}, "found 'board' again"),
        ({"most_tpot": 25}, "serve.most_tpot"),
        ({"best": 0}, "serve.best"),
        ({"colour": 1}, "unknown key 'colour'"),
    ],
)
def test_what_is_wrong_is_said_at_its_place(tmp_path: Path, changes: dict[str, Any], text: str) -> None:
    with pytest.raises(CommsimError) as error:
        _answer(tmp_path, **changes)
    assert "p.yaml:1:" in str(error.value)
    assert text in str(error.value)


def test_where_nothing_runs_the_reasons_are_given(tmp_path: Path) -> None:
    generation = {"model": "llama-3-70b", "prompt": 1, "answer": 2}
    with pytest.raises(InfeasibleError, match=r"found no cut of llama-3-70b that runs: llama3-70b does not fit on 1"):
        _answer(tmp_path, generation=generation, search={"tp": 1})


def test_in_python_the_answer_is_an_object(tmp_path: Path) -> None:
    plan = cs.serve(_file(tmp_path), "serve.search.batch=4")
    assert repr(plan) == "\n".join(plan.answer)
    assert len(plan.to_frame()) == 2
    assert plan.to_frame()["rank"].tolist() == [1, 2]
    assert cs.plot(plan).axes
    assert cs.write_report(plan, tmp_path / "r.html").read_text().startswith("<!doctype html>")
    with pytest.raises(ScenarioError, match=r"found a plan of serving.*commsim\.serve takes it"):
        cs.plan(_file(tmp_path))


def test_a_plan_is_no_scenario_and_says_which_command_takes_it(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="found a plan, expected a scenario; commsim plan FILE takes it"):
        cs.run(_file(tmp_path))


@pytest.mark.parametrize(
    "path", sorted((Path(__file__).parents[2] / "scenarios" / "serve").glob("*.yaml")), ids=lambda p: p.stem
)
def test_shipped_plans_load(path: Path) -> None:
    question, document = read_serving(path)
    assert machines_of(question.serve, document, path.parent)
