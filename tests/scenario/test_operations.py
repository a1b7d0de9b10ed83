"""Type and reduction of an item, or of the log beside it, decide what NCCL runs: scenario, log and comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import ScenarioError
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run

SCENARIO = """
name: One node
topology: {{preset: hgx-h100}}
library: {{name: nccl, version: {version}}}
workload: [{{collective: all_reduce, sizes: 1 GiB{more}}}]
{compare}
"""
GIB = 1 << 30


def written(folder: Path, more: str = "", compare: str = "", version: str = "2.26.2") -> Path:
    path = folder / "s.yaml"
    path.write_text(SCENARIO.format(more=more, compare=compare, version=version))
    return path


def log_of_averages(folder: Path, time_us: float) -> Path:
    (folder / "INDEX_x.csv").write_text("slug,collective,n_ranks\nlog,all_reduce,8\n")
    path = folder / "log.csv"
    path.write_text(f"size_bytes,count,dtype,redop,root,oop_time_us\n{GIB},{GIB // 2},bfloat16,avg,-1,{time_us}\n")
    return path


@pytest.mark.parametrize(
    ("more", "algorithm"),
    [
        ("", "nvls"),
        (", dtype: bfloat16, redop: avg", "ring"),
        (", dtype: bfloat16, redop: max", "nvls"),
        (", dtype: float32, redop: max", "ring"),
        (", redop: prod", "ring"),
        (", dtype: int8", "ring"),
    ],
)
def test_an_item_runs_what_its_operation_leaves(tmp_path: Path, more: str, algorithm: str) -> None:
    (row,) = run(load_scenarios(written(tmp_path, more))[0]).items[0].rows
    assert row.algorithm == algorithm


@pytest.mark.parametrize(
    ("more", "version", "said"),
    [
        (", dtype: float8_e4m3", "2.23.4", r":5:58 workload\.0\.dtype: found float8_e4m3, but NCCL 2\.23\.4 has no"),
        (", redop: avg", "2.8.4", r":5:58 workload\.0\.redop: found avg, but NCCL 2\.8\.4 has no avg"),
    ],
)
def test_what_a_release_does_not_know_is_refused_in_its_place(
    tmp_path: Path, more: str, version: str, said: str
) -> None:
    with pytest.raises(ScenarioError, match=said):
        load_scenarios(written(tmp_path, more, version=version))


def test_a_log_is_predicted_as_what_it_measured(tmp_path: Path) -> None:
    log_of_averages(tmp_path, 5300.0)
    (item,) = run(load_scenarios(written(tmp_path, compare="compare: [log.csv]"))[0]).items
    (average,) = run(load_scenarios(written(tmp_path, ", dtype: bfloat16, redop: avg"))[0]).items
    (at,) = item.at_measured
    assert item.rows[0].algorithm == "nvls"  # a sum of float32, as the scenario leaves it
    assert at.time_s[0] == average.rows[0].time_s > 1.2 * item.rows[0].time_s


def test_compare_takes_type_and_reduction_from_the_log_unless_the_scenario_states_them(tmp_path: Path) -> None:
    (average,) = run(load_scenarios(written(tmp_path, ", dtype: bfloat16, redop: avg"))[0]).items
    log = log_of_averages(tmp_path, 1e6 * average.rows[0].time_s)
    words = ["compare", "--no-plot", "--no-what-if"]
    open_ = CliRunner().invoke(app, [*words, str(written(tmp_path)), str(log)])
    assert open_.exit_code == 0, open_.output
    assert "1.00 times the predicted time at the median size" in open_.stdout.splitlines()[0]
    stated = CliRunner().invoke(app, [*words, str(written(tmp_path, ", dtype: float32, redop: sum")), str(log)])
    assert stated.exit_code == 0, stated.output
    (summed,) = run(load_scenarios(written(tmp_path, ", dtype: float32, redop: sum"))[0]).items
    factor = average.rows[0].time_s / summed.rows[0].time_s
    assert factor > 1.2
    assert f"slower x{factor:.2f}" in stated.stdout
    note = "the log is of an avg of bfloat16, the prediction of a sum of float32: NCCL may choose another algorithm"
    assert note in " ".join(stated.stdout.split())
    assert "NCCL may choose" not in open_.stdout


def test_the_explained_choice_says_why_the_switch_is_left_out(tmp_path: Path) -> None:
    path = written(tmp_path, ", dtype: bfloat16, redop: avg")
    result = CliRunner().invoke(app, ["run", str(path), "--explain-choice", "--no-plot", "-o", str(tmp_path / "o")])
    assert result.exit_code == 0, result.output
    assert "# all_reduce not by NVLS: no NVSwitch does an avg of bfloat16 (PreMulSum)\n" in result.output
    assert f"AllReduce: {GIB} Bytes -> Algo RING proto SIMPLE" in result.output
