"""Numbers under `library.measured` adapt the parameters of everything that the scenario is asked."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import commsim as cs
from commsim.api import run
from commsim.cli import app
from commsim.errors import ScenarioError
from commsim.scenario import fit
from commsim.scenario.load import load_scenarios, resolved_yaml, scenario_hash
from commsim.units import parse_time

PLAIN = """\
name: a cluster
topology: {preset: hgx-h100-ndr400, nodes: 2}
library:
  name: nccl
  version: 2.26.2
"""
KNOWN = "  measured: {all_reduce: {8B: 40us, plateau: 420GB/s}}\n"
WORK = "workload: [{collective: all_reduce, sizes: [8 B, 1 MiB, 8 GiB]}]\n"
ONE_GPU = "{topology: {preset: hgx-h100, gpus_per_node: 1}}"
PLATEAU_S = 2 * 15 / 16 * 2**33 / 420e9
STEP = "workload: [{training: {model: gpt2-1558m, global_batch_size: 32, mesh: {dp: 16}}}]\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """The scenario as shipped, and with known numbers."""
    plain, known = tmp_path / "plain.yaml", tmp_path / "known.yaml"
    plain.write_text(PLAIN + WORK)
    known.write_text(PLAIN + KNOWN + WORK)
    return plain, known


def times(path: Path, *overrides: str) -> list[float]:
    return [row.time_s for row in run(path, *overrides).items[0].rows]


def faults(path: Path, *overrides: str) -> list[tuple[int, str]]:
    with pytest.raises(ScenarioError) as told:
        run(path, *overrides)
    return [(fault.line, fault.path) for fault in told.value.faults]


def test_the_numbers_are_met_and_other_shapes_move_with_them(files: tuple[Path, Path]) -> None:
    plain, known = files
    at = times(known)
    assert at[0] == pytest.approx(40e-6, rel=0.05)
    assert at[2] == pytest.approx(PLATEAU_S, rel=0.05)
    assert times(plain)[0] < 0.8 * at[0]
    assert times(plain, "topology.nodes=8")[0] < 0.8 * times(known, "topology.nodes=8")[0]


def test_a_scenario_gives_what_the_file_of_calibrate_gives(files: tuple[Path, Path], tmp_path: Path) -> None:
    plain, known = files
    out = tmp_path / "params.yaml"
    words = ["calibrate", str(plain), "--from", "8B=40us,plateau=420GB/s", "-o", str(out)]
    assert CliRunner().invoke(app, words).exit_code == 0
    for nodes in (2, 4):
        shape = f"topology.nodes={nodes}"
        assert times(known, shape) == pytest.approx(times(plain, shape, f"params={out}"), rel=1e-4)


def test_the_head_says_what_was_taken_as_known_and_what_moved(files: tuple[Path, Path], tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["run", str(files[1]), "--out", str(tmp_path / "out")])
    first = done.stdout.splitlines()[0]
    assert first.startswith("# taken as known: all_reduce of 8 B in 40 us (as shipped 28.4 us), all_reduce of 8 GiB in")
    assert "on 16 ranks of hgx-h100-ndr400; parameters moved: network.tree_hop.LL x " in first
    result = cs.run(files[1])
    assert result.to_dict()["provenance"]["known"] == first.removeprefix("# ")
    assert result.items[0].parameters == first.removeprefix("# ")
    told = CliRunner().invoke(app, ["explain", str(files[1]), "--no-what-if"])
    assert first in told.stdout.splitlines()


def test_a_saved_scenario_is_the_same_whatever_was_overridden(files: tuple[Path, Path], tmp_path: Path) -> None:
    (scenario,) = load_scenarios(files[1], ["topology.nodes=4"])
    (tmp_path / "saved.yaml").write_text(resolved_yaml(scenario, tmp_path))
    (again,) = load_scenarios(tmp_path / "saved.yaml")
    assert again == scenario
    assert scenario_hash(again) == scenario_hash(scenario)
    assert again.library.measured_on is not None
    assert (again.topology.nodes, again.library.measured_on.topology.nodes) == (4, 2)
    assert times(tmp_path / "saved.yaml") == times(files[1], "topology.nodes=4")


def test_numbers_in_an_override_are_of_the_machine_with_all_overrides(files: tuple[Path, Path]) -> None:
    four = times(files[0], "topology.nodes=4", "library.measured={all_reduce: {8B: 50us}}")
    assert four[0] == pytest.approx(50e-6, rel=0.05)


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every fit that is made."""
    made: list[Any] = []
    own = fit.adapted
    fit._known.cache_clear()

    def counted(*asked: Any) -> Any:
        made.append(asked)
        return own(*asked)

    monkeypatch.setattr(fit, "adapted", counted)
    return made


