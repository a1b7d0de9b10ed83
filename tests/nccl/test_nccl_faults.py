"""What faults cost NCCL's collectives: by hand, by the bound, by the engine, and what they leave alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from machines import machine

from commsim.bounds import lower_bound_s
from commsim.nccl.machine import intra_bandwidth, nic_efficiency
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.protocols import SIMPLE
from commsim.topology.graph import Topology

GIB = 1 << 30
VERSION = Options(version=(2, 26, 2))
RING = replace(VERSION, algorithm="ring", protocol="Simple")
SENT = 2 * 31 / 32 * GIB
"""Bytes that each of 32 ranks sends to the next in a ring all_reduce of 1 GiB."""

SLOW_NODE: dict[str, Any] = {"node": 3, "bandwidth_factor": 0.1}
DEAD_NIC: dict[str, Any] = {"nic": [1, 3], "failed": True}
SLOW_NVLINK: dict[str, Any] = {"link": ["node2.gpu1", "node2.nvswitch"], "bandwidth_factor": 0.5}
SLOW_UPLINK: dict[str, Any] = {"link": ["leaf1.rail3", "spine0"], "bandwidth_factor": 0.5}
FAULTS: list[dict[str, Any]] = [SLOW_NODE, DEAD_NIC, SLOW_NVLINK, SLOW_UPLINK]


def hgx(*faults: dict[str, Any], **more: Any) -> Topology:
    """Four nodes of eight GPUs and NICs, a leaf to each node and rail, so that all traffic passes the spine."""
    spec = {"preset": "hgx-h100-ndr400", "nodes": 4, "nodes_per_leaf": 1, "oversubscription": 1.0}
    return machine(**spec | more, faults=list(faults))


def seconds(topology: Topology, options: Options = RING, nbytes: int = GIB) -> float:
    return Predictor(topology, options).predict("all_reduce", nbytes).kernel_s


def by_hand(fault: dict[str, Any]) -> float:
    """Seconds for which the narrowest part is busy with a ring all_reduce of 1 GiB."""
    healthy = Predictor(hgx(), RING)
    kind = healthy.nodes.kinds[0]
    nic = 50e9 * nic_efficiency(kind.machine, kind.parameters)
    if fault is SLOW_NODE:
        return SENT / (8 * 0.1 * nic)
    if fault is DEAD_NIC:
        return SENT / (7 * nic)
    if fault is SLOW_UPLINK:  # an eighth of all through half a NIC's rate
        return SENT / 8 / (0.5 * nic)
    return SENT / (0.5 * intra_bandwidth(kind.machine, kind.parameters, SIMPLE))


@pytest.mark.parametrize("fault", FAULTS, ids=["node", "nic", "nvlink", "uplink"])
def test_a_gibibyte_takes_what_its_narrowest_part_takes(fault: dict[str, Any]) -> None:
    faulty = Predictor(hgx(fault), RING).predict("all_reduce", GIB)
    # A GPU hands on the channels that do not leave the node from it: an eighth of ten or so passes no NVLink there.
    room = 0.9 if fault is SLOW_NVLINK else 1.0
    assert room * by_hand(fault) <= faulty.kernel_s <= 1.04 * by_hand(fault)
    assert faulty.time_s > seconds(hgx())
    assert faulty.time_s >= lower_bound_s("all_reduce", GIB, hgx(fault)).seconds


@pytest.mark.parametrize("fault", FAULTS, ids=["node", "nic", "nvlink", "uplink"])
@pytest.mark.parametrize("nbytes", [8, 64 << 10, 1 << 20, 64 << 20, GIB])
def test_what_nccl_chooses_is_not_under_the_bound(fault: dict[str, Any], nbytes: int) -> None:
    topology = hgx(fault)
    got = Predictor(topology, VERSION).predict("all_reduce", nbytes)
    assert got.time_s >= lower_bound_s("all_reduce", nbytes, topology, in_network=True).seconds


@pytest.mark.parametrize(
    ("fault", "limit", "place"),
    [
        (SLOW_NODE, "NIC", "node3.nic"),
        (DEAD_NIC, "NIC", "node1 (nic3 failed)"),
        (SLOW_NVLINK, "NVLink", "node2"),
        (SLOW_UPLINK, "leaf uplinks", "leaf1.rail3"),
    ],
    ids=["node", "nic", "nvlink", "uplink"],
)
@pytest.mark.parametrize("algorithm", ["ring", None])
def test_what_limits_is_the_faulty_part(
    fault: dict[str, Any], limit: str, place: str, algorithm: str | None
) -> None:  # fmt: skip
    got = Predictor(hgx(fault), replace(VERSION, algorithm=algorithm)).predict("all_reduce", GIB)
    assert got.bottleneck == limit
    assert place in got.place


def test_trees_name_the_slow_node_too() -> None:
    got = Predictor(hgx(SLOW_NODE), replace(VERSION, algorithm="tree")).predict("all_reduce", GIB)
    assert (got.bottleneck, got.place.split(".")[0]) == ("NIC", "node3")


SMALL = [
    {"node": 3, "bandwidth_factor": 0.1},
    {"nic": [1, 0], "failed": True},
    {"link": ["node2.gpu1", "node2.gpu0"], "bandwidth_factor": 0.5},
    {"nic": [1, 1], "bandwidth_factor": 0.3},
]


@pytest.mark.parametrize("fault", SMALL)
@pytest.mark.parametrize("protocol", ["Simple", "LL"])
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "reduce_scatter"])
def test_every_message_by_the_event_engine_gives_the_same(
    fault: dict[str, Any], protocol: str, collective: str
) -> None:
    """Four nodes of two GPUs, each with a NIC: nothing is folded, every slice is an event."""
    topology = machine(preset="hgx-h100-4-ndr400", nodes=4, gpus_per_node=2, faults=[fault])
    options = replace(RING, protocol=protocol)
    folded, every = Predictor(topology, options), Predictor(topology, replace(options, engine="event"))
    for nbytes in (1 << 10, 1 << 20, 1 << 24):
        one, other = folded.predict(collective, nbytes), every.predict(collective, nbytes)
        assert (one.level, other.level) == ("wavefront", "event")
        assert one.kernel_s == pytest.approx(other.kernel_s, rel=1e-9)


places = st.sampled_from(
    [
        {"node": 2},
        {"nic": [0, 5]},
        {"link": ["leaf2.rail1", "spine0"]},
        {"link": ["node1.gpu4", "node1.nvswitch"]},
        {"link": ["node3.pcie6", "node3.nic6"]},
    ]
)
factors = st.floats(0.01, 1.0)


@settings(max_examples=15, deadline=None)
@given(places, factors, factors, st.sampled_from([64 << 10, 16 << 20, GIB]), st.sampled_from(["Simple", "LL128"]))
def test_the_slower_a_part_the_longer_a_ring_takes(
    place: dict[str, Any], one: float, other: float, nbytes: int, protocol: str
) -> None:
    options = replace(RING, protocol=protocol, channels=8)
    slow, fast = (
        Predictor(hgx(place | {"bandwidth_factor": factor}), options) for factor in sorted([one, other])
    )  # fmt: skip
    # NCCL searches its rings by the rates that it sees in a node: other rings are another choice.
    assume(slow.system.ring == fast.system.ring)
    assert slow.predict("all_reduce", nbytes).time_s >= fast.predict("all_reduce", nbytes).time_s * (1 - 1e-9)


def test_a_call_that_does_not_use_the_bad_nic_is_left_alone() -> None:
    options = replace(RING, channels=1)
    used = {nic for pair in Predictor(hgx(), options).system.ring.nics[:1] for nic in pair}
    assert 6 not in used
    bad = Predictor(hgx({"nic": [1, 6], "bandwidth_factor": 0.01}), options)
    healthy = Predictor(hgx(), options)
    for nbytes in (8, 1 << 20, 64 << 20):
        assert bad.predict("all_reduce", nbytes).time_s == healthy.predict("all_reduce", nbytes).time_s
    # All sixteen channels use it.
    assert seconds(hgx({"nic": [1, 6], "bandwidth_factor": 0.01}), RING) > 50 * seconds(hgx())


def test_the_same_question_has_the_same_answer() -> None:
    def asked() -> list[object]:
        model = Predictor(hgx(*FAULTS), VERSION)
        return [model.predict(name, n) for name in ("all_reduce", "broadcast", "all_to_all") for n in (1 << 10, GIB)]

    assert asked() == asked()


def test_two_faults_cost_at_least_as_much_as_the_worse() -> None:
    options = replace(RING, channels=16)
    alone = [seconds(hgx(fault), options) for fault in (SLOW_NODE, SLOW_UPLINK)]
    assert seconds(hgx(SLOW_NODE, SLOW_UPLINK), options) >= max(alone) * (1 - 1e-9)


@pytest.mark.parametrize("collective", ["scatter", "gather"])
def test_a_root_waits_for_the_slow_node_of_many_gpus(collective: str) -> None:
    """The root's nodes have two GPUs; NICs at a hundredth bring eight ranks what is theirs."""
    groups = [{"preset": "hgx-h100-ndr400", "nodes": 2, "gpus_per_node": 2}, {"preset": "dgx-1v-edr100", "nodes": 2}]
    fault = {"node": 3, "bandwidth_factor": 0.01}
    topology = machine(groups=groups, fabric={"kind": "single_switch", "network": "infiniband"}, faults=[fault])
    got = Predictor(topology, VERSION).predict(collective, 64 << 20)
    bound = lower_bound_s(collective, 64 << 20, topology)
    assert bound.seconds == pytest.approx((64 << 20) * 8 / 20 / (4 * 0.01 * 12.5e9), rel=0.01)
    assert bound.seconds < got.time_s < 1.5 * bound.seconds


def test_every_second_gpu_rings_over_the_nics_that_are_left() -> None:
    """Of four NICs three: 2 (n - 1) / n of the array leave the node over them, whichever has failed."""
    out, ranks = 2 * 15 / 16 * GIB / (0.95 * 50e9), list(range(0, 32, 2))
    for nic in (0, 4):
        topology = machine(preset="hgx-h100-ndr400", nodes=4, faults=[{"nic": [0, nic], "failed": True}])
        got = Predictor(topology, Options(version=(2, 26, 2), algorithm="ring"), ranks=ranks).predict("all_reduce", GIB)
        assert got.time_s == pytest.approx(out / 3, rel=0.05)


@pytest.mark.parametrize("nic", [1, 5])
def test_it_is_all_one_which_nic_has_failed(nic: int) -> None:
    times = []
    for dead in (0, nic):
        topology = machine(preset="hgx-h100-roce400", nodes=4, faults=[{"nic": [0, dead], "failed": True}])
        times.append(Predictor(topology, Options(version=(2, 26, 2))).predict("all_reduce", GIB).time_s)
    assert times[0] == pytest.approx(times[1])
