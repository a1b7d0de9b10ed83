"""Graphs that NCCL found itself, in place of those of a search."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from commsim.errors import LogFormatError, ScenarioError, TopologyError
from commsim.nccl.debug_log import read_debug_log
from commsim.nccl.graph import discover
from commsim.nccl.graph_file import read_graph_file
from commsim.nccl.predict import Options, Predictor
from commsim.report.choice import explain
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import prepare, run
from commsim.scenario.schema import Scenario
from commsim.topology.presets import load_preset

SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", Path(__file__).parents[2] / ".." / "shared" / "data"))
VERSION = (2, 22, 3)

CHANNEL = "<channel>{net}" + "".join(f'<gpu dev="{g}"/>' for g in range(8)) + "{net}</channel>"
XML = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="20" typeintra="NVL" typeinter="PIX"
         samechannels="1">{channels}</graph>
  <graph id="2" pattern="3" crossnic="0" nchannels="2" speedintra="20" speedinter="20" typeintra="NVL" typeinter="PIX"
         samechannels="1">{channels}</graph>
  <graph id="3" pattern="5" crossnic="0" nchannels="0" speedintra="0" speedinter="0" typeintra="NVL" typeinter="PIX"
         samechannels="1"/>
</graphs>
"""
LOG = """host:1:1 [0] NCCL INFO NCCL version 2.22.3+cuda12.6
host:1:2 [0] NCCL INFO Pattern 4, crossNic 0, nChannels 3, bw 22.000000/22.000000, type NVL/PIX, sameChannels 1
host:1:2 [0] NCCL INFO Pattern 1, crossNic 0, nChannels 3, bw 24.000000/22.000000, type NVL/PIX, sameChannels 1
host:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
host:1:2 [0] NCCL INFO 5 coll channels, 5 collnet channels, 0 nvls channels, 8 p2p channels, 2 p2p channels per peer
"""


@pytest.fixture
def xml(tmp_path: Path) -> Path:
    path = tmp_path / "graph.xml"
    path.write_text(XML.format(channels=2 * CHANNEL.format(net='<net dev="0"/>')))
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "job.log"
    path.write_text(LOG)
    return path


def test_a_graph_file_takes_the_place_of_the_search(xml: Path) -> None:
    given = read_graph_file(xml)
    assert (given.gpus, given.several_nodes, given.coll_channels) == (8, True, None)
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    searched, system = discover(topology, VERSION), discover(topology, VERSION, {}, given)
    assert (searched.ring.channels, searched.nvls is None) == (8, False)
    assert (system.ring.channels, system.ring.intra_gbps, system.coll_channels) == (2, 20.0, 4)
    assert system.tree == searched.tree  # not in the file
    assert system.nvls is None  # looked for in vain
    assert not system.collnet  # nothing reduces in this fabric
    bounded = discover(topology, VERSION, {"NCCL_MIN_NCHANNELS": "6"}, given)
    assert bounded.coll_channels == 6


def test_a_log_takes_the_place_of_the_search(log: Path) -> None:
    given = read_graph_file(log)
    assert (given.gpus, given.several_nodes, given.coll_channels) == (8, True, 5)
    topology = load_preset("hgx-h100-ndr400", nodes=4)  # more nodes of the same kind
    system = discover(topology, VERSION, {}, given)
    assert (system.ring.channels, system.tree.intra_gbps, system.nvls, system.coll_channels) == (3, 24.0, None, 5)
    assert discover(topology, VERSION, {"NCCL_MAX_NCHANNELS": "2"}, given).coll_channels == 2
    slower = Predictor(topology, Options(VERSION, graphs=given)).predict("all_reduce", 1 << 30)
    assert slower.time_s > 2 * Predictor(topology, Options(VERSION)).predict("all_reduce", 1 << 30).time_s


