"""What communicators take of a training step's memory: by hand on groups, and in the place of what a base has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from steps import step

from commsim.nccl.memory import communicator_memory, kernel_bytes
from commsim.nccl.predict import Options, Predictor
from commsim.scenario.load import find_scenario, load_scenarios
from commsim.scenario.run import run
from commsim.scenario.training_result import TrainingItem
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec
from commsim.training.advice import advice
from commsim.training.communicator_memory import PART, Communicators, beside, communicators_of
from commsim.training.communicators import SEND
from commsim.training.memory import StepMemory, step_memory
from commsim.training.mesh import Mesh
from commsim.training.nccl_groups import NcclGroups
from commsim.units import GIB

MIB = 1 << 20
OPTIONS = Options(version=(2, 26, 2), mode="single")


def machine(nodes: int = 2) -> Topology:
    return load_topology(TopologySpec.model_validate({"preset": "hgx-h100-ndr400", "nodes": nodes}), Path())


def test_groups_that_call_have_communicators() -> None:
    calls = NcclGroups(machine(), OPTIONS)
    node = np.arange(16).reshape(2, 8)
    assert calls.communicators(0) == []
    calls("all_to_all", 1 << 20, node)
    calls("all_to_all", 1 << 26, node)
    (held,) = calls.communicators(9)
    assert (held.ranks, held.nodes, held.calls) == (8, 1, (("all_to_all", "send_recv"),))
    # 7 peers by 32 channels of 2 and 10 MiB; arrays by hand in tests/nccl/test_communicator_memory.py.
    assert held.gpu_at("send_recv") == 7 * 32 * 12 * MIB


def test_both_ways_between_two_ranks_are_one_communicator() -> None:
    calls = NcclGroups(machine(), OPTIONS)
    pairs = np.stack([np.arange(8), np.arange(8, 16)], axis=1)
    calls(SEND, 1 << 20, pairs)
    calls(SEND, 1 << 20, pairs[:, ::-1])
    assert [held.ranks for held in calls.communicators(3)] == [2]
    calls("all_reduce", 1 << 20, np.arange(16)[None])
    assert [held.ranks for held in calls.communicators(3)] == [2, 16]


def test_groups_hold_what_their_own_model_does() -> None:
    calls = NcclGroups(machine(), OPTIONS)
    groups = np.arange(16).reshape(2, 8)
    calls("reduce_scatter", 1 << 28, groups)
    (held,) = calls.communicators(8)
    alone = Predictor(machine(), OPTIONS, ranks=list(range(8, 16)))
    assert held == communicator_memory(alone, [("reduce_scatter", alone.choose("reduce_scatter", 1 << 28)[0])])


def test_communicators_are_a_part_of_each_stage() -> None:
    memory = step_memory(step(pp=2, dp=8))
    more = beside(memory, [GIB, 2 * GIB], 0.0)
    for before, after, added in zip(memory.stages, more.stages, (GIB, 2 * GIB), strict=True):
        assert after.peak == before.peak + added == pytest.approx(sum(after.parts.values()))
        assert after.parts == before.parts | {PART: added}
        assert after.moment == before.moment


def test_what_a_base_has_for_them_goes() -> None:
    memory = step_memory(step(dp=8), "deepspeed")
    (stage,) = beside(memory, [3 * GIB], 1.3 * GIB).stages
    assert stage.parts["buffers"] == pytest.approx((7 - 0.5 - 1.3) * GIB)
    assert stage.peak == pytest.approx(memory.peak + (3 - 1.3) * GIB)
    (stage,) = beside(memory, [3 * GIB], 100 * GIB).stages  # no more than there is
    assert stage.parts["buffers"] == 0
    assert beside(memory, [0.0], 1.3 * GIB) == memory  # none are made: the base stands


def test_advice_counts_them() -> None:
    one = step(dp=8, recompute="selective", zero_stage=1)
    memory = step_memory(one)
    short = (memory.capacity - memory.peak) + GIB
    full = beside(memory, [short], 0.0)
    assert memory.fits
    assert not full.fits

    def added(needs: StepMemory) -> StepMemory:
        return beside(needs, [short] * len(needs.stages), 0.0)

    blind, seeing = advice(one, full), advice(one, full, beside=added)
    assert seeing
    before, after = ([float(line.rpartition("(")[2].split()[0]) for line in lines] for lines in (blind, seeing))
    assert max(after) <= memory.capacity / GIB
    assert min(after) > min(before) + short / GIB - 0.11


def test_step_of_a_scenario_has_them() -> None:
    scenario = load_scenarios(find_scenario("training/llama-3-70b-512-h100"))[0]
    (item,) = run(scenario).answers
    assert isinstance(item, TrainingItem)
    made = item.communicators
    assert made is not None
    for stage in item.memory.stages:
        held = made.stages[stage.stage]
        assert sorted({one.ranks for one in held}) == [2, 8, 16]  # sends, tp and dp
        assert stage.parts[PART] == sum(one.gpu for one in held) + kernel_bytes(90, (2, 26, 2))


def test_step_on_one_gpu_has_none() -> None:
    calls = NcclGroups(machine(1), OPTIONS)
    made = communicators_of(calls, Mesh(), 90, (2, 26, 2))
    assert made.nbytes(0) == 0
    memory = step_memory(step())
    assert made.beside("ddp")(memory) == memory
    assert Communicators((made.stages[0],) * 2, 7).nbytes(1) == 0
