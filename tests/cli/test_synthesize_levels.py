"""``commsim synthesize`` on machines too large for trees: plans by levels, folded where they are larger still."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.collectives.json_table import load_json


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["synthesize", *words])
    return done.exit_code, done.output


def test_a_machine_of_many_nodes_is_planned_by_levels(tmp_path: Path) -> None:
    out = tmp_path / "plan.json"
    words = ("hgx-h100-ndr400", "-n", "10", "-c", "all_to_all", "-b", "1 GiB", "--out", str(out))
    status, said = run(*words)
    assert status == 0
    assert "schedule by levels (nodes, rails)" in said
    assert "proven: every rank ends with what the collective promises" in " ".join(said.split())
    assert load_json(out).world_size == 80


def test_the_document_has_limit_reached_and_ratio() -> None:
    status, said = run("hgx-h100-ndr400", "-n", "16", "-c", "all_gather", "-b", "4 GiB", "--json")
    assert status == 0
    document = json.loads(said)
    assert document["ratio"] == pytest.approx(document["reached_us"] / document["limit_us"])
    assert 1 <= document["ratio"] < 1.03
    assert document["proven"]


@pytest.mark.slow  # two million rows
def test_a_thousand_nodes_fold() -> None:
    status, said = run("hgx-h100-ndr400", "-n", "1024", "-c", "all_gather", "-b", "64 GiB", "--json")
    assert status == 0
    assert json.loads(said)["folded_nodes"] == 32
