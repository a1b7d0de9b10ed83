"""How a run used the network: lines, the table of links, and both views of contention beside a row."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.report.tables import links_csv, use_lines
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run

_TEXT = """
name: Links
topology: {{preset: hgx-h100-ndr400, nodes: 4, oversubscription: 2, nodes_per_leaf: 2}}
library: none
workload: [{{collective: all_reduce, algorithm: {algorithm}, sizes: 1 MiB .. 64 MiB x64}}]
"""


def _run(tmp_path: Path, algorithm: str, *overrides: str) -> Any:
    (tmp_path / "s.yaml").write_text(_TEXT.format(algorithm=algorithm))
    return run(load_scenarios(tmp_path / "s.yaml", list(overrides))[0])


@pytest.mark.parametrize(("algorithm", "level"), [("ring", "wavefront"), ("ring", "event"), ("hierarchical", "event")])
def test_every_link_with_its_bytes_and_utilisation(tmp_path: Path, algorithm: str, level: str) -> None:
    (item,) = _run(tmp_path, algorithm, f"engine={level}").items
    use, last = item.use, item.rows[-1]
    assert use is not None
    assert (item.use_bytes, use.time_s) == (64 << 20, last.time_s)
    rows = list(csv.DictReader(io.StringIO(links_csv([item]))))
    assert len(rows) == use.links_used == sum(kind.links for kind in use.kinds)
    assert sum(int(row["bytes"]) for row in rows) == sum(kind.nbytes for kind in use.kinds)
    shares = [float(row["utilisation"]) for row in rows]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == pytest.approx(last.busiest_share, rel=0.01)
    limiting = {row["link"]: row["kind"] for row in rows}[last.busiest_link]
    assert limiting == last.bottleneck or shares[0] < 0.5
    for row in rows:
        assert float(row["busy_us"]) == pytest.approx(float(row["utilisation"]) * last.time_s * 1e6, rel=1e-6)
    assert use.exposed_s == pytest.approx(last.time_s)
    lines = use_lines(item)
    assert lines[0].startswith("# network at 64 MiB: ")
    assert len(lines) == 1 + len(use.kinds)


def test_the_bottleneck_is_named_alike_by_kind_and_link(tmp_path: Path) -> None:
    """One word for a kind of link, whoever says it."""
    (item,) = _run(tmp_path, "ring", "engine=event").items
    row = item.rows[-1]
    assert item.use is not None
    assert row.bottleneck in {"NVLink", "PCIe", "NIC", "fabric", "host link"}
    assert f"({row.bottleneck})" in item.use.bottleneck
    assert row.bottleneck in {kind.kind for kind in item.use.kinds}


def test_both_views_stand_beside_each_other(tmp_path: Path) -> None:
    result = _run(tmp_path, "tree")
    row = result.items[0].records()[-1]
    assert row["fifo_us"] == pytest.approx(row["time_us"])
    assert row["fair_us"] < 0.9 * row["fifo_us"]
    assert any(w.startswith("tree all_reduce of 64 MiB: ") for w in result.warnings)
    other = _run(tmp_path, "tree", "contention=fair").items[0].records()[-1]
    assert other["fair_us"] == pytest.approx(row["fair_us"], rel=2e-3)  # there by events, here in batches
    assert other["fifo_us"] == pytest.approx(row["fifo_us"], rel=1e-9)


def test_auto_compares_the_views_for_its_choice(tmp_path: Path) -> None:
    (row,) = _run(tmp_path, "auto", "topology.nodes=1", "workload.0.sizes=1 KiB").items[0].rows
    assert row.runner_up
    assert row.fifo_s == pytest.approx(row.time_s)
    assert row.fair_s is not None


def test_channels_that_share_links_are_compared_too(tmp_path: Path) -> None:
    row = _run(tmp_path, "ring", "workload.0.channels=4").items[0].rows[-1]
    assert row.level == "wavefront"
    assert row.fair_s is not None
    assert row.fair_s > 0


def test_the_folder_and_the_document(tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(_TEXT.format(algorithm="hierarchical"))
    out = tmp_path / "out"
    shown = CliRunner().invoke(app, ["run", str(tmp_path / "s.yaml"), "-o", str(out)])
    assert shown.exit_code == 0, shown.output
    assert "# network at 64 MiB: " in shown.output
    assert "#   NIC: 64 links, " in shown.output
    assert (out / "links.csv").read_text().count("\n") > 64
    use = json.loads((out / "result.json").read_text())["items"][0]["network_use"]
    assert {kind["kind"] for kind in use["kinds"]} == {"NVLink", "PCIe", "NIC", "fabric"}
    assert 0 < use["exposed_us"] <= use["time_us"] * (1 + 1e-12)


@pytest.mark.parametrize("algorithm", ["ring", "tree", "auto"])
def test_one_rank_has_nothing_to_send_and_nothing_exposed(tmp_path: Path, algorithm: str) -> None:
    (item,) = _run(tmp_path, algorithm, "topology.nodes=1", "topology.gpus_per_node=1").items
    assert item.use is not None
    assert item.use.exposed_s == item.use.time_s == 0.0
    assert use_lines(item) == ["# network at 64 MiB: nothing to send"]
