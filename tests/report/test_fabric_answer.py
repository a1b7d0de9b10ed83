"""How much fabric is enough: by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

import commsim as cs
from commsim.cli import app as cli
from commsim.planner.sweep import read_sweep
from commsim.report.sweep_plot import (
    curves,
    enough,
    enough_lines,
    follows,
    numeric_paths,
    unchanged_lines,
    unchanged_paths,
)
from commsim.units import parse_bandwidth

SHIPPED = sorted((Path(__file__).resolve().parents[2] / "scenarios" / "sweep").glob("*.yaml"))


def _points(rows: list[tuple[dict[str, Any], float]], figure: str = "busbw_GBps") -> list[dict[str, Any]]:
    return [
        {"number": i, "values": values, "rows": [{"collective": "all_reduce", "size_bytes": 2**30, figure: value}],
         "error": None}
        for i, (values, value) in enumerate(rows)
    ]  # fmt: skip


NIC, OVER = "topology.nic_bandwidth", "topology.oversubscription"


def test_the_least_fabric_within_95_percent_is_named() -> None:
    points = _points(
        [
            ({NIC: "800 Gb/s", OVER: 1}, 100.0),
            ({NIC: "400 Gb/s", OVER: 1}, 99.0),
            ({NIC: "400 Gb/s", OVER: 2}, 96.0),
            ({NIC: "200 Gb/s", OVER: 1}, 94.0),  # as much fabric, but too slow
        ]
    )
    (found,) = enough(points, "busbw_GBps")
    assert found.least == {NIC: "400 Gb/s", OVER: 2}
    assert found.part == pytest.approx(1 / 4)
    (line,) = enough_lines(points, "busbw_GBps")
    assert "nic_bandwidth 400 Gb/s, oversubscription 2 is enough, 1/4 of the most that was tried" in line
    assert "bus bandwidth 96 GB/s, 96 % of the best (100)" in line


def test_of_times_the_smallest_is_the_ideal() -> None:
    points = _points([({NIC: "100 Gb/s"}, 2.0), ({NIC: "200 Gb/s"}, 1.0), ({NIC: "400 Gb/s"}, 0.9)], "step_s")
    (found,) = enough(points, "step_s")
    assert found.best == 0.9
    assert found.least == {NIC: "400 Gb/s"}
    assert "all of the fabric is needed" in enough_lines(points, "step_s")[0]


def test_without_a_fabric_there_is_no_answer() -> None:
    assert enough(_points([({"topology.nodes": 1}, 1.0), ({"topology.nodes": 2}, 2.0)]), "busbw_GBps") == []


def test_paths_that_go_together_are_one_curve() -> None:
    sizes = [(4, 18), (8, 9), (72, 1)]
    points = _points([({"topology.gpus_per_node": g, "topology.nodes": n}, float(g)) for g, n in sizes])
    assert follows(points, "topology.nodes", "topology.gpus_per_node")
    assert numeric_paths(points) == ["topology.gpus_per_node"]
    (curve,) = curves(points, "topology.gpus_per_node", "busbw_GBps")
    assert curve.x == (4.0, 8.0, 72.0)
    grid = _points([({"topology.nodes": n, OVER: o}, 1.0 * n * o) for n in (1, 2) for o in (1, 2)])
    assert not follows(grid, OVER, "topology.nodes")
    assert len(curves(grid, "topology.nodes", "busbw_GBps")) == 2


def test_shipped_sweeps_cover_every_question_about_fabrics() -> None:
    paths = {path for file in SHIPPED for path in read_sweep(file).paths}
    assert {
        "topology.nic_bandwidth", "topology.nics_per_node", "topology.oversubscription", "topology.fabric.kind",
        "topology.gpus_per_node", "workload.0.sizes", "topology.nodes",
    } <= paths  # fmt: skip
    assert all(sum(1 for _ in read_sweep(file).points()) <= 64 for file in SHIPPED)


@pytest.mark.parametrize("name", ["how-much-fabric", "fabric-for-a-step"])
def test_pcie_lets_the_fastest_card_of_a_sweep_do_its_best(name: str) -> None:
    """Else a faster card would look like no gain, and the ideal point would not be ideal."""
    sweep = read_sweep(next(file for file in SHIPPED if file.stem == name))
    values = next(iter(sweep.points())).values
    topology = yaml.safe_load(next(file for file in SHIPPED if file.stem == name).read_text())["topology"]
    assert NIC in values
    fastest = max(parse_bandwidth(str(point.values[NIC])) for point in sweep.points())
    assert 0.96 * fastest <= parse_bandwidth(topology["node"]["pcie"]["bandwidth"])


def test_groups_that_share_a_nic_share_its_bandwidth() -> None:
    """One NIC for a node's four data-parallel groups is a quarter of a NIC each."""
    step = {"model": "llama-3-8b", "global_batch_size": 16, "mesh": {"tp": 2, "dp": 8}}
    base = {"name": "x", "topology": {"preset": "hgx-h100-ndr400", "nodes": 2}, "workload": [{"training": step}]}
    one, slow, all_ = (
        cs.run(base, word).trainings[0].causes["dp"]
        for word in ("topology.nics_per_node=1", "topology.nic_bandwidth=50 Gb/s", "topology.nics_per_node=8")
    )
    assert one > 2 * all_
    assert one == pytest.approx(slow, rel=0.35)


