"""What is left of a run that was cut short: finished rows, a reason, and no process."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import COMMAND, alive, disturbed, measure, table_rows, torchrun_ranks

from commsim.measure.launcher import free_port
from commsim.measure.parsers import read_measured

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

MOST_SECONDS = 30
STARTING_S = 30  # three processes that import torch on a busy machine; none of ours


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank(tmp_path: Path, victim: int) -> None:
    status, said, seconds, left = disturbed(tmp_path, lambda _, ranks: os.kill(ranks[victim], signal.SIGKILL))
    assert (status, left) == (1, [])
    assert f"rank {victim} was killed by signal 9 (SIGKILL)" in said
    for other in {0, 1, 2} - {victim}:  # every other rank has its own line, or shares one
        assert any(str(other) in line.split(":")[0] for line in said.splitlines() if line.startswith("rank")), said
    assert seconds < MOST_SECONDS
    assert "Traceback" not in said
    assert len(read_measured(tmp_path)[0]) >= 2


def test_a_rank_that_hangs(tmp_path: Path) -> None:
    status, said, seconds, left = disturbed(
        tmp_path, lambda _, ranks: os.kill(ranks[1], signal.SIGSTOP), "--timeout", "4"
    )
    assert (status, left) == (1, [])
    assert "no answer from another rank within the time allowed" in said
    assert "rank 1 did not answer any more and had to be stopped" in said
    assert seconds < MOST_SECONDS


def test_an_interrupt(tmp_path: Path) -> None:
    status, said, seconds, left = disturbed(tmp_path, lambda launcher, _: os.kill(launcher, signal.SIGTERM))
    assert (status, left) == (130, [])
    assert "interrupted" in said
    assert seconds < 10
    assert table_rows(tmp_path) >= 2


def test_a_killed_launcher_leaves_no_rank(tmp_path: Path) -> None:
    seen: list[int] = []

    def kill(launcher: int, ranks: dict[int, int]) -> None:
        assert all(map(alive, ranks.values()))  # no test here could fail if no rank were found
        seen.extend(ranks)
        os.kill(launcher, signal.SIGKILL)

    _, _, _, left = disturbed(tmp_path, kill)
    assert (sorted(seen), left) == ([0, 1, 2], [])


def test_a_full_disk(tmp_path: Path) -> None:
    """A limit on the size of files, which the ranks inherit, stands in for the disk; then there is room again."""
    command = [*COMMAND, "gloo-quickstart", "-n", "2", "-i", "2", "-w", "1", "--out", str(tmp_path)]
    command.append("workload.0.sizes=256 B .. 64 KiB x2")
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1100, 1100))  # noqa: E731
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, preexec_fn=limit, check=False)
    assert done.returncode == 1
    assert "ranks 0, 1: " in done.stderr
    assert "cannot be written: File too large; the" in done.stderr
    kept = table_rows(tmp_path)
    assert 0 < kept < 9
    status, printed, _ = measure(*command[len(COMMAND) :])
    assert status == 0
    assert len([line for line in printed.splitlines() if not line.startswith("#")]) == 9 - kept
    assert len(read_measured(tmp_path)[0]) == 9


def started_by_hand(folder: Path, port: int, *places: tuple[int, int]) -> tuple[list[tuple[int, str]], float]:
    """(exit status, standard error) of ranks that several terminals, or srun, started as (rank, world size)."""
    started = []
    before = time.monotonic()
    for rank, world in places:
        place = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        env = os.environ | place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        command = [*COMMAND, "gloo-quickstart", "--out", str(folder), "-i", "200", "--arrival", "5", "--timeout", "5"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env))
    ended = []
    for process in started:
        _, said = process.communicate(timeout=100)
        ended.append((process.returncode, said))
    return ended, time.monotonic() - before


def test_ranks_of_another_world_size(tmp_path: Path) -> None:
    """Every rank hears it, in time."""
    ended, seconds = started_by_hand(tmp_path, free_port(), (0, 2), (1, 2), (2, 3))
    for status, said in ended:
        assert status == 1
        assert "was started with a world size of 2, rank 2 with 3" in said
    assert seconds < MOST_SECONDS + STARTING_S


def test_a_rank_that_never_comes(tmp_path: Path) -> None:
    ended, seconds = started_by_hand(tmp_path, free_port(), (0, 3), (2, 3))
    for status, said in ended:
        assert status == 1
        assert "1 of 3 ranks did not come within 5 s: 1" in said
        assert "Traceback" not in said
    assert seconds < MOST_SECONDS + STARTING_S


def test_a_port_in_use(tmp_path: Path) -> None:
    """By a server that is none of ours: the rank that would listen there says so, the other that it had no answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (first, second), seconds = started_by_hand(tmp_path, port, (0, 2), (1, 2))
        launched = measure("gloo-quickstart", "-n", "2", "--port", str(port), "--out", str(tmp_path))
    assert (first[0], second[0], launched[0]) == (1, 1, 1)
    assert f"port {port} is in use on this machine; set another MASTER_PORT" in first[1]
    assert f"rank 1 of 2: no answer from rank 0 at 127.0.0.1:{port} within 5 s" in second[1]
    assert f"port {port} cannot be used: Address already in use; choose another --port" in launched[2]
    assert not any("Traceback" in said for said in (first[1], second[1], launched[2]))
    assert seconds < MOST_SECONDS + STARTING_S


def test_torchrun(tmp_path: Path, checkout: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "validation/run_torch.py"]
    done = subprocess.run(
        [*command, "gloo-quickstart", "workload.0.sizes=4 KiB .. 16 KiB x2", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=checkout,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(checkout)},
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert read_measured(tmp_path)[0].size_bytes.tolist() == [4096, 8192, 16384]


def test_a_killed_rank_of_torchrun(tmp_path: Path, checkout: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "3", "validation/run_torch.py"]
    started = subprocess.Popen(
        [*command, "gloo-quickstart", "workload.0.sizes=4 KiB .. 64 MiB x2", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=checkout,
        env=os.environ | {"GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(checkout)},
    )
    while table_rows(tmp_path) < 2 and started.poll() is None:
        time.sleep(0.05)
    ranks = torchrun_ranks(started.pid)
    assert sorted(ranks) == [0, 1, 2]
    before = time.monotonic()
    os.kill(ranks[1], signal.SIGKILL)
    _, said = started.communicate(timeout=100)
    assert time.monotonic() - before < MOST_SECONDS
    assert started.returncode != 0
    assert "Signal 9 (SIGKILL)" in said
    assert not any(map(alive, ranks.values()))
    assert len(read_measured(tmp_path)[0]) >= 2
