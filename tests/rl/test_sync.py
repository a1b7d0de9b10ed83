"""Weights on their way: what is gathered and sent, by hand on links of one rate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commsim.rl.sync import HOST_CALLS, Engines, sync_seconds
from commsim.rl.weights import ModelWeights, Tensors, weights_of
from commsim.training.accelerator import accelerator
from commsim.training.mesh import Mesh
from commsim.training.model import model
from commsim.training.precision import precision
from commsim.training.spec import Step

RATE = 1e9


def comm(collective: str, nbytes: float, groups: Any) -> float:
    """Every call takes its bytes at one rate."""
    return nbytes / RATE if np.atleast_2d(groups).shape[1] > 1 else 0.0


def trainer(**changes: Any) -> tuple[Step, Mesh]:
    fields: dict[str, Any] = {"micro_batch_size": 1, "global_batch_size": 8, "seq_len": 2048}
    step = Step(model("llama3-8b"), accelerator("H100"), precision("bf16"), **(fields | changes))
    return step, Mesh(step.dp, step.pp, step.cp, step.tp, step.ep, step.expert_tp)


WEIGHTS = ModelWeights(Tensors(10, 1e8), Tensors(0, 0.0))
ENGINES = Engines(tuple(range(8, 16)), 4)


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"dp": 8}, 0.0),  # every rank has all
        ({"tp": 2, "dp": 4}, 2.0),
        ({"pp": 2, "dp": 4}, 2.0),
        ({"tp": 2, "pp": 2, "dp": 2}, 1.0 + 2.0),  # half a tensor from stage to stage, then gathered
        ({"dp": 8, "zero_stage": 3}, 2.0),
    ],
)
def test_what_is_gathered(changes: dict[str, int], seconds: float) -> None:
    time = sync_seconds(WEIGHTS, trainer(**changes), ENGINES, "same_gpus", comm)
    assert time.gather == pytest.approx(seconds)
    assert time.send == 0.0


def test_experts_of_a_place_are_gathered_together() -> None:
    weights = ModelWeights(Tensors(1, 0.0), Tensors(64, 1e6))
    step, mesh = trainer(dp=8)
    sharded = Mesh(8, 1, 1, 1, 4)
    time = sync_seconds(weights, (step, sharded), ENGINES, "same_gpus", comm)
    assert mesh.ep == 1
    assert time.gather == pytest.approx(64 / 4 * 4 * 2e6 / RATE)


def test_a_broadcast_sends_all_and_point_to_point_a_part() -> None:
    broadcast = sync_seconds(WEIGHTS, trainer(dp=8), ENGINES, "broadcast", comm)
    direct = sync_seconds(WEIGHTS, trainer(dp=8), ENGINES, "point_to_point", comm)
    assert broadcast.send == pytest.approx(2e9 / RATE)
    assert direct.send == pytest.approx(2e9 / 4 / RATE)
    few = sync_seconds(WEIGHTS, trainer(dp=2), ENGINES, "point_to_point", comm)
    assert few.send == pytest.approx(4 * 2e9 / 4 / RATE)  # eight GPUs, two at a time


def test_the_host_takes_time_for_every_tensor() -> None:
    time = sync_seconds(WEIGHTS, trainer(dp=8), ENGINES, "same_gpus", comm, host_s=1e-3)
    assert time.host == pytest.approx(HOST_CALLS * 10 * 1e-3)


@pytest.mark.parametrize(("name", "dense", "experts"), [("llama3-8b", 226, 0), ("qwen3-30b-a3b", 242, 18432)])
def test_tensors_hold_all_parameters(name: str, dense: int, experts: int) -> None:
    weights = weights_of(model(name))
    assert (weights.dense.count, weights.experts.count) == (dense, experts)
    assert weights.elements == pytest.approx(model(name).parameters())
