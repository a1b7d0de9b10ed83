"""The search against what NCCL's own finds, machine by machine (tests/data/nccl_search/README.md)."""

from __future__ import annotations

import csv
from functools import lru_cache
from itertools import groupby
from pathlib import Path

import pytest
from nccl_machines import Node

from commsim.nccl.graph import discover
from commsim.nccl.system import Graph
from commsim.nccl.version import parse_version
from commsim.topology.imported import Given
from commsim.topology.importing import checked, import_file

TABLE = Path(__file__).parents[1] / "data" / "nccl_search" / "graphs.csv"
VERSION = parse_version("2.26.2")

Row = dict[str, str]


@lru_cache
def _rows() -> tuple[Row, ...]:
    with TABLE.open(newline="") as file:
        return tuple(csv.DictReader(file))


def _figures(graph: Graph | None) -> str:
    """A graph as the table writes it: the pattern, channels x GB/s inside/outside, types, and how channels differ."""
    if graph is None:
        return ""
    same, crossing = " same" if graph.same_channels else "", f" cross={graph.cross_nic}" if graph.cross_nic else ""
    speeds = f"{graph.channels}x{graph.intra_gbps:g}/{graph.inter_gbps:g}"
    return f"{graph.pattern} {speeds} {graph.intra_type}/{graph.inter_type}{same}{crossing}"


def _orders(graph: Graph) -> str:
    """The GPUs of each channel, as the table writes them: equal ones that follow each other once, with their number."""
    runs = [(order, len(list(run))) for order, run in groupby(graph.orders)]
    return " ".join("-".join(map(str, order)) + (f"*{count}" if count > 1 else "") for order, count in runs)


def _found(row: Row, path: Path) -> Row:
    """What is found on the machine of a row, imported from its XML, by the table's columns."""
    node = Node.of(row)
    path.write_text(node.xml())
    given = Given(network="infiniband" if node.gdr else "ethernet")
    topology = checked(import_file(path, given), path, int(row["nodes"]))
    system = discover(topology, VERSION, dict(text.split("=") for text in row["env"].split()))
    return {
        "ring": _figures(system.ring),
        "tree": _figures(system.tree),
        "nvls": _figures(system.nvls),
        "channels": str(system.coll_channels),
        "ring_orders": _orders(system.ring),
        "tree_orders": _orders(system.tree),
    }


def _marked(row: Row) -> object:
    marks = [pytest.mark.xfail(strict=True, reason=row["open"])] if row["open"] else []
    return pytest.param(row, id=row["case"], marks=marks)


@pytest.mark.parametrize("row", [_marked(row) for row in _rows()])
def test_the_search_finds_nccls_graphs(row: Row, tmp_path: Path) -> None:
    found = _found(row, tmp_path / "topo.xml")
    assert found == {column: row[column] for column in found}


def test_the_table_covers_what_machines_have() -> None:
    columns = {name: {row[name] for row in _rows()} for name in _rows()[0]}
    assert len(_rows()) >= 40
    assert sum(bool(row["open"]) for row in _rows()) <= len(_rows()) // 8
    assert {cpu.split("-")[0] for cpu in columns["cpu"]} == {"intel", "amd", "zhaoxin", "arm", "ibm"}
    assert {"intel-6-143", "intel-6-207"} <= columns["cpu"]
    assert {name.split(":")[0] for name in columns["nvlink"]} == {
        "none", "switch", "mesh", "ring", "pairs", "cube", "power", "c2c",
    }  # fmt: skip
    assert {"1", "2", "8"} <= columns["gpus"]
    assert any("*" in nics for nics in columns["nics"])
    assert any(pcie.startswith("x") for pcie in columns["pcie"])
    assert columns["nodes"] == {"1", "2"}
