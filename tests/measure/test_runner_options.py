"""Options of `commsim measure` that say how NCCL is called: taken, or refused where they would do nothing."""

from __future__ import annotations

import pytest

from commsim.errors import MeasurementError
from commsim.measure.run import Run, check_run
from commsim.measure.tasks import Task

ALL_REDUCE = (Task("all_reduce", (1024,)),)
RING = (Task("all_reduce", (1024,), schedule="ring"),)


@pytest.mark.parametrize(
    ("given", "tasks", "said"),
    [
        ({"runner": "torch", "graph": 2}, ALL_REDUCE, "--graph has no effect"),
        ({"runner": "torch", "register": "window"}, ALL_REDUCE, "--register has no effect"),
        ({"runner": "libnccl", "split": "div 2"}, RING, "--split has no effect"),
        ({"runner": "libnccl", "split": "div 2"}, ALL_REDUCE + RING, "--split is of collectives called in libnccl"),
        ({"runner": "libnccl", "register": "all"}, ALL_REDUCE, "expected none, buffer, window"),
        ({"runner": "libnccl", "graph": 1, "mode": "single"}, ALL_REDUCE, "--graph has no effect with mode single"),
        ({"runner": "libnccl", "backend": "gloo"}, ALL_REDUCE, "--runner libnccl is of NCCL"),
        ({"runner": "libnccl", "split": "div 2"}, (Task("broadcast", (8,), root=3),), r"root 3 .* 0\.\.1"),
    ],
)
def test_what_would_have_no_effect_is_refused(given: dict[str, object], tasks: tuple[Task, ...], said: str) -> None:
    run = Run(**({"name": "x", "tasks": tasks, "backend": "nccl", "world_size": 4} | given))  # type: ignore[arg-type]
    with pytest.raises(MeasurementError, match=said):
        check_run(run)


def test_libnccl_takes_types_and_places_that_torch_lacks() -> None:
    task = Task("broadcast", (1024,), "uint32")
    check_run(Run("x", (task,), "nccl", 4, runner="libnccl"))
    assert Run("x", (task,), "nccl", 4, runner="libnccl").places(task) == ("oop", "ip")
    assert Run("x", (task,), "nccl", 4).places(task) == ("ip",)
    with pytest.raises(MeasurementError, match="torch have no uint32"):
        check_run(Run("x", (task,), "nccl", 4))


def test_how_nccl_is_called_is_part_of_what_a_row_means() -> None:
    runs = [
        Run("x", ALL_REDUCE, "nccl", 4, **given)
        for given in ({}, {"runner": "libnccl"}, {"graph": 1}, {"register": "buffer"}, {"split": "div 2"})
    ]
    assert len({run.fingerprint() for run in runs}) == len(runs)
    assert all(Run.from_json(run.to_json()) == run for run in runs)
