"""What bounds requests that a model answers, and what single changes give."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import commsim as cs
from commsim.planner.explain import Explanation, explain
from commsim.report.explain import explain_lines, to_dict

ITEM = {"model": "llama-3-8b", "mesh": {"tp": 4}, "prompt": 512, "answer": 64, "batch": 8}


def _explained(folder: Path, nodes: int = 1, what_if: bool = True, **changes: Any) -> Explanation:
    item = {key: value for key, value in (ITEM | changes).items() if value is not None}
    scenario = {
        "name": "serve",
        "topology": {"preset": "hgx-h100-ndr400", "nodes": nodes},
        "workload": [{"generation": item}],
    }
    (folder / "s.yaml").write_text(json.dumps(scenario))
    (explanation,) = explain(cs.run(folder / "s.yaml"), what_if=what_if)
    return explanation


@pytest.mark.slow  # every change twice
def test_every_gain_is_had_by_its_override(tmp_path: Path) -> None:
    explanation = _explained(tmp_path)
    assert {"weights in fp8", "tp 8 instead of 4", "tp 2 instead of 4"} <= {g.what for g in explanation.gains}
    for gain in explanation.gains:
        changes = [word.strip("'") for word in gain.overrides.replace(" workload", "\nworkload").split("\n")]
        (item,) = cs.run(tmp_path / "s.yaml", *changes).answers
        assert float(item.run.latency.mean()) == pytest.approx(gain.seconds), gain.what  # type: ignore[attr-defined]
    lines = explain_lines(explanation)
    assert "to the last token" in lines[0]
    assert "bound by" in lines[0]
    assert any("The cache does not bind" in line for line in lines)


@pytest.mark.slow  # ten runs, over collectives of 16 ranks
def test_changes_of_the_network_are_tried_where_it_is_used(tmp_path: Path) -> None:
    def names(**changes: Any) -> str:
        explanation = _explained(tmp_path, nodes=2, **changes)
        return " ".join([g.what for g in explanation.gains] + [what for what, _ in explanation.refused])

    assert "NIC" not in names()
    assert "NIC" in names(mesh={"tp": 16})
    assert "NIC" in names(prefill={"replicas": 2, "mesh": {"tp": 4}})


def test_a_full_cache_is_named(tmp_path: Path) -> None:
    explanation = _explained(
        tmp_path, mesh={"tp": 8}, model="llama-3-70b", prompt=30_000, answer=4000, batch=60, what_if=False
    )
    assert any("The cache binds" in line for line in explain_lines(explanation))
    assert explanation.gains == ()
    values = to_dict(explanation)
    assert values["bound_by"] in values["shares"]
    assert sum(values["shares"].values()) == pytest.approx(1.0)
