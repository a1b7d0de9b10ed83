"""Degraded and failed parts: ways round them, and the names of cuts."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import assert_sound, machine, path, small, switches

from commsim.errors import TopologyError
from commsim.topology.check import check
from commsim.topology.faults import degraded
from commsim.topology.graph import Topology
from commsim.topology.spec import FaultSpec

TREE: dict[str, Any] = {"kind": "rail_fat_tree", "nodes_per_leaf": 2, "spines": 2}


def failed(**place: Any) -> dict[str, Any]:
    return {**place, "failed": True}


def broken(*faults: dict[str, Any], nodes: int = 4, **fabric: Any) -> Topology:
    topology = small(nodes, **(fabric or TREE), faults=list(faults))
    assert check(topology) == []
    return topology


def test_a_slow_nic() -> None:
    topology = broken({"nic": [1, 0], "bandwidth_factor": 0.5})
    assert topology.link_bandwidth[topology.route(0, 2)].tolist() == [48e9, 48e9, 50e9, 25e9, 48e9, 48e9]
    assert topology.link_failed is None
    assert topology.period_ranks is None
    assert topology.uniform


def test_faults_of_one_link_multiply() -> None:
    fault = {"link": ["leaf0.rail0", "spine0"], "bandwidth_factor": 0.5, "latency_factor": 3.0}
    plain, topology = small(4, **TREE), broken(fault, fault)
    link = topology.route(0, 4)[3]
    assert topology.link_bandwidth[link] == plain.link_bandwidth[link] / 4
    assert topology.link_latency[link] == pytest.approx(9 * plain.link_latency[link])


def test_slow_nics_of_every_node_keep_the_period() -> None:
    topology = broken(*({"node": k, "bandwidth_factor": 0.5} for k in range(4)))
    assert topology.period_ranks == small(4, **TREE).period_ranks == 4


def test_another_nic_is_taken() -> None:
    topology = broken(failed(nic=[0, 1]))
    assert topology.nearest_nic(1) == 0
    assert path(topology, 1, 3)[-2:] == ["node1.pcie1", "node1.gpu1"]
    assert switches(topology, 1, 3) == switches(topology, 3, 1) == ["leaf0.rail0"]
    assert switches(topology, 1, 3, nic=1) == ["leaf0.rail0"]
    assert topology.nic_path_type(0, 1) == "DIS"
    assert topology.path_type(0, 1) == "NVL"
    assert_sound(topology)


def test_another_spine_is_taken() -> None:
    plain, topology = small(4, **TREE), broken(failed(link=["leaf0.rail0", "spine0"]))
    assert switches(plain, 0, 4) == ["leaf0.rail0", "spine0", "leaf1.rail0"]
    assert switches(topology, 0, 4) == ["leaf0.rail0", "spine1", "leaf1.rail0"]
    assert_sound(topology)


def test_a_switch_that_fails_takes_its_links_along() -> None:
    topology = broken(failed(switch="spine0"))
    assert all("spine0" not in switches(topology, a, b) for a in range(4) for b in range(4, 8))
    assert topology.period_ranks == 4
    assert topology.bisection_bandwidth() == pytest.approx(2 * 50e9)  # two rails, one of two spines
    assert_sound(topology)


def test_nics_of_different_rails_meet_over_a_spine() -> None:
    topology = broken(failed(nic=[0, 0]), failed(nic=[3, 1]))
    assert switches(topology, 0, 6)[0] == "leaf0.rail1"
    assert switches(topology, 0, 6)[-1] == "leaf1.rail0"
    assert_sound(topology)


def test_a_gpu_without_nvlink_goes_over_pcie() -> None:
    topology = broken(failed(link=["node0.gpu0", "node0.nvswitch"]))
    assert topology.path_type(0, 1) == "PHB"
    assert topology.path_type(2, 3) == "NVL"
    assert len(topology.groups) == 2
    assert topology.ranks_per_node == 2
    assert_sound(topology)


def test_a_mesh_link_is_bridged_by_another_gpu() -> None:
    topology = machine(preset="hgx-a100-4", faults=[failed(link=["node0.gpu0", "node0.gpu1"])])
    assert topology.path_type(0, 1) == "NVB"
    assert topology.pair_links(0, 1) == 0
    assert path(topology, 0, 1) == ["node0.gpu0", "node0.gpu2", "node0.gpu1"]
    assert topology.bisection_bandwidth() < machine(preset="hgx-a100-4").bisection_bandwidth()


def test_a_ring_of_routers_goes_the_other_way() -> None:
    topology = broken(failed(link=["router0", "router1"]), kind="torus", dimensions=[4])
    assert switches(topology, 0, 2) == ["router0", "router3", "router2", "router1"]
    assert_sound(topology)


def test_another_global_link_is_taken() -> None:
    fabric: dict[str, Any] = {"kind": "dragonfly", "nodes_per_leaf": 1, "leaves_per_group": 2, "global_links": 2}
    topology = broken(failed(link=["group0.switch0", "group1.switch0"]), **fabric)
    assert switches(topology, 0, 4) == ["group0.switch0", "group0.switch1", "group1.switch1", "group1.switch0"]
    assert_sound(topology)


@pytest.mark.parametrize(
    ("faults", "match"),
    [
        ([failed(node=3)], "node3 is cut off; the cut is made of failed links: node3.nic0 - leaf1.rail0, node3.nic1 -"),
        ([failed(switch="spine0"), failed(switch="spine1")], r"no way from node0 to node2; .*leaf0.rail0 - spine0, "),
        (
            [failed(link=["node0.gpu0", "node0.nvswitch"]), failed(link=["node0.gpu0", "node0.pcie0"])],
            "node0 with its failed links: gpu0 and gpu1 of a node are not connected",
        ),
    ],
)
def test_cuts_are_named(faults: list[dict[str, Any]], match: str) -> None:
    with pytest.raises(TopologyError, match=match):
        broken(*faults)


def test_rails_that_nothing_joins_can_be_cut() -> None:
    with pytest.raises(TopologyError, match=r"no way from node0 to node1; .*node0.nic0 - leaf0.rail0, leaf0.rail1 - "):
        broken(failed(nic=[0, 0]), failed(nic=[1, 1]), nodes=2, kind="rail_only")
    assert_sound(broken(failed(nic=[0, 0]), failed(nic=[1, 0]), nodes=2, kind="rail_only"))


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        (failed(nic=[0, 2]), r"faults.0.nic.1: NIC 2 is not one of the 2 NICs of node 0"),
        (failed(nic=[9, 0]), r"faults.0.nic.0: node 9 is not one of the 4 nodes"),
        (failed(node=4), r"faults.0.node: node 4"),
        (failed(link=["leaf0.rail0", "spin1"]), "spin1 is neither a device nor a switch; did you mean spine1"),
        (failed(link=["leaf0.rail0", "leaf1.rail0"]), "are not linked; leaf0.rail0 is linked to node0.nic0"),
        (failed(switch="node0.nvswitch"), "is no switch of the fabric"),
        ({"nic": [0, 1]}, "expected failed: true, no_gdr: true, no_rdma: true, or bandwidth_factor"),
        ({"failed": True}, "found none"),
        (failed(nic=[0, 1], node=0), "found nic and node"),
        ({"nic": [0, 1], "bandwidth_factor": 2.0}, "bandwidth_factor"),
    ],
)
def test_faults_that_cannot_be(fault: dict[str, Any], match: str) -> None:
    with pytest.raises(TopologyError, match=match):
        broken(fault)


def test_one_node_has_no_port() -> None:
    with pytest.raises(TopologyError, match="one node alone has no network port"):
        machine(preset="hgx-h100-ndr400", faults=[failed(nic=[0, 0])])


FABRICS: list[dict[str, Any]] = [
    TREE,
    {"kind": "fat_tree", "levels": 3, "nodes_per_leaf": 1, "leaves_per_pod": 2, "spines": 2, "cores": 2},
    {"kind": "torus", "dimensions": [2, 2]},
    {"kind": "dragonfly", "nodes_per_leaf": 1, "leaves_per_group": 2, "global_links": 2},
    {"kind": "rail_only"},
]


@given(st.sampled_from(FABRICS), st.data())
@settings(max_examples=40)
def test_either_all_pairs_are_routed_round_the_faults_or_the_cut_is_named(
    fabric: dict[str, Any], data: st.DataObject
) -> None:
    topology = small(4, **fabric)
    cable = topology.link_src.astype(int).tolist(), topology.link_dst.astype(int).tolist()
    links = st.integers(0, len(cable[0]) - 1)
    chosen = data.draw(st.lists(links, min_size=1, max_size=5))
    names = topology.vertex_name
    faults = [FaultSpec(link=(names[cable[0][i]], names[cable[1][i]]), failed=True) for i in chosen]
    try:
        out = degraded(topology, faults)
    except TopologyError as error:
        message = str(error)
    else:
        return assert_sound(out)
    assert re.search(r"the cut is made of failed links: \w|of a node are not connected", message)
    return None


def test_all_absent_places_are_told_at_once() -> None:
    faults = [
        failed(link=["leaf9.rail0", "spine0"]),
        failed(nic=[1, 0]),
        failed(nic=[9, 0]),
        failed(switch="spine9"),
        {"node": 7, "bandwidth_factor": 0.5},
    ]
    with pytest.raises(TopologyError) as told:
        small(4, **TREE, faults=faults)
    assert [fault.path for fault in told.value.faults] == [
        "faults.0.link", "faults.2.nic.0", "faults.3.switch", "faults.4.node",
    ]  # fmt: skip
    assert all("is n" in fault.message for fault in told.value.faults)
    assert str(told.value).count("\n") == 3
    with pytest.raises(TopologyError) as cut:
        small(4, **TREE, faults=[failed(switch=f"spine{i}") for i in range(9, 99)])
    assert len(cut.value.faults) == 24
