"""What channels get of NICs and of the fabric, by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machines import machine, small

from commsim.nccl.communicator import communicator
from commsim.nccl.pools import spread
from commsim.nccl.streams import _nics, stream_ways, streams
from commsim.nccl.system import Graph
from commsim.topology.graph import Topology
from commsim.topology.kinds import Float64, LinkKind

ONE_EACH = ((0, 0), (1, 1))


def ring(nics: tuple[tuple[int, int], ...] = ONE_EACH, cross_nic: int = 0) -> Graph:
    """A graph of rings whose channels enter and leave nodes by these NICs."""
    return Graph(len(nics), 20.0, 20.0, "RING", "NVL", "PIX", cross_nic=cross_nic, nics=nics)


def shares(topology: Topology, graph: Graph | None = None, *, trees: bool = False) -> tuple[Float64, list[str]]:
    """Of each node's way to the next the least share of its channels, and the name of the link."""
    here = np.arange(topology.nodes)
    graph = graph or ring()
    comm = communicator(topology)
    meeting = np.ones(topology.nodes, np.int64) if trees else None
    between = streams(comm, [graph] * len(comm.kinds), here, np.roll(here, -1), meeting)
    share, link = between.of(graph.channels)
    return share, [topology.link_name(int(i)) for i in link]


@pytest.mark.parametrize("routing", ["shortest", "ecmp", "spray"])
@pytest.mark.parametrize("kind", ["single_switch", "fat_tree", "rail_fat_tree"])
def test_of_a_healthy_machine_that_never_blocks_each_channel_has_all(kind: str, routing: str) -> None:
    fabric: dict[str, Any] = {"kind": kind}
    if kind != "single_switch":
        fabric |= {"nodes_per_leaf": 1, "oversubscription": 1.0, "routing": routing, "spines": 1}
    share, _ = shares(small(4, **fabric))
    assert share.tolist() == [1.0] * 4


def test_a_port_at_a_tenth_gives_a_tenth_to_what_passes_it() -> None:
    share, link = shares(small(4, kind="single_switch", faults=[{"nic": [2, 1], "bandwidth_factor": 0.1}]))
    assert share == pytest.approx([1.0, 0.1, 0.1, 1.0])
    assert link[1:3] == ["switch -> node2.nic1", "node2.nic1 -> switch"]
    by_the_other, _ = shares(
        small(4, kind="single_switch", faults=[{"nic": [2, 1], "bandwidth_factor": 0.1}]), ring(((0, 0), (0, 0)))
    )
    assert by_the_other.tolist() == [1.0] * 4


def two_leaves(routing: str, **more: Any) -> Topology:
    """Four nodes of two NICs under two leaves, each with two uplinks of 50 GB/s to two spines: what two NICs carry."""
    fabric = {"nodes_per_leaf": 2, "spines": 2, "routing": routing, "oversubscription": 2.0}
    return small(4, kind="fat_tree", **fabric, **more)


def uplinks(topology: Topology) -> list[tuple[set[str], set[int]]]:
    """Of each edge that leaves a leaf the uplinks of its streams and how many streams those have."""
    here = np.arange(topology.nodes)
    ways = stream_ways(communicator(topology), [ring()], here, np.roll(here, -1))
    out = []
    for edge in (1, 3):
        links = ways.links[ways.edge == edge]
        up = [int(i) for i in links[links >= 0] if topology.link_name(int(i)).startswith(f"leaf{edge // 2} -> spine")]
        out.append(({topology.link_name(i) for i in up}, {up.count(i) for i in up}))
    return out


def test_streams_that_a_hash_puts_on_one_uplink_share_it() -> None:
    topology = two_leaves("ecmp")
    met = uplinks(topology)
    share, link = shares(topology)
    assert share[[0, 2]].tolist() == [1.0, 1.0]  # under their leaf
    for edge, (names, streams_of) in zip((1, 3), met, strict=True):
        assert share[edge] == pytest.approx(1.0 / max(streams_of))
        if len(names) == 1:
            assert link[edge] in names
    assert any(len(names) == 1 for names, _ in met), "the hash parts them all: this shows nothing"


@pytest.mark.parametrize("routing", ["shortest", "spray"])
def test_else_a_leaf_shares_all_its_uplinks(routing: str) -> None:
    assert shares(two_leaves(routing))[0].tolist() == [1.0] * 4
    # A fourth of the uplinks: two streams of 50 GB/s over 25 GB/s.
    thin = small(4, kind="fat_tree", nodes_per_leaf=2, spines=2, routing=routing, oversubscription=8.0)
    share, link = shares(thin)
    assert share == pytest.approx([1.0, 0.25, 1.0, 0.25])
    assert link[1].startswith("leaf0 -> spine") or link[1].endswith("-> leaf1")


