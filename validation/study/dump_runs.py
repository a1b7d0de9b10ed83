"""Jobs of gloo on real ranks here in which one is late, missing or wrong on purpose, with the dumps they leave.

Every rank writes its flight recorder (pickle and JSON), its trace of torch.profiler, and the truth: the time just
before each call. A rank that is stuck has its flight recorder written by another thread, as torch's watchdog does.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import socket
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from commsim.files import write_atomically

RANKS = 4
ELEMENTS = 1 << 16
OPERATIONS = ("all_reduce", "all_gather", "broadcast", "all_reduce")
_STUCK_S, _TIMEOUT_S, _AHEAD_S = 6.0, 12.0, 1.0
BROKEN = ("missing", "skipped", "operation", "size", "dtype")
ABORTS = ("size", "dtype")
"""At these gloo ends the process of the rank; it comes first, so that its flight recorder is written before."""


@dataclass(frozen=True)
class Plan:
    """Calls in turn, who is how late into which, and what one rank does wrong at one call; -1: nothing."""

    calls: int
    late: tuple[tuple[int, int, float], ...] = ()
    broken: str = ""
    rank: int = -1
    call: int = -1

    def operation(self, call: int) -> str:
        """The collective of a call."""
        return OPERATIONS[call % len(OPERATIONS)]


def late_plan(seed: int) -> Plan:
    """Three late ranks, drawn: 0.2 to 0.5 s, each at a call of its own that no rank leaves before all are in it."""
    draw = random.Random(seed)
    calls = draw.sample([call for call in range(2, 12) if OPERATIONS[call % len(OPERATIONS)] != "broadcast"], 3)
    return Plan(12, tuple((draw.randrange(RANKS), call, draw.uniform(0.2, 0.5)) for call in calls))


def broken_plan(kind: str, seed: int) -> Plan:
    """One rank does something else at an all_reduce that is not the first."""
    draw = random.Random(seed)
    return Plan(12, (), kind, draw.randrange(RANKS), draw.choice([3, 4, 7, 8]))


def run(plan: Plan, folder: Path) -> None:
    """Runs a plan; the dumps and the truth lie in the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    os.environ |= {"KINETO_LOG_LEVEL": "5", "TORCH_CPP_LOG_LEVEL": "ERROR", "GLOG_minloglevel": "3"}
    spawn = multiprocessing.get_context("spawn")
    ranks = [spawn.Process(target=_rank, args=(rank, asdict(plan), str(folder), port)) for rank in range(RANKS)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()  # gloo aborts the process of a rank that gets more bytes than it expects


def truth(folder: Path) -> list[list[int]]:
    """Nanoseconds at which each rank was about to enter each call, by rank."""
    return [json.loads((folder / f"truth{rank}.json").read_text()) for rank in range(RANKS)]


def _rank(rank: int, fields: dict[str, Any], folder_name: str, port: int) -> None:
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from torch.profiler import ProfilerActivity, profile

    plan, folder = Plan(**fields), Path(folder_name)
    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCH_FR_BUFFER_SIZE": "2000"}
    dist.init_process_group("gloo", rank=rank, world_size=RANKS, timeout=timedelta(seconds=_TIMEOUT_S))
    entered: list[int] = []
    over = threading.Event()
    dist.barrier()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        watch = threading.Thread(target=_watch, args=(rank, folder, entered, over), daemon=True)
        watch.start()
        with contextlib.suppress(RuntimeError):  # what gloo says of a call that another rank did not make
            _calls(plan, rank, entered)
    over.set()
    watch.join()
    profiler.export_chrome_trace(str(folder / f"trace_rank{rank}.json.gz"))
    (folder / f"truth{rank}.json").write_text(json.dumps(entered))
    os._exit(0)  # a group that is broken has no end


def _calls(plan: Plan, rank: int, entered: list[int]) -> None:
    for call in range(plan.calls):
        time.sleep(0.02 + sum(seconds for r, c, seconds in plan.late if (r, c) == (rank, call)))
        wrong = plan.broken if (plan.rank, plan.call) == (rank, call) else ""
        if wrong == "missing":
            time.sleep(_TIMEOUT_S)
            return
        if call == plan.call and not wrong and plan.broken in ABORTS:
            time.sleep(_AHEAD_S)
        if wrong != "skipped":
            _collective(plan.operation(call), wrong, entered)


def _collective(operation: str, wrong: str, entered: list[int]) -> None:
    import torch
    import torch.distributed as dist

    elements = ELEMENTS // 2 if wrong in ("size", "dtype") else ELEMENTS
    tensor = torch.ones(elements, dtype=torch.float64 if wrong == "dtype" else torch.float32)
    gathered = [torch.empty_like(tensor) for _ in range(RANKS)]
    name = "broadcast" if wrong == "operation" else operation
    entered.append(time.time_ns())
    if name == "all_reduce":
        dist.all_reduce(tensor)
    elif name == "all_gather":
        dist.all_gather(gathered, tensor)
    else:
        dist.broadcast(tensor, 0)


def _watch(rank: int, folder: Path, entered: list[int], over: threading.Event) -> None:
    """Writes the flight recorder again and again, and lastly when the calls are over or there was no progress."""
    seen, since = 0, time.monotonic()
    while not over.wait(0.1):
        if len(entered) != seen:
            seen, since = len(entered), time.monotonic()
            _write_flight(rank, folder)
        if entered and time.monotonic() - since > _STUCK_S:
            break
    time.sleep(0.2)  # torch marks the last call as over from a thread of its own
    _write_flight(rank, folder)


def _write_flight(rank: int, folder: Path) -> None:
    from torch._C import _distributed_c10d

    c10d: Any = _distributed_c10d  # whose stubs lack the two

    write_atomically(folder / f"flight_rank_{rank}", c10d._dump_fr_trace())
    write_atomically(folder / f"flight_rank_{rank}.json", c10d._dump_fr_trace_json())
