"""What is left of a run that was cut short: finished rows, a reason, and no process."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import COMMAND, alive, disturbed, measure, table_rows

from commsim.measure.launcher import free_port
from commsim.measure.parsers import read_measured

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")]

MOST_SECONDS = 30


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


def test_ranks_of_another_world_size(tmp_path: Path) -> None:
    """As three terminals would start them: every rank hears it, in time."""
    port = free_port()
    started = []
    before = time.monotonic()
    for rank, world in ((0, 2), (1, 2), (2, 3)):
        place = {"RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(rank)}
        env = os.environ | place | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo"}
        command = [*COMMAND, "gloo-quickstart", "--out", str(tmp_path), "-i", "200"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env))
    for process in started:
        _, said = process.communicate(timeout=100)
        assert process.returncode == 1
        assert "was started with a world size of 2, rank 2 with 3" in said
    assert time.monotonic() - before < MOST_SECONDS + 30  # torch alone takes seconds to start


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
