"""Calibrations of known truth: values come back, what data cannot tell is kept, wrong logs are named."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import CalibrationError, CommsimError
from commsim.fitting.calibration import Calibration, calibrate
from commsim.fitting.fields import FieldSpace
from commsim.fitting.models import Float64
from commsim.fitting.planes import Planes
from commsim.gloo.parameters import shipped_parameters
from commsim.gloo.predict import GlooPredictor
from commsim.measure.parsers import read_measured
from commsim.measure.records import Curve
from commsim.nccl.parameters import Parameters
from commsim.report.calibration import calibration_table, params_yaml, plot_residuals
from commsim.scenario.fit import curve_model
from commsim.scenario.load import load_scenarios
from commsim.scenario.params import read_params
from commsim.scenario.schema import Scenario
from commsim.scenario.setting import build_topology

if TYPE_CHECKING:
    from commsim.fitting.models import CurveModel

TRUTH = shipped_parameters().model_copy(
    update={"call": 80e-6, "message": 30e-6, "wake": 200e-6, "copy_rate": 1.4e9, "reduce_rate": 1.0e9}
)
SCENARIO = """
name: Two processes
topology: {preset: loopback, gpus_per_node: 2, cpu: {cores: 2}}
library: gloo
workload: [{collective: all_reduce, sizes: 1 KiB .. 1 MiB x4}]
"""


@pytest.fixture(scope="module")
def scenario(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    path = tmp_path_factory.mktemp("calibration") / "s.yaml"
    path.write_text(SCENARIO)
    return load_scenarios(path)[0]


def measured(scenario: Scenario, collective: str, *, factor: float = 1.0, seed: int = 0, name: str = "") -> Curve:
    """What a machine of the true parameters would measure, with 2 % of noise."""
    size = np.array([4 << 10 << 2 * k for k in range(6)], np.int64)
    model = GlooPredictor(build_topology(scenario), TRUTH)
    time = np.array([model.predict(collective, int(n)).time_s for n in size])
    noise = np.exp(0.02 * np.random.default_rng(seed).standard_normal(size.size))
    return Curve(name or collective, collective, 2, "measured", size, factor * time * noise, dtype="float32")


@pytest.fixture(scope="module")
def found(scenario: Scenario) -> Calibration:
    curves = [measured(scenario, "all_reduce"), measured(scenario, "broadcast", seed=1)]
    return calibrate(curve_model(scenario, build_topology(scenario), curves), curves)


def test_known_values_come_back(found: Calibration) -> None:
    values = {v.path: v for v in found.values}
    assert values["copy_rate"].value == pytest.approx(TRUTH.copy_rate, rel=0.1)
    # Waking and handling a message come one after the other in every hop: only their sum is sharp.
    assert TRUTH.wake < values["wake"].value < TRUTH.wake + 4 * TRUTH.message
    assert found.error(found.held_out_s) < 0.06
    assert found.error(found.before_s) > 0.3
    assert found.band is not None
    assert found.band[0] > 0.85
    assert found.band[1] < 1.15
    assert found.suspects == ()


def test_what_no_size_can_tell_is_kept_and_named(found: Calibration) -> None:
    fitted = {v.path for v in found.values}
    assert "memory_rate" not in fitted  # neither collective copies in memory
    assert not fitted & set(found.kept)
    assert all("uncertain by a factor" in why for why in found.kept.values())


def test_errors_above_64_kib_and_the_spread_stand_beside_those_of_all_sizes(found: Calibration) -> None:
    large = np.concatenate([curve.size_bytes > 64 << 10 for curve in found.curves])
    error = np.abs(found.held_out_s / found.measured_s - 1)
    assert found.error(found.held_out_s, 64 << 10) == pytest.approx(float(error[large].mean()))  # as many of each curve
    assert np.isnan(found.error(found.held_out_s, 1 << 40))
    lines = calibration_table(found).splitlines()
    assert lines[1].startswith(f"# above 64 KiB: {100 * error[large].mean():.1f} %; of the fit: ")
    assert lines[2].startswith("# spread of repeats: unknown")
    twice = [dataclasses.replace(c, low_s=0.9 * c.time_s, high_s=1.1 * c.time_s) for c in found.curves]
    repeated = dataclasses.replace(found, curves=tuple(twice))
    assert repeated.spread() == pytest.approx(0.1)
    expected = "# spread of repeats: 10.0 % (median over sizes of half of highest less lowest); above 64 KiB: 10.0 %"
    assert calibration_table(repeated).splitlines()[2] == expected


def test_the_file_says_the_same_and_is_read_back(found: Calibration, scenario: Scenario, tmp_path: Path) -> None:
    text = params_yaml(found, scenario, [build_topology(scenario)] * len(found.curves))
    (tmp_path / "params.yaml").write_text(text)
    file = read_params(tmp_path / "params.yaml")
    assert file.library == "gloo"
    assert set(file.values) == {v.path for v in found.values}
    assert file.held_out_mape == pytest.approx(found.error(found.held_out_s), rel=1e-3)
    table = calibration_table(found)
    assert table.startswith("# error on sizes left out: ")
    assert "wake" in table
    assert plot_residuals(found, "title").axes


def test_of_fields_that_only_together_are_determined_one_takes_the_difference(tmp_path: Path) -> None:
    """All small calls over nodes are a quarter quicker: launch, base or hop, one curve cannot say which."""
    path = tmp_path / "s.yaml"
    path.write_text(
        "name: two\ntopology: {preset: hgx-h100-ndr400, nodes: 2}\nlibrary: {version: 2.26.2}\n"
        "workload: [{collective: all_reduce, sizes: 8 B}]\n"
    )
    two = load_scenarios(path)[0]
    size = np.array([8 << k for k in range(0, 30, 2)], np.int64)
    topology = build_topology(two)
    curve = Curve("run", "all_reduce", 16, "measured", size, np.ones(size.size))
    shipped = curve_model(two, topology, [curve])
    time = shipped.times(shipped.center)
    quick = dataclasses.replace(curve, time_s=np.where(size <= 4 << 20, 0.75 * time, time))
    result = calibrate(curve_model(two, topology, [quick]), [quick])
    assert result.error(result.before_s) > 0.2
    assert result.error(result.held_out_s) < 0.5 * result.error(result.before_s)
    assert len(result.values) < len(result.kept)


def test_a_degraded_log_is_named_and_does_not_spoil_the_fit(scenario: Scenario) -> None:
    curves = [
        measured(scenario, "all_reduce", name="good"),
        measured(scenario, "all_reduce", seed=1, name="fine"),
        measured(scenario, "all_reduce", seed=2, factor=1.8, name="degraded"),
    ]
    result = calibrate(curve_model(scenario, build_topology(scenario), curves), curves)
    text = "\n".join(result.suspects)
    assert "degraded and good contradict each other" in text or "good and degraded" in text
    assert "degraded stands apart: 1." in text
    assert "fine stands apart" not in text
    good = result.fitted_s[:6] / curves[0].time_s
    assert np.median(np.abs(good - 1)) < 0.12


def test_one_slow_size_and_unsteady_repeats_are_named(scenario: Scenario) -> None:
    curve = measured(scenario, "all_reduce", name="run")
    time = curve.time_s.copy()
    time[3] *= 2.5
    curve = dataclasses.replace(curve, time_s=time, low_s=time / 2, high_s=time * 1.5)
    result = calibrate(curve_model(scenario, build_topology(scenario), [curve]), [curve])
    text = "\n".join(result.suspects)
    assert "run: 256 KiB is" in text
    assert "run is unsteady: repeats differ by 3.00 times" in text


def test_sizes_disturbed_out_of_place_are_named_and_not_fitted_to(scenario: Scenario) -> None:
    calm = measured(scenario, "all_reduce", name="run")
    calm = dataclasses.replace(calm, in_place_time_s=calm.time_s)
    slow = np.where(np.arange(len(calm)) % 2 == 1, 2.5, 1.0)
    curve = dataclasses.replace(calm, time_s=calm.time_s * slow)
    model = curve_model(scenario, build_topology(scenario), [curve])
    result, other = calibrate(model, [curve]), calibrate(model, [calm])
    assert not any("in place" in text for text in other.suspects)
    [text] = [text for text in result.suspects if "in place" in text]
    assert text.startswith("run: out of place took longer than in place (times 2.50 at ")
    assert text.count("2.50 at") == int((slow > 1).sum()) <= 4
    assert not any("neighbours" in text for text in result.suspects)
    assert result.fitted_s == pytest.approx(other.fitted_s)
    assert result.error(result.held_out_s) == pytest.approx(other.error(other.held_out_s))
    assert result.band == pytest.approx(other.band)


class Wavy:
    """A model whose times are not convex in its one field, so that planes lead past the best point."""

    fields = FieldSpace((("toy", "wait"),), np.ones(1), np.ones(1, bool), np.full((1, 1), 4.0), {("toy", "wait"): 0})
    center = np.zeros(1)

    def __init__(self, nbytes: Float64) -> None:
        self.nbytes, self.points = nbytes, list[Float64]()

    def times(self, x: Float64) -> Float64:
        return np.asarray(1e-9 * self.nbytes * np.exp(x[0]) * (1 + 0.5 * np.sin(6 * x[0])))

    def contact(self, x: Float64) -> Planes:
        self.points.append(x)
        here = self.times(x)
        slope = ((self.times(x + 1e-6) - here) / (np.exp(x[0]) * np.expm1(1e-6)))[:, None]
        return Planes(here, here - slope[:, 0] * np.exp(x[0]), slope)

    def parameters(self, x: Float64) -> Parameters:
        raise NotImplementedError

    def path(self, field: int) -> str:
        return "wait"


@pytest.mark.parametrize("truth", [1.2, 1.6, 1.9])
def test_of_all_points_on_the_way_the_best_is_taken(truth: float) -> None:
    nbytes = np.array([1 << 10, 1 << 14, 1 << 18, 1 << 20], float)
    model = Wavy(nbytes)
    noise = np.array([1.0, 1.02, 0.99, 1.01])
    curve = Curve("run", "all_reduce", 2, "measured", nbytes.astype(np.int64), model.times(np.array([truth])) * noise)
    result = calibrate(cast("CurveModel", model), [curve])

    def cost(x: Float64) -> float:
        """Twice the soft-L1 of ln(predicted / measured) in tenths, and the prior's weak pull, by hand."""
        tenths = 10 * np.log(model.times(x) / curve.time_s)
        return float(np.mean(2 * (np.sqrt(1 + tenths**2) - 1)) + 0.09 * x[0] ** 2 / 4.0)

    point = np.log([result.values[0].value])
    assert len(model.points) > 4
    assert cost(point) <= min(map(cost, model.points)) + 1e-9
    assert result.fitted_s == pytest.approx(model.times(point))


