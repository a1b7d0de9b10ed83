"""`commsim gpu` on the rehearsed machine: the whole folder, the law found again, and what goes wrong named."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rehearsal.settings import Failure, Settings, environment

pytestmark = pytest.mark.slow

OPTIONS = ("--largest", "16 KiB", "--only", "collectives")


def gpu(tmp_path: Path, settings: dict[str, object], *options: str) -> subprocess.CompletedProcess[str]:
    """The command on a rehearsed machine, its folder ``lab`` in `tmp_path`."""
    machine = Settings(folder=str(tmp_path / "machine"), **settings)  # type: ignore[arg-type]
    env = os.environ | environment(machine) | {"GLOO_SOCKET_IFNAME": "lo"}
    env["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[2]), env["PYTHONPATH"]])
    words = [sys.executable, "-m", "commsim", "gpu", "--out", str(tmp_path / "lab"), *options]
    return subprocess.run(words, env=env, capture_output=True, text=True, timeout=600, check=False)


def rows(lab: Path) -> list[dict[str, str]]:
    with (lab / "collectives" / "measured.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_more_ranks_than_gpus_are_not_begun(tmp_path: Path) -> None:
    done = gpu(tmp_path, {"gpus": 4, "ranks_per_node": 4}, *OPTIONS, "--nproc", "8")
    assert done.returncode == 1
    assert "found 4 GPUs here, expected 8" in done.stderr
    assert not (tmp_path / "lab").exists()


def test_four_ranks_on_two_nodes_leave_a_whole_folder(tmp_path: Path) -> None:
    done = gpu(tmp_path, {"gpus": 4, "ranks_per_node": 2}, *OPTIONS, "--minutes", "8")
    assert done.returncode == 0, done.stdout + done.stderr
    lab, machine = tmp_path / "lab", Settings(folder="")
    for name in ("scenario.yaml", "topology.yaml", "params.yaml", "report.html", "nccl_choices.json"):
        assert (lab / name).is_file(), name
    names = zipfile.ZipFile(tmp_path / "lab.zip").namelist()
    assert "lab/report.html" in names
    assert not [name for name in names if name.endswith(".log")]  # they name hosts
    measured = [row for row in rows(lab) if row["collective"] == "all_reduce"]
    assert len(measured) == 12  # 8 B .. 16 KiB
    for row in measured:
        size = int(row["size_bytes"])
        law = machine.net_alpha_s + 2 * 3 / 4 * size / (machine.net_bandwidth * 2)
        assert float(row["oop_time_us"]) == pytest.approx(1e6 * law, rel=0.05)
        assert row["oop_wrong"] == "0"
    counted = [row for row in measured if row["sent_bytes"]]
    assert counted
    for row in counted:
        total = sum(float(part) for part in row["sent_bytes"].split())
        assert total == pytest.approx(4 * 2 * 3 / 4 * int(row["size_bytes"]), rel=1e-3)
    again = gpu(tmp_path, {"gpus": 4, "ranks_per_node": 2}, *OPTIONS, "--minutes", "5")
    assert again.returncode == 0
    assert "# all_reduce of float32" not in again.stdout  # nothing is measured twice


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (Failure("kill", rank=1, collective="all_gather"), "rank 1 was killed by signal 9 (SIGKILL)"),
        (Failure("async", rank=1, collective="all_gather"), "all_gather"),
    ],
)
def test_what_goes_wrong_is_one_line_and_what_was_measured_stays(tmp_path: Path, failure: Failure, said: str) -> None:
    done = gpu(tmp_path, {"gpus": 2, "ranks_per_node": 2, "failures": (failure,)}, *OPTIONS, "--minutes", "2")
    assert done.returncode == 1
    assert said in done.stderr
    assert "run the same command again to go on" in done.stderr
    assert {row["collective"] for row in rows(tmp_path / "lab")} == {"all_reduce"}
    assert (tmp_path / "lab" / "report.html").is_file()


def test_no_time_still_writes_the_report_of_what_is_there(tmp_path: Path) -> None:
    done = gpu(tmp_path, {"gpus": 2, "ranks_per_node": 2}, *OPTIONS, "--minutes", "0.2")
    assert done.returncode == 0, done.stderr
    done = gpu(tmp_path, {"gpus": 2, "ranks_per_node": 2}, "--minutes", "0")
    assert done.returncode == 0
    assert "report.html" in done.stdout
