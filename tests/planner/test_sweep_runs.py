"""Whichever way a sweep runs, and however often it is cut short, its rows are the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.errors import CommsimError
from commsim.planner import workers
from commsim.planner.journal import Journal, read_journal
from commsim.planner.results import as_csv, as_parquet, merged
from commsim.planner.sweep import read_sweep
from commsim.planner.workers import PointAnswer, in_worker, run_cluster, run_local
from commsim.report.sweep_table import points_table

SWEEP = """\
name: small sweep
topology: {preset: hgx-h100-ndr400, nodes: 1}
library: {name: nccl, version: 2.26.2}
workload:
  - collective: all_reduce
    sizes: [1 KiB, 1 MiB]
sweep:
  topology.nodes: [1, 2, 3]
  workload.0.collective: [all_reduce, all_gather, broadcast]
  workload.0.dtype: [float16, float32]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    return path


def sweep_command(file: Path, out: Path, *more: str) -> None:
    result = CliRunner().invoke(app, ["sweep", str(file), "-o", str(out), *more], catch_exceptions=False)
    assert result.exit_code == 0


def test_shards_merge_to_the_rows_of_one_run(file: Path, tmp_path: Path) -> None:
    sweep_command(file, tmp_path / "one", "-j", "1")
    for part in range(3):
        sweep_command(file, tmp_path / "parts", "-j", "1", "--shard", f"{part}/3")
    merge = CliRunner().invoke(app, ["merge", str(tmp_path / "parts"), "--parquet"], catch_exceptions=False)
    assert merge.exit_code == 0
    text = (tmp_path / "one" / "rows.csv").read_text()
    assert (tmp_path / "parts" / "rows.csv").read_text() == text
    assert len(text.splitlines()) == 1 + 18 * 2

    import pandas as pd

    frame = pd.read_parquet(tmp_path / "parts" / "rows.parquet")
    assert list(frame["time_us"]) == list(pd.read_csv(tmp_path / "one" / "rows.csv")["time_us"])


def test_a_shard_that_is_missing_is_named(file: Path, tmp_path: Path) -> None:
    sweep_command(file, tmp_path / "parts", "-j", "1", "--shard", "0/9")
    with pytest.raises(CommsimError, match=r"found 2 of 18 points, missing 1, 2, 3, 4, 5, 6, 7, 8, \.\.\.;"):
        merged([tmp_path / "parts" / "journal-0-of-9.jsonl"])


def test_without_journals_there_is_nothing_to_merge() -> None:
    with pytest.raises(CommsimError, match="found no journal"):
        merged([])


def test_a_journal_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommsimError, match=r"gone\.jsonl: cannot be read: No such file"):
        read_journal(tmp_path / "gone.jsonl")


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(CommsimError, match=r"pip install 'commsim\[parquet\]'"):
        as_parquet([])


def test_one_worker_starts_no_process(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "Pool", None)
    sweep = read_sweep(file)
    answers = [a for some in run_local(sweep, list(sweep.points())[:3], 1) for a in some]
    assert [(a.number, len(a.rows), a.error) for a in answers] == [(0, 2, None), (1, 2, None), (2, 2, None)]


def test_a_point_that_is_no_scenario_has_the_scenarios_faults_as_its_error(file: Path) -> None:
    """The file is read all the same: each of the values makes a scenario with another one."""
    file.write_text(
        SWEEP.split("sweep:", maxsplit=1)[0] + "sweep: {library: [none, nccl], workload.0.algorithm: [ring]}"
    )
    sweep = read_sweep(file)
    taken, refused = (a for some in run_local(sweep, list(sweep.points()), 1) for a in some)
    assert (len(taken.rows), taken.error) == (2, None)
    assert refused.error is not None
    assert "workload.0.algorithm" in refused.error
    assert "a fault of commsim" not in refused.error


def test_a_sweep_of_which_nothing_can_be_predicted_ends_as_a_run_does(file: Path, tmp_path: Path) -> None:
    text = SWEEP.split("sweep:", maxsplit=1)[0] + "sweep: {topology.nodes: [1, 2]}\n"
    file.write_text(text)
    changes = ["library.env.NCCL_ALGO=NVLS", "topology.preset=dgx-a100-hdr200"]
    done = CliRunner().invoke(app, ["sweep", str(file), *changes, "-o", str(tmp_path / "o"), "-j", "1"])
    assert done.exit_code == 2, done.output
    assert "2 points failed" in done.output


