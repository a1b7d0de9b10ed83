"""The runs recorded under validation/runs: that they are read, and that what is said of them is so."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from commsim.collectives.registry import build
from commsim.gloo.predict import GlooPredictor
from commsim.measure.parsers import read_measured
from commsim.scenario.load import load_scenarios
from commsim.scenario.params import gloo_parameters, read_params
from commsim.scenario.run import run
from commsim.scenario.setting import build_topology

RUNS = Path(__file__).resolve().parents[2] / "validation" / "runs"
TABLES = sorted(path.parent for path in RUNS.rglob("measured.csv") if path.read_text().count("\n") > 1)


@pytest.mark.parametrize("folder", TABLES, ids=lambda p: str(p.relative_to(RUNS)))
def test_every_run_is_read_and_right(folder: Path) -> None:
    assert all(len(curve) for curve in read_measured(folder))
    with (folder / "measured.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row[f"{place}_wrong"] for row in rows for place in ("oop", "ip")} <= {"0", ""}
    said = json.loads((folder / "run.json").read_text())
    assert said["finished"] is True or "h200" in folder.parts  # a laboratory ends when its time does


@pytest.mark.parametrize("n", range(2, 9))
def test_traffic_is_that_of_the_ring_within_one_percent(n: int) -> None:
    """By the schedule and by the formula, on every rank; and the table of the page shows the greatest excess."""
    text = (RUNS / "README.md").read_text()
    shown = []
    with (RUNS / "traffic" / str(n) / "measured.csv").open() as stream:
        for row in csv.DictReader(stream):
            size, sent = int(row["size_bytes"]), [int(word) for word in row["sent_bytes"].split()]
            schedule = build("all_reduce", "ring", n, size, itemsize=4).sent_bytes().tolist()
            assert len(sent) == n
            assert sent == pytest.approx(schedule, rel=0.01)
            assert sent == pytest.approx([2 * (n - 1) / n * size] * n, rel=0.01)
            shown.append(f"+{max(s / (2 * (n - 1) / n * size) - 1 for s in sent):.2%}".replace("%", " %"))
    assert f"| {n} | {shown[0]} | {shown[1]} |" in text


@pytest.mark.parametrize(
    ("folder", "scenario", "above"),
    [
        ("loopback", "gloo-quickstart", 0),
        ("testbed/star", "gloo-testbed-star", 64 << 10),
        ("testbed/tree", "gloo-testbed-tree", 64 << 10),
        ("testbed/ring", "gloo-testbed-ring", 64 << 10),
    ],
)
def test_calibrated_predictions_of_gloo_are_as_near_as_the_page_says(
    folder: str, scenario: str, above: int, checkout: Path
) -> None:
    """With the recorded parameters, as the page counts: the mean over curves of their mean errors above some size.

    The page has each size predicted without itself.
    """
    (one,) = load_scenarios(checkout / "scenarios" / f"{scenario}.yaml", [f"params={RUNS / folder / 'params.yaml'}"])
    parameters, _ = gloo_parameters(one)
    model = GlooPredictor(build_topology(one), parameters, one_host=one.library.one_host)
    means = []
    for curve in read_measured(RUNS / folder):
        assert curve.low_s is not None  # five repeats
        large = np.flatnonzero(curve.size_bytes > above)
        predicted = [model.predict(curve.collective, int(curve.size_bytes[i])).time_s for i in large]
        means.append(np.mean(np.abs(predicted / curve.time_s[large] - 1)))
    assert np.mean(means) < (0.10 if above else 0.15)
    page = (checkout / "docs" / "accuracy-gloo.md").read_text()
    row = next(line for line in page.splitlines() if line.startswith(f"| {folder.removeprefix('testbed/')} |"))
    held_out = read_params(RUNS / folder / "params.yaml").held_out_mape
    assert held_out is not None
    assert row.split(" | ")[1] == f"{100 * held_out:.1f} %"
    assert row.endswith(": met |")


@pytest.mark.skipif(not (RUNS / "training" / "training.json").is_file(), reason="no training run recorded")
def test_training_steps_sent_what_their_schedules_say() -> None:
    items = json.loads((RUNS / "training" / "training.json").read_text())["items"]
    assert len(items) == 5
    for item in items:
        assert item["wrong"] == 0
        assert item["sent_bytes"] == pytest.approx(item["expected_sent_bytes"], rel=0.01)


def test_training_steps_on_gloo_are_predicted_as_the_page_says(checkout: Path) -> None:
    folder = RUNS / "training"
    (scenario,) = load_scenarios(folder / "steps.yaml", [f"params={RUNS / 'loopback' / 'params.yaml'}"])
    predicted = run(scenario).trainings
    measured = json.loads((folder / "training.json").read_text())["items"]
    page = (checkout / "validation" / "runs" / "README.md").read_text()
    names = {"ddp": "DDP", "zero2": "ZeRO-2", "zero3": "ZeRO-3", "tp": "TP", "pp": "PP"}
    for item, step in zip(measured, predicted, strict=True):
        row = next(line for line in page.splitlines() if line.startswith(f"| {names[item['scheme']]} | "))
        _, _, _, time, shown, _ = row.split(" | ")
        assert time == f"{1e3 * item['step_s']:.1f} ms"
        # Not to the digit: what a step takes rests on parameters of compute that are fitted anew now and then.
        assert 1e3 * step.step_s == pytest.approx(float(shown.removesuffix(" ms")), rel=0.03)
        if item["scheme"] != "pp":  # whose idle stages leave their cores to the others
            assert abs(step.step_s / item["step_s"] - 1) < 0.25
