"""Which GPU a rank takes, who shares one, and what differs from the scenario."""

from __future__ import annotations

from dataclasses import replace

import pytest
from fake_gpus import FakeGpus

from commsim.errors import MeasurementError
from commsim.measure import seat
from commsim.measure.rendezvous import Place
from commsim.measure.run import Run
from commsim.measure.seat import check_gpus_here, check_shared_gpus, differences, gpu_index
from commsim.measure.tasks import Task

RUN = Run("a run", (Task("all_reduce", (64,)),), "nccl", 8)


def place(local_rank: int) -> Place:
    return Place(local_rank, 8, local_rank, "node0", 29500)


def test_the_one_gpu_that_srun_shows_a_task_is_its_own() -> None:
    """srun --gpus-per-task=1: every task sees one device, whatever its local rank."""
    assert [gpu_index(FakeGpus(1), RUN, place(rank)) for rank in range(8)] == [0] * 8


def test_all_gpus_are_taken_in_order() -> None:
    assert [gpu_index(FakeGpus(8), RUN, place(rank)) for rank in range(8)] == list(range(8))
    assert [gpu_index(FakeGpus(4), replace(RUN, ranks_per_gpu=2), place(rank)) for rank in range(8)] == [
        0, 0, 1, 1, 2, 2, 3, 3,
    ]  # fmt: skip


def test_too_few_are_said() -> None:
    with pytest.raises(MeasurementError, match="local rank 5 needs GPU 5, but this process sees 4"):
        gpu_index(FakeGpus(4), RUN, place(5))
    with pytest.raises(MeasurementError, match="needs a CUDA GPU"):
        gpu_index(FakeGpus(0), RUN, place(0))


def test_ranks_that_share_unasked_are_named() -> None:
    check_shared_gpus(["a GPU-0", "a GPU-1", "b GPU-0"], 1)
    check_shared_gpus(["a GPU-0", "a GPU-0"], 2)
    with pytest.raises(MeasurementError, match=r"ranks 0, 2 have the same GPU, expected 1 on each; .*srun"):
        check_shared_gpus(["a GPU-0", "a GPU-1", "a GPU-0"], 1)


def test_16_ranks_are_not_started_on_8_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seat, "gpus", lambda: FakeGpus(8))
    check_gpus_here(RUN)
    with pytest.raises(MeasurementError, match=r"found 8 GPUs here, expected 16 for 16 ranks; .* torchrun or srun"):
        check_gpus_here(replace(RUN, world_size=16))
    check_gpus_here(replace(RUN, world_size=16, backend="gloo"))


@pytest.mark.parametrize(
    ("found", "ranks", "said"),
    [
        ({"sm": 90, "gpu": "NVIDIA H100 80GB HBM3", "nccl": "2.27.7"}, 8, []),
        ({"sm": 80, "gpu": "NVIDIA A100-SXM4-80GB", "nccl": "2.27.7"}, 8, ["has GPUs H100, found NVIDIA A100"]),
        ({"sm": 90, "gpu": "NVIDIA H100 80GB HBM3", "nccl": "2.21.5"}, 8, ["has NCCL 2.27.7, found 2.21.5"]),
        ({"sm": 90, "nccl": "2.27.7"}, 2, ["has 8 ranks, measured are 2"]),
    ],
)
def test_another_machine_than_the_scenario_s_is_said(found: dict[str, object], ranks: int, said: list[str]) -> None:
    expects = {"ranks": 8, "sm": 90, "gpu": "H100", "nccl": "2.27.7"}
    differ = differences(expects, found, ranks)
    assert len(differ) == len(said)
    assert all(words in text for words, text in zip(said, differ, strict=True))