def test_too_few_sizes_are_an_error(scenario: Scenario) -> None:
    curve = measured(scenario, "all_reduce").between(0, 16 << 10)
    with pytest.raises(CalibrationError, match="found 2 measured sizes in all, expected 4 or more"):
        calibrate(curve_model(scenario, build_topology(scenario), [curve]), [curve])


def test_nccl_is_calibrated_on_a_published_curve(checkout: Path, tmp_path: Path) -> None:
    scenario = load_scenarios(checkout / "scenarios" / "quickstart.yaml")[0]
    curves = [c for path in scenario.compare_paths() for c in read_measured(path)][:1]
    curves = [c for c in curves if c.collective == "all_reduce"]
    assert curves
    result = calibrate(curve_model(scenario, build_topology(scenario), curves), curves)
    assert result.values
    assert result.error(result.fitted_s) <= result.error(result.before_s) + 1e-9
    (tmp_path / "p.yaml").write_text(params_yaml(result, scenario, [build_topology(scenario)] * len(result.curves)))
    run = CliRunner().invoke(
        app,
        [
            "run",
            str(checkout / "scenarios" / "quickstart.yaml"),
            f"params={tmp_path / 'p.yaml'}",
            "--no-files",
            "--json",
        ],
    )
    assert run.exit_code == 0, run.output
    import json

    mape = json.loads(run.stdout)["results"][0]["comparisons"][0]["mape"]
    assert mape == pytest.approx(result.error(result.fitted_s), abs=0.01)


def test_the_command_names_every_file_that_does_not_fit(scenario: Scenario, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("size_bytes,oop_time_us\n1024,5\n")
    (tmp_path / "b.csv").write_text("nothing")
    words = [
        "calibrate",
        scenario.source,
        str(tmp_path / "a.csv"),
        str(tmp_path / "b.csv"),
        "-o",
        str(tmp_path / "o.yaml"),
    ]
    result = CliRunner().invoke(app, words)
    assert isinstance(result.exception, CommsimError)
    assert "a.csv" in str(result.exception)
    assert "b.csv" in str(result.exception)
    assert not (tmp_path / "o.yaml").exists()


def test_a_curve_of_two_states_gives_a_wide_band_and_no_absurd_one(scenario: Scenario) -> None:
    curve = measured(scenario, "all_reduce", name="run")
    time = curve.time_s * np.array([8.0, 8.0, 1.0, 8.0, 1.0, 1.0])
    curve = dataclasses.replace(curve, time_s=time)
    result = calibrate(curve_model(scenario, build_topology(scenario), [curve]), [curve])
    assert result.band is not None
    assert 1.0 < result.band[1] < 30
    assert result.error(result.held_out_s) < 3
