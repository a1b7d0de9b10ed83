"""For what a fit holds: calls, shapes and version, its band elsewhere, and what every command says outside of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import CalibrationError, InfeasibleError
from commsim.fitting.calibration import calibrate
from commsim.fitting.suspects import absurd
from commsim.measure.records import Curve
from commsim.nccl.predict import Options, Predictor
from commsim.planner import tune as tune_module
from commsim.planner.tune import tune
from commsim.scenario.fit import curve_model
from commsim.scenario.load import load_scenarios
from commsim.scenario.params import Errors, Seen
from commsim.scenario.seen import Validity, validity_of
from commsim.scenario.setting import build_topology

SCENARIO = """
name: one node
topology: {preset: hgx-h100}
library: {name: nccl, version: 2.26.2}
workload: [{collective: all_reduce, sizes: 1 KiB .. 64 MiB x4}]
"""
CALLS = (Seen(collective="all_reduce", nodes=1, gpus=8, smallest_bytes=8, largest_bytes=1 << 30),)


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "s.yaml"
    path.write_text(SCENARIO)
    return path


def log(folder: Path, times: float = 1.05) -> Path:
    """A measured curve of the machine: the model's, so many times as long."""
    one = load_scenarios(folder / "s.yaml")[0]
    model = Predictor(build_topology(one), Options(version=(2, 26, 2)))
    lines = ["size_bytes,count,dtype,redop,root,oop_time_us"]
    for n in (1 << k for k in range(3, 30, 2)):
        time_us = times * 1e6 * model.predict("all_reduce", n).time_s
        lines += [f"{n},{n // 4},float,sum,-1,{time_us}"]
    path = folder / "all_reduce.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_band_is_that_of_what_was_seen_else_of_shapes_left_out(scenario: Path) -> None:
    here = build_topology(load_scenarios(scenario)[0])
    fit = Validity("p.yaml", CALLS, "2.26.2", (0.95, 1.05), (0.8, 1.3))
    assert fit.band_of("all_reduce", here) == (0.95, 1.05)
    assert fit.band_of("all_gather", here) == (0.8, 1.3)
    assert fit.widest("all_reduce", here) == (0.8, 1.3)
    unknown = Validity("p.yaml", (), "", (0.95, 1.05), None)
    assert unknown.band_of("all_gather", here) == (0.95, 1.05)
    assert unknown.outside("all_gather", here, "2.19.3") == []


def test_what_is_outside_is_said_once_each(scenario: Path) -> None:
    here = build_topology(load_scenarios(scenario)[0])
    there = build_topology(load_scenarios(scenario, ["topology.gpus_per_node=4"])[0])
    fit = Validity("p.yaml", CALLS, "2.26.2", (0.95, 1.05), (0.8, 1.3))
    assert fit.outside("all_reduce", here, "2.26.2") == []
    (other,) = fit.outside("all_gather", here, "2.26.2")
    assert other.startswith("p.yaml was fitted to all_reduce, not to all_gather: 8 of 10 measured times of shapes left")
    shape, version = fit.outside("all_reduce", there, "2.27.3")
    assert "fitted to 1 x 8 ranks, not to 1 x 4 ranks" in shape
    assert "fitted to NCCL 2.26.2, this is 2.27.3" in version


