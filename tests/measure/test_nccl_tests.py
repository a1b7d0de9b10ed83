"""nccl-tests in the place of our own ranks: its command lines, and what is kept of what it prints."""

from __future__ import annotations

import csv
import json
import stat
from pathlib import Path

import pytest
from rehearsal.settings import Settings, environment, settings

from commsim.errors import MeasurementError
from commsim.measure.gpu import gpus
from commsim.measure.nccl_tests import commands, measure
from commsim.measure.run import Run, check_run
from commsim.measure.tasks import Task

# Prints what nccl-tests 2.17.1 prints, for whatever sizes it is asked.
PROGRAM = """#!/usr/bin/env python3
import sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
size, last, factor, ranks = (int(given[name]) for name in ("-b", "-e", "-f", "-t"))
kind = given["-d"]
item = {"float": 4, "half": 2}[kind]
print("# nccl-tests version 2.17.1 nccl-headers=22606 nccl-library=22606")
print("#  Rank  0 Group  0 Pid   4000 on secret-host device  0 [0000:10:00] NVIDIA H100 80GB HBM3")
print("#       size         count      type   redop    root" + "     time   algbw   busbw #wrong" * 2)
print("#        (B)    (elements)                          " + "     (us)  (GB/s)  (GB/s)       " * 2)
while size <= last:
    if size >= FAIL_AT:
        print("node: Test CUDA failure common.cu:1101 'out of memory'")
        sys.exit(3)
    time = 20 + size / 1e4
    bw = size / time / 1e3
    numbers = f"{time:8.2f} {bw:7.2f} {bw * 2 * (ranks - 1) / ranks:7.2f} {'N/A' if given['-c'] == '0' else '0':>6}"
    what = f"{kind:>9} {given.get('-o', 'none'):>7} {given.get('-r', '-1'):>7}"
    print(f"{size:12d} {size // item:12d} {what} {numbers} {numbers}")
    size *= factor
print("# Out of bounds values : 0 OK")
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in environment(Settings(str(tmp_path / "machine"))).items():
        monkeypatch.setenv(name, value)
    gpus.cache_clear()
    settings.cache_clear()
    install(tmp_path, fail_at=1 << 40)
    return tmp_path


def install(folder: Path, fail_at: int) -> None:
    path = folder / "build" / "all_reduce_perf"
    path.parent.mkdir(exist_ok=True)
    path.write_text(PROGRAM.replace("FAIL_AT", str(fail_at)))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def _run(folder: Path, *tasks: Task, **given: object) -> Run:
    return Run("x", tasks, "nccl", 8, runner="nccl-tests", out=str(folder / "out"), **given)  # type: ignore[arg-type]


def _rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "out" / "measured.csv").open() as stream:
        return list(csv.DictReader(stream))


def test_sizes_that_grow_by_a_factor_are_one_command(folder: Path) -> None:
    task = Task("all_reduce", (1024, 4096, 16384), "float16", "max")
    (command,) = commands(_run(folder, task, graph=2, register="window", check=False), task, str(folder))
    said = " ".join(command[1:])
    assert said == "-b 1024 -e 16384 -f 4 -t 8 -g 1 -n 20 -w 5 -c 0 -d half -o max -G 2 -R 2"
    others = Task("all_reduce", (1000, 4096))
    assert [c[1:5] for c in commands(_run(folder, others), others, str(folder))] == [
        ["-b", "1000", "-e", "1000"], ["-b", "4096", "-e", "4096"]
    ]  # fmt: skip


def test_its_rows_become_ours_and_its_log_is_kept_without_the_host(folder: Path) -> None:
    run = _run(folder, Task("all_reduce", (1024, 2048, 4096)), repeats=2)
    shown: list[str] = []
    measure(run, str(folder), shown.append)
    rows = _rows(folder)
    assert [(row["size_bytes"], row["repeat"]) for row in rows] == [
        ("1024", "0"), ("2048", "0"), ("4096", "0"), ("1024", "1"), ("2048", "1"), ("4096", "1")
    ]  # fmt: skip
    assert (rows[2]["oop_time_us"], rows[2]["ip_wrong"], rows[2]["n_ranks"]) == ("20.41", "0", "8")
    assert len(shown) == 6
    said = json.loads((folder / "out" / "run.json").read_text())
    assert (said["runner"], said["nccl_tests"], said["finished"]) == ("nccl-tests", "2.17.1", True)
    log = (folder / "out" / "nccl-tests.log").read_text()
    assert "secret-host" not in log
    assert log.count("$ all_reduce_perf -b 1024") == 2
    measure(run, str(folder), shown.append)  # all is there
    assert len(_rows(folder)) == len(shown) == 6


def test_a_program_that_fails_is_named_with_its_reason_and_earlier_rows_stay(folder: Path) -> None:
    install(folder, fail_at=8192)
    run = _run(folder, Task("all_reduce", (1000,)), Task("all_reduce", (4096, 8192), "float16"))
    with pytest.raises(MeasurementError, match=r"all_reduce_perf -b 4096 .* ended with status 3: .*out of memory"):
        measure(run, str(folder), print)
    assert [row["size_bytes"] for row in _rows(folder)] == ["1000"]


def test_what_it_lacks_is_refused(folder: Path) -> None:
    with pytest.raises(MeasurementError, match="found no all_gather_perf in"):
        measure(_run(folder, Task("all_gather", (4096,))), str(folder), print)
    with pytest.raises(MeasurementError, match="no all_to_all_v"):
        measure(_run(folder, Task("all_to_all_v", (4096,))), str(folder), print)
    with pytest.raises(MeasurementError, match="nccl-tests has no mode single"):
        check_run(_run(folder, Task("all_reduce", (4096,)), mode="single"))
    with pytest.raises(MeasurementError, match="--split has no effect"):
        check_run(_run(folder, Task("all_reduce", (4096,)), split="div 2"))
    with pytest.raises(MeasurementError, match="no size is as large as"):
        check_run(_run(folder, Task("all_gather", (64,))))
