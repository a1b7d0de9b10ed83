"""Collectives through libnccl, on machines that are rehearsed: data, times, options and what goes wrong."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from rehearsal.law import Work, seconds
from rehearsal.ranks import run_ranks
from rehearsal.settings import Failure, Settings

from commsim.collectives.semantics import ITEM_BYTES
from commsim.measure.run import Run
from commsim.measure.tasks import Task

COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "gather",
    "scatter", "send_recv",
)  # fmt: skip
SIZES = (1024, 9600)  # blocks of 16 bytes and more


def _run(tmp_path: Path, tasks: tuple[Task, ...], ranks: int = 4, **given: Any) -> Run:
    said: dict[str, Any] = {"iterations": 5, "warmup": 2, "timeout_s": 20.0, "runner": "libnccl"} | given
    return Run("rehearsed", tasks, "nccl", ranks, out=str(tmp_path / "out"), **said)


def _rows(tmp_path: Path) -> list[dict[str, str]]:
    with (tmp_path / "out" / "measured.csv").open() as stream:
        return list(csv.DictReader(stream))


def _machine(tmp_path: Path, **given: Any) -> Settings:
    return Settings(str(tmp_path / "machine"), **({"ranks_per_node": 2, "gpus": 4} | given))


def _measured(tmp_path: Path, run: Run, **given: Any) -> list[dict[str, str]]:
    ended = run_ranks(run, _machine(tmp_path, **given))
    assert [each.status for each in ended] == [0] * run.world_size, ended
    return _rows(tmp_path)


@pytest.mark.parametrize("version", [22809, 21805, 21300])
def test_every_collective_moves_the_right_data_in_the_time_of_the_law(tmp_path: Path, version: int) -> None:
    tasks = tuple(
        Task(c, SIZES, root=3 if c in ("reduce", "broadcast", "gather", "scatter") else 0) for c in COLLECTIVES
    )
    rows = _measured(tmp_path, _run(tmp_path, tasks), version=version)
    machine = _machine(tmp_path)
    assert len(rows) == len(COLLECTIVES) * len(SIZES)
    for row in rows:
        places = ("oop",) if row["collective"] in ("all_to_all", "all_to_all_v", "send_recv") else ("oop", "ip")
        assert [row[f"{place}_wrong"] for place in places] == ["0"] * len(places), row
        native = row["collective"] not in ("send_recv", "all_to_all_v")
        native &= version >= 22800 or row["collective"] not in ("all_to_all", "gather", "scatter")
        if not native:
            continue  # a group of messages: what it costs depends on the rank with most of them
        work = Work(row["collective"], int(row["size_bytes"]))
        law = seconds(machine, work, [0, 1, 2, 3]) + machine.launch_s / 5
        assert [float(row[f"{place}_time_us"]) for place in places] == pytest.approx([law * 1e6] * len(places))
        assert row["oop_p95_us"] == ""
        assert row["n_ranks"] == "4"


def test_every_type_and_operation_is_right(tmp_path: Path) -> None:
    tasks = [Task("all_reduce", (4080,), dtype) for dtype in ITEM_BYTES]
    tasks += [Task("reduce_scatter", (4096,), dtype, op) for op in ("prod", "min", "max", "avg") for dtype in
              ("float32", "uint64", "bfloat16", "int8", "float8_e4m3")]  # fmt: skip
    rows = _measured(tmp_path, _run(tmp_path, tuple(tasks), ranks=2))
    assert len(rows) == len(tasks)
    assert {row[f"{place}_wrong"] for row in rows for place in ("oop", "ip")} == {"0"}


def test_blocks_are_aligned_as_in_nccl_tests() -> None:
    run = Run("x", (Task("all_gather", (8, 100, 1000, 1 << 20)),), "nccl", 3, runner="libnccl")
    assert [point.size for point in run.points()] == [96, 960, 1048560]  # nccl-tests: (size/item/n) & ~(16/item - 1)
    assert [point.size for point in Run("x", run.tasks, "nccl", 3).points()] == [96, 996, 1048572]


def test_graphs_leave_the_launches_out(tmp_path: Path) -> None:
    tasks = (Task("all_reduce", (1024,)), Task("send_recv", (1024,)))
    rows = _measured(tmp_path, _run(tmp_path, tasks, graph=3), launch_s=1e-3)
    machine = _machine(tmp_path, launch_s=1e-3)
    for row in rows:
        assert row["oop_wrong"] == "0"
        assert row["ip_wrong"] in ("0", "")
    law = seconds(machine, Work("all_reduce", 1024), [0, 1, 2, 3]) + machine.launch_s / (5 * 3)
    launches = machine.launch_s / 5  # a launch of the next graph costs more than the five calls of the one before
    assert float(rows[0]["ip_time_us"]) == pytest.approx(max(law, launches) * 1e6, rel=0.2)
    assert float(rows[0]["ip_time_us"]) < 500  # a launch per call would be 1000 us


@pytest.mark.parametrize(("register", "symmetric"), [("buffer", True), ("window", True), ("window", False)])
def test_registered_buffers_work_and_are_given_back(tmp_path: Path, register: str, symmetric: bool) -> None:
    run = _run(tmp_path, (Task("all_reduce", (1024, 1 << 20)),), ranks=2, register=register)
    rows = _measured(tmp_path, run, symmetric=symmetric)
    assert {row["oop_wrong"] for row in rows} == {"0"}
    said = json.loads((tmp_path / "out" / "run.json").read_text())["registered"]
    assert said == (register if symmetric else "window, of which NCCL makes no use here")


@pytest.mark.parametrize(
    ("rule", "size", "within_a_node"), [("div 2", 2, True), ("mod 2", 2, False), ("and 0x0", 4, False)]
)
def test_splits_work_at_once_with_a_row_for_all(tmp_path: Path, rule: str, size: int, within_a_node: bool) -> None:
    tasks = (Task("all_gather", (4096,)), Task("broadcast", (4096,), root=1))
    rows = _measured(tmp_path, _run(tmp_path, tasks, split=rule))
    machine = _machine(tmp_path)
    ranks = {"div 2": [0, 1], "mod 2": [0, 2]}.get(rule, [0, 1, 2, 3])
    assert (len({machine.node_of(rank) for rank in ranks}) == 1) == within_a_node
    for row in rows:
        assert row["n_ranks"] == str(size)
        assert row["oop_wrong"] == row["ip_wrong"] == "0"
        law = seconds(machine, Work(row["collective"], 4096), ranks) + machine.launch_s / 5
        assert float(row["oop_time_us"]) == pytest.approx(law * 1e6)


def test_a_call_at_a_time_is_waited_for(tmp_path: Path) -> None:
    rows = _measured(tmp_path, _run(tmp_path, (Task("all_reduce", (1024,)),), ranks=2, mode="single"))
    machine = _machine(tmp_path)
    law = seconds(machine, Work("all_reduce", 1024), [0, 1]) + machine.launch_s
    assert float(rows[0]["oop_time_us"]) == pytest.approx(law * 1e6)


def test_one_rank_alone(tmp_path: Path) -> None:
    rows = _measured(tmp_path, _run(tmp_path, tuple(Task(c, (1024,)) for c in COLLECTIVES), ranks=1))
    assert {row["oop_wrong"] for row in rows} == {"0"}
    assert len(rows) == len(COLLECTIVES)


def test_wrong_data_are_counted_on_the_row(tmp_path: Path) -> None:
    failures = (Failure("wrong", 1, "all_gather", 4096),)
    run = _run(tmp_path, (Task("all_gather", (1024, 4096, 8192)), Task("all_reduce", (4096,))))
    rows = _measured(tmp_path, run, failures=failures)
    assert [row["oop_wrong"] for row in rows] == ["0", "1", "1", "0"]


def test_a_row_without_room_is_left_out_and_the_others_are_there(tmp_path: Path) -> None:
    run = _run(tmp_path, (Task("all_reduce", (1 << 20, 8 << 20, 1 << 30)), Task("broadcast", (1 << 20,))), ranks=2)
    ended = run_ranks(run, _machine(tmp_path, oom_above=12 << 20))
    assert [each.status for each in ended] == [0, 0]
    rows = _rows(tmp_path)
    assert [(r["collective"], r["size_bytes"]) for r in rows] == [
        ("all_reduce", f"{1 << 20}"), ("all_reduce", f"{8 << 20}"), ("broadcast", f"{1 << 20}")
    ]  # fmt: skip
    assert "# all_reduce of 1 GiB: left out, out of memory" in ended[0].said


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        ("hang", "NCCL did not finish within 2 s"),
        ("async", "a rank was lost (remote process exited or there was a network error: NET/IB"),
        ("refuse", "all_reduce of 4 KiB: ncclAllReduce: invalid argument: all_reduce : refused"),
        ("kill", "all_reduce of 4 KiB"),
    ],
)
def test_what_goes_wrong_is_named_and_what_was_measured_stays(tmp_path: Path, kind: str, cause: str) -> None:
    failures = (Failure(kind, 1, "all_reduce", 4096),)
    run = _run(tmp_path, (Task("all_reduce", (1024, 4096)),), ranks=2, timeout_s=2.0)
    ended = run_ranks(run, _machine(tmp_path, failures=failures))
    assert all(each.status for each in ended)
    assert any(cause in each.said for each in ended), ended
    assert all(each.said.count("commsim: ") <= 1 and "Traceback" not in each.said for each in ended)
    assert [row["size_bytes"] for row in _rows(tmp_path)] == ["1024"]


def test_bytes_are_counted_where_they_went_and_are_those_of_rings(tmp_path: Path) -> None:
    tasks = tuple(
        Task(c, (1 << 20,)) for c in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
    )
    rows = _measured(tmp_path, _run(tmp_path, tasks))
    shares = {"all_reduce": 1.5, "send_recv": 1.0}  # of the size, on each of four ranks: 2(n-1)/n, 1, else (n-1)/n
    for row in rows:
        wanted = shares.get(row["collective"], 0.75) * 2**20
        sent = [float(part) for part in row["sent_bytes"].split()]
        assert sum(sent) == pytest.approx(4 * wanted, rel=1e-3)


def test_eight_ranks_of_a_node_send_what_rings_send(tmp_path: Path) -> None:
    rows = _measured(tmp_path, _run(tmp_path, (Task("all_reduce", (1 << 20,)),), ranks=8), gpus=8, ranks_per_node=8)
    assert [float(part) for part in rows[0]["sent_bytes"].split()] == pytest.approx([2 * 7 / 8 * 2**20] * 8, rel=1e-3)
    assert rows[0]["sent_bytes"] == rows[0]["expected_sent_bytes"]


def test_every_row_of_eight_ranks_on_two_nodes_is_there_and_right(tmp_path: Path) -> None:
    rows = _measured(
        tmp_path, _run(tmp_path, tuple(Task(c, (1 << 16,)) for c in COLLECTIVES), ranks=8), gpus=4, ranks_per_node=4
    )
    assert [row["collective"] for row in rows] == list(COLLECTIVES)
    assert {row[f"{place}_wrong"] for row in rows for place in ("oop", "ip")} <= {"0", ""}
    assert json.loads((tmp_path / "out" / "run.json").read_text())["hosts"] == 2