def test_nothing_is_searched_where_all_is_given(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commsim.nccl.graph._graphs", lambda *a: pytest.fail("searched"))
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    for env in ({}, {"NCCL_NVLS_ENABLE": "0"}):
        assert discover(topology, VERSION, env, read_graph_file(log)).ring.channels == 3


def test_nvls_of_a_file_is_off_where_the_job_turns_it_off(xml: Path) -> None:
    there = 'id="3" pattern="5" crossnic="0" nchannels="0"'
    text = xml.read_text().replace(there, there.replace('"0"', '"1"').replace('crossnic="1"', 'crossnic="0"'))
    xml.write_text(text.replace('samechannels="1"/>', f'samechannels="1">{CHANNEL.format(net="")}</graph>'))
    topology, given = load_preset("hgx-h100-ndr400", nodes=2), read_graph_file(xml)
    assert discover(topology, VERSION, {}, given).nvls is not None
    assert discover(topology, VERSION, {"NCCL_NVLS_ENABLE": "0"}, given).nvls is None


RINGS = """\
host:1:2 [0] NCCL INFO comm 0x1 rank 0 nRanks 16 nNodes 2 localRanks 8 localRank 0 MNNVL 0
host:1:2 [0] NCCL INFO Channel 00/04 :    0   1   2   3   4   5   6   7   8   9  10  11  12  13  14  15
host:1:2 [0] NCCL INFO Channel 01/04 :    0   3   2   9  15  14  13  12   8  11  10   1   7   6   5   4
host:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
"""


@pytest.mark.parametrize(("more", "channels"), [("", 4), ("host:1:2 [0] NCCL INFO 6 coll channels, 8 p2p channels", 6)])
def test_channels_of_a_log_without_graphs_hold_and_their_speeds_are_searched(
    tmp_path: Path, more: str, channels: int
) -> None:
    path = tmp_path / "rings.log"
    path.write_text(RINGS + more)
    given = read_graph_file(path)
    assert (given.graphs, given.coll_channels, given.gpus, given.several_nodes) == ((), channels, 8, True)
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    system, searched = discover(topology, VERSION, {}, given), discover(topology, VERSION)
    assert (system.coll_channels, searched.coll_channels) == (channels, 16)
    assert (system.ring, system.tree, system.nvls) == (searched.ring, searched.tree, searched.nvls)
    model = Predictor(topology, Options(VERSION, graphs=given))
    assert [text for text in model.warnings if "their speeds are searched" in text]
    assert "no ring and no tree graph" in model.warnings[0]


@pytest.mark.skipif(not (SHARED / "nccl_debug").is_dir(), reason="the published logs are not at hand")
def test_published_logs_that_print_channels_are_taken() -> None:
    files = sorted((SHARED / "nccl_debug").glob("*.log"))
    with_channels = [
        path
        for path in files
        if re.search(
            r"INFO (\d+ coll channels|Channel \d+/\d+ :(\s+\d+)+\s*$)", path.read_text("utf-8", "replace"), re.M
        )
    ]
    assert len(with_channels) >= 12
    assert all(read_graph_file(path).coll_channels or read_graph_file(path).graphs for path in with_channels)


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"nodes": 2, "gpus_per_node": 4}, "of 8 GPUs a node, but this job has 4"),
        ({"nodes": 1}, "of several nodes, but this job has 1 node"),
    ],
)
def test_graphs_of_other_nodes_are_refused(log: Path, xml: Path, knobs: dict[str, int], message: str) -> None:
    for path in (log, xml):
        with pytest.raises(TopologyError, match=f"{path.name}: its graphs are {message}"):
            discover(load_preset("hgx-h100-ndr400", **knobs), VERSION, {}, read_graph_file(path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "host:1:2 [0] NCCL INFO hello",
            "holds no ring and no tree graph and no channels; set NCCL_DEBUG=INFO and NCCL",
        ),
        ("hello", "no line of NCCL_DEBUG=INFO"),
        ("<graphs>", "not well-formed"),
        (XML.format(channels="").replace('nchannels="2"', 'nchannels="0"'), "found no channels of <graph id=.0"),
    ],
)
def test_files_without_graphs(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(LogFormatError, match=message):
        read_graph_file(tmp_path / "x")


def load_scenario(path: Path, overrides: Sequence[str] = ()) -> Scenario:
    (found,) = load_scenarios(path, overrides)
    return found


def scenario(folder: Path, more: str = "", work: str = "{collective: all_reduce, sizes: 64 MiB}") -> Path:
    path = folder / "s.yaml"
    path.write_text(
        "name: x\ntopology: {preset: hgx-h100-ndr400, nodes: 2}\n"
        f"library: {{name: nccl, version: 2.22.3, graph: job.log{more}}}\n"
        f"workload:\n  - {work}\n"
    )
    return path


def test_a_scenario_names_the_file(log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_scenario(scenario(tmp_path))
    assert "3, bw 22.000000/22.000000, type NVL/PIX" in explain(prepare(found))
    assert "5 coll channels" in explain(prepare(found))
    slow = run(found).items[0].rows[0].time_s
    searched = tmp_path / "searched.yaml"
    searched.write_text((tmp_path / "s.yaml").read_text().replace(", graph: job.log", ""))
    assert slow > 1.5 * run(load_scenario(searched)).items[0].rows[0].time_s
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run(load_scenario(tmp_path / "s.yaml")).items[0].rows[0].time_s == slow
    assert run(load_scenario(tmp_path / "s.yaml", ["library.graph=../job.log"])).items[0].rows[0].time_s == slow


@pytest.mark.parametrize(
    ("more", "work", "message"),
    [
        (", graph: no.log", "", r"s.yaml:3:47 library.graph: found no file 'no.log'"),
        (
            "",
            "{training: {model: gpt3-175b, mesh: {tp: 8, dp: 2}, global_batch_size: 16}}",
            "library.graph: .*collectives only",
        ),
    ],
)
def test_faults_of_a_scenario(log: Path, tmp_path: Path, more: str, work: str, message: str) -> None:
    path = scenario(tmp_path, work=work) if work else scenario(tmp_path)
    if more:
        path.write_text(path.read_text().replace("job.log", "no.log"))
    with pytest.raises(ScenarioError, match=message):
        run(load_scenario(path))
    other = load_scenario(scenario(tmp_path), ["topology.nodes=1"])
    with pytest.raises(ScenarioError, match=r"library.graph: .*job.log: its graphs are of several nodes"):
        run(other)


@pytest.mark.skipif(not (SHARED / "nccl_debug").is_dir(), reason="the published logs are not at hand")
def test_a_published_log_gives_its_own_table(tmp_path: Path) -> None:
    path = SHARED / "nccl_debug" / "v100_n2x2_ssbandjl_nccl2.26.log"
    topology = load_preset("dgx-1v-roce100", nodes=2, gpus_per_node=2)
    system, own = discover(topology, (2, 26, 6), {}, read_graph_file(path)), read_debug_log(path)
    assert (system.ring, system.tree, system.nvls) == (own.graph("ring"), own.graph("tree"), own.graph("nvls"))
    assert (system.coll_channels, system.ranks, system.nodes) == (own.coll_channels, own.ranks, own.nodes)
