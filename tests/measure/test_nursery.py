"""Ranks that a nursery forks end, fail and die as processes of their own do."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest

from commsim.errors import MeasurementError
from commsim.measure.nursery import Born, Nursery
from commsim.measure.run import Run
from commsim.measure.tasks import Task

pytestmark = pytest.mark.slow  # torch is loaded, once


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


def lonely() -> tuple[dict[str, str], str]:
    """The environment of a rank that waits for another one, which never comes, and its run."""
    run = Run(name="one of two", tasks=(Task("all_reduce", (8,)),), backend="gloo", world_size=2)
    place = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}
    return os.environ | place, run.to_json()


def said(born: Born) -> tuple[bytes, bytes]:
    """What a process that has ended wrote to its standard output and error."""
    assert born.stdout is not None
    with born.stdout, born.stderr:
        return born.stdout.read(), born.stderr.read()


def test_a_rank_has_its_own_environment_and_says_why_it_ends(nursery: Nursery) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "MASTER_ADDR")}
    born = nursery.start(env, "{}")
    assert born.wait(60) == 1
    assert said(born) == (
        b"",
        b"commsim: found no RANK in the environment, expected to be started by commsim measure\n",
    )


def test_a_rank_that_is_killed_says_by_what(nursery: Nursery) -> None:
    born, other = (nursery.start(*lonely()) for _ in range(2))
    assert born.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        born.wait(0.1)
    born.kill()
    assert born.wait(30) == -signal.SIGKILL
    assert other.poll() is None
    other.terminate()
    assert other.wait() == -signal.SIGTERM
    assert said(born) == said(other) == (b"", b"")


def test_no_rank_outlives_the_nursery() -> None:
    made = Nursery()
    born = made.start(*lonely())
    made.close()
    until = time.monotonic() + 20
    while is_alive(born.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_alive(born.pid)
    assert said(born) == (b"", b"")
    with pytest.raises(MeasurementError, match="has ended"):
        made.start(*lonely())


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with open(f"/proc/{pid}/stat") as stream:  # noqa: PTH123
        return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