def test_a_file_says_what_it_has_seen_and_run_says_what_it_has_not(scenario: Path, tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    words = ["calibrate", str(scenario), str(log(tmp_path)), "-o", str(params), "--no-plot"]
    assert CliRunner().invoke(app, words, catch_exceptions=False).exit_code == 0
    document = yaml.safe_load(params.read_text())
    (seen,) = document["seen"]
    assert (seen["collective"], seen["nodes"], seen["gpus"]) == ("all_reduce", 1, 8)
    assert document["conditions"]["version"] == "2.26.2"
    assert "band_left_out" not in document  # one shape says nothing of others
    run = ["run", str(scenario), f"params={params}", "--no-files"]
    inside = CliRunner().invoke(app, run, catch_exceptions=False)
    outside = CliRunner().invoke(app, [*run, "topology.gpus_per_node=4"], catch_exceptions=False)
    assert "was fitted to" not in inside.stderr
    assert "params.yaml was fitted to 1 x 8 ranks, not to 1 x 4 ranks: nothing says its error there" in outside.stderr


def test_rules_are_of_what_was_measured(scenario: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = tmp_path / "params.yaml"
    words = ["calibrate", str(scenario), str(log(tmp_path)), "-o", str(params), "--no-plot"]
    CliRunner().invoke(app, words, catch_exceptions=False)
    monkeypatch.setattr(tune_module, "choice_margin", lambda: 1.001)
    sizes = [1 << k for k in range(14, 28)]
    one = load_scenarios(scenario, [f"params={params}"])[0]
    fit = validity_of(one)
    assert fit is not None
    monkeypatch.setattr(Validity, "widest", lambda *_: (0.999, 1.001))
    tuning = tune(one, build_topology(one), sizes=sizes)
    assert {rule.collective for rule in tuning.rules} == {"all_reduce"}
    assert tuning.unmeasured
    assert "all_reduce" not in {rule.collective for rule in tuning.unmeasured}
    first = tune_module.measure_first(tuning)
    assert first[0].startswith("mpirun -np 8 ")
    assert "-x NCCL_ALGO=" in first[1]


def test_without_a_measurement_there_is_no_rule_but_a_command(scenario: Path, tmp_path: Path) -> None:
    one = load_scenarios(scenario)[0]
    with pytest.raises(InfeasibleError, match=r"Measure this first, then calibrate(.|\n)*_perf -b \d+"):
        tune(one, build_topology(one), sizes=[1 << k for k in range(16, 24)])


def test_an_absurd_parameter_is_named_with_the_sizes_behind_it(scenario: Path) -> None:
    one = load_scenarios(scenario)[0]
    here = build_topology(one)
    sizes = np.array([1 << k for k in range(3, 30)], np.int64)
    curve = Curve("bad", "all_reduce", 8, "measured", sizes, np.full(sizes.size, 1e-3))
    model = curve_model(one, here, [curve])
    slope = model.contact(model.center).slope
    launch = int(np.argmax(slope[0]))  # what the smallest size is made of
    x = model.center.copy()
    x[launch] += np.log(3700.0)
    moved = np.zeros(x.size, bool)
    assert absurd(model, [curve], x, moved, model.times(x)) == []
    moved[launch] = True
    (line,) = absurd(model, [curve], x, moved, model.times(x))
    assert line.startswith(f"{model.path(launch)} would be 3,700 times the shipped one, expected at most 100 times")
    assert "it comes from all_reduce of" in line


def test_a_fit_that_needs_one_is_refused(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = load_scenarios(scenario)[0]
    here = build_topology(one)
    model = Predictor(here, Options(version=(2, 26, 2)))
    sizes = np.array([1 << k for k in range(3, 30, 2)], np.int64)
    seconds = np.array([1.5 * model.predict("all_reduce", int(n)).time_s for n in sizes])
    curve = Curve("slow", "all_reduce", 8, "measured", sizes, seconds)
    monkeypatch.setattr("commsim.fitting.suspects.MOST_TIMES", 1.01)
    with pytest.raises(CalibrationError, match="the shipped one, expected at most"):
        calibrate(curve_model(one, here, [curve]), [curve])


def measured(sizes: dict[int, bool], **more: object) -> Validity:
    """A fit of all_reduce on one node of eight, with the sizes and whether it agrees with the log there."""
    off = tuple(size for size, agrees in sizes.items() if not agrees)
    call = CALLS[0].model_copy(update={"sizes_bytes": tuple(sizes), "off_bytes": off})
    return Validity("p.yaml", (call,), "2.26.2", (0.999, 1.001), None, **more)  # type: ignore[arg-type]


def rules_with(fit: Validity, scenario: Path, patch: pytest.MonkeyPatch) -> tune_module.Tuning:
    one = load_scenarios(scenario)[0]
    patch.setattr(tune_module, "choice_margin", lambda: 1.001)
    patch.setattr(tune_module, "validity_of", lambda _: fit)
    return tune(one, build_topology(one), sizes=[1 << 20])


def test_rules_stay_within_the_sizes_that_were_measured(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {1 << k: True for k in range(14, 23)}
    whole = rules_with(measured(sizes), scenario, monkeypatch)
    assert whole.rules
    assert {rule.collective for rule in whole.rules} == {"all_reduce"}
    assert min(rule.low for rule in whole.rules) >= 1 << 14
    assert max(rule.high for rule in whole.rules) <= 1 << 22
    last = max(rule.high for rule in whole.rules)
    inside = {size: agrees for size, agrees in sizes.items() if size <= whole.rules[-1].gain_at}
    less = rules_with(measured(inside), scenario, monkeypatch)
    assert max(rule.high for rule in less.rules) == max(inside) <= last


def test_no_rule_where_the_fit_does_not_agree_with_the_log(scenario: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {1 << k: True for k in range(14, 23)}
    worst = rules_with(measured(sizes), scenario, monkeypatch).rules[0].gain_at
    assert measured(sizes | {worst: False}).sizes("all_reduce", build_topology(load_scenarios(scenario)[0])) == (
        sizes | {worst: False}
    )
    with pytest.raises(InfeasibleError, match="one gain is predicted at sizes where the fit does not agree with the"):
        rules_with(measured(sizes | {worst: False}), scenario, monkeypatch)


def test_neighbours_are_one_rule_that_ends_before_a_size_without() -> None:
    def of(size: int, algorithm: str) -> tuple[int, tune_module.Rule]:
        return size, tune_module.Rule("all_reduce", size, size, algorithm, "LL", 8, gain=1.0 + size / 100, gain_at=size)

    sizes = [(2, None), of(4, "ring"), of(8, "ring"), (16, None), of(32, "ring"), of(64, "tree")]
    merged = [(rule.low, rule.high, rule.algorithm, rule.gain_at) for rule in tune_module._merged(sizes)]
    assert merged == [(4, 15, "ring", 8), (32, 63, "ring", 32), (64, 64, "tree", 64)]


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"errors": {"collectives": Errors(fitted=0.108, shipped=0.104)}}, "no better than what ships on collectives"),
        ({"slower": ("all.log is slow",)}, "fitted to a sick machine: all.log is slow"),
        ({"conditions": {"gpu": "A100 SXM4"}}, "fitted to another machine"),
    ],
)
def test_a_fit_that_cannot_be_trusted_gives_no_rule(
    more: dict[str, object], reason: str, scenario: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = {1 << k: True for k in range(14, 23)}
    with pytest.raises(InfeasibleError, match=reason):
        rules_with(measured(sizes, **more), scenario, monkeypatch)


def test_a_calibration_of_another_machine_is_told(scenario: Path, tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    words = ["calibrate", str(scenario), str(log(tmp_path)), "-o", str(params), "--no-plot"]
    CliRunner().invoke(app, words, catch_exceptions=False)
    run = ["run", str(scenario), f"params={params}", "--no-files"]
    same = CliRunner().invoke(app, run, catch_exceptions=False)
    other = CliRunner().invoke(app, [*run, "topology.preset=dgx-a100"], catch_exceptions=False)
    assert "another machine" not in same.stderr
    assert "params.yaml was fitted to another machine (gpu H100 SXM5, here A100 SXM4)" in other.stderr
    told = "params.yaml was fitted to another machine (gpu H100 SXM5, here A100 SXM4)"
    why = ["explain", str(scenario), f"params={params}", "--no-what-if"]
    assert "fitted to" not in CliRunner().invoke(app, why, catch_exceptions=False).stderr
    assert told in CliRunner().invoke(app, [*why, "topology.preset=dgx-a100"], catch_exceptions=False).stderr
    fitted = tmp_path / "fitted.yaml"
    fitted.write_text(SCENARIO.replace("hgx-h100", "dgx-a100") + f"params: {params}\n")
    compare = ["compare", str(fitted), str(tmp_path / "all_reduce.csv"), "--no-what-if", "--no-plot"]
    assert CliRunner().invoke(app, compare, catch_exceptions=False).stdout.startswith(f"# {told}")
    here = build_topology(load_scenarios(scenario)[0])
    old = Validity("p.yaml", CALLS, "", None, None, {"topology": "dgx-a100"})
    assert "(topology dgx-a100, here hgx-h100)" in old.other_machine(here)
    network = {"gpu": "H100 SXM5", "fabric": "ethernet", "nics_per_node": 4}
    assert measured({}, conditions=network).other_machine(here) == ""  # one node uses no network
    two = build_topology(load_scenarios(scenario, ["topology={preset: hgx-h100-ndr400, nodes: 2}"])[0])
    words_of_two = measured({}, conditions=network | {"nodes": 2}).other_machine(two)
    assert "fabric ethernet, here infiniband; nics_per_node 4, here 8" in words_of_two


def test_a_sick_log_is_told_and_gives_no_rule(scenario: Path, tmp_path: Path) -> None:
    params = tmp_path / "params.yaml"
    for times, sick in ((1.05, False), (2.5, True)):
        words = ["calibrate", str(scenario), str(log(tmp_path, times)), "-o", str(params), "--no-plot"]
        done = CliRunner().invoke(app, words, catch_exceptions=False)
        assert done.exit_code == 0
        assert ("is slow for such a machine, x2.50 above 64 MiB" in done.stderr) is sick
        assert bool(yaml.safe_load(params.read_text()).get("slower")) is sick
    refused = CliRunner().invoke(app, ["tune", str(scenario), f"params={params}", "-o", str(tmp_path / "t.conf")])
    assert isinstance(refused.exception, InfeasibleError)
    assert "sick machine" in str(refused.exception)
    assert not (tmp_path / "t.conf").exists()