def test_a_failing_point_is_a_row_with_its_error(file: Path, tmp_path: Path) -> None:
    text = SWEEP.replace("dtype: [float16, float32]", "protocol: [Simple, LL]").replace(
        "workload.0.collective: [all_reduce, all_gather, broadcast]", "library.env: [{}, {NCCL_ALGO: NVLS}]"
    )
    file.write_text(text)
    sweep_command(file, tmp_path / "out", "-j", "1")
    points = merged([tmp_path / "out" / "journal.jsonl"])[1]
    failed = [p["values"] for p in points if p["error"]]
    assert {"topology.nodes": 1, "library.env": {"NCCL_ALGO": "NVLS"}, "workload.0.protocol": "LL"} in failed
    assert 0 < len(failed) < len(points) == 12
    assert all(bool(p["rows"]) != bool(p["error"]) for p in points)
    assert "NCCL cannot run all_reduce" in (tmp_path / "out" / "rows.csv").read_text()


def test_a_torn_line_is_cut_and_its_point_computed_again(file: Path, tmp_path: Path) -> None:
    sweep_command(file, tmp_path / "out", "-j", "1")
    whole = (tmp_path / "out" / "rows.csv").read_text()
    journal = tmp_path / "out" / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:7]) + lines[7][:40])
    result = CliRunner().invoke(app, ["sweep", str(file), "-o", str(tmp_path / "out"), "-j", "1", "--json"])
    assert json.loads(result.stdout)["found_in_journal"] == 6
    assert (tmp_path / "out" / "rows.csv").read_text() == whole


def test_a_journal_has_one_writer_and_one_sweep(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path, "a", 2) as journal:
        assert read_journal(path)[0]["identity"] == "a"  # on the disk before any point is
        journal.append([PointAnswer(0, {}, [{"x": 1}]), PointAnswer(0, {}, [{"x": 2}])])
        assert [r["number"] for r in read_journal(path)[1]] == [0]
        with pytest.raises(ValueError, match="JSON compliant"):
            journal.append([PointAnswer(1, {}, [{"x": float("nan")}])])
        with pytest.raises(CommsimError, match="another sweep is writing it"):
            Journal(path, "a", 2)
    with pytest.raises(CommsimError, match="belongs to another sweep"):
        Journal(path, "b", 2)
    assert [r["rows"] for r in read_journal(path)[1]] == [[{"x": 1}]]
    with Journal(path, "b", 2, restart=True) as journal:
        assert journal.done == set()


def test_a_parquet_column_of_several_kinds_is_text_unless_all_are_numbers() -> None:
    import io

    import pandas as pd

    values = [{"x": 1, "y": 1}, {"x": 2.5, "y": "ring"}, {"x": None, "y": None}]
    points = [{"number": n, "values": {}, "rows": [row], "error": ""} for n, row in enumerate(values)]
    frame = pd.read_parquet(io.BytesIO(as_parquet(points)))
    assert frame["x"].tolist()[:2] == [1.0, 2.5]
    assert frame["y"].tolist()[:2] == ["1", "ring"]
    assert frame["y"].isna().tolist() == [False, False, True]


@pytest.mark.parametrize("text", ["3/3", "-1/3", "x", "1/0", "1", "٣/٤"])
def test_a_shard_that_is_none_is_refused(file: Path, text: str) -> None:
    with pytest.raises(CommsimError, match="expected I/N"):
        CliRunner().invoke(app, ["sweep", str(file), "--shard", text], catch_exceptions=False)


def test_a_file_that_is_no_journal_is_left_alone(file: Path, tmp_path: Path) -> None:
    journal = tmp_path / "out" / "journal.jsonl"
    journal.parent.mkdir()
    journal.write_text('{"my": "data", "number": 3}\n')
    with pytest.raises(CommsimError, match="no header of a sweep's journal"):
        CliRunner().invoke(app, ["sweep", str(file), "-o", str(tmp_path / "out")], catch_exceptions=False)
    assert journal.read_text() == '{"my": "data", "number": 3}\n'


