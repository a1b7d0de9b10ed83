"""Curves of several shapes of a machine: whose they are, and how far a fit to some carries to the others."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from commsim.accuracy.shapes import Shape, leave_out, shape_of, topologies_of
from commsim.cli import app
from commsim.errors import CalibrationError
from commsim.measure.records import Curve
from commsim.nccl.parameters import load_parameters
from commsim.nccl.predict import Options, Predictor
from commsim.scenario.fit import curve_model
from commsim.scenario.load import load_scenarios
from commsim.scenario.params import read_params
from commsim.scenario.schema import Scenario
from commsim.scenario.setting import build_topology
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset

SCENARIO = """
name: One board
topology: {preset: hgx-h100}
library: {name: nccl, version: 2.27.3}
workload: [{collective: all_reduce, sizes: 1 KiB .. 1 MiB x4}]
"""
SIZES = np.array([1 << k for k in range(10, 30, 2)], np.int64)


def board(gpus: int, nodes: int = 1) -> Topology:
    preset = "hgx-h100" if nodes == 1 else "hgx-h100-ndr400"
    return load_preset(preset, nodes=nodes, gpus_per_node=gpus)


def measured(gpus: int, collective: str, hop: float = 1.5, name: str = "") -> Curve:
    """What a machine would measure whose hops of LL take `hop` times as long as those shipped, with its base."""
    own = load_parameters("hopper")
    slow = own.ring_hop.nvlink.model_copy(update={"LL": hop * own.ring_hop.nvlink.LL})
    hops = own.ring_hop.model_copy(update={"nvlink": slow})
    base = own.base.model_copy(update={"LL": hop * own.base.LL})
    slower = own.model_copy(update={"ring_hop": hops, "base": base})
    model = Predictor(board(gpus), Options((2, 27, 3), iterations=None), slower)
    time = np.array([model.predict(collective, int(n)).time_s for n in SIZES])
    return Curve(name or f"{collective}{gpus}", collective, gpus, "measured", SIZES, time, dtype="float")


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return load_scenarios(path)[0]


@pytest.mark.parametrize(
    ("ranks", "conditions", "expected"),
    [
        (16, {}, Shape(2, 8)),
        (None, {}, Shape(2, 8)),
        (4, {}, Shape(1, 4)),
        (8, {}, Shape(1, 8)),
        (64, {}, Shape(8, 8)),
        (12, {}, Shape(2, 6)),
        (8, {"n_nodes": "2"}, Shape(2, 4)),
        (16, {"n_nodes": "4"}, Shape(4, 4)),
        (4, {"n_nodes": "two"}, Shape(1, 4)),
    ],
)
def test_a_log_that_names_no_hosts_is_of_whole_nodes(
    ranks: int | None, conditions: dict[str, str], expected: Shape
) -> None:
    curve = Curve("x", "all_reduce", ranks, "measured", SIZES, np.full(SIZES.size, 1e-6), conditions=conditions)
    assert shape_of(curve, board(8, nodes=2), 8) == expected
    assert expected.nodes * expected.gpus == (ranks or 16)


def test_ranks_that_nodes_do_not_share_evenly_are_told_with_every_other_fault(scenario: Scenario) -> None:
    curves = [replace(measured(8, "all_reduce"), n_ranks=n, name=f"log{n}") for n in (17, 8, 23)]
    with pytest.raises(CalibrationError, match=r"(?s)log17: measured on 17 ranks.*log23: measured on 23 ranks"):
        topologies_of(scenario, board(8), curves)


def _left_out(scenario: Scenario, curves: list[Curve]) -> Iterable[tuple[str, float, float, float | None]]:
    on = topologies_of(scenario, build_topology(scenario), curves)
    model = curve_model(scenario, build_topology(scenario), curves, on)
    shapes = [Shape(machine.nodes, machine.ranks_per_node) for machine in on]
    parts = leave_out(curves, shapes, shapes, model.part)
    return [(part.name, part.fitted, part.shipped, part.interpolated) for part in parts]


def test_a_fit_to_some_shapes_serves_the_others(scenario: Scenario) -> None:
    curves = [measured(gpus, collective) for gpus in (2, 4, 8) for collective in ("all_reduce", "all_gather")]
    for name, fitted, shipped, interpolated in _left_out(scenario, curves):
        assert fitted < 0.5 * shipped, name
        assert interpolated is not None


def test_without_a_model_the_nearest_shape_is_copied_and_two_are_carried_on(scenario: Scenario) -> None:
    """By hand: busbw is size / time * 2 (n - 1) / n, 1 for two ranks, 1.5 for four; time straight in log of ranks."""
    size = np.array([1 << 20, 1 << 22], np.int64)
    curves = [
        Curve(f"x{n}", "all_reduce", n, "measured", size, np.array([t, 2 * t]), dtype="float")
        for n, t in ((2, 100e-6), (4, 180e-6), (8, 324e-6))
    ]
    model = curve_model(scenario, board(8), curves, [board(n) for n in (2, 4, 8)])
    parts = leave_out(curves, [Shape(1, n) for n in (2, 4, 8)], (2, 4, 8), model.part)
    by_name = {part.name: part for part in parts}
    assert by_name["8"].copied == pytest.approx(1 - 180 / 324 * 1.75 / 1.5)
    assert by_name["8"].interpolated == pytest.approx(0.0, abs=1e-9)  # 1.8 times as long for each doubling
    assert by_name["4"].interpolated == pytest.approx(0.0, abs=1e-9)


def test_one_shape_leaves_nothing_out(scenario: Scenario) -> None:
    assert list(_left_out(scenario, [measured(8, "all_reduce")])) == []


def test_logs_of_one_board_are_fitted_together(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    logs = [
        checkout / "validation" / "silicon" / f"silicon_h100_sxm_x{n}_all_reduce_half_2_29_2.csv" for n in (2, 4, 8)
    ]
    out = tmp_path / "p.yaml"
    words = ["calibrate", str(tmp_path / "s.yaml"), *map(str, logs), "--out", str(out), "--no-plot"]
    done = CliRunner().invoke(app, [*words, "--json"])
    assert done.exit_code == 0, done.output
    left = json.loads(done.stdout)["left_out"]
    assert [part["name"] for part in left["shapes"]] == ["1 x 2 GPUs", "1 x 4 GPUs", "1 x 8 GPUs"]
    assert all(part["fitted"] < part["copied"] for part in left["shapes"])
    assert left["collectives"] == []
    table = CliRunner().invoke(app, words)
    assert table.stdout.startswith("# error on shapes left out, one after another: ")
    assert "contradict each other" not in table.stdout
    again = CliRunner().invoke(app, ["run", str(tmp_path / "s.yaml"), "topology.gpus_per_node=4", f"params={out}"])
    assert again.exit_code == 0, again.output


def test_a_scenario_of_a_part_of_a_node_takes_logs_of_all_of_it(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("{preset: hgx-h100}", "{preset: hgx-h100, gpus_per_node: 2}"))
    logs = [checkout / "validation" / "silicon" / f"silicon_h100_sxm_x{n}_all_reduce_half_2_29_2.csv" for n in (2, 8)]
    words = ["calibrate", str(tmp_path / "s.yaml"), *map(str, logs), "--no-plot", "-o", str(tmp_path / "p"), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert [part["name"] for part in json.loads(done.stdout)["left_out"]["shapes"]] == ["1 x 2 GPUs", "1 x 8 GPUs"]


def test_a_shape_that_the_machine_cannot_have_is_a_fault(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO.replace("{preset: hgx-h100}", "{preset: gb200-nvl4}"))
    log = checkout / "validation" / "silicon" / "silicon_h100_sxm_x8_all_reduce_half_2_29_2.csv"
    done = CliRunner().invoke(
        app, ["calibrate", str(tmp_path / "s.yaml"), str(log), "--no-plot", "-o", str(tmp_path / "p")]
    )
    assert isinstance(done.exception, CalibrationError)
    assert "measured on 8 ranks, a shape that gb200-nvl4 cannot have: " in str(done.exception)
    assert not (tmp_path / "p").exists()


def test_logs_of_several_nodes_are_fitted_and_the_file_is_for_their_network(checkout: Path, tmp_path: Path) -> None:
    path, out = tmp_path / "s.yaml", tmp_path / "p.yaml"
    path.write_text(SCENARIO.replace("{preset: hgx-h100}", "{preset: hgx-h100-ndr400, nodes: 2}"))
    log = checkout / "validation" / "measured" / "xe9680_h100_n2x8_allreduce.csv"
    done = CliRunner().invoke(app, ["calibrate", str(path), str(log), "--no-plot", "-o", str(out)])
    assert done.exit_code == 0, done.output
    conditions = read_params(out).conditions
    assert (conditions["nodes"], conditions["ranks"], conditions["network"]) == (2, 16, "infiniband")


def test_no_input_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    log = tmp_path / "log.png"
    log.write_text("")
    for out in (path, log, tmp_path / "log.yaml"):
        done = CliRunner().invoke(app, ["calibrate", str(path), str(log), "-o", str(out)])
        assert isinstance(done.exception, CalibrationError)
        assert "is an input" in str(done.exception)
    assert path.read_text() == SCENARIO
    assert not (tmp_path / "log.yaml").exists()


def test_a_log_that_does_not_say_its_ranks_is_told(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "s.yaml").write_text(SCENARIO)
    log = tmp_path / "bare.csv"
    log.write_text((checkout / "validation" / "silicon" / "silicon_h100_sxm_x8_all_reduce_half_2_29_2.csv").read_text())
    words = ["calibrate", str(tmp_path / "s.yaml"), str(log), "--no-plot", "-o", str(tmp_path / "p")]
    done = CliRunner().invoke(app, words)
    assert "does not say its ranks" in " ".join(done.output.split()) or "all_reduce" in str(done.exception)