def test_a_sweep_fits_once_and_a_point_of_other_numbers_anew(
    files: tuple[Path, Path], fits: list[Any], tmp_path: Path
) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text("scenario: known.yaml\nsweep: {topology.nodes: [1, 2, 4], mode: [single, back_to_back]}\n")
    swept = cs.sweep(path, workers=1)
    assert {point["error"] for point in swept.points} == {None}
    assert len(fits) == 1
    small = {p["values"]["topology.nodes"]: p["rows"][0]["time_us"] for p in swept.points if p["number"] % 2}
    assert small[2] == pytest.approx(40, rel=0.05)
    assert small[4] == pytest.approx(1e6 * times(files[1], "topology.nodes=4")[0])
    path.write_text("scenario: known.yaml\nsweep: {library.measured.all_reduce.8B: [35us, 50us]}\n")
    for point in cs.sweep(path, workers=1).points:
        known = parse_time(point["values"]["library.measured.all_reduce.8B"])
        assert point["rows"][0]["time_us"] == pytest.approx(1e6 * known, rel=0.05)


def test_what_ifs_keep_the_machine_that_was_measured(files: tuple[Path, Path], fits: list[Any]) -> None:
    from commsim.planner.explain import explain

    (found,) = explain(cs.run(files[1]), [8])
    assert len(fits) == 1
    assert found.seconds == pytest.approx(40e-6, rel=0.05)
    assert found.best[0].what == "half the latency of every hop"
    for gain in (g for g in found.gains if "nic_bandwidth" in g.overrides):
        assert run(files[1], *shlex.split(gain.overrides)).items[0].rows[0].time_s == pytest.approx(gain.seconds)


def test_training_steps_take_them(tmp_path: Path) -> None:
    path = tmp_path / "step.yaml"
    path.write_text(PLAIN + STEP)
    shipped = cs.run(path).trainings[0]
    path.write_text(PLAIN + KNOWN + STEP)
    result = cs.run(path)
    assert result.trainings[0].causes["dp"] > 1.1 * shipped.causes["dp"]
    assert result.trainings[0].causes["compute"] == pytest.approx(shipped.causes["compute"])


def test_every_fault_is_told_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    numbers = (
        "    all_reduce:\n      8: 3us\n      8B: 0us\n      1KiB: 4 parsec\n      1024B: 2us\n      plateau: 4us\n"
    )
    path.write_text(PLAIN + "  measured:\n" + numbers + "    all_gather: {}\n    reduceall: {8B: 1us}\n" + WORK)
    at = "library.measured"
    assert faults(path) == [
        (8, f"{at}.all_reduce.8"),
        (9, f"{at}.all_reduce.8B"),
        (10, f"{at}.all_reduce.1KiB"),
        (12, f"{at}.all_reduce.plateau"),
        (13, f"{at}.all_gather"),
        (14, f"{at}.reduceall"),
    ]


