"""The pass in which NCCL says what it chooses: what it is asked for, and what is kept of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from commsim.errors import CommsimError, MeasurementError
from commsim.measure import launcher
from commsim.measure.capture import (
    CHOICES,
    DEBUG_LOG,
    GRAPHS,
    TOPOLOGY,
    begin,
    capture_environment,
    finish,
    is_captured,
)
from commsim.measure.run import Run
from commsim.measure.tasks import Task
from commsim.scenario.load import load_scenarios
from commsim.scenario.setting import build_topology

LOG = """node17:100:200 [0] NCCL INFO NCCL version 2.28.9+cuda12.9
node17:100:200 [0] NCCL INFO comm 0x1 rank 0 nRanks 8 nNodes 1 localRanks 8 localRank 0 MNNVL 0
node17:100:200 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}
node17:100:200 [0] NCCL INFO AllReduce: 1048576 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}
"""

GRAPH = """<graph id="{id}" pattern="{pattern}" crossnic="0" nchannels="1" speedintra="20" speedinter="20"
 latencyinter="0" typeintra="NVL" typeinter="PIX" samechannels="1"><channel>
 <gpu dev="0"/><gpu dev="1"/><gpu dev="2"/><gpu dev="3"/><gpu dev="4"/><gpu dev="5"/><gpu dev="6"/><gpu dev="7"/>
</channel></graph>"""
XML = '<graphs version="1">' + GRAPH.format(id=0, pattern=4) + GRAPH.format(id=1, pattern=1) + "</graphs>"

RUN = Run("a run", (Task("all_reduce", (1 << 20,)),), "nccl", 8)


def captured(folder: Path, log: str = LOG, graphs: str = XML) -> Path:
    """A folder in which NCCL has written what it was asked for."""
    begin(folder)
    asked = capture_environment(folder, 0)
    Path(asked["NCCL_DEBUG_FILE"]).write_text(log)
    if graphs:
        Path(asked["NCCL_GRAPH_DUMP_FILE"]).write_text(graphs)
    Path(asked["NCCL_TOPO_DUMP_FILE"]).write_text('<system version="1"></system>')
    return folder


def test_it_works_in_a_new_folder_and_keeps_all(tmp_path: Path) -> None:
    """NCCL makes no folder: it must be there when NCCL begins."""
    folder = captured(tmp_path / "new" / "run")
    finish(folder, RUN.fingerprint())
    assert {path.name for path in (folder / "capture").iterdir()} == {DEBUG_LOG, GRAPHS, TOPOLOGY}
    text = (folder / CHOICES).read_text()
    said = json.loads(text)
    assert (said["version"], said["ranks"], said["graphs"]) == ([2, 28, 9], 8, "capture/graphs.xml")
    assert said["choices"] == [
        {"collective": "all_reduce", "nbytes": 1 << 20, "algorithm": "ring", "protocol": "Simple", "channels": 2}
    ]
    assert "node17" not in text  # the log itself, which names it, stays apart


def test_every_rank_asks_for_the_topology_and_one_writes(tmp_path: Path) -> None:
    """The ranks of a host exchange it once more where it is asked for: one that did not would not take part."""
    asked = [capture_environment(tmp_path, rank) for rank in range(3)]
    assert len({one["NCCL_TOPO_DUMP_FILE"] for one in asked}) == 1
    assert {one["NCCL_TOPO_DUMP_FILE_RANK"] for one in asked} == {"0"}
    assert ["NCCL_DEBUG" in one for one in asked] == [True, False, False]
    assert ["NCCL_GRAPH_DUMP_FILE" in one for one in asked] == [True, False, False]
    assert "NCCL_GRAPH_DUMP_FILE" not in capture_environment(tmp_path, 0, graphs=False)


def test_a_sign_that_nccl_expands_stays_itself(tmp_path: Path) -> None:
    """NCCL reads %h and %p in NCCL_DEBUG_FILE as the host and the process."""
    name = capture_environment(tmp_path / "50%h", 0)["NCCL_DEBUG_FILE"]
    assert "50%%h" in name


def test_a_pass_without_a_word_leaves_the_earlier_one(tmp_path: Path) -> None:
    folder = captured(tmp_path)
    finish(folder, RUN.fingerprint())
    before = (folder / CHOICES).read_text()
    captured(folder, log="node17:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda12.9\n")
    with pytest.raises(CommsimError):
        finish(folder, RUN.fingerprint())
    assert (folder / CHOICES).read_text() == before
    assert (folder / "capture" / DEBUG_LOG).read_text() == LOG


def test_a_repeated_command_does_not_capture_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = replace(RUN, out=str(tmp_path))
    started: list[Run] = []
    monkeypatch.setattr(launcher, "launch", lambda run, show, **_: started.append(run))
    launcher.capture_here(run, print)
    assert [(one.capture, one.iterations, one.warmup, one.check) for one in started] == [
        (run.fingerprint(), 1, 0, False)
    ]
    finish(captured(tmp_path), run.fingerprint())
    launcher.capture_here(run, print)
    assert len(started) == 1
    assert is_captured(tmp_path, run.fingerprint())
    assert not is_captured(tmp_path, replace(run, world_size=2).fingerprint())


def test_a_machine_that_cannot_write_its_graphs_is_asked_again_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NCCL fails as it writes a path of kind C2C."""
    said: list[str] = []
    tried: list[bool] = []

    def launch(run: Run, show: object, **_: object) -> None:
        tried.append(run.capture_graphs)
        raise MeasurementError("rank 0: no communicator of NCCL: internal error\nmore")

    monkeypatch.setattr(launcher, "launch", launch)
    launcher.capture_here(replace(RUN, out=str(tmp_path)), said.append)
    assert tried == [True, False]
    assert said == ["# warning: NCCL's choices are not captured: rank 0: no communicator of NCCL: internal error"]
    folder = captured(tmp_path, graphs="")
    assert json.loads(finish(folder, "f").read_text())["graphs"] == f"capture/{DEBUG_LOG}"


def test_a_scenario_takes_the_graphs(tmp_path: Path, checkout: Path) -> None:
    folder = captured(tmp_path)
    named = json.loads(finish(folder, "f").read_text())["graphs"]
    overrides = [f"library.graph={folder / named}"]
    (scenario,) = load_scenarios(checkout / "scenarios" / "allreduce-8-h100.yaml", overrides)
    assert scenario.library.graph == str(folder / named)
    assert build_topology(scenario).world_size == 8
