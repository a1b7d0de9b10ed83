"""Inductor's own estimate beside ours on published calls: what it is told, and that ours is nearer."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import inductor

from commsim.topology.presets import load_preset
from study.log import read_logs

H100 = "silicon_h100_sxm_x8_all_reduce_half_2_29_2"


def test_bytes_are_those_that_inductor_counts() -> None:
    assert inductor.bytes_of("all_reduce", 800, 8) == (800, 1600, 800)
    assert inductor.bytes_of("all_gather", 800, 8) == (100, 900, 800)
    assert inductor.bytes_of("reduce_scatter", 800, 8) == (800, 900, 800)
    assert inductor.bytes_of("all_to_all", 800, 8) == (800, 1600, 800)


@pytest.mark.parametrize(
    ("sm", "name"), [(37, "AMPERE"), (70, "VOLTA"), (75, "VOLTA"), (86, "AMPERE"), (90, "HOPPER"), (120, "BLACKWELL")]
)
def test_a_gpu_is_what_inductor_takes_it_for(sm: int, name: str) -> None:
    assert inductor.generation_of(sm).name == name


def test_it_sees_the_machine_that_it_is_told() -> None:
    """Hand-computed: a ring of 4 H100 has 370 GB/s (torch 2.13.0, `_GPU_NVLINK_BW`), and 6 steps of 3.4 us."""
    from torch._inductor.comm_analysis import NCCL_ALGO, NCCL_COLL, NCCL_PROTO, _nccl_algo_time

    args = NCCL_COLL.ALL_REDUCE, NCCL_ALGO.RING, NCCL_PROTO.SIMPLE
    with inductor.on_machine(load_preset("hgx-h100"), 8):
        assert _nccl_algo_time(1 << 30, 4, *args) == pytest.approx(8.4 + 6 * 3.4 + 2**30 / (370e3 * 4 / 6))
    with inductor.on_machine(load_preset("v100-pcie"), 4):
        assert _nccl_algo_time(1 << 30, 4, *args) == pytest.approx(8.4 + 6 * 5.7 + 2**30 / (24e3 * 4 / 6))


def test_ours_is_nearer_on_an_h100(checkout: Path) -> None:
    (log,) = read_logs([checkout / "validation" / "silicon"], [H100])
    score = inductor.Scores().of(log)
    assert score is not None
    assert all(errors.shape == (len(log.nbytes),) for errors in score.errors.values())
    theirs = min(score.means[name] for name in inductor.THEIRS)
    assert max(score.means[name] for name in inductor.OURS) < theirs
    first = inductor.inductors(log, load_preset("hgx-h100"))[2]
    assert score.errors[inductor.THEIRS[2]] == pytest.approx(np.abs(first / log.time_s - 1))


def test_the_table_has_a_line_for_each_road(checkout: Path) -> None:
    (log,) = read_logs([checkout / "validation" / "silicon"], [H100])
    score = inductor.Scores().of(log)
    assert score is not None
    lines = inductor.table({"all": [score]})
    assert lines[0].endswith("all (1)")
    assert [line[:38].rstrip() for line in lines[1:]] == [*inductor.THEIRS, *inductor.OURS]
