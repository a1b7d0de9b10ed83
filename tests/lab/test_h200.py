"""What `commsim gpu` measured on an H200 that four ranks shared, beside what the model says."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from commsim.lab.findings import SHARED, conclude, logged_choices
from commsim.scenario.load import load_scenarios
from commsim.training.comm_sms import slowed_by

RUNS = Path(__file__).parents[2] / "validation" / "runs" / "h200"
LABS = ("five-minutes", "three-minutes")


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("lab", LABS)
def test_nccl_chose_what_the_model_says(lab: str) -> None:
    scenario = load_scenarios(RUNS / lab / "scenario.yaml")[0]
    choices = logged_choices(scenario, RUNS / lab / "nccl_choices.json")
    assert len(choices) == 48
    assert all(c.agrees and c.logged_channels == c.predicted_channels for c in choices)


@pytest.mark.parametrize("lab", LABS)
def test_large_messages_send_the_bytes_of_their_schedule(lab: str) -> None:
    tables = [path for path in (RUNS / lab).rglob("measured.csv") if path.parent.name != "steps"]
    shares = []
    for path in tables:
        for row in rows_of(path):
            sent, expected = (sum(map(float, row[name].split())) for name in ("sent_bytes", "expected_sent_bytes"))
            if expected and int(row["size_bytes"]) >= 8 << 20:
                shares.append(sent / expected / (2 if "ring-ll" in str(path) else 1))
    assert len(shares) > 8
    assert max(abs(share - 1) for share in shares) < 1e-4


@pytest.mark.parametrize("lab", LABS)
def test_ranks_that_take_turns_on_a_gpu_are_not_judged(lab: str) -> None:
    findings = conclude(RUNS / lab)
    assert not findings.judged
    assert findings.calibration is None
    assert findings.gaps == [SHARED]
    assert not (RUNS / lab / "params.yaml").exists()


def test_compute_beside_held_sms_takes_as_much_longer_as_it_lacks_them() -> None:
    rows = [row for row in rows_of(RUNS / "decode_kernels.csv") if row["kind"] == "beside"]
    alone = {row["shape"]: float(row["seconds"]) for row in rows if row["call"] == "0 SMs"}
    errors = [
        slowed_by(int(row["call"].split()[0]), 132) / (float(row["seconds"]) / alone[row["shape"]]) - 1
        for row in rows
        if row["call"] != "0 SMs" and not row["shape"].startswith("copy")
    ]
    assert len(errors) == 42
    assert np.median(np.abs(errors)) < 0.0592
    assert max(map(abs, errors)) < 0.19
