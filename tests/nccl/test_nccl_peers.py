"""Sends among nodes: the links between switches that they keep busy, counted link by link and by the closed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from machines import machine

from commsim.errors import TopologyError
from commsim.nccl.peers import busiest_way
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec

GIB = 1 << 30


def model(*faults: dict[str, Any], preset: str = "hgx-h100-ndr400", nodes: int = 8, **fabric: Any) -> Predictor:
    """NCCL on a rail-optimized tree of two nodes under a leaf."""
    spec = {"preset": preset, "nodes": nodes, "faults": list(faults) or None}
    spec["fabric"] = {"kind": "rail_fat_tree", "nodes_per_leaf": 2} | fabric
    return Predictor(load_topology(TopologySpec.model_validate(spec), Path()), Options())


@pytest.mark.parametrize("preset", ["hgx-h100-ndr400", "dgx-a100-hdr200", "gh200x4-ndr200", "hgx-a100-4-slingshot200"])
@pytest.mark.parametrize("spines", [1, 2])
@pytest.mark.parametrize("kind", ["fat_tree", "rail_fat_tree"])
def test_an_all_to_all_counted_link_by_link_is_that_of_the_oversubscribed_leaf(
    preset: str, spines: int, kind: str
) -> None:
    healthy = model(preset=preset, kind=kind, spines=spines, oversubscription=4.0)
    got = healthy.predict("all_to_all", GIB)
    assert got.limit == "leaf uplinks"
    assert busiest_way(healthy.nodes, "all_to_all").seconds_per_byte * GIB == pytest.approx(got.busy_s, rel=1e-9)


@pytest.mark.parametrize(
    ("collective", "link"),
    [
        ("all_to_all", ("leaf1.rail3", "spine0")),
        ("scatter", ("leaf1.rail3", "spine0")),
        ("gather", ("leaf0.rail3", "spine0")),
    ],
)
def test_sends_wait_for_a_slow_uplink_of_one_rail_which_is_named(collective: str, link: tuple[str, str]) -> None:
    before = model().predict(collective, GIB)
    times = [model({"link": link, "bandwidth_factor": f}).predict(collective, GIB) for f in (0.5, 0.01, 0.005)]
    assert before.time_s <= times[0].time_s < times[1].time_s
    # What remains of the link is all that counts: half of it takes twice as long.
    assert times[2].busy_s == pytest.approx(2 * times[1].busy_s, rel=1e-9)
    assert times[1].limit == "fabric"
    assert times[1].place in {" -> ".join(link), " -> ".join(reversed(link))}


def test_a_slow_link_above_other_nodes_than_the_group_has_no_effect() -> None:
    topology = model({"link": ["leaf1.rail3", "spine0"], "bandwidth_factor": 0.01}).nodes.comm.topology
    away = range(32, 64)  # nodes 4 to 7, leaves 2 and 3
    slow = Predictor(topology, Options(), ranks=away).predict("all_to_all", GIB)
    healthy = Predictor(model().nodes.comm.topology, Options(), ranks=away).predict("all_to_all", GIB)
    assert slow.time_s == healthy.time_s


def test_where_ways_are_not_looked_at_it_is_said() -> None:
    slow = {"link": ["leaf1.rail3", "spine0"], "bandwidth_factor": 0.01}
    large = model(slow, nodes=300)
    large.predict("all_to_all", GIB)
    assert any("not looked at over a rail_fat_tree of 300 nodes" in text for text in large.warnings)
    small = model(slow)
    small.predict("all_to_all", GIB)
    assert not any("not looked at" in text for text in small.warnings)


def test_a_node_that_is_cut_off_is_refused_only_where_it_takes_part() -> None:
    spec = {"preset": "hgx-h100-ndr400", "nodes": 4, "faults": [{"node": 3, "failed": True}]}
    parsed = TopologySpec.model_validate(spec)
    with pytest.raises(TopologyError, match="node3 is cut off"):
        load_topology(parsed, Path())
    topology = load_topology(parsed, Path(), joined=False)
    with pytest.raises(TopologyError, match="node3 is cut off"):
        Predictor(topology, Options())
    healthy = load_topology(parsed.model_copy(update={"faults": None}), Path())
    one, other = (Predictor(t, Options(), ranks=range(24)).predict("all_reduce", GIB) for t in (topology, healthy))
    assert one.time_s == other.time_s


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_to_all", "gather", "send_recv"])
def test_two_gpus_joined_by_a_third_that_has_no_rank(collective: str, nodes: int) -> None:
    """GPUs 0 and 5 of a DGX-1 have no NVLink to each other: what passes another GPU takes the links of that way."""
    topology = load_topology(TopologySpec.model_validate({"preset": "dgx-1v-edr100", "nodes": nodes}), Path())
    apart, beside = (
        Predictor(topology, Options(), ranks=[rank for node in range(nodes) for rank in (8 * node, 8 * node + gpu)])
        for gpu in (5, 3)
    )
    assert 0 < apart.machine.intra_bandwidth <= beside.machine.intra_bandwidth
    assert beside.predict(collective, GIB).time_s <= apart.predict(collective, GIB).time_s < float("inf")


def test_a_nic_of_gpus_without_ranks_holds_nobody_up() -> None:
    """One GPU a node: neither sends nor trees wait for the NIC beside another."""
    one = [0, 8, 16]
    healthy, slow = (
        Predictor(model(*faults, nodes=4).nodes.comm.topology, Options(), ranks=one)
        for faults in ((), ({"nic": [1, 6], "bandwidth_factor": 0.001},))
    )
    for collective, nbytes in (("all_reduce", 1024), ("all_to_all", GIB), ("gather", GIB)):
        assert slow.predict(collective, nbytes).time_s == healthy.predict(collective, nbytes).time_s
    used = model({"nic": [1, 0], "bandwidth_factor": 0.001}, nodes=4).nodes.comm.topology
    assert Predictor(used, Options(), ranks=one).predict("all_to_all", GIB).place == "node1.nic0 -> leaf0.rail0"


@pytest.mark.parametrize(("nic", "slower"), [(6, False), (0, True)])
def test_a_latency_counts_where_the_channels_of_a_call_pass(nic: int, slower: bool) -> None:
    env = {"NCCL_ALGO": "Ring", "NCCL_MAX_NCHANNELS": "1"}
    healthy, late = (
        Predictor(model(*faults, nodes=4).nodes.comm.topology, Options(env=env)).predict("all_reduce", 1024)
        for faults in ((), ({"nic": [1, nic], "latency_factor": 1000.0},))
    )
    assert (late.time_s > 2 * healthy.time_s) == slower
    assert (late.time_s == healthy.time_s) != slower
    assert ("node1.nic0" in late.place) == slower


def test_what_is_left_beside_a_failed_uplink_is_named() -> None:
    healthy, lost = (
        model(*faults).predict("all_to_all", GIB)
        for faults in ((), ({"link": ["leaf0.rail0", "spine0"], "failed": True},))
    )
    assert lost.time_s > 1.2 * healthy.time_s
    assert (healthy.place, lost.place) == ("", "leaf0.rail1 -> spine0")


def test_a_chain_of_sends_names_the_uplink_it_waits_for() -> None:
    slow = model({"link": ["leaf0.rail0", "spine0"], "bandwidth_factor": 0.01}).predict("send_recv", GIB)
    assert slow.place == "leaf0.rail0 -> spine0"


def test_a_gpu_that_lost_its_way_to_the_nics_sends_by_those_of_its_rings() -> None:
    """NCCL finds no NIC near the third GPU, whose neighbours have no rank; its simple order takes the first one."""
    ranks, times = [2, 6, 10], []
    for faults in ([], [{"link": ["node2.gpu2", "node2.cpu0"], "failed": True}]):
        topology = machine(preset="hgx-a100-4-slingshot200", nodes=3, faults=faults or None)
        model = Predictor(topology, Options(version=(2, 18, 3)), ranks=ranks)
        assert all(nics for nics in model.nodes.ways.own_nics)
        times.append([model.predict(name, 1 << 20).time_s for name in ("scatter", "gather", "all_to_all")])
    assert all(after >= before for before, after in zip(*times, strict=True))
