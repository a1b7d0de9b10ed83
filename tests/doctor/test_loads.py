"""What a test needs of each part: by hand, and max(1, load / share) against NCCL's predictor with the fault."""

from __future__ import annotations

import numpy as np
import pytest

from commsim.doctor.cluster import HostCluster
from commsim.doctor.forward import RING, Predicted, Unknown, forward_of, ring_time
from commsim.doctor.group_test import GroupTest, RingShape, Scope, loads, streams_out
from commsim.doctor.suspect import PartKind, Suspects, suspects_of
from commsim.errors import TopologyError
from commsim.nccl.predict import Options, Predictor
from commsim.topology.faults import degraded
from commsim.topology.presets import load_preset
from commsim.topology.spec import FaultSpec

MACHINE = "hgx-h100-ndr400"
CLUSTER = HostCluster(tuple(f"node{i}" for i in range(8)), 8, 8, np.arange(8) // 4, rails=True)
SUSPECTS = suspects_of(CLUSTER)
SPREAD = (0, 4, 1, 5, 2, 6, 3, 7)  # every neighbour under the other leaf
EVERY = tuple(range(8))


def at(place: PartKind, host: int = -1, part: int = -1, leaf: int = -1, s: Suspects = SUSPECTS) -> int:
    return int(np.flatnonzero((s.place == place) & (s.host == host) & (s.part == part) & (s.leaf == leaf))[0])


def load(test: GroupTest, suspect: int) -> float:
    return float(loads(test, SUSPECTS, Unknown().full(test.shape))[suspect])


def test_a_ring_leaves_a_leaf_as_often_as_its_neighbours_differ() -> None:
    assert streams_out(CLUSTER, EVERY).tolist() == [1, 1]
    assert streams_out(CLUSTER, SPREAD).tolist() == [4, 4]
    assert streams_out(CLUSTER, (0, 1)).tolist() == [0, 0]


def test_loads_by_hand() -> None:
    part = GroupTest("across", (0, 4), (0, 1), 1 << 30)
    assert load(part, at(PartKind.NODE, 0)) == load(part, at(PartKind.NIC, 4, 1)) == 1.0
    assert (
        load(part, at(PartKind.NIC, 4, 2))
        == load(part, at(PartKind.NODE, 1))
        == load(part, at(PartKind.LINK, 0, 0))
        == 0.0
    )
    assert load(part, at(PartKind.LEAF, part=1, leaf=1)) == 0.25  # one stream over uplinks for four hosts
    assert load(part, at(PartKind.LEAF, part=5, leaf=1)) == 0.0
    inside = GroupTest("inside", (0, 4), (0, 1), 1 << 30)
    assert load(inside, at(PartKind.LINK, 0, 1)) == 1.0
    assert load(inside, at(PartKind.LINK, 0, 2)) == load(inside, at(PartKind.NODE, 0)) == 0.0


def test_of_two_hosts_the_second_may_show_other_gpus() -> None:
    shifted = GroupTest("across", (0, 1), (0, 1), 1 << 30, shift=6)
    assert [load(shifted, at(PartKind.NIC, 1, nic)) for nic in EVERY] == [0, 0, 0, 0, 0, 0, 1, 1]
    assert [load(shifted, at(PartKind.NIC, 0, nic)) for nic in EVERY] == [1, 1, 0, 0, 0, 0, 0, 0]


FAULTS = {
    "node": (at(PartKind.NODE, 1), FaultSpec(node=1, bandwidth_factor=0.4)),
    "nic": (at(PartKind.NIC, 1, 2), FaultSpec(nic=(1, 2), bandwidth_factor=0.4)),
    "link": (at(PartKind.LINK, 1, 2), FaultSpec(link=("node1.gpu2", "node1.nvswitch"), bandwidth_factor=0.4)),
    "leaf": (
        at(PartKind.LEAF, part=2, leaf=0),
        FaultSpec(link=("leaf0.rail2", "spine0"), bandwidth_factor=0.4),
    ),
}


@pytest.mark.parametrize("scope", ["across", "inside", "all"])
@pytest.mark.parametrize("kind", list(FAULTS))
@pytest.mark.parametrize("share", [0.4, 0.1])
def test_the_table_is_what_the_predictor_says_of_the_whole_machine(scope: Scope, kind: str, share: float) -> None:
    """Within 10 % (8 at most, of shares from 5 to 75 %): tables come from one share, a quarter."""
    suspect, fault = FAULTS[kind]
    healthy = load_preset(MACHINE, nodes=8, nodes_per_leaf=4)
    broken = degraded(healthy, [fault.model_copy(update={"bandwidth_factor": share})])
    test = GroupTest(scope, SPREAD if scope == "across" else EVERY, EVERY, 1 << 30)
    slower = seconds(broken, test) / seconds(healthy, test)
    of = loads(test, SUSPECTS, Predicted(MACHINE, 8).full(test.shape))[suspect]
    assert max(1.0, of / share) == pytest.approx(slower, rel=0.1)


@pytest.mark.parametrize("scope", ["across", "all"])
@pytest.mark.parametrize("share", [0.5, 0.1])
def test_the_table_knows_that_a_long_ring_waits_for_latency(scope: Scope, share: float) -> None:
    healthy = load_preset(MACHINE, nodes=96)
    broken = degraded(healthy, [FaultSpec(node=50, bandwidth_factor=share)])
    test = GroupTest(scope, tuple(range(96)), (0,) if scope == "across" else EVERY, 1 << 30)
    slower = seconds(broken, test) / seconds(healthy, test)
    near = {"across": 0.05, "all": 0.14}[scope]
    assert max(1.0, Predicted(MACHINE, 8).full(test.shape)[PartKind.NODE] / share) == pytest.approx(slower, rel=near)


def seconds(topology: object, test: GroupTest) -> float:
    """The slowest communicator of a test on a topology, each predicted."""
    hosts, gpus = test.hosts, test.gpus
    groups = {
        "across": [[8 * host + gpu for host in hosts] for gpu in gpus],
        "inside": [[8 * host + gpu for gpu in gpus] for host in hosts],
        "all": [[8 * host + gpu for host in hosts for gpu in gpus]],
    }[test.scope]
    options = Options(env=dict(RING))
    return max(
        Predictor(topology, options, ranks=ranks).predict("all_reduce", test.nbytes).time_s  # type: ignore[arg-type]
        for ranks in groups
    )


def test_healthy_times_of_many_hosts_are_near_those_of_all_of_them() -> None:
    forward = Predicted(MACHINE, 8)
    for hosts in (48, 100):
        shape = RingShape("across", hosts, 8, "all_reduce", 1 << 30)
        whole = ring_time(load_preset(MACHINE, nodes=hosts), RingShape("across", hosts, 1, "all_reduce", 1 << 30))
        assert forward.expected_s(shape) == pytest.approx(whole, rel=0.02)


def test_a_machine_must_have_the_gpus_of_the_hosts() -> None:
    with pytest.raises(TopologyError, match="has 8 GPUs and 8 cards per node, the hosts 4 and 4"):
        forward_of(MACHINE, HostCluster(("a", "b"), 4, 4))
