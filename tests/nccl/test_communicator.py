"""Ranks as NCCL numbers them: the order of nodes, and which nodes are alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from machines import machine

from commsim.errors import TopologyError
from commsim.nccl.communicator import Comm, communicator
from commsim.topology.graph import Topology

HALF = {"bandwidth_factor": 0.5}
DEAD = {"failed": True}


def gpus_of(comm: Comm) -> tuple[tuple[int, ...], ...]:
    """Of each kind the places of its ranks in a node."""
    names = ([kind.vertex_name[v] for v in kind.rank_vertex[: kind.ranks_per_node]] for kind in comm.kinds)
    return tuple(tuple(int(name.split("gpu")[1]) for name in of) for of in names)


def hgx(*faults: dict[str, Any], nodes: int = 4, **more: Any) -> Topology:
    return machine(preset="hgx-h100-ndr400", nodes=nodes, faults=list(faults), **more)


def test_a_machine_of_alike_nodes_is_of_one_kind_which_is_itself() -> None:
    topology = hgx()
    for ranks in (None, range(32)):
        comm = communicator(topology, ranks)
        assert comm.plain
        assert comm.kinds == (topology,)
        assert comm.kind.tolist() == [0] * 4
        assert comm.counts.tolist() == [8] * 4


def test_nodes_come_in_the_order_of_their_first_ranks() -> None:
    comm = communicator(hgx(), [20, 3, 21, 2, 9])
    assert comm.nodes.tolist() == [2, 0, 1]
    assert gpus_of(comm)[comm.kind[0]] == (4, 5)
    assert gpus_of(comm)[comm.kind[1]] == (3, 2)
    assert gpus_of(comm)[comm.kind[2]] == (1,)
    assert comm.first_rank.tolist() == [0, 2, 4, 5]
    assert comm.node_of.tolist() == [0, 0, 1, 1, 2]
    assert comm.last.tolist() == [False, True, False, True, True]
    assert not comm.whole
    assert not comm.plain


def test_all_ranks_in_another_order_are_no_whole_machine() -> None:
    comm = communicator(hgx(nodes=2), [*range(8, 16), *range(8)])
    assert comm.nodes.tolist() == [1, 0]
    assert not comm.whole


@pytest.mark.parametrize(
    ("faults", "kind"),
    [
        ([{"nic": [1, 3], **HALF}], [0, 0, 0, 0]),  # a slow port is a way between nodes, not another node
        ([{"node": 3, **HALF}], [0, 0, 0, 0]),
        ([{"nic": [1, 3], **DEAD}], [0, 1, 0, 0]),
        ([{"nic": [1, 3], **DEAD}, {"nic": [2, 3], **DEAD}], [0, 1, 1, 0]),
        ([{"nic": [1, 3], **DEAD}, {"nic": [2, 4], **DEAD}], [0, 1, 2, 0]),
        ([{"link": ["node2.gpu1", "node2.nvswitch"], **HALF}], [0, 0, 1, 0]),
        ([{"link": ["node0.gpu1", "node0.nvswitch"], **HALF}], [0, 1, 1, 1]),
        ([{"link": [f"node{k}.gpu1", f"node{k}.nvswitch"], **HALF} for k in range(4)], [0, 0, 0, 0]),
        ([{"switch": "leaf0.rail2", **DEAD}], [0, 0, 0, 0]),
    ],
)
def test_nodes_are_of_one_kind_where_all_inside_and_their_nics_are_alike(
    faults: list[dict[str, Any]], kind: list[int]
) -> None:
    comm = communicator(hgx(*faults))
    assert comm.kind.tolist() == kind
    assert len(comm.kinds) == max(kind) + 1
    assert not comm.plain


def test_other_gpus_of_a_node_make_it_another_kind() -> None:
    assert gpus_of(communicator(hgx(), [0, 1, 8, 10])) == ((0, 1), (0, 2))
    assert gpus_of(communicator(hgx(), [0, 1, 8, 9])) == ((0, 1),)
    assert gpus_of(communicator(hgx(), [0, 1, 9, 8])) == ((0, 1), (1, 0))


@pytest.mark.parametrize("ranks", [[0, 0], [0, 32], [-1, 3]])
def test_a_rank_stands_once_and_is_there(ranks: list[int]) -> None:
    with pytest.raises(TopologyError, match=r"found a rank twice, or outside 0\.\.31"):
        communicator(hgx(), ranks)


def ways(topology: Topology, first_rank: int, ranks: np.ndarray) -> list[tuple[list[str], list[float], list[float]]]:
    """Names of the devices, rates and delays on the ways between ranks of one node."""
    out = []
    for a in ranks.tolist():
        for b in ranks.tolist():
            links = topology.route(first_rank + a, first_rank + b)
            names = [topology.vertex_name[v].split(".", 1)[1] for v in topology.link_dst[links]]
            out.append((names, topology.link_bandwidth[links].tolist(), topology.link_latency[links].tolist()))
    return out


def test_a_kind_has_the_ways_the_rates_and_the_failures_of_its_node() -> None:
    topology = hgx(
        {"link": ["node2.gpu1", "node2.nvswitch"], **HALF},
        {"link": ["node1.gpu5", "node1.nvswitch"], **DEAD},
        {"nic": [1, 3], **DEAD},
    )
    comm = communicator(topology)
    every = np.arange(8)
    for node in range(4):
        kind = comm.kinds[comm.kind[node]]
        assert kind.nodes == 2
        for copy in (0, 8):
            assert ways(kind, copy, every) == ways(topology, 8 * node, every)
        assert (kind.usable_nics == topology.usable_nics[node]).all()
    assert comm.kind.tolist() == [0, 1, 2, 0]
    assert comm.kinds[1].usable_nics[0].tolist() == [True] * 3 + [False] + [True] * 4
    assert comm.kinds[0].link_failed is None


def test_a_kind_of_some_gpus_has_the_ways_between_these() -> None:
    topology = hgx({"link": ["node1.gpu2", "node1.nvswitch"], **HALF})
    comm = communicator(topology, [10, 8, 14])
    gpus = np.array([2, 0, 6])
    assert [comm.kinds[0].vertex_name[v] for v in comm.kinds[0].rank_vertex] == [f"node0.gpu{g}" for g in gpus]
    assert ways(comm.kinds[0], 0, np.arange(3)) == ways(topology, 8, gpus)
