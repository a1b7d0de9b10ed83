"""Graph files: read whole, faults with their lines, and a system that takes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from commsim.errors import LogFormatError
from commsim.nccl.graph_xml import read_graphs
from commsim.nccl.system import Graph

SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", Path(__file__).parents[2] / ".." / "shared" / "data")) / "topo"

GOOD = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="24.5" typeintra="NVL" typeinter="PXB"
         samechannels="0">
    <channel><net dev="0"/><gpu dev="0"/><gpu dev="a"/><net dev="0"/></channel>
    <channel><net dev="1"/><gpu dev="a"/><gpu dev="0"/><net dev="1"/></channel>
  </graph>
  <graph id="3" pattern="5" crossnic="0" nchannels="0" speedintra="0" speedinter="0" latencyinter="0" typeintra="NVL"
         typeinter="PIX" samechannels="1"/>
</graphs>
"""


def test_a_graph_is_read_with_its_orders(tmp_path: Path) -> None:
    (tmp_path / "graph.xml").write_text(GOOD)
    ring = read_graphs(tmp_path / "graph.xml")["ring"]
    assert ring == Graph(2, 20.0, 24.5, "RING", "NVL", "PXB", same_channels=False, orders=((0, 10), (10, 0)))


@pytest.mark.parametrize(("written", "same"), [("0", False), ("1", True)])
def test_whether_all_channels_have_the_same_order(tmp_path: Path, written: str, same: bool) -> None:
    (tmp_path / "graph.xml").write_text(GOOD.replace('samechannels="0"', f'samechannels="{written}"'))
    assert read_graphs(tmp_path / "graph.xml")["ring"].same_channels is same


@pytest.mark.parametrize(
    ("number", "name"),
    [  # NCCL_TOPO_PATTERN_* of src/include/graph.h
        (1, "BALANCED_TREE"), (2, "SPLIT_TREE"), (3, "TREE"), (4, "RING"), (5, "NVLS"), (6, "COLLNET_DIRECT"),
    ],
)  # fmt: skip
def test_patterns_have_the_numbers_of_nccl(tmp_path: Path, number: int, name: str) -> None:
    (tmp_path / "graph.xml").write_text(GOOD.replace('pattern="4"', f'pattern="{number}"'))
    assert read_graphs(tmp_path / "graph.xml")["ring"].pattern == name


def test_every_fault_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "graph.xml"
    path.write_text(
        GOOD.replace('pattern="4"', 'pattern="9"')
        .replace('typeinter="PXB"', 'typeinter="FAR"')
        .replace('"a"', '"x"', 1)
    )
    with pytest.raises(LogFormatError) as error:
        read_graphs(path)
    assert [(f.line, f.path) for f in error.value.faults] == [(2, "pattern"), (2, "typeinter"), (4, "dev")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("<graphs><graph", "1:9: not well-formed"),
        ("<system/>", "expected <graphs>"),
        ("<graphs/>", "found no <graph>"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><graphs/>', "document type or entity"),
    ],
)
def test_what_is_no_graph_file(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "graph.xml").write_text(text)
    with pytest.raises(LogFormatError, match=message):
        read_graphs(tmp_path / "graph.xml")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not at hand")
@pytest.mark.parametrize(
    ("name", "ring", "tree"),
    [
        ("azure_ncv4-graph.xml", (2, 12.0, "SYS"), (4, "BALANCED_TREE")),
        ("graph_dgx1_v100_dump.xml", (6, 22.0, "NVL"), (6, "BALANCED_TREE")),
        ("graph_msccl_2020_no_latency.xml", (2, 12.0, "SYS"), (2, "TREE")),
    ],
)
def test_published_graphs(name: str, ring: tuple[int, float, str], tree: tuple[int, str]) -> None:
    graphs = read_graphs(SHARED / name)
    assert (graphs["ring"].channels, graphs["ring"].intra_gbps, graphs["ring"].intra_type) == ring
    assert (graphs["tree"].channels, graphs["tree"].pattern) == tree
