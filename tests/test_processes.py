"""Processes of a pool end with the one that started them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

_POOL = """
import multiprocessing, os, time
from concurrent.futures import ProcessPoolExecutor
from commsim.processes import {initializer}
if __name__ == "__main__":
    pool = ProcessPoolExecutor(2, multiprocessing.get_context("spawn"), initializer={initializer})
    print(*{{f.result() for f in [pool.submit(os.getpid) for _ in range(8)]}}, flush=True)
    pool.submit(time.sleep, 600)
    time.sleep(600)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
@pytest.mark.parametrize("initializer", ["follow_parent", "end_with_parent"])
@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_a_pool_ends_with_its_parent(tmp_path: Path, initializer: str, ended_by: signal.Signals) -> None:
    script = tmp_path / "pool.py"
    script.write_text(_POOL.format(initializer=initializer), encoding="utf-8")
    with subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children = [int(word) for word in parent.stdout.readline().split()]
        assert children
        parent.send_signal(ended_by)
    until = time.monotonic() + 20
    while any(_alive(child) for child in children) and time.monotonic() < until:
        time.sleep(0.05)
    left = [child for child in children if _alive(child)]
    for child in left:
        os.kill(child, signal.SIGKILL)
    assert not left


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