@pytest.mark.slow
def test_processes_and_a_dask_cluster_give_the_rows_of_one_process(file: Path) -> None:
    from distributed import LocalCluster

    sweep = read_sweep(file)
    points = list(sweep.points())

    def text(answers: list[PointAnswer]) -> str:
        return as_csv([json.loads(json.dumps(vars(a))) for a in sorted(answers, key=lambda a: a.number)])

    alone = text([a for some in run_local(sweep, points, 1) for a in some])
    assert text([a for some in run_local(sweep, points, 2) for a in some]) == alone
    with LocalCluster(n_workers=2, threads_per_worker=1, processes=False, dashboard_address=None) as cluster:
        assert text([a for some in run_cluster(sweep, points, cluster.scheduler_address) for a in some]) == alone


@pytest.mark.slow
def test_a_process_that_dies_costs_one_point(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker of point 5 is killed each time; the others are answered."""
    monkeypatch.setenv("COMMSIM_TEST_KILL", "5")
    sweep = read_sweep(file)
    monkeypatch.setattr(workers, "in_worker", dying)
    answers = sorted((a for some in run_local(sweep, list(sweep.points()), 2) for a in some), key=lambda a: a.number)
    assert [a.number for a in answers] == list(range(18))
    assert [a.number for a in answers if a.error] == [5]


def dying(points: list[object]) -> list[PointAnswer]:
    if any(getattr(p, "number", None) == int(os.environ["COMMSIM_TEST_KILL"]) for p in points):
        os.kill(os.getpid(), signal.SIGKILL)
    return in_worker(points)  # type: ignore[arg-type]


@pytest.mark.slow
def test_killed_ten_times_it_loses_nothing(file: Path, tmp_path: Path) -> None:
    file.write_text(SWEEP.replace("nodes: [1, 2, 3]", f"nodes: {list(range(1, 25))}"))
    sweep_command(file, tmp_path / "whole", "-j", "1")
    command = [sys.executable, "-m", "commsim", "sweep", str(file), "-o", str(tmp_path / "out"), "-j", "2"]
    chance = random.Random(7)
    journal = tmp_path / "out" / "journal.jsonl"
    for _ in range(10):
        running = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        before = journal.stat().st_size if journal.exists() else 0
        deadline = time.monotonic() + 30
        while running.poll() is None and time.monotonic() < deadline:
            if journal.exists() and journal.stat().st_size > before + 200:
                break
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.05))
        running.kill()
        running.wait()
    assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.startswith("# 144 points")
    numbers = [r["number"] for r in read_journal(journal)[1]]
    assert sorted(numbers) == list(range(144))
    assert (tmp_path / "out" / "rows.csv").read_bytes() == (tmp_path / "whole" / "rows.csv").read_bytes()


@pytest.mark.parametrize(("points", "lines"), [(3, 18), (12, 12), (30, 24)])
def test_the_table_shows_all_rows_that_fit_a_screen(points: int, lines: int) -> None:
    rows = [{"collective": "all_reduce", "size_bytes": 1024 << k, "time_us": 1.0, "busbw_GBps": 2.0} for k in range(6)]
    swept = [{"values": {"topology.nodes": n}, "rows": rows, "error": None} for n in range(points)]
    _, *shown = points_table(swept, "busbw_GBps")
    last = {
        18: [],
        12: ["... each point's last row; rows.csv has 60 more"],
        24: ["... and 6 more points: rows.csv has all"],
    }
    assert shown[lines:] == last[lines]
    assert all("all_reduce" in line for line in shown[:lines])


@pytest.mark.parametrize(
    ("name", "value", "cell"),
    [
        ("time_us", 31274.2, "31274"),
        ("time_us", 24.714, "24.71"),
        ("busbw_GBps", 334.0, "334.00"),
        ("busbw_GBps", 0.004, "0.00"),
        ("step_s", 10.5, "10.50"),
        ("tokens_per_s_per_gpu", 12345.6, "12346"),
        ("mfu", 0.40414, "0.4041"),
    ],
)
def test_figures_are_written_as_run_writes_them(name: str, value: float, cell: str) -> None:
    rows = [{"collective": "all_reduce", name: value}]
    _, line = points_table([{"values": {"topology.nodes": 1}, "rows": rows, "error": None}], name)
    assert line.split()[-1] == cell
