"""`commsim validate kernels`: rows as measured, fits without what is scored, and the bars of the kernels' errors."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import fit_kernels
import numpy as np
import pytest
from typer.testing import CliRunner

from commsim.cli import app, main
from commsim.errors import LogFormatError
from commsim.kernels.predict import PATH, kernel_values
from study.kernel_fit import NAMES, design, fitted, predicted, with_facts
from study.kernel_rows import PROJECT, KernelRow, read_table
from study.kernels import Contest, KernelScores, adapted_to_three, contests, document, left_out_seconds, score
from study.kernels_report import PAGE, page, summary

HEAD = "framework,version,device,kernel_source,allreduce_dtype,num_gpus,message_size,latency\n"
H100 = "vLLM,0.24.0,NVIDIA H100 80GB HBM3,vLLM_custom_graph,bfloat16,8,"


def table(folder: Path, *lines: str, head: str = HEAD) -> Path:
    path = folder / "rows.csv"
    path.write_text(head + "".join(f"{line}\n" for line in lines))
    return path


@pytest.fixture(scope="module")
def scores() -> KernelScores:
    return score()


@pytest.fixture(scope="module")
def rows() -> tuple[KernelRow, ...]:
    return read_table(PROJECT).rows


SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", PROJECT.parents[3] / "shared" / "data")) / "silicon"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the shared data is not here")
def test_the_table_is_that_of_its_source() -> None:
    assert PROJECT.read_bytes() == (SHARED / "custom_all_reduce.csv").read_bytes()


@pytest.mark.slow  # of all rows
def test_the_errors_are_below_the_bars(scores: KernelScores) -> None:
    medians = document(scores)["median_error_pct"]
    assert medians["gpu_left_out"] <= 9.0  # the issue asks for 15
    assert medians["count_left_out"] <= 7.0  # 12
    assert medians["three_sizes_known"] <= 5.0  # 6
    assert medians["as_fitted"] <= 6.5
    assert document(scores)["choice"]["time_lost_pct"] <= 5.0


def test_a_row_of_the_table_by_hand(tmp_path: Path) -> None:
    (row,) = read_table(table(tmp_path, f"{H100}65536,0.0080")).rows
    assert (row.call.nbytes, row.seconds, row.choice.kernel) == (131072, 8e-6, "peer.one_shot")
    assert row.cuda_graph
    assert row.copied == 0
    eager = read_table(table(tmp_path, f"{H100}65536,0.0080".replace("_graph", "_eager"))).rows[0]
    assert not eager.cuda_graph
    assert eager.copied == 1


def test_gpus_without_a_datasheet_and_other_frameworks_are_listed_with_the_reason(tmp_path: Path) -> None:
    lines = [f"{H100}512,0.005", f"{H100}512,0.005".replace("H100 80GB HBM3", "X9000"), f"R{H100}512,0.005"]
    figures = document(score(table(tmp_path, *lines, lines[1])))
    assert figures["n_rows"] == 4
    assert figures["n_scored"] == 1
    refused = {of["device"]: (of["rows"], of["reason"]) for of in figures["not_predicted"]}
    assert refused["NVIDIA X9000"] == (2, "no datasheet of NVIDIA X9000 is known")
    assert "RvLLM" in refused["NVIDIA H100 80GB HBM3"][1]
    assert "not predicted: 2 rows of NVIDIA X9000" in summary(figures)


def test_a_table_of_nothing_predictable_has_no_medians(tmp_path: Path) -> None:
    figures = document(score(table(tmp_path, f"{H100}512,0.005".replace("H100 80GB HBM3", "L40S"))))
    assert figures["n_scored"] == 0
    assert set(figures["median_error_pct"].values()) == {None}
    assert "ada" in figures["not_predicted"][0]["reason"]
    json.dumps(figures, allow_nan=False)


def test_gpus_that_the_project_has_no_rows_of_are_scored_by_their_datasheet(tmp_path: Path) -> None:
    lines = [f"{H100}{1 << k},0.005".replace("H100 80GB HBM3", "H200") for k in range(8, 14)]
    figures = document(score(table(tmp_path, *lines)))
    assert list(figures["by_gpu"]) == ["H200-SXM5-141GB"]
    of = figures["by_gpu"]["H200-SXM5-141GB"]
    assert of["as_fitted"] == of["gpu_left_out"]  # nothing of it was fitted


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"{H100}512,0", r"rows\.csv:2:\d+: latency: found '0', expected milliseconds above 0"),
        (f"{H100}512,fast", r"rows\.csv:2:\d+: latency: found 'fast'"),
        (f"{H100}512,-1", r"rows\.csv:2:\d+: latency: found '-1', expected milliseconds above 0"),
        (f"{H100}512,", r"rows\.csv:2:\d+: latency: found '', expected milliseconds above 0"),
        (f"{H100}{2**40 + 1},0.1", r"message_size: found '1099511627777', expected at most 1,099,511,627,776 elements"),
        (f"{H100}many,0.1", r"rows\.csv:2:\d+: message_size: found 'many', expected a whole number"),
        (f"{H100}0,0.1", "message_size: found '0', expected 1 or more"),
        (f"{H100}512,0.1".replace("bfloat16,8", "bfloat16,1"), "num_gpus: found '1', expected 2 or more"),
        (f"{H100}512,0.1".replace("bfloat16", "float3"), "allreduce_dtype: found 'float3', expected one of int8"),
        (f"{H100}512,0.1".replace("0.24.0", "new"), "version: found 'new', expected a release such as 0.24.0"),
        ("", "found no rows"),
    ],
)
def test_broken_rows_are_refused_at_their_place(tmp_path: Path, line: str, expected: str) -> None:
    with pytest.raises(LogFormatError, match=expected):
        read_table(table(tmp_path, line))


def test_a_table_of_other_columns_is_refused(tmp_path: Path) -> None:
    path = table(tmp_path, "1,2", head="size,time\n")
    with pytest.raises(LogFormatError, match=r"rows\.csv:1:1: found no column framework, version"):
        read_table(path)
    with pytest.raises(LogFormatError, match=r"none\.csv: cannot be read: .*No such file"):
        read_table(tmp_path / "none.csv")


def test_other_operations_are_listed_and_not_scored(tmp_path: Path) -> None:
    head = HEAD.replace("latency", "latency,op_name")
    lines = [f"{H100}512,0.005,{name}" for name in ("all_reduce", "AllReduce", "", "all_gather", "all_gather")]
    read = read_table(table(tmp_path, *lines, head=head))
    assert len(read.rows) == 3
    assert read.refused == {("NVIDIA H100 80GB HBM3", "its op_name is all_gather, not all_reduce"): 2}


@pytest.mark.parametrize("name", ["TRTLLM", "tensorrt_llm", "TensorRT-LLM", "trt-llm"])
def test_frameworks_are_known_as_users_write_them(tmp_path: Path, name: str) -> None:
    (row,) = read_table(table(tmp_path, f"{H100}512,0.005".replace("vLLM,0.24.0", f"{name},1.3"))).rows
    assert (row.call.framework, row.call.release) == ("tensorrt_llm", (1, 3, 0))


GB300 = "FlashInfer,0.6.15,NVIDIA GB300,auto_graph,bfloat16"
PUBLISHED = [(2, 33553408, 146.95), (4, 41939968, 209.26), (8, 33553408, 180.87), (16, 4193280, 36.92)]
"""Ranks, elements and us of FlashInfer by its own choice, over trays from 8 ranks on (vLLM, pull request 53318)."""


def test_published_rows_of_flashinfer_are_no_further_off_than_a_quarter(tmp_path: Path) -> None:
    read = read_table(table(tmp_path, *(f"{GB300},{n},{of},{us / 1e3}" for n, of, us in PUBLISHED)))
    assert not read.refused
    assert {(row.call.framework, row.choice.kernel) for row in read.rows} == {("flashinfer", "multicast.two_shot")}
    ratios = predicted(design(read.rows), kernel_values()) / np.array([row.seconds for row in read.rows])
    assert np.all((ratios > 0.8) & (ratios < 1.25))
    figures = document(score(tmp_path / "rows.csv"))
    assert figures["by_framework"]["flashinfer"]["rows"] == 4


def test_types_count_in_the_rules(tmp_path: Path) -> None:
    """4 MiB of vLLM on H100: torch's symmetric memory takes bfloat16 alone, the kernels no integers."""
    lines = [f"{H100}{4 * 2**20 // size},0.05".replace("bfloat16", name) for name, size in (("bf16", 2), ("half", 2))]
    rows = read_table(table(tmp_path, *lines, f"{H100}512,0.05".replace("bfloat16", "int32"))).rows
    assert [row.choice.kernel for row in rows] == ["symmetric.multimem", "nccl", "nccl"]
    assert rows[0].call.nbytes == rows[1].call.nbytes == 4 * 2**20


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    path = table(tmp_path, f"{H100}512,0.005", head=f"\ufeff{HEAD}")
    assert len(read_table(path).rows) == 1


