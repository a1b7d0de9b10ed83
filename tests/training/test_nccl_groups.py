"""NCCL's calls on groups where they are: against one model for each group, by hand, and with faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.engine.sharing import LinkLoad
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.traffic import call_of
from commsim.scenario.load import find_scenario, load_scenarios
from commsim.scenario.run import run
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec
from commsim.training.communicators import SEND, shape
from commsim.training.mesh import Mesh
from commsim.training.nccl_groups import NcclGroups

OPTIONS = Options(version=(2, 21, 5), mode="single")
MIB = 1 << 20


def machine(*faults: dict[str, Any], preset: str = "hgx-h100-ndr400", nodes: int = 16, **more: Any) -> Topology:
    said = {"preset": preset, "nodes": nodes, "faults": list(faults) or None, **more}
    return load_topology(TopologySpec.model_validate(said), Path())


def test_shapes_of_groups() -> None:
    assert shape(np.array([0, 8, 16]), 8) == (3, 1)
    assert shape(np.arange(16), 8) == (2, 8)


def test_groups_of_one_and_of_nothing_take_no_time() -> None:
    calls = NcclGroups(machine(), OPTIONS)
    assert calls("all_reduce", 1e8, np.array([3])) == 0.0
    assert calls("all_reduce", 0, np.arange(8)) == 0.0


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_groups_with_nics_of_their_own_take_what_one_takes_alone(collective: str) -> None:
    """Each of eight lanes has a GPU and a NIC of every node."""
    topology = machine(nodes=8)
    lanes = Mesh(tp=8, dp=8).groups("dp")
    alone = Predictor(topology, OPTIONS, ranks=lanes[3].tolist()).predict(collective, 64 * MIB).time_s
    assert NcclGroups(topology, OPTIONS)(collective, 64 * MIB, lanes) == pytest.approx(alone)


def test_lanes_that_crowd_on_a_nic_have_their_share_of_it() -> None:
    """Eight lanes over one card of 400 Gb/s, or over two of half of it, are as eight with cards of 50 Gb/s, but for
    the channels that NCCL makes for cards of that rate."""
    lanes, times = Mesh(tp=8, dp=2).groups("dp"), {}
    for cards, rate in ((1, 400), (2, 200), (8, 50), (1, 100)):
        topology = machine(nodes=2, nics_per_node=cards, nic_bandwidth=f"{rate} Gb/s")
        times[cards, rate] = NcclGroups(topology, OPTIONS)("all_gather", 256 * MIB, lanes)
    assert times[1, 400] == pytest.approx(times[8, 50], rel=0.1)
    assert times[2, 200] == pytest.approx(times[8, 50], rel=0.1)
    assert times[1, 100] == pytest.approx(4 * times[1, 400], rel=0.1)
    assert times[1, 400] > 128 * MIB * 8 / (0.95 * 50e9)  # half of what each gathers comes in over the card


@pytest.mark.parametrize("preset", ["dgx-a100-hdr200", "hgx-b200-ndr400", "gb200-nvl72"])
def test_gpus_beside_the_same_nics_take_different_ones(preset: str) -> None:
    """NCCL gives neighbours different NICs though they are in communicators of their own (gpu.dev)."""
    topology = machine(preset=preset, nodes=2)
    taken = []
    for gpu in range(8):
        ranks = [gpu, topology.ranks_per_node + gpu]
        taken.append(Predictor(topology, OPTIONS, ranks=ranks).system.ring.nics[0][0])
    assert taken == list(range(8))


@settings(max_examples=25, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    pp=st.sampled_from([1, 2]),
    axis=st.sampled_from(["tp", "dp"]),
    preset=st.sampled_from(["hgx-h100-ndr400", "dgx-a100-hdr200", "hgx-a100-4-slingshot200"]),
    collective=st.sampled_from(["all_reduce", "reduce_scatter", "all_to_all"]),
    fault=st.sampled_from([None, {"node": 2, "bandwidth_factor": 0.5}, {"nic": [1, 1], "failed": True}]),
)
def test_groups_alike_are_timed_as_each_would_be(
    tp: int, pp: int, axis: str, preset: str, collective: str, fault: dict[str, Any] | None
) -> None:  # fmt: skip
    """One model for each group: the slowest counts, and all loads together."""
    topology = machine(*([fault] if fault else []), preset=preset, nodes=6, nodes_per_leaf=2)
    ranks = topology.world_size
    if tp > topology.ranks_per_node or ranks % (tp * pp):
        return
    groups = Mesh(tp=tp, pp=pp, dp=ranks // tp // pp).groups_of(pp - 1, axis)
    if groups.shape[1] < 2:
        return
    calls = NcclGroups(topology, OPTIONS)
    each = [call_of(Predictor(topology, OPTIONS, ranks=g.tolist()), collective, MIB) for g in groups]
    slowest = max(got.time_s for _, got in each)
    together = LinkLoad.joined([call.load for call, _ in each])
    load = calls.load(collective, MIB, groups)
    assert load.link.tolist() == together.link.tolist()
    assert load.nbytes == pytest.approx(together.nbytes)
    assert load.lines == pytest.approx(together.lines)
    crowded = together.busiest_s / max(slowest, *(call.load.busiest_s for call, _ in each))
    seconds = calls(collective, MIB, groups)
    assert seconds >= slowest * max(1.0, crowded) * (1 - 1e-9)
    if crowded <= 1.0:
        assert seconds == pytest.approx(slowest)


def test_what_was_asked_before_changes_nothing() -> None:
    """Two pairs of nodes over the same leaves crowd on their uplinks, over four leaves they do not."""
    topology = machine(nodes=8, nodes_per_leaf=2, oversubscription=2.0)
    near, apart = (
        np.array([[8 * a + r, 8 * b + r] for a, b in pairs for r in range(8)])
        for pairs in (((0, 2), (1, 3)), ((0, 2), (4, 6)))
    )
    first, second = NcclGroups(topology, OPTIONS), NcclGroups(topology, OPTIONS)
    times = [first("all_reduce", 1 << 30, groups) for groups in (near, apart)]
    assert times == [second("all_reduce", 1 << 30, groups) for groups in (apart, near)][::-1]
    assert times[0] > 1.3 * times[1]


def test_what_is_sent_lies_on_the_ways_between_the_ranks() -> None:
    topology = machine(nodes=4)
    pairs = np.stack([np.arange(8), np.arange(8, 16)], axis=1)
    load = NcclGroups(topology, OPTIONS).load(SEND, 1000, pairs)
    names = {topology.link_name(int(link)): nbytes for link, nbytes in zip(load.link, load.nbytes, strict=True)}
    out = {name: nbytes for name, nbytes in names.items() if name.startswith("node0.nic")}
    assert out == {f"node0.nic{i} -> leaf0.rail{i}": pytest.approx(1000) for i in range(8)}
    assert not any(name.startswith(("node1.nic", "leaf0.rail3 -> node0")) and "leaf" in name[9:] for name in names)


# -- faults ---------------------------------

STAGES = Mesh(tp=8, dp=8, pp=2)


def slower(fault: dict[str, Any], axis: str, stage: int) -> float:
    """How many times as long 1 GiB takes the groups of a stage with a fault."""
    groups = STAGES.groups_of(stage, axis)
    times = [
        NcclGroups(machine(*some, nodes_per_leaf=4), OPTIONS)("all_gather", 1 << 30, groups) for some in ([], [fault])
    ]
    return times[1] / times[0]


def test_a_slow_node_slows_the_groups_of_its_stage_alone() -> None:
    fault = {"node": 12, "bandwidth_factor": 0.1}
    assert slower(fault, "dp", 0) == 1.0
    assert 5 < slower(fault, "dp", 1) < 10.5
    assert slower(fault, "tp", 1) == 1.0


def test_a_slow_nvlink_slows_the_groups_inside_its_node() -> None:
    fault = {"link": ["node3.gpu0", "node3.nvswitch"], "bandwidth_factor": 0.5}
    assert slower(fault, "tp", 0) == pytest.approx(2.0, rel=0.1)
    assert slower(fault, "tp", 1) == 1.0


def test_a_slow_uplink_slows_the_groups_that_pass_it() -> None:
    fault = {"link": ["leaf1.rail0", "spine0"], "bandwidth_factor": 0.05}
    assert slower(fault, "dp", 0) > 1.0
    assert slower(fault, "dp", 1) == 1.0


def test_a_dead_nic_is_carried_by_its_neighbour() -> None:
    """Two lanes of the first stage share a NIC of node 3; the other stage has its own."""
    fault = {"nic": [3, 5], "failed": True}
    assert 1.5 < slower(fault, "dp", 0) < 2.6
    assert slower(fault, "dp", 1) == 1.0


@pytest.mark.parametrize(
    ("fault", "most"),
    [("{node: 40, bandwidth_factor: 0.1}", 10.0), ("{nic: [9, 3], failed: true}", 1.6)],
    ids=["slow node", "dead NIC"],
)
def test_a_step_on_a_machine_with_a_fault_takes_longer(fault: str, most: float) -> None:
    steps = []
    for faults in ("[]", f"[{fault}]"):
        (scenario,) = load_scenarios(find_scenario("training/llama-3-70b-512-h100"), [f"topology.faults={faults}"])
        steps.append(run(scenario).answers[0].step_s)  # type: ignore[attr-defined]
    assert steps[0] * 1.001 < steps[1] < most * steps[0]
