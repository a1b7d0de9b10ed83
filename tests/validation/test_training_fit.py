"""Fits, modes and figures of training rows: known answers, what is held out, the command."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from typer.testing import CliRunner

from commsim.accuracy.training import SPREAD_OF_ROWS, calibrate_from_rows, free_parameters, slopes, suggested
from commsim.accuracy.training_rows import RowReader
from commsim.cli import app
from commsim.errors import CalibrationError
from commsim.training.parameters import parameters, read_values, shipped_values
from study import training
from study.training import (
    document,
    figures,
    one_row_over_sources,
    per_group,
    training_steps,
    validate_training,
    with_one_row,
)
from study.training_ablation import REMOVALS
from study.training_fit import Fit, Removal, training_part
from study.training_null import null_coefficients, terms
from study.training_record import bars, compare_sources, recorded
from study.training_rows import MeasuredRows, apart, errors, fitted, read_published, row_of, table_of

SOURCES = ("ark22", "sc21", "megascale", "nemo2407", "vtrain_multi", "mbridge", "mosaic")


@pytest.fixture(scope="module")
def table() -> MeasuredRows:
    """A few rows of a few sources."""
    whole = table_of(read_published(training_steps()))
    index = [np.flatnonzero(whole.source == name)[:12] for name in SOURCES]
    return whole.take(np.concatenate(index))


def _with(table: MeasuredRows, measured: np.ndarray) -> MeasuredRows:
    return MeasuredRows(table.rows, table.columns, measured, table.source)


def test_a_fit_finds_the_parameters_that_made_the_times(table: MeasuredRows) -> None:
    truth = {p.name: p.start for p in parameters()} | {"gemm.ampere": 0.74, "gemm_fp8.hopper": 0.68}
    fit = Fit(_with(table, Removal().seconds(table, truth)))
    found = fit.without(())
    assert found["gemm.ampere"] == pytest.approx(0.74, rel=0.05)
    assert found["gemm_fp8.hopper"] == pytest.approx(0.68, rel=0.05)
    error = errors(table, Removal().seconds(table, found)) - errors(table, Removal().seconds(table, truth))
    assert np.abs(error).max() < 6


def test_rows_of_a_source_do_not_move_their_own_prediction(table: MeasuredRows) -> None:
    mine = table.source == "ark22"
    slower = np.where(mine, 10 * table.measured, table.measured)
    before, after = Fit(table), Fit(_with(table, slower))
    assert after.without(["ark22"]) == before.without(["ark22"])
    assert after.without(["mosaic"])["gemm.ampere"] < before.without(["mosaic"])["gemm.ampere"]


def test_training_rows_are_those_that_their_rules_allow(table: MeasuredRows) -> None:
    part = training_part(table, most=5)
    assert all(fitted(row) for row in part.rows)
    assert max(np.unique(part.source, return_counts=True)[1]) <= 5


def test_the_null_model_finds_its_own_coefficients(table: MeasuredRows) -> None:
    truth = np.array([1.7, 1.2, 0.0, 0.8, 1.1, 4e-3, 0.02])
    made = _with(table, terms(table) @ truth)
    assert terms(made) @ null_coefficients(made) == pytest.approx(made.measured, rel=1e-6)


def test_one_row_moves_rows_like_it_by_what_its_own_error_does_not_explain(table: MeasuredRows) -> None:
    slope = slopes(table.columns, shipped_values())

    def moved(error: float) -> npt.NDArray[np.float64]:
        return slope @ suggested(slope[[0]], np.array([error]))

    assert suggested(slope[[0]], np.array([0.9 * SPREAD_OF_ROWS])) == pytest.approx(0.0)
    near = 2 * SPREAD_OF_ROWS
    assert moved(near)[0] == pytest.approx(near - SPREAD_OF_ROWS**2 / near, rel=0.05)  # of its square one is its own
    assert moved(0.2)[0] == pytest.approx(-moved(-0.2)[0])
    spread = np.array(list(free_parameters().values()))
    reach = ((slope[0] * spread) ** 2).sum()  # of a row that is far off no more than the spreads allow
    assert moved(0.4)[0] < 0.4 * reach / (reach + SPREAD_OF_ROWS**2) < 0.4


def test_rows_that_agree_move_more_than_one(table: MeasuredRows) -> None:
    slope, error = slopes(table.columns, shipped_values()), 1.5 * SPREAD_OF_ROWS
    one, all_of = (slope @ suggested(slope[:n], np.full(n, error)) for n in (1, 5))
    assert 0 < one[0] < all_of[0] < error


@pytest.mark.slow
def test_one_row_mode_leaves_that_row_out(table: MeasuredRows) -> None:
    predicted = Removal().seconds(table, shipped_values())
    fit = Fit(training_part(table))
    known = with_one_row(table, predicted, fit)
    for name in SOURCES:
        mine = [i for i, row in enumerate(table.rows) if row.source == name and not apart(row)]
        generations = {row.step.accelerator.generation for row in table.take(np.array(mine)).rows if row.step}
        missing = np.isnan(known[:, mine]).sum(axis=1)
        assert (missing == 1).all() if len(generations) == 1 else (missing > 1).all()
    assert np.array_equal(known, with_one_row(table, predicted, fit), equal_nan=True)
    before, after = per_group(table, predicted), per_group(table, known)
    assert {k: p["n"] for k, p in before.items()} == {k: p["n"] for k, p in after.items()}
    assert all("apart" not in p for p in after.values())  # whose rows no row of the source tells of
    half = _with(table, table.measured / 2)  # whatever makes a whole source twice as slow, a row of it tells
    sources = one_row_over_sources(half, predicted, with_one_row(half, predicted, fit))
    assert all(s["one_row"] < s["unknown"] for s in sources.values())


def test_calibration_from_rows_of_a_slower_machine(table: MeasuredRows, tmp_path: Path) -> None:
    rows = [row for row in table.rows if row.source == "ark22"]
    times = Removal().seconds(table_of(rows), shipped_values())
    cells = [dict(row.cells) | {"iteration_time_s": f"{1.2 * t:.6f}"} for row, t in zip(rows, times, strict=True)]
    slower = [row_of(c) for c in cells]
    one, many = (calibrate_from_rows(part, shipped_values()) for part in (slower[:1], slower))
    assert max(abs(e) for e in many.after.values()) < 4 < min(abs(e) for e in many.before.values())
    assert np.median(np.abs(list(many.held_out.values()))) < 5
    assert not one.held_out
    path = tmp_path / "machine.yaml"
    path.write_text(many.text())
    after = 1.2 * times * (1 + np.array(list(many.after.values())) / 100)
    assert Removal().seconds(table_of(rows), read_values(path)) == pytest.approx(after, rel=1e-4)


def test_rows_that_do_not_help_one_another_change_nothing(table: MeasuredRows) -> None:
    """Six rows alike, every second one off by as much in the other direction."""
    row = next(row for row in table.rows if row.source == "ark22")
    seconds = float(Removal().seconds(table_of([row]), shipped_values())[0])
    cells = [
        dict(row.cells) | {"id": f"r{i}", "iteration_time_s": f"{seconds * 1.15 ** (-1) ** i:.6f}"} for i in range(6)
    ]
    result = calibrate_from_rows([row_of(c) for c in cells], shipped_values())
    assert dict(result.values) == dict(shipped_values())
    assert not result.moved
    assert "the shipped values stay" in result.verdict()


def test_rows_far_off_and_copies_do_not_calibrate(table: MeasuredRows) -> None:
    row = next(row for row in table.rows if row.source == "ark22")
    seconds = float(Removal().seconds(table_of([row]), shipped_values())[0])
    far = row_of(dict(row.cells) | {"id": "far", "iteration_time_s": f"{1000 * seconds:.6f}"})
    one, more = (calibrate_from_rows(rows, shipped_values()) for rows in ([row], [row, row, far]))
    assert one.values == more.values
    assert "over 4 times apart" in more.left_out["far"]
    assert "the same step and time" in more.left_out[f"{row.id} (again)"]
    with pytest.raises(CalibrationError, match="far: measured"):
        calibrate_from_rows([far], shipped_values())


def test_calibration_needs_a_row_that_can_be_predicted() -> None:
    with pytest.raises(CalibrationError, match="x-1: missing: gpu_model"):
        calibrate_from_rows([RowReader({"id": "x-1", "gpu_model": ""}).row()], shipped_values())


def test_figures_by_hand() -> None:
    found = figures(np.array([-10.0, 0.0, 5.0, 30.0]))
    assert (found["n"], found["mape"], found["median"], found["max"], found["bias"]) == (4, 11.25, 7.5, 30.0, 2.5)
    assert figures(np.array([])) == {"n": 0}


def test_worse_medians_are_named() -> None:
    before = {"a": {"n": 3, "median": 5.0}, "b": {"n": 2, "median": 5.0}, "c": {"n": 2, "median": 5.0}}
    now = {"a": {"n": 3, "median": 6.5}, "b": {"n": 2, "median": 5.9}}
    assert compare_sources(before, now) == [
        "a: median 6.5 %, recorded 5.0 %",
        "c: no row is predicted any more, recorded 2",
    ]
    assert compare_sources(before, {"a": {"n": 1, "median": 60.0}, "b": before["b"], "c": before["c"]}) == []


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda r: str(r.name))
def test_every_removal_takes_time_away_or_none(removal: Removal, table: MeasuredRows) -> None:
    whole = Removal().seconds(table, shipped_values())
    without = removal.seconds(table, dict(shipped_values()) | dict(removal.values))
    assert np.all(np.isfinite(without) & (without > 0))
    if removal.name == "nothing":
        assert without == pytest.approx(whole)
    elif removal.name in ("its overlap", "power"):
        assert not np.allclose(without, whole)
    else:
        assert np.all(without <= whole * (1 + 1e-9))
        assert np.any(without < whole * (1 - 1e-6)) or removal.name == "context-parallel traffic"


def test_the_shipped_fit_is_as_good_as_recorded_on_a_part_of_the_rows() -> None:
    """Quick guard: medians of the shipped values, which did see the sources, within two points of the record."""
    found = table_of(read_published(training_steps()))
    quick = found.take(np.flatnonzero(~np.isin(found.source, ["vtrain_single"])))
    now = per_group(quick, Removal().seconds(quick, shipped_values()))
    before = recorded()["engines"]["closed_form"]["loso"]
    for name in (n for n in bars() if n in now and n != "simumax"):
        assert now[name]["median"] <= before[name]["median"] + 2.0, name


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project's rows cut to a few, so that fits are quick."""
    with training_steps().open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    path = tmp_path / "known.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([r for r in rows if r["id"].startswith(("ark22", "sc21", "megascale", "nemolaunch"))])
    monkeypatch.setattr(training, "training_steps", lambda: path)
    return path


