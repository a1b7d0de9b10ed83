"""Whole runs on rehearsed GPUs: what is counted, what runs out of memory, what slows down, what is captured."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ranks import COMMAND
from rehearsal.settings import Failure, Settings, environment

pytestmark = pytest.mark.slow

SCENARIO = "allreduce-8-h100"


def measure(folder: Path, machine: Settings, *words: str, env: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit status, output and errors of `commsim measure` on two rehearsed GPUs."""
    command = [*COMMAND, SCENARIO, "--backend", "nccl", "-n", "2", "-i", "4", "-w", "1", "--out", str(folder), *words]
    done = subprocess.run(
        command,
        env=os.environ | environment(machine) | (env or {}),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "measured.csv").open() as stream:
        return list(csv.DictReader(stream))


def conditions(folder: Path) -> dict[str, Any]:
    said: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return said


def two(tmp_path: Path, **changes: Any) -> Settings:
    return Settings(folder=str(tmp_path / "machine"), gpus=2, **({"ranks_per_node": 2} | changes))


def test_bytes_conditions_and_choices(tmp_path: Path) -> None:
    """In a new folder, with the variable of the scenario on the ranks; a repeated command changes nothing of it."""
    folder = tmp_path / "new" / "run"
    words = ["workload.0.sizes=1 MiB .. 4 MiB x4", "--capture-choices"]
    status, printed, said = measure(folder, two(tmp_path), *words)
    assert status == 0, said
    assert "not captured" not in printed
    assert "# all_reduce of 4 MiB: sent 1.0000 of what the ring sends (nvlink)" in printed
    for row in rows(folder):
        assert row["sent_bytes"] == row["expected_sent_bytes"] == f"{row['size_bytes']} {row['size_bytes']}"
    about = conditions(folder)
    assert (about["counted"], about["env"]["NCCL_ALGO"]) == ("nvlink", "Ring")
    assert (len(about["gpu_states"]["before"]), len(about["gpu_states"]["after"])) == (2, 2)
    assert any("has 8 ranks, measured are 2" in text for text in about["differs"])
    choices = (folder / "nccl_choices.json").read_bytes()
    assert len(json.loads(choices)["choices"]) == 2
    status, _, said = measure(folder, two(tmp_path), *words)
    assert status == 0, said
    assert (folder / "nccl_choices.json").read_bytes() == choices
    assert (folder / "capture" / "graphs.xml").is_file()
    status, _, said = measure(folder, two(tmp_path), *words, env={"NCCL_ALGO": "Tree"})
    assert status != 0
    assert "found NCCL_ALGO=Tree in the environment, expected Ring" in said


def test_two_nodes_count_nvlink_and_adapters(tmp_path: Path) -> None:
    """Two ranks, each a node of its own: everything leaves by the adapters."""
    machine = two(tmp_path, ranks_per_node=1)
    status, _, said = measure(tmp_path / "m", machine, "workload.0.sizes=4 MiB")
    assert status == 0, said
    about = conditions(tmp_path / "m")
    assert (about["hosts"], about["counted"]) == (2, "adapters and sockets")
    (row,) = rows(tmp_path / "m")
    sent, expected = ([int(n) for n in row[name].split()] for name in ("sent_bytes", "expected_sent_bytes"))
    assert sent == pytest.approx(expected, rel=1e-3)


def test_a_row_without_room_ends_the_row_and_not_the_run(tmp_path: Path) -> None:
    words = ["workload.0.sizes=['64 KiB', '64 MiB', '128 KiB']"]
    status, printed, said = measure(tmp_path / "m", two(tmp_path, oom_above=16 << 20), *words)
    assert status == 0, said
    assert [row["size_bytes"] for row in rows(tmp_path / "m")] == ["65536", "131072"]
    (left,) = conditions(tmp_path / "m")["left_out"]
    assert left["what"] == "all_reduce of 64 MiB"
    assert "all_reduce of 64 MiB: left out, out of memory" in printed


def test_a_gpu_that_slows_down_is_named(tmp_path: Path) -> None:
    machine = two(tmp_path, failures=(Failure("throttle", rank=1),))
    status, printed, said = measure(tmp_path / "m", machine, "workload.0.sizes=64 KiB")
    assert status == 0, said
    assert "# warning: the GPU of rank 1 was slowed down: " in printed
    assert list(conditions(tmp_path / "m")["slowed"]) == ["1"]


def test_one_gpu_per_task_as_srun_shows_it(tmp_path: Path) -> None:
    """Each process sees one GPU, its own, and takes it as device 0."""
    from commsim.measure.launcher import free_port

    port = str(free_port())
    started = []
    for rank in range(2):
        env = os.environ | environment(two(tmp_path)) | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        env |= {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_LOCALID": str(rank)}
        env |= {"CUDA_VISIBLE_DEVICES": str(rank), "GLOO_SOCKET_IFNAME": "lo"}
        command = [sys.executable, "-m", "commsim", "measure", SCENARIO, "--backend", "nccl", "-i", "2"]
        command += ["--out", str(tmp_path / "m"), "workload.0.sizes=64 KiB", "--capture-choices"]
        started.append(subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
    ended = [(*process.communicate(timeout=200), process.returncode) for process in started]
    assert [status for _, _, status in ended] == [0, 0], ended
    assert len(rows(tmp_path / "m")) == 1
    assert (tmp_path / "m" / "nccl_choices.json").is_file()


def test_two_ranks_of_srun_on_one_gpu_are_named(tmp_path: Path) -> None:
    status, _, said = measure(
        tmp_path / "m", two(tmp_path), "workload.0.sizes=64 KiB", env={"CUDA_VISIBLE_DEVICES": "1"}
    )
    assert status == 1
    assert "found 1 GPU here, expected 2 for 2 ranks" in said