def test_semicolons_are_named(tmp_path: Path) -> None:
    path = table(tmp_path, f"{H100}512,0.005".replace(",", ";"), head=HEAD.replace(",", ";"))
    with pytest.raises(LogFormatError, match=r"rows\.csv:1:1: found fields with ';' between them, expected ','"):
        read_table(path)


def test_a_table_of_nothing_predictable_is_refused_with_the_reason_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table(tmp_path, f"{H100}512,0.005".replace("H100 80GB HBM3", "X9000"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["commsim", "validate", "kernels", "--data", "rows.csv", "--json", "f.json"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    printed = capsys.readouterr()
    assert "found no row that can be predicted of 1:" in printed.err
    assert "no datasheet of NVIDIA X9000 is known (1 rows of NVIDIA X9000)" in printed.err
    assert not printed.out
    assert not (tmp_path / "f.json").exists()


@pytest.mark.parametrize("more", [["--data", "rows.csv", "--json", "f.json"], ["--data", "rows.csv", "--report"]])
def test_the_command_ends_with_a_line_and_writes_nothing(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table(tmp_path, "1,2", head="size,time\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["commsim", "validate", "kernels", *more])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    printed = capsys.readouterr()
    assert not printed.out
    assert printed.err.startswith("commsim: error: ")
    assert not (tmp_path / "f.json").exists()


def test_the_command_writes_and_prints_its_figures(tmp_path: Path) -> None:
    path, out = table(tmp_path, *(f"{H100}{1 << k},0.005" for k in range(7, 16))), tmp_path / "f.json"
    done = CliRunner().invoke(app, ["validate", "kernels", "--data", str(path), "--json", str(out)])
    assert done.exit_code == 0
    assert done.output.startswith("9 of 9 rows predicted; median errors in %")
    assert "vllm 0.24.0 graph, 8 x H100-SXM5-80GB" in done.output
    assert json.loads(out.read_text())["n_scored"] == 9


def test_slopes_are_those_of_differences(rows: tuple[KernelRow, ...]) -> None:
    d = design(rows[::37])
    x = np.log([kernel_values()[name] for name in NAMES])
    step = 1e-6 * np.eye(len(NAMES))
    by_differences = [(np.log(d.predicted(x + s)) - np.log(d.predicted(x - s))) / 2e-6 for s in step]
    assert np.allclose(np.array(by_differences).T, d.slopes(x), atol=1e-6)


def test_rows_made_by_the_model_are_fitted_by_its_parameters(rows: tuple[KernelRow, ...]) -> None:
    rows = rows[::5]
    made = predicted(design(rows), kernel_values())
    some = [replace(row, seconds=float(s)) for row, s in zip(rows, made, strict=True)]
    v = fitted(design(some))
    errors = np.abs(predicted(design(some), v) / design(some).seconds - 1.0)
    assert np.median(errors) < 0.002
    assert v["peer.base"] == pytest.approx(kernel_values()["peer.base"], rel=0.01)


def test_what_is_left_out_is_not_seen(rows: tuple[KernelRow, ...]) -> None:
    """Rows of H100 a hundred times as long change nothing of what is predicted for H100 without it."""

    def gpu(row: KernelRow) -> object:
        return row.call.device.name

    some = rows[::15]
    wrong = [replace(row, seconds=100.0 * row.seconds) if gpu(row) == "H100-SXM5-80GB" else row for row in some]
    h100 = np.array([gpu(row) == "H100-SXM5-80GB" for row in some])
    assert np.allclose(left_out_seconds(some, some, gpu)[h100], left_out_seconds(some, wrong, gpu)[h100])
    assert not np.allclose(left_out_seconds(some, some, gpu)[~h100], left_out_seconds(some, wrong, gpu)[~h100])


def test_three_known_sizes_correct_a_constant_factor_and_are_not_scored(rows: tuple[KernelRow, ...]) -> None:
    curve = [row for row in rows if row.curve == rows[0].curve]
    seconds = np.array([row.seconds for row in curve]) / 3.0
    known, adapted = adapted_to_three(curve, seconds)
    assert known.sum() == 3
    assert np.allclose(adapted, 3.0 * seconds)


def test_facts_of_machines_that_do_not_multicast_change_the_kernel(rows: tuple[KernelRow, ...]) -> None:
    seen = with_facts(rows)
    assert len(seen) < len(rows)
    of_0_14 = [r for r in seen if r.curve[:4] == ("vllm", (0, 14, 0), True, "H100-SXM5-80GB")]
    assert of_0_14
    assert not any(row.choice.kernel.startswith("symmetric") for row in of_0_14)


def test_the_best_by_prediction_loses_against_the_best_measured() -> None:
    c = Contest("H100", 8, 1024, {"nccl": 2.0, "vllm": 1.0}, {"nccl": 3.0, "vllm": 3.3})
    assert c.chosen == "vllm"
    assert c.lost == pytest.approx(0.1)


@pytest.mark.slow  # of all rows
def test_contests_are_among_nccl_and_kernels_of_the_same_call(scores: KernelScores) -> None:
    some = contests(scores)
    assert all("nccl" in c.measured and len(c.measured) > 1 for c in some)
    assert {c.gpu for c in some} == {row.call.device.name for row in scores.table.rows}
    assert all(c.nbytes <= 128 << 20 for c in some)


@pytest.mark.slow
def test_the_shipped_parameters_are_those_of_the_fit(rows: tuple[KernelRow, ...]) -> None:
    v = dict(fitted(design(with_facts(rows))))
    v["band.low"], v["band.high"] = fit_kernels.band(rows)
    text = PATH.read_text(encoding="utf-8")
    for name, value in kernel_values().items():
        assert v[name] == pytest.approx(value, rel=5e-3), name
    assert fit_kernels.with_values(text, kernel_values()) == text


@pytest.mark.slow
def test_a_parameter_that_is_not_there_costs_nothing(rows: tuple[KernelRow, ...]) -> None:
    seen = design(with_facts(rows))
    without = fitted(seen, without="peer.base")
    assert without["peer.base"] < 1e-20
    assert fit_kernels.median_error(seen, without) > 1.2 * fit_kernels.median_error(seen, fitted(seen))


@pytest.mark.slow  # of all rows
def test_the_page_is_what_the_command_writes(scores: KernelScores) -> None:
    """If this fails: commsim validate kernels --report."""
    assert PAGE.read_text(encoding="utf-8") == page(document(scores))
