"""SMs that collectives hold: by hand, against NCCL's choice, and their place in a step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steps import step

from commsim.errors import ScenarioError
from commsim.nccl.predict import Options, Predictor
from commsim.scenario.load import find_scenario, load_scenarios
from commsim.scenario.run import prepare, run
from commsim.scenario.training import step_of
from commsim.scenario.training_result import TrainingItem
from commsim.scenario.training_run import comm_times, training_program
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec
from commsim.training.comm_sms import check_comm_sms, held_sms, slowdown_of_gradients, slowed_by
from commsim.training.mesh import Mesh
from commsim.training.nccl_groups import NcclGroups
from commsim.training.spec import StepPlan

OPTIONS = Options(version=(2, 26, 2), mode="single")


def machine(nodes: int = 2) -> Topology:
    return load_topology(TopologySpec.model_validate({"preset": "hgx-h100-ndr400", "nodes": nodes}), Path())


def test_product_takes_as_much_longer_as_it_lacks_sms() -> None:
    assert slowed_by(24, 132) == pytest.approx(132 / 108)
    assert slowed_by(0, 132) == 1.0
    assert slowed_by(66, 132) == slowed_by(132, 132) == 2.0  # a kernel that fills the GPU takes turns


def test_call_holds_as_many_as_it_has_channels() -> None:
    calls = NcclGroups(machine(), OPTIONS)
    node, everyone = np.arange(16).reshape(2, 8), np.arange(16)[None]
    for nbytes in (64, 1 << 16, 1 << 30):
        for groups in (node, everyone):
            alone = Predictor(machine(), OPTIONS, ranks=groups[0].tolist())
            assert calls.sms("all_reduce", nbytes, groups) == alone.predict("all_reduce", nbytes).channels
    assert calls.sms("all_reduce", 64, node) < calls.sms("all_reduce", 1 << 30, node)
    assert calls.sms("all_reduce", 1 << 30, node[:, :1]) == 0
    assert held_sms(7, calls)("all_reduce", 64, node) == 7


def test_gradients_hold_those_of_their_collective() -> None:
    calls, mesh = NcclGroups(machine(), OPTIONS), Mesh(dp=16)
    plan = StepPlan(held_sms=held_sms("channels", calls))
    for zero, collective in ((0, "all_reduce"), (1, "reduce_scatter"), (3, "all_gather")):
        held = calls.sms(collective, 1 << 28, np.arange(16)[None])
        one = step(dp=16, zero_stage=zero)
        assert slowdown_of_gradients(one, mesh, plan, 1 << 28) == slowed_by(held, 132)
    assert slowdown_of_gradients(step(), Mesh(), plan, 1 << 28) == 1.0


def test_too_many_are_refused() -> None:
    check_comm_sms(step(), None, 66)
    with pytest.raises(ScenarioError, match="found 67, expected up to 66"):
        check_comm_sms(step(), None, 67)
    with pytest.raises(ScenarioError, match="expected one of them"):
        check_comm_sms(step(), 1.1, "channels")


def trained(*words: str) -> TrainingItem:
    (item,) = run(load_scenarios(find_scenario("training/llama-3-70b-512-h100"), list(words))[0]).answers
    assert isinstance(item, TrainingItem)
    return item


def test_step_takes_longer_the_more_sms_collectives_hold() -> None:
    overlapped = "workload.0.training.overlap_tp=true"
    seconds = [trained(f"workload.0.training.comm_sms={n}", overlapped).step_s for n in (0, 12, 24, 48)]
    assert seconds == sorted(seconds)
    assert seconds[0] < seconds[-1]
    # A number says the same as the factor by which products take longer.
    factor = trained(f"workload.0.training.slowdown={132 / 108}", overlapped).step_s
    assert seconds[2] == pytest.approx(factor, rel=1e-9)
    # As many as there are channels lies between the fewest and the most that any call has.
    assert seconds[0] <= trained("workload.0.training.comm_sms=channels", overlapped).step_s <= seconds[-1]


def test_exchanges_have_the_slowdown_of_their_own_channels() -> None:
    words = ["workload.0.training.comm_sms=channels", "workload.0.training.overlap_tp=true"]
    scenario = load_scenarios(find_scenario("training/llama-3-70b-512-h100"), words)[0]
    work: Any = scenario.workload[0]
    ready = prepare(scenario)
    calls = comm_times(scenario, ready.topology)
    program = training_program(scenario, ready.topology, work.training, calls)
    sms = step_of(work.training, ready.topology, scenario.base_dir).accelerator.sms
    exchanges = [one for one in program.works[1, 0].of("F").exchanges if one.axis == "tp"]
    assert exchanges
    known = {slowed_by(n, sms) for n in range(1, 33)}
    assert {one.slowdown for one in exchanges} <= known
    assert program.machine.slowdown in known


def test_step_says_what_its_gradients_hold() -> None:
    notes = trained("workload.0.training.comm_sms=33").notes
    assert "compute beside gradients takes 1.33 times as long: their kernels hold SMs (comm_sms)" in notes
    assert not [note for note in trained().notes if "comm_sms" in note]
    assert (
        "compute beside gradients takes no longer: no SM is held beside it (comm_sms)"
        in trained("workload.0.training.comm_sms=0").notes
    )
