"""The pool of processes: results in order, what is lost when one dies, and its end."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from commsim.errors import CommsimError
from commsim.processes import LOST, Pool


def test_results_come_in_the_order_of_the_work() -> None:
    with Pool(2) as pool:
        assert list(pool.map(abs, [-3, 2, -1])) == [3, 2, 1]


def test_what_each_process_would_say_is_said_once(capfd: pytest.CaptureFixture[str]) -> None:
    with Pool(2) as pool:
        list(pool.map(_say_once, [0.3, 0.3, 0.3, 0.3]))
    assert capfd.readouterr().err.count("said") == 1


def _say_once(seconds: float) -> None:
    logging.getLogger("commsim").warning("said", extra={"once": True})
    time.sleep(seconds)  # so that both processes have a job


def test_one_process_is_this_one() -> None:
    with Pool(1) as pool:
        assert list(pool.map(_process, [0, 0])) == [os.getpid()] * 2


def test_a_process_that_ends_is_told_and_not_waited_for() -> None:
    with Pool(2) as pool, pytest.raises(CommsimError, match="ended without a result"):
        list(pool.map(os._exit, [3, 3, 3]))


def test_a_process_that_ends_while_another_starts_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def closed(self: ProcessPoolExecutor, *args: object, **more: object) -> None:
        raise OSError("handle is closed")

    monkeypatch.setattr(ProcessPoolExecutor, "submit", closed)
    with Pool(2) as pool, pytest.raises(CommsimError, match="ended without a result"):
        list(pool.map(abs, [3, 3, 3]))


def test_every_job_is_answered_or_lost_and_the_pool_goes_on() -> None:
    with Pool(1) as pool:
        places = dict(pool.finished(_exit_at_three, range(8)))
        assert sorted(places) == list(range(8))
        assert places[0] == 0
        assert places[3] is places[7] is LOST
        assert dict(pool.finished(abs, [-5])) == {0: 5}


def test_a_job_without_memory_is_lost_alone() -> None:
    with Pool(1) as pool:
        assert dict(pool.finished(_no_memory_for_one, [0, 1, 2])) == {0: 0, 1: LOST, 2: 2}


def test_leaving_early_leaves_no_process() -> None:
    """As an interrupt does: what is worked on is not waited for."""
    with Pool(2) as pool:
        next(pool.map(time.sleep, [0, 600, 600]))
    assert not multiprocessing.active_children()


def test_what_a_job_raises_comes_through() -> None:
    with Pool(2) as pool, pytest.raises(ZeroDivisionError):
        list(pool.map(_inverse, [1, 0]))


def _process(_: Any) -> int:
    return os.getpid()


def _exit_at_three(number: int) -> int:
    if number == 3:
        time.sleep(0.5)  # so that what came before is answered
        os._exit(1)
    return number


def _no_memory_for_one(number: int) -> int:
    if number == 1:
        raise MemoryError
    return number


def _inverse(number: float) -> float:
    return 1 / number


_POOL = """
import os, time
from commsim.processes import Pool
def slow(number):
    time.sleep(600 if number == 8 else 0.05)
    return os.getpid()
if __name__ == "__main__":
    with Pool(2) as pool:
        answers = pool.map(slow, range(9))
        print(*{next(answers) for _ in range(8)}, flush=True)
        next(answers)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
@pytest.mark.parametrize("ended_by", [signal.SIGTERM, signal.SIGKILL])
def test_a_pool_ends_with_its_parent(tmp_path: Path, ended_by: signal.Signals) -> None:
    script = tmp_path / "pool.py"
    script.write_text(_POOL, encoding="utf-8")
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