def test_an_uplink_at_a_quarter_slows_what_passes_it() -> None:
    """One spine carries both NICs of a node out of a leaf; slowed, its link leaves a quarter of each."""
    fault = {"link": ["leaf0", "spine0"], "bandwidth_factor": 0.25}
    share, link = shares(small(4, kind="fat_tree", nodes_per_leaf=2, spines=1, oversubscription=2.0, faults=[fault]))
    assert share == pytest.approx([1.0, 0.25, 1.0, 0.25])
    assert link[1] == "leaf0 -> spine0"
    assert link[3] == "spine0 -> leaf0"


def test_an_uplink_with_room_to_spare_may_lose_the_spare() -> None:
    """Two nodes hang on a leaf, of which a ring takes one out and one in: half of the uplink is enough."""
    fault = {"link": ["leaf0", "spine0"], "bandwidth_factor": 0.5}
    for routing in ("ecmp", "shortest"):
        fabric = {"nodes_per_leaf": 2, "spines": 1, "oversubscription": 1.0, "routing": routing}
        assert shares(small(4, kind="fat_tree", **fabric, faults=[fault]))[0].tolist() == [1.0] * 4


def test_trees_share_what_the_fabric_leaves_of_their_nics() -> None:
    """A slow port is the node's, not the way's: `Ways.ports` has it."""
    slow = small(4, kind="single_switch", faults=[{"nic": [2, 1], "bandwidth_factor": 0.1}])
    assert shares(slow, trees=True)[0].tolist() == [1.0] * 4
    thin = small(4, kind="fat_tree", nodes_per_leaf=1, spines=1, oversubscription=4.0)
    assert shares(thin, trees=True)[0] == pytest.approx([0.25] * 4)


def test_what_a_dead_nic_carried_goes_by_another() -> None:
    dead = small(4, kind="single_switch", faults=[{"nic": [2, 1], "failed": True}])
    comm = communicator(dead)
    graphs = [ring() if kind.usable_nics[0].all() else ring(((0, 0), (0, 0))) for kind in comm.kinds]
    ways = stream_ways(comm, graphs, np.array([1, 2]), np.array([2, 3]))
    load = ways.load(ways.weight, dead.link_bandwidth.size)
    carried = {dead.link_name(int(i)): float(load[i]) for i in np.flatnonzero(load)}
    assert carried["switch -> node2.nic0"] == 2.0
    assert carried["node2.nic0 -> switch"] == 2.0
    assert not any("node2.nic1" in name for name in carried)


def test_even_rings_that_cross_nics_change_places_on_every_other_node() -> None:
    comm = communicator(small(4, kind="single_switch"))
    enter, leave = _nics(comm, [ring(((0, 1), (1, 0)), cross_nic=2)], 2)
    assert enter.tolist() == [[0, 1], [1, 0], [0, 1], [1, 0]]
    assert leave.tolist() == [[1, 0], [0, 1], [1, 0], [0, 1]]
    assert (leave == np.roll(enter, -1, axis=0)).all()  # all stay on their rails


@pytest.mark.parametrize(("nics", "cross_nic"), [(((0, 1), (1, 0), (0, 1)), 2), (((0, 1), (1, 0)), 1)])
def test_an_odd_number_of_rings_cannot_nor_can_single_ones(nics: tuple[tuple[int, int], ...], cross_nic: int) -> None:
    comm = communicator(small(4, kind="single_switch"))
    enter, leave = _nics(comm, [ring(nics, cross_nic)], len(nics))
    assert enter.tolist() == [[a for a, _ in nics]] * 4
    assert leave.tolist() == [[b for _, b in nics]] * 4


def test_where_no_nics_are_known_those_that_work_take_turns() -> None:
    topology = machine(
        preset="hgx-h100-ndr400", nodes=2, faults=[{"nic": [1, k], "failed": True} for k in (0, 2, 3, 4, 6, 7)]
    )
    comm = communicator(topology)
    unknown = Graph(4, 20.0, 20.0, "RING", "NVL", "PIX")
    enter, leave = _nics(comm, [unknown] * len(comm.kinds), 4)
    assert enter.tolist() == [[0, 1, 2, 3], [1, 5, 1, 5]]
    assert (enter == leave).all()


def test_bytes_that_may_go_by_several_uplinks_are_spread_and_kept() -> None:
    topology = two_leaves("shortest")
    here = np.arange(4)
    ways = stream_ways(communicator(topology), [ring()], here, np.roll(here, -1))
    load = ways.load(ways.weight, topology.link_bandwidth.size)
    even = spread(topology, load)
    fabric = topology.link_kind == LinkKind.FABRIC
    assert even[fabric].sum() == pytest.approx(load[fabric].sum())
    assert (even[~fabric] == load[~fabric]).all()
    up = {topology.link_name(int(i)): float(even[i]) for i in np.flatnonzero(fabric)}
    assert up["leaf0 -> spine0"] == up["leaf0 -> spine1"] == pytest.approx(1.0)
    assert (spread(two_leaves("ecmp"), load) == load).all()
