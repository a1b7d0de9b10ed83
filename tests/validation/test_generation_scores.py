"""Scores of generation: the figures of a few runs, what is left out, the page, and the parameters behind them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from commsim.cli.validate import app
from commsim.document import read_documents
from commsim.generation.parameters import generation_parameters, generation_values
from commsim.generation.steady import ClosedLoop
from commsim.generation.terms import PATH, kernels
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import prepare, run
from study.generation import FOLDER, MODES, PROJECT, WITHOUT, document, key_of, path_without, score
from study.generation_report import page, summary
from study.serving_fit import MOST_RUNS, Predictions, first_seconds, fitted, free_parameters, some_runs
from study.serving_queue import QueueTimes
from study.serving_rows import read_runs

FEW = ("s10", "s13", "s163", "s397", "s459")


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = PROJECT.read_text(encoding="utf-8").splitlines()
    path = tmp_path_factory.mktemp("runs") / "runs.csv"
    chosen = [line for line in lines if line.split(",")[0] in FEW]
    refused = chosen[0].replace("s10,", "x,", 1).replace("MiniMax-M2.5", "Unheard-9T")
    path.write_text("\n".join([lines[0], *chosen, refused]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("mode", MODES)
def test_runs_are_predicted_without_what_is_left_out(few: Path, mode: str) -> None:
    figures = document(score(few, mode))
    assert (figures["n_rows"], figures["n_answered"]) == (6, 5)
    assert figures["median_error_pct"]["tpot"] < 25
    assert {row["id"] for row in figures["rows"]} == set(FEW)
    (refused,) = figures["not_answered"]
    assert refused["ids"] == ["x"]
    assert "Unheard-9T" in refused["reason"]


def test_the_page_and_the_summary_say_the_figures(few: Path) -> None:
    figures = document(score(few))
    text = page(figures, figures, json.loads((FOLDER / "kernels.json").read_text(encoding="utf-8")))
    error = figures["median_error_pct"]
    assert f"| architecture left out | {error['tpot']} | {error['tpot_within_25']} | {error['ttft']} |" in text
    assert "not answered: 1 row (x)" in summary(figures)
    assert "| attention of one token | all |" in text


def test_the_command_says_what_is_wrong_on_one_screen(few: Path, tmp_path: Path) -> None:
    said = CliRunner().invoke(app, ["generation", "--runs", str(few), "--mode", "leave-nothing"])
    assert "found 'leave-nothing', expected one of leave-model or leave-gpu" in str(said.exception)
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("a,b\n1,2\n", encoding="utf-8")
    said = CliRunner().invoke(app, ["generation", "--runs", str(wrong)])
    assert "wrong.csv:1:1: found no column" in str(said.exception)


def test_everything_that_is_scored_has_parameters_without_it() -> None:
    known = read_documents(WITHOUT)[0].data
    rows = read_runs(PROJECT).rows
    assert set(known) == {key_of(row, mode) for row in rows for mode in MODES}
    names = {p.name for p in generation_parameters()}
    assert all(set(of) <= names and set(free_parameters()) <= set(of) for of in known.values())


def test_kernels_without_a_gpu_are_other_kernels() -> None:
    assert path_without("h200_sxm") == PATH
    seen, without = kernels(), kernels(path_without("h100_sxm"))
    assert set(without.groups) < set(seen.groups)
    assert seen.of("product", "vllm", "bf16") != without.of("product", "vllm", "bf16")


def test_a_fit_looks_at_a_few_runs_of_each_kind() -> None:
    rows = read_runs(PROJECT).rows
    kinds = {(row.architecture, row.framework, row.system) for row in rows}
    some = some_runs(rows)
    assert len({(row.replica, row.loop) for row in some}) <= MOST_RUNS * len(kinds)
    assert {(row.architecture, row.framework, row.system) for row in some} == kinds


def test_a_fit_comes_near_the_times_of_its_rows() -> None:
    from dataclasses import replace

    rows = [row for row in read_runs(PROJECT).rows if row.id in ("s10", "s11", "s12", "s13", "s14", "s19", "s25")]
    true = {**generation_values(), "host.step.vllm": 4e-3}
    predictions = Predictions()
    made = [replace(row, each_s=t.each_s) for row, t in zip(rows, predictions.of_rows(rows, true), strict=True)]
    before, after = (
        np.median([abs(t.each_s / row.each_s - 1) for t, row in zip(predictions.of_rows(made, v), made, strict=True)])
        for v in (generation_values(), fitted(made, predictions))
    )
    assert after < 0.5 * before


def test_what_servers_need_is_what_the_queue_leaves_of_first_tokens() -> None:
    rows = [row for row in read_runs(PROJECT).rows if row.framework == "vllm"][:20]
    queued = [row.first_s - 0.05 for row in rows]
    assert first_seconds(rows, queued, "vllm") == pytest.approx(0.05)
    assert np.isnan(first_seconds(rows, queued, "sglang"))


def test_steady_loops_are_nearly_what_the_queue_says() -> None:
    rows = [row for row in read_runs(PROJECT).rows if row.id in ("s10", "s12")]
    values = generation_values()
    queue, steady = QueueTimes(values), Predictions()
    for row in rows:
        near = ClosedLoop(row.loop.concurrency, 0.9 * row.loop.isl, 0.9 * row.loop.osl)  # the mean of what is drawn
        each = steady.times(row.replica, near, values).each_s
        assert queue.of(row.replica, row.loop).each_s == pytest.approx(each, rel=0.02)


def test_the_score_is_what_a_scenario_says(tmp_path: Path) -> None:
    path = tmp_path / "same.yaml"
    path.write_text(
        """name: a run of the table
topology: {preset: hgx-b200, gpus_per_node: 2}
library: {name: nccl, version: 2.27.5}
workload:
  - generation:
      model: minimax-m2
      mesh: {tp: 2}
      framework: vllm
      release: 0.19.0
      precision: fp8_block
      cache_precision: fp8
      prompt: {tokens: 1024, range_ratio: 0.8}
      answer: {tokens: 1024, range_ratio: 0.8}
      batch: 64
      requests: 640
""",
        encoding="utf-8",
    )
    answer: Any = run(prepare(load_scenarios(path)[0])).answers[0]
    row = next(row for row in read_runs(PROJECT).rows if row.id == "s11")
    scored = QueueTimes(generation_values()).of(row.replica, row.loop)
    assert (answer.run.ttft_s, answer.run.tpot_s) == pytest.approx((scored.first_s, scored.each_s), rel=1e-6)