@pytest.mark.slow
def test_the_command_writes_what_it_promises(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    arguments = ["validate", "training", "--steps", str(small), "--mode", "loso", "--json", str(target)]
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    assert "null MAPE" in result.stdout
    found = json.loads(target.read_text())
    assert set(found) == {"per_row", "per_source", "null_model"}
    assert all(set(r) == {"id", "source", "measured_s", "predicted_s", "error_pct", "reason"} for r in found["per_row"])
    rows = {r["id"]: r for r in found["per_row"]}
    assert abs(rows["ark22-0003"]["error_pct"]) < 20
    assert rows["nemolaunch-0001"]["predicted_s"] is None
    assert "missing: global_batch_seqs" in rows["nemolaunch-0001"]["reason"]
    assert found["per_source"]["sc21 (Table 2)"]["apart"]["n"] == 4


@pytest.mark.slow
def test_one_row_on_the_command_line(small: Path) -> None:
    arguments = ["validate", "training", "--steps", str(small), "--mode", "one-row", "--json", "-"]
    found = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    assert set(found["one_row"]) <= {"ark22", "sc21", "megascale"}
    assert all(0 <= s["one_row"] < 50 for s in found["one_row"].values())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--mode", "zero"], "--mode: found 'zero', expected one of loso, one-row"),
        (["--steps", "nowhere.csv"], "found no such file"),
        (["--report", "--steps", "x.csv"], "leave --steps out"),
    ],
)
def test_wrong_arguments_are_refused(arguments: list[str], message: str) -> None:
    from commsim.cli import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["commsim", "validate", "training", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
    assert caught.value.code == 2
    assert message


@pytest.mark.slow
def test_medians_are_not_worse_than_recorded() -> None:
    found = validate_training(training_steps(), engine="closed_form")
    assert compare_sources(recorded()["engines"]["closed_form"]["loso"], document(found)["per_source"]) == []


@pytest.mark.slow
def test_memory_figures_stand_beside_the_times(small: Path, tmp_path: Path) -> None:
    memory = tmp_path / "memory.csv"
    memory.write_text(
        "id,source,model,params_B,gpu_model,n_gpus,dp,tp,pp,zero_stage,micro_batch,seq_len,precision,kind,value,unit\n"
        "zero-001,ZeRO,7.5B,7.5,,,1,1,1,1,,,fp16 mixed,model_states_per_device,120,GB\n"
        "zero-002,ZeRO,7.5B,x,,,1,1,1,1,,,fp16 mixed,model_states_per_device,120,GB\n"
    )
    arguments = ["validate", "training", "--steps", str(small), "--memory", str(memory), "--json", "-"]
    found = json.loads(CliRunner().invoke(app, arguments, catch_exceptions=False).stdout)
    first, second = found["memory"]["per_row"][:2]
    assert abs(first["error_pct"]) < 1
    assert second["predicted"] is None
    assert second["reason"]
    assert found["memory"]["per_source"]["zero (analytic)"]["n"] == 1
