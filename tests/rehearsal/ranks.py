"""The ranks of a rehearsed run as forks of this process: torch is there already, so that a run takes a second."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from commsim.measure.gpu import gpus
from commsim.measure.launcher import free_port
from commsim.measure.rendezvous import Place
from commsim.measure.run import Run
from commsim.measure.torch_runner import run_rank
from rehearsal.settings import Settings, environment, settings


@dataclass(frozen=True)
class Ended:
    """How a rank ended: its exit status, below 0 the signal that killed it, and what it said."""

    status: int
    said: str


def run_ranks(run: Run, machine: Settings, env: dict[str, str] | None = None, patience_s: float = 60.0) -> list[Ended]:
    """Measures a run on a rehearsed machine with a process per rank, and waits for all of them."""
    port, folder = free_port(), Path(machine.folder)
    folder.mkdir(parents=True, exist_ok=True)
    children = []
    for rank in range(run.world_size):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, of threads that this process has
            child = os.fork()
        if child == 0:
            _be(rank, run, machine, port, env or {}, folder / f"said{rank}")
        children.append(child)
    until, ended = time.monotonic() + patience_s, []
    for rank, child in enumerate(children):
        status = _wait(child, until)
        said = folder / f"said{rank}"
        ended.append(Ended(status, said.read_text() if said.exists() else ""))
    return ended


def _be(rank: int, run: Run, machine: Settings, port: int, env: dict[str, str], said: Path) -> None:
    """What a child does, from its birth to its end."""
    status = 70
    with suppress(BaseException), said.open("w") as stream:
        try:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
            sys.stdout, sys.stderr = stream, stream
            local = rank % machine.ranks_per_node
            os.environ.update(environment(machine) | env)
            os.environ.update(RANK=str(rank), WORLD_SIZE=str(run.world_size), LOCAL_RANK=str(local))
            os.environ.update(GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1")
            gpus.cache_clear()
            settings.cache_clear()
            run_rank(run, Place(rank, run.world_size, local, "127.0.0.1", port))
            status = 0
        except Exception as error:
            status = 1
            print(f"commsim: {error}")
            if not type(error).__module__.startswith("commsim"):
                traceback.print_exc()
    os._exit(status)


def _wait(child: int, until: float) -> int:
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL
