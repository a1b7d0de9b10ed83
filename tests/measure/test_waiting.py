"""How long ranks wait for what, and what is said of it: apart for arrival, an answer, and NCCL's watchdog."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fake_gpus import FakeGpus

from commsim.errors import MeasurementError
from commsim.measure.launcher import Host, free_port, launch
from commsim.measure.ranks import Ranks, form_group
from commsim.measure.rendezvous import Place, Rendezvous
from commsim.measure.run import Run
from commsim.measure.seat import Seat
from commsim.measure.tasks import Task
from commsim.scenario.load import load_scenarios
from commsim.scenario.measured import RunOptions, run_of

WATCHDOG = (
    "[PG ID 0 PG GUID 0(default_pg) Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, "
    "OpType=ALLREDUCE, NumelIn=1024, NumelOut=1024, Timeout(ms)=600000) ran for 600031 milliseconds before timing out."
)


def test_defaults_are_generous_and_apart(checkout: Path) -> None:
    """Twenty calls of 20 s each stand in NCCL's queue without being taken for a hang."""
    (scenario,) = load_scenarios(checkout / "scenarios" / "allreduce-8-h100.yaml")
    run = run_of(scenario, RunOptions(backend="nccl"))
    assert run.arrival_s >= 300
    assert run.timeout_s >= 20 * 20
    assert run_of(scenario, RunOptions(backend="gloo")).timeout_s == 15
    assert run_of(scenario, RunOptions(backend="nccl", timeout_s=5.0)).timeout_s == 5


def test_the_watchdog_s_reason_is_the_cause_that_is_said() -> None:
    """A stack of frames comes behind it."""
    words = f"echo '{WATCHDOG}' >&2; for i in $(seq 40); do echo frame $i >&2; done; kill -ABRT $$"
    with pytest.raises(MeasurementError) as fault:
        launch(Run("none", (), "gloo", 1), print, hosts=[Host(("sh", "-c", words))])
    lines = str(fault.value).splitlines()
    assert lines[0] == "rank 0 was killed by signal 6 (SIGABRT)"
    assert lines[1].startswith("rank 0: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLRED")
    assert not any("frame" in line for line in lines)


def meetings(n: int) -> list[Rendezvous]:
    port, met = free_port(), {}

    def come(rank: int) -> None:
        met[rank] = Rendezvous(Place(rank, n, rank, "127.0.0.1", port), "a", 20.0)

    threads = [threading.Thread(target=come, args=(rank,)) for rank in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [met[rank] for rank in range(n)]


def test_a_group_waits_longer_for_a_cold_rank_than_the_store_for_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """Making a context on a GPU or loading libraries takes more than the 3 s after which the store's answer is none."""
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **__: None)
    both = meetings(2)
    form_group(Run("a", (), "gloo", 2, timeout_s=9.0), Seat(torch.device("cpu"), None, 0, ("a", "a")), both[1])
    late = threading.Timer(4.0, lambda: both[0].store.set("late", "here"))
    late.start()
    assert both[1].store.get("late") == b"here"


def test_ranks_hear_each_other_before_any_group_is_there() -> None:
    both = meetings(2)
    heard: list[Any] = []
    second = threading.Thread(target=lambda: heard.append(both[1].gather("seat", {"gpu": 1}, 10.0)))
    second.start()
    assert both[0].gather("seat", {"gpu": 0}, 10.0) == [{"gpu": 0}, {"gpu": 1}]
    second.join()
    assert heard == [[{"gpu": 0}, {"gpu": 1}]]


def test_a_rank_that_stops_meanwhile_is_heard() -> None:
    both = meetings(2)
    both[1].store.set("fault", "rank 1 of 2: no GPU")
    with pytest.raises(MeasurementError, match="rank 1 of 2: no GPU"):
        both[0].gather("seat", {}, 10.0)


def test_a_fault_that_one_rank_has_heard_holds_for_all() -> None:
    """Rank 0 heard of it, and has left: a rank that went on, as all have spoken, would wait for it."""
    both = meetings(2)
    both[1].store.set("fault", "rank 2 of 3: another world size")
    with pytest.raises(MeasurementError, match="another world size"):
        both[0].gather("seat", {}, 10.0)
    both[1].store.delete_key("fault")
    with pytest.raises(MeasurementError, match="another world size"):
        both[1].gather("seat", {}, 10.0)


def test_a_rank_that_says_nothing_is_named() -> None:
    both = meetings(2)
    before = time.monotonic()
    with pytest.raises(MeasurementError, match="no answer from rank 1 within 0 s"):
        both[0].gather("seat", {}, 0.3)
    assert time.monotonic() - before < 10


class _Backend:
    """A process group's backend that keeps what it is set to."""

    def __init__(self) -> None:
        self.timeout = timedelta()

    def _set_default_timeout(self, timeout: timedelta) -> None:
        self.timeout = timeout


def test_over_gloo_ranks_wait_until_the_watchdog_has_spoken(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {}
    gloo = _Backend()
    monkeypatch.setattr(dist, "init_process_group", lambda *_, **options: given.update(options))
    monkeypatch.setattr(dist, "PrefixStore", lambda name, store: None)
    world = type("World", (), {"_get_backend": lambda self, device: gloo})()
    monkeypatch.setattr(dist, "group", type("Group", (), {"WORLD": world}))
    run = Run("a", (Task("all_reduce", (4,)),), "nccl", 1, timeout_s=600.0)
    place = Place(0, 1, 0, "127.0.0.1", 1)
    meeting = type("M", (), {"answer_within": lambda self, seconds: None, "store": None, "place": place})()
    form_group(run, Seat(torch.device("cpu"), FakeGpus(1), 0, ("a",)), meeting)
    assert given["timeout"] == timedelta(seconds=600)
    assert gloo.timeout > given["timeout"]


def _rank_alone() -> Ranks:
    meeting = type("M", (), {})()
    return Ranks(Place(0, 2, 0, "127.0.0.1", 1), meeting)


def _full() -> int:
    raise RuntimeError("CUDA out of memory. Tried to allocate 8.00 GiB.\nmore")


def test_all_ranks_leave_out_what_one_has_no_memory_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(every: list[Any], mine: str) -> None:
        every[:] = [mine, "CUDA out of memory"]

    monkeypatch.setattr(dist, "all_gather_object", gather)
    assert _rank_alone().within_memory("all_reduce", lambda: 1) == (
        None,
        "out of memory on rank 1 (CUDA out of memory)",
    )
    done, why = _rank_alone().within_memory("all_reduce", _full)
    assert done is None
    assert why.startswith("out of memory on rank 0 and 1 more (CUDA out of memory. Tried to allocate 8.00 GiB")


def test_memory_that_ends_alone_is_the_reason_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others wait inside the call, and gloo gives up."""

    def gather(every: list[Any], mine: str) -> None:
        raise RuntimeError("Timed out waiting 660000ms for recv operation to complete")

    monkeypatch.setattr(dist, "all_gather_object", gather)
    with pytest.raises(MeasurementError, match=r"out of memory .CUDA out of memory. Tried to allocate 8.00 GiB"):
        _rank_alone().within_memory("all_reduce", _full)
    with pytest.raises(RuntimeError, match="Timed out"):
        _rank_alone().within_memory("all_reduce", lambda: 1)


def test_another_fault_is_no_lack_of_memory() -> None:
    def fail() -> None:
        raise RuntimeError("NCCL error")

    with pytest.raises(RuntimeError, match="NCCL error"):
        _rank_alone().within_memory("all_reduce", fail)