def test_numbers_out_of_reach_are_told_together_each_at_its_place(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(PLAIN + "  measured:\n    all_reduce:\n      8B: 40s\n      8GiB: 90s\n" + WORK)
    assert faults(path) == [(8, "library.measured.all_reduce.8B"), (9, "library.measured.all_reduce.8GiB")]
    done = CliRunner().invoke(app, ["run", str(path), "--no-files"])
    assert isinstance(done.exception, ScenarioError)  # exit status 2


def test_a_broken_topology_is_told_once(files: tuple[Path, Path]) -> None:
    path = files[1]
    path.write_text(path.read_text().replace("nodes: 2", "nodes: two, gpus: 3"))
    assert faults(path) == [(2, "topology.nodes"), (2, "topology.gpus")]


@pytest.mark.parametrize(
    ("overrides", "text"),
    [
        (["library.name=none"], "found measured with library none, expected it only with library"),
        (["params=known.yaml"], "found measured numbers beside params"),
        (
            ["library.measured={}", "library.measured_on={topology: {preset: hgx-h100}}"],
            "found measured_on without measured",
        ),
        (["topology.preset=dgx-a100-hdr200"], "found numbers of hopper GPUs, but this job's are ampere"),
        (["topology.preset=aws-p5"], "found numbers of calls over infiniband, but this job's go over efa"),
        (
            ["library.measured_on={topology: {preset: hgx-h100, gpus_per_node: 1}}"],
            "found one rank, which sends nothing",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    files: tuple[Path, Path], overrides: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files[1].parent)
    with pytest.raises(ScenarioError) as told:
        run(files[1], *overrides)
    assert text in str(told.value)


def test_gloo_takes_them_too(tmp_path: Path) -> None:
    text = (
        "name: processes\ntopology: {preset: testbed-star, nodes: 4, cpu: {cores: 2}}\nlibrary: {name: gloo, one_host: "
        "true, measured: {all_reduce: {8 B: 600us}}}\nworkload: [{collective: all_reduce, sizes: [8 B, 64 KiB]}]\n"
    )
    path = tmp_path / "gloo.yaml"
    path.write_text(text)
    assert times(path)[0] == pytest.approx(600e-6, rel=0.05)
    path.write_text(text.replace(", measured: {all_reduce: {8 B: 600us}}", ""))
    assert abs(times(path)[0] / 600e-6 - 1) > 0.2


def test_numbers_that_no_algorithm_reaches_are_refused_together(files: tuple[Path, Path]) -> None:
    """16 GPUs of 2 nodes with 8 x 50 GB/s each: the plateau cannot pass 400 GB/s through the NICs' 1.75 by much."""
    numbers = "{all_reduce: {8B: 1us, plateau: 1200GB/s}}"
    with pytest.raises(ScenarioError) as told:
        run(files[0], f"library.measured={numbers}")
    texts = [fault.message for fault in told.value.faults]
    assert len(texts) == 2
    assert all("which no algorithm can: the links allow" in text for text in texts)


def test_a_slip_of_the_unit_is_asked_about(files: tuple[Path, Path], tmp_path: Path) -> None:
    """Gb/s for GB/s: an eighth of the bandwidth is met, and said to be 9 times what is shipped."""
    words = ["calibrate", str(files[0]), "--from", "plateau=420Gb/s", "-o", str(tmp_path / "p.yaml")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "times what is shipped: look whether it is of this machine, call and unit" in done.stdout
    ran = run(files[0], "library.measured={all_reduce: {plateau: 420Gb/s}}")
    assert any("look whether it is of this machine" in text for text in ran.warnings)
    assert not any("look whether" in text for text in run(files[1]).warnings)


def test_a_sweep_says_what_was_taken_as_known(files: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "sweep.yaml"
    path.write_text(files[1].read_text() + "sweep: {topology.nodes: [2, 4]}\n")
    done = CliRunner().invoke(app, ["sweep", str(path), "-o", str(tmp_path / "out"), "-j", "1"])
    assert done.exit_code == 0, done.output
    assert "# taken as known: all_reduce of 8 B in 40 us" in done.output
