"""Schedules carried out by ranks that are threads here, with queues between them in place of a network."""

from __future__ import annotations

import queue
import threading
import time
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import measure

from commsim.collectives.json_table import json_text
from commsim.collectives.registry import build, names
from commsim.errors import ScheduleError
from commsim.measure import schedule_steps
from commsim.measure.schedule_steps import load_schedule, rank_steps, schedule_operation
from commsim.measure.tasks import Task

CPU = torch.device("cpu")


class Network:
    """What `schedule_steps` asks of torch.distributed, for ranks that are threads."""

    def __init__(self, n: int) -> None:
        # All made before the ranks start: of two threads that make one on first use, each can keep its own.
        self.queues: dict[tuple[int, int], queue.Queue[Any]] = {
            pair: queue.Queue() for pair in permutations(range(n), 2)
        }
        self.rank = threading.local()
        self.isend, self.irecv = "isend", "irecv"

    def P2POp(self, call: str, values: Any, peer: int) -> tuple[str, Any, int]:
        return call, values, peer

    def batch_isend_irecv(self, calls: list[tuple[str, Any, int]]) -> list[Sent]:
        me, sent = self.rank.number, []
        for call, values, peer in calls:
            if call == self.isend:
                sent.append(Sent())
                self.queues[me, peer].put((values, sent[-1]))  # not a copy: what overwrites it too early is caught
        for call, values, peer in calls:
            if call == self.irecv:
                got, taken = self.queues[peer, me].get(timeout=20)
                assert got.shape == values.shape
                values.copy_(got.clone())
                taken.set()
        return sent


class Sent(threading.Event):
    """A message under way; done when it was taken."""

    def wait(self, timeout: float | None = 20) -> bool:
        assert super().wait(timeout), "a message that nobody took"
        return True


def carried_out(task: Task, n: int, size: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """Elements that are wrong on any rank after the schedule."""
    network = Network(n)
    monkeypatch.setattr(schedule_steps, "dist", network)
    schedule = load_schedule(task, n, size)
    operations = [schedule_operation(schedule, task, rank, CPU) for rank in range(n)]
    barrier = threading.Barrier(n)
    faults: list[BaseException] = []

    def work(rank: int) -> None:
        network.rank.number = rank
        try:
            operations[rank].fill()
            barrier.wait(20)
            operations[rank].call()
            barrier.wait(20)
        except BaseException as error:
            faults.append(error)
            barrier.abort()

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if faults:
        raise faults[0]  # with its trace; the others follow from it
    return sum(op.wrong() for op in operations)


ON_RANKS = [(c, a) for c, a in names() if build(c, a, 4, 256, itemsize=4).endpoints == 4]


@pytest.mark.parametrize(("collective", "algorithm"), ON_RANKS)
@pytest.mark.parametrize("n", [2, 4, 5])
def test_every_algorithm_gives_the_right_result(
    collective: str, algorithm: str, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = Task(collective, (), redop="max" if collective == "barrier" else "sum", schedule=algorithm)
    size = 4 * n * n * 15
    try:
        load_schedule(task, n, size)
    except ScheduleError as error:
        pytest.skip(str(error))
    assert carried_out(task, n, size, monkeypatch) == 0


@pytest.mark.parametrize("redop", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "int64"])
def test_reductions(dtype: str, redop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert carried_out(Task("all_reduce", (), dtype, redop, schedule="swing"), 4, 640, monkeypatch) == 0


def test_both_ends_of_a_link_may_use_it_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue that takes its time to be made, and two ranks of which one only sends and one only receives."""
    made = queue.Queue

    def slowly() -> queue.Queue[Any]:
        time.sleep(0.05)
        return made()

    monkeypatch.setattr(queue, "Queue", slowly)
    assert carried_out(Task("broadcast", (), schedule="binomial"), 2, 64, monkeypatch) == 0


def test_a_wrong_result_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests above could not fail if an addition that is a copy instead gave what is promised."""

    def copying(*arguments: Any) -> Any:
        steps = rank_steps(*arguments)
        for step in steps:
            step.receives = [(peer, target, False) for peer, target, _ in step.receives]
        return steps

    monkeypatch.setattr(schedule_steps, "rank_steps", copying)
    assert carried_out(Task("all_reduce", (), schedule="ring"), 4, 640, monkeypatch) > 100


def test_rows_whose_chunks_follow_travel_together() -> None:
    """Rabenseifner's halving sends half the array, which is many chunks, as one message."""
    (first, *_) = rank_steps(build("all_reduce", "rabenseifner", 8, 8 * 64, itemsize=4), 0, 4)
    assert [piece.last - piece.first for _, piece in first.sends] == [8 * 64 // 4 // 2]


@pytest.mark.parametrize(
    ("task", "n", "size", "message"),
    [
        (Task("all_reduce", (), schedule="nothing"), 4, 64, "nothing"),
        (Task("all_reduce", (), redop="avg", schedule="ring"), 4, 64, "found redop avg"),
        (Task("all_reduce", (), "float64", schedule="ring"), 4, 66, "whole number of elements"),
    ],
)
def test_what_cannot_be_carried_out(task: Task, n: int, size: int, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        load_schedule(task, n, size)


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "ring.json"
    path.write_text(json_text(build("all_gather", "ring", 4, 256, itemsize=4)))
    task = Task("all_gather", (), schedule=str(path))
    assert load_schedule(task, 4, 256).algorithm == "ring"
    with pytest.raises(ScheduleError, match="a schedule of 4 ranks, found 3"):
        load_schedule(task, 3, 256)
    with pytest.raises(ScheduleError, match="a schedule of 256 B, found 512 B"):
        load_schedule(task, 4, 512)
    with pytest.raises(ScheduleError, match="of all_gather, the scenario asks for all_reduce"):
        load_schedule(Task("all_reduce", (), schedule=str(path)), 4, 256)


RAW = """
name: schedules on ranks
topology: {preset: loopback, gpus_per_node: 3}
library: none
workload:
  - {collective: all_reduce, algorithm: swing, sizes: 12 KiB}
  - {collective: all_reduce, algorithm: ring, sizes: 12 KiB}
  - {collective: all_gather, algorithm: bruck, sizes: 12 KiB}
"""


@pytest.mark.slow
def test_schedules_on_real_ranks(tmp_path: Path) -> None:
    (tmp_path / "raw.yaml").write_text(RAW)
    status, printed, said = measure(str(tmp_path / "raw.yaml"), "-i", "3", "--out", str(tmp_path / "m"))
    assert status == 0, said
    rows = [line.split() for line in printed.splitlines() if not line.startswith("#")]
    assert {wrong for row in rows for wrong in (row[8], row[12])} == {"0", "N/A"}
