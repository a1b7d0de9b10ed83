"""Nodes of several kinds: what is left of their rates, and which of them is named."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machines import machine

from commsim.nccl.fewer import fewer
from commsim.nccl.nodes import narrower, slowed
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.tree_rows import tree_rows, tree_schedule
from commsim.topology.graph import Topology

VERSION = Options(version=(2, 26, 2))


def hgx(*faults: dict[str, Any], nodes: int = 4, **more: Any) -> Topology:
    return machine(preset="hgx-h100-ndr400", nodes=nodes, faults=list(faults), **more)


def model(*faults: dict[str, Any], nodes: int = 4, **more: Any) -> Predictor:
    return Predictor(hgx(*faults, nodes=nodes, **more), VERSION)


SLOW_NODE = {"node": 3, "bandwidth_factor": 0.1}
SLOW_NIC = {"nic": [1, 3], "bandwidth_factor": 0.5}
DEAD_NIC = {"nic": [1, 3], "failed": True}
SLOW_NVLINK = {"link": ["node2.gpu1", "node2.nvswitch"], "bandwidth_factor": 0.5}
SLOW_CARD = {"link": ["node2.pcie1", "node2.nic1"], "bandwidth_factor": 0.5}


def test_a_fault_in_one_node_leaves_what_is_inside_the_others() -> None:
    healthy = model().nodes.kinds[0].machine
    for fault in (DEAD_NIC, SLOW_NVLINK):
        nodes = model(fault).nodes
        usual = nodes.kinds[int(nodes.comm.kind[0])].machine
        assert usual.intra_bandwidth == healthy.intra_bandwidth
        assert [entry for entry in usual.nic_path if entry[0] != "fabric"] == list(healthy.nic_path)
    bad = nodes.kinds[int(nodes.comm.kind[2])].machine
    assert bad.intra_bandwidth == healthy.intra_bandwidth / 2


def test_a_slow_port_slows_the_way_to_its_node_and_the_way_from_it() -> None:
    nodes = model(SLOW_NODE).nodes
    share, _ = nodes.ways.ring.share(16)
    assert share == pytest.approx([1.0, 1.0, 0.1, 0.1])
    assert nodes.ways.ports == pytest.approx([1.0, 1.0, 1.0, 0.1])
    hops = nodes.hops(16)
    assert hops.of[0] == hops.of[1]
    assert hops.of[2] == hops.of[3]
    rate = [{k: bw for k, bw, _ in hops.kinds[i].machine.nic_path}["NIC"] for i in hops.of]
    assert rate == pytest.approx([50e9, 50e9, 5e9, 5e9])


def test_calls_of_few_channels_that_pass_another_nic_are_not_slowed() -> None:
    nodes = model(SLOW_NIC).nodes
    nic_of = [leave for _, leave in nodes.kinds[0].system.ring.nics]
    before = nic_of.index(3)
    assert before > 0
    assert nodes.ways.ring.share(before)[0].tolist() == [1.0] * 4
    assert nodes.ways.ring.share(16)[0].min() == 0.5


@pytest.mark.parametrize("count", [2, 3, 4, 8, 9, 64])
def test_over_trees_every_byte_goes_up_and_down_once_on_half_of_each_tree(count: int) -> None:
    ways = model(nodes=count).nodes.ways
    assert ways.tree_traffic.sum() == 2 * (count - 1)
    assert ways.tree_traffic.max() == {2: 1.0, 3: 1.5}.get(count, 2.0)


def test_two_machines_leave_the_least_of_each_rate() -> None:
    kinds = model(DEAD_NIC, SLOW_NVLINK).nodes.kinds
    usual, without, slow = (kind.machine for kind in kinds)
    both = narrower(without, slow)
    assert both.nics == 7
    assert both.intra_bandwidth == slow.intra_bandwidth
    assert narrower(slow, without).intra_bandwidth == slow.intra_bandwidth
    assert narrower(usual, usual) is usual
    assert slowed(usual, 1.0) is usual
    half = {name: rate for name, rate, _ in slowed(usual, 0.5).nic_path}
    assert half["NIC"] == 25e9
    assert half["PCIe"] == {name: rate for name, rate, _ in usual.nic_path}["PCIe"]


@pytest.mark.parametrize(
    ("fault", "nbytes", "place"),
    [
        (SLOW_NODE, 1 << 30, "node3.nic"),
        (SLOW_NIC, 1 << 30, "node1.nic3"),
        (DEAD_NIC, 1 << 30, "node1"),
        (SLOW_NVLINK, 1 << 30, "node2"),
        (SLOW_CARD, 1 << 30, "node2"),
    ],
)
def test_what_is_slower_than_the_rest_is_named(fault: dict[str, Any], nbytes: int, place: str) -> None:
    got = model(fault).predict("all_reduce", nbytes).place
    assert place in got


def test_of_a_healthy_machine_nothing_is_named() -> None:
    healthy = model()
    for nbytes in (1 << 10, 1 << 20, 1 << 30):
        assert healthy.predict("all_reduce", nbytes).place == ""


def test_a_smaller_tree_keeps_the_bad_node_with_as_many_neighbours() -> None:
    nodes = model({"nic": [11, 3], "failed": True}, nodes=64).nodes
    part = fewer(nodes, 16)
    assert part.count == 16
    assert np.bincount(part.comm.kind).tolist() == [15, 1]
    place = int(np.flatnonzero(part.comm.kind)[0])
    assert part.comm.nodes[place] == 11

    def neighbours(of: Any, node: int) -> list[int]:
        src, dst = of.ways.tree_ends
        return sorted(((src == node).sum(), (dst == node).sum()))

    assert neighbours(part, place) == neighbours(nodes, 11)
    assert set(fewer(nodes, 16, healthy=True).comm.kind.tolist()) == {0}


def test_a_smaller_tree_keeps_slow_ports() -> None:
    nodes = model({"node": 40, "bandwidth_factor": 0.25}, nodes=64).nodes
    part = fewer(nodes, 16)
    assert sorted(set(part.ways.ports.tolist())) == pytest.approx([0.25, 1.0])
    assert part.ways.ports[part.comm.nodes == 40] == pytest.approx([0.25])
    assert fewer(nodes, 16, healthy=True).ways.ports.tolist() == [1.0] * 16


@pytest.mark.parametrize(("nodes", "pieces"), [(2, 3), (5, 1), (5, 7), (9, 4)])
def test_the_rows_of_a_tree_wait_piece_by_piece(nodes: int, pieces: int) -> None:
    own = model(nodes=nodes).nodes
    trees = tuple(own.comm.counts.tolist()), own.system.tree.pattern.lower(), pieces
    rows, schedule = tree_rows(*trees), tree_schedule(*trees)
    ptr, idx = rows.followers
    derived = schedule.dependencies()
    assert ptr.tolist() == derived[0].tolist()
    assert idx.tolist() == derived[1].tolist()
    assert rows.hops.src[rows.hop].tolist() == schedule.src.tolist()
    assert rows.hops.dst[rows.hop].tolist() == schedule.dst.tolist()
    assert (rows.hops.way // 2)[rows.hop].tolist() == schedule.channel.tolist()
