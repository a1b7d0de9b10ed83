"""What a run shall do, before any rank is started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commsim.errors import MeasurementError
from commsim.measure.launcher import check_memory
from commsim.measure.run import Run, check_run
from commsim.measure.tasks import Task

RUN = Run("a run", (Task("all_reduce", (4, 1024)), Task("all_gather", (8, 100, 1024))), "gloo", 4)


def test_json_both_ways() -> None:
    assert Run.from_json(RUN.to_json()) == RUN


def test_sizes_are_whole_blocks_and_none_is_empty() -> None:
    """4 ranks of float32 share multiples of 16 B; 8 B are less than one element each."""
    assert [(p.task.collective, p.size) for p in RUN.points()] == [
        ("all_reduce", 4),
        ("all_reduce", 1024),
        ("all_gather", 96),
        ("all_gather", 1024),
    ]


def test_counts_are_those_of_nccl_tests() -> None:
    names = ("all_reduce", "all_gather", "all_to_all", "send_recv")
    points = replace(RUN, tasks=tuple(Task(name, (64,)) for name in names), repeats=1).points()
    assert [point.columns(RUN)["count"] for point in points] == [16, 4, 4, 16]


def test_the_fingerprint_changes_with_the_meaning_only() -> None:
    same = replace(RUN, out="elsewhere", arrival_s=9.0, timeout_s=1.0, repeats=9, capture_choices=True)
    assert same.fingerprint() == RUN.fingerprint()
    others = [replace(RUN, world_size=2), replace(RUN, iterations=3), replace(RUN, mode="single")]
    others += [replace(RUN, env={"NCCL_ALGO": "Ring"}), replace(RUN, expects={"nccl": "2.27.7"})]
    assert len({j.fingerprint() for j in [RUN, *others]}) == 6


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (Task("all_reduce", (64,), "float8_e4m3"), "gloo in torch has no float8_e4m3"),
        (Task("all_reduce", (64,), "uint32"), "the collectives of torch have no uint32"),
        (Task("all_reduce", (64,), "int32", "avg"), "no average of whole numbers"),
        (Task("broadcast", (64,), root=4), "root 4 is not one of the ranks 0..3"),
        (Task("all_gather", (8,)), "no size is as large as one element per block, 16 B on 4 ranks"),
    ],
)
def test_what_cannot_be_measured_is_said_before(task: Task, message: str) -> None:
    with pytest.raises(MeasurementError, match=message):
        check_run(replace(RUN, tasks=(task,)))


@pytest.mark.parametrize(
    ("collective", "memory", "fits"),
    [("all_reduce", 4096, True), ("all_reduce", 4095, False), ("gather", 1024, True), ("gather", 1023, False)],
)
def test_more_than_the_machine_holds_is_said_before(collective: str, memory: int, fits: bool) -> None:
    """1 KiB on each of four ranks; gathered, on one."""
    run = replace(RUN, tasks=(Task(collective, (4, 1024)),))
    if fits:
        check_memory(run, memory)
        return
    with pytest.raises(MeasurementError, match=rf"{collective} of 1 KiB on 4 ranks holds at least [14] KiB, and this"):
        check_memory(run, memory)
    check_memory(replace(run, backend="nccl"), memory)
