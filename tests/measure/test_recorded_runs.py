"""The runs recorded under validation/runs: that they are read, and that what is said of them is so."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from commsim.collectives.registry import build
from commsim.measure.parsers import read_measured

RUNS = Path(__file__).resolve().parents[2] / "validation" / "runs"
TABLES = sorted(path.parent for path in RUNS.rglob("measured.csv") if path.read_text().count("\n") > 1)


@pytest.mark.parametrize("folder", TABLES, ids=lambda p: str(p.relative_to(RUNS)))
def test_every_run_is_read_and_right(folder: Path) -> None:
    assert all(len(curve) for curve in read_measured(folder))
    with (folder / "measured.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row[f"{place}_wrong"] for row in rows for place in ("oop", "ip")} <= {"0", ""}
    said = json.loads((folder / "run.json").read_text())
    assert said["finished"] is True


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


@pytest.mark.skipif(not (RUNS / "training" / "training.json").is_file(), reason="no training run recorded")
def test_training_steps_sent_what_their_schedules_say() -> None:
    items = json.loads((RUNS / "training" / "training.json").read_text())["items"]
    assert len(items) == 5
    for item in items:
        assert item["wrong"] == 0
        assert item["sent_bytes"] == pytest.approx(item["expected_sent_bytes"], rel=0.01)
