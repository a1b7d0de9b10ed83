"""`commsim measure` in a process of its own, and the processes of its ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

COMMAND = [sys.executable, "-m", "commsim", "measure"]


def measure(*arguments: str, env: dict[str, str] | None = None, timeout: float = 120) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of `commsim measure`."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        env=os.environ | (env or {}),
        timeout=timeout,
        check=False,
    )
    return done.returncode, done.stdout, done.stderr


def table_rows(folder: Path) -> int:
    """Number of whole rows in the table of a run folder, 0 where there is none."""
    try:
        return max(0, (folder / "measured.csv").read_text().count("\n") - 1)
    except OSError:
        return 0


def rank_processes(launcher: int) -> dict[int, int]:
    """Process id of every rank that a launcher has started."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            env = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if f"COMMSIM_LAUNCHER={launcher}".encode() in env and b"torch_runner" in (entry / "cmdline").read_bytes():
            found[int(next(v for v in env if v.startswith(b"RANK=")).removeprefix(b"RANK="))] = int(entry.name)
    return found


def torchrun_ranks(agent: int) -> dict[int, int]:
    """Process id of every rank whose parent is an agent of torchrun."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            env = (entry / "environ").read_bytes().split(b"\0")
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError):
            continue
        if parent == agent:
            found.update({int(v.removeprefix(b"RANK=")): int(entry.name) for v in env if v.startswith(b"RANK=")})
    return found


def alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be counted does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def disturbed(
    folder: Path, act: Callable[[int, dict[int, int]], None], *arguments: str, ranks: int = 3
) -> tuple[int, str, float, list[int]]:
    """Starts a run, acts on (launcher, ranks) after its second row, and waits for its end.

    Returns exit status, standard error, seconds from the act to the end, and the ranks that are left.
    """
    command = [*COMMAND, "gloo-quickstart", "-n", str(ranks), "workload.0.sizes=4 KiB .. 64 MiB x2"]
    started = subprocess.Popen(
        [*command, "--out", str(folder), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        while table_rows(folder) < 2 and started.poll() is None:
            time.sleep(0.05)
        processes = rank_processes(started.pid)
        before = time.monotonic()
        act(started.pid, processes)
        _, said = started.communicate(timeout=100)
        seconds = time.monotonic() - before
    finally:
        if started.poll() is None:
            started.kill()
            started.communicate()
    until = time.monotonic() + 3  # a rank whose launcher was killed is killed by the kernel, a moment later
    while any(map(alive, processes.values())) and time.monotonic() < until:
        time.sleep(0.05)
    return started.returncode, said, seconds, [pid for pid in processes.values() if alive(pid)]