def test_many_answers_are_told_by_their_first_and_their_number() -> None:
    from commsim.report.answers import Swept

    points = _points([({"topology.nodes": n, OVER: over}, 1.0 * n / over) for n in range(1, 60) for over in (1, 2)])
    assert "of nodes 1, all_reduce, 1 GiB" in enough_lines(points, "busbw_GBps")[0]
    lines = Swept("", tuple(points), "").answer
    assert len(lines) < 30
    assert any("more such answers" in line for line in lines)


def test_a_path_that_changes_no_answer_is_no_answer() -> None:
    points = _points([({"topology.nodes": n, OVER: over}, 10.0 / n) for n in (2, 4) for over in (1, 2, 4)])
    assert unchanged_paths(points) == [OVER]
    assert enough(points, "busbw_GBps") == []
    assert unchanged_lines(points, {OVER: "one leaf; set it"}) == [
        f"{OVER} changes no answer (tried: 1, 2, 4): one leaf; set it."
    ]
    assert unchanged_lines(points, {})[0].endswith("nothing that was asked depends on it here.")


def test_a_path_that_changes_one_answer_is_not_called_idle() -> None:
    of_two, of_four = [(1, 5.0), (2, 5.0)], [(1, 2.5), (2, 1.25)]
    points = _points([({"topology.nodes": n, OVER: o}, y) for n, some in ((2, of_two), (4, of_four)) for o, y in some])
    assert unchanged_paths(points) == []
    flat, felt = enough_lines(points, "busbw_GBps")
    assert flat.startswith("For nodes 2, all_reduce, 1 GiB oversubscription changes nothing: bus bandwidth 5 GB/s in")
    assert "all of the fabric is needed" in felt
    for point in points:
        point["rows"][0]["time_us"] = 7.0
    assert unchanged_paths(points) == [], "its bandwidth changed"


def test_a_path_that_decides_whether_there_is_an_answer_is_not_called_idle() -> None:
    """With seed 3 both machines are refused; the number of nodes is as idle as it was."""
    points = _points([({"placement.seed": s, "topology.nodes": n}, 5.0) for n in (2, 4) for s in (1, 2, 3)])
    assert unchanged_paths(points) == ["placement.seed", "topology.nodes"]
    for point in points:
        if point["values"]["placement.seed"] == 3:
            point.update(rows=[], error="node 2 is cut off")
    assert unchanged_paths(points) == ["topology.nodes"]


def test_what_cannot_be_compared_is_not_called_idle() -> None:
    assert unchanged_paths(_points([({OVER: 1}, 1.0)])) == []
    sizes = _points([({"workload.0.sizes": size}, 5.0) for size in ("1 GiB", "2 GiB")])
    sizes[1]["rows"][0]["size_bytes"] *= 2
    assert unchanged_paths(sizes) == []


_SWEEP = """
name: S
topology: {preset: hgx-h100-ndr400, nodes: 4}
library: none
workload: [{collective: all_reduce, algorithm: hierarchical, sizes: 1 MiB}]
sweep: {topology.oversubscription: [1, 4]}
"""


def test_a_sweep_ends_with_why_its_path_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "s.yaml"
    file.write_text(_SWEEP)
    said = (
        "topology.oversubscription changes no answer (tried: 1, 4): all 4 nodes hang on one leaf of each rail "
        "(nodes_per_leaf: 32); set nodes_per_leaf below 4 to see it."
    )
    assert cs.sweep(file).answer == (said,)
    ended = CliRunner().invoke(cli, ["sweep", str(file), "-o", str(tmp_path / "out"), "-j", "1", "--html"])
    assert f"# {said}" in ended.stdout.splitlines()
    assert "enough" not in ended.stdout
    assert "changes no answer" in (tmp_path / "out" / "report.html").read_text()
    assert cs.sweep(file, "topology.nodes_per_leaf=1").answer[0].startswith("For 95 % of the ideal")
