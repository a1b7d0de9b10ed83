"""What a step that does not fit needs: parts that add up, and every mend once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.cli import app

SCENARIO = """
name: too much
topology: {preset: hgx-h100-ndr400, nodes: 2}
library: {name: nccl, version: 2.26.2}
workload:
  - training: {model: llama-3-70b, mesh: {tp: 8, dp: 2}, global_batch_size: 16, micro_batch_size: 1, zero_stage: 1}
"""


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return ["run", str(path), "--no-files"]


def test_parts_of_the_memory_add_up(words: list[str]) -> None:
    shown = CliRunner().invoke(app, words, catch_exceptions=False).stdout
    (line,) = re.findall(r"^  stage 0 .*GiB.*(?:\n {10}.*)*", shown, re.MULTILINE)
    total, *parts = map(float, re.findall(r"(?<= )\d+\.\d", line))
    assert len(parts) == 5
    assert "others" in line
    assert sum(parts) == pytest.approx(total, abs=0.05 * len(parts) + 0.05)


def test_the_cheapest_change_is_told_once(words: list[str]) -> None:
    done = CliRunner().invoke(app, words, catch_exceptions=False)
    (change,) = re.findall(r"the cheapest change that makes it fit: (.*)", done.stdout)
    assert (done.stdout + done.stderr).count(change) == 1
    assert "it would also fit with" in done.stdout
    item = json.loads(CliRunner().invoke(app, [*words, "--json"], catch_exceptions=False).stdout)
    assert change in json.dumps(item)
