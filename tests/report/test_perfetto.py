"""The Chrome trace: what a viewer needs, no overlap on a thread, and a note where ranks are left out."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.collectives.ring import ring_all_reduce
from commsim.engine.evaluate import evaluate
from commsim.engine.timeline import Timeline, timeline
from commsim.report.perfetto import chrome_trace
from commsim.scenario.work import Traced
from commsim.topology.presets import load_preset


def _timeline(channels: int = 2) -> Timeline:
    schedule = ring_all_reduce(8, 8 << 20, channels, pipeline=2)
    return timeline(schedule, evaluate(schedule, load_preset("hgx-h100"), "event"))


def test_every_move_is_an_event_and_none_overlap_on_a_thread() -> None:
    rows = _timeline()
    trace = json.loads(chrome_trace(Traced(rows, "ring", world_size=8)))
    moves = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert sorted(e["args"]["row"] for e in moves) == list(range(rows.rows))
    threads = defaultdict(list)
    for e in moves:
        assert e["pid"] == rows.endpoint[e["args"]["row"]]
        threads[e["pid"], e["tid"]].append((e["ts"], e["ts"] + e["dur"]))
    for spans in threads.values():
        spans.sort()
        assert all(a[1] <= b[0] + 1e-9 for a, b in pairwise(spans))
    assert max(e["ts"] + e["dur"] for e in moves) == pytest.approx(1e6 * rows.end_s.max())
    assert "note" not in trace["otherData"]
    names = [e["args"]["name"] for e in trace["traceEvents"] if e["name"] == "process_name"]
    assert names == [f"rank {r}" for r in range(8)]


@pytest.mark.parametrize("most", [1, 100, 200])
def test_a_trace_above_the_cap_shows_some_ranks_and_says_so(most: int) -> None:
    rows = _timeline()
    trace = json.loads(chrome_trace(Traced(rows, "ring"), most))
    moves = [e for e in trace["traceEvents"] if e["ph"] == "X"]
    assert 0 < len(moves) <= most
    assert trace["traceEvents"][0]["name"].startswith("sample: ")
    assert trace["otherData"]["note"] == trace["traceEvents"][0]["name"]
    assert (trace["otherData"]["moves"], trace["otherData"]["moves_shown"]) == (rows.rows, len(moves))


def test_the_command_writes_a_trace(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "trace.json"
    done = CliRunner().invoke(app, ["run", "ring-without-library", "--no-files", "--trace", str(file)])
    assert done.exit_code == 0, done.output
    assert "# trace of Raw ring on one HGX H100 node: ring all_reduce of 1 GiB on 8 ranks" in done.output
    assert "#   NVLink: 16 links, " in done.output
    assert json.loads(file.read_text())["otherData"]["moves"] == 112


def test_a_scenario_with_a_library_has_no_moves_to_trace(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", "quickstart", "--no-files", "--trace", str(tmp_path / "t.json")])
    assert done.exit_code != 0
    assert "found the library nccl, expected none for a trace" in str(done.exception)
