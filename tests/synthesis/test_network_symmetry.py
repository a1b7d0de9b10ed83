"""Moves of a network onto itself: that they are such, and that trees of one rank then serve as well as those of all."""

from __future__ import annotations

import numpy as np
import pytest
from flow_networks import networks
from hypothesis import given, settings

from commsim.synthesis.flat import forest_of
from commsim.synthesis.limit import limit_of
from commsim.synthesis.machine import machine_network
from commsim.synthesis.network import FlowNetwork, network_of
from commsim.synthesis.packing import Demand, Packing
from commsim.synthesis.programs import exchange_limit, reduce_spread_limit
from commsim.synthesis.symmetry import Symmetry, symmetry_of
from commsim.topology.presets import load_preset

RING = network_of([(f"g{i}", f"g{(i + 1) % 6}", 1, 0.0) for i in range(6)], [f"g{i}" for i in range(6)])


def held(network: FlowNetwork, symmetry: Symmetry) -> None:
    """Every move takes links to links that carry as much as late, and ranks to ranks."""
    for vertex, edge in zip(symmetry.vertex, symmetry.edge, strict=True):
        assert sorted(vertex) == list(range(network.vertices))
        assert sorted(edge) == list(range(network.edges))
        assert (vertex[network.tail] == network.tail[edge]).all()
        assert (vertex[network.head] == network.head[edge]).all()
        assert (network.capacity == network.capacity[edge]).all()
        assert (network.latency == network.latency[edge]).all()
        assert (network.rank_of[vertex[network.ranks]] >= 0).all()


def demand(collective: str, n: int) -> Demand:
    even, none = np.full(n, 1 / n), np.zeros(n)
    if collective == "all_reduce":
        return Demand(even, even, free=True)
    return Demand(none, even) if collective == "reduce_scatter" else Demand(even, none)


def test_a_ring_is_turned() -> None:
    symmetry = symmetry_of(RING)
    assert symmetry is not None
    assert symmetry.moves == 6
    assert symmetry.edge_class.tolist() == [0] * 6


@pytest.mark.parametrize(
    ("name", "nodes", "moves"),
    [("hgx-h100-ndr400", 4, 32), ("dgx-a100-hdr200", 2, 16), ("leonardo", 4, 16), ("gb200-nvl72", 2, 144)],
)
def test_all_ranks_of_a_healthy_machine_are_alike(name: str, nodes: int, moves: int) -> None:
    network = machine_network(load_preset(name, nodes=nodes))
    symmetry = symmetry_of(network)
    assert symmetry is not None
    assert symmetry.moves == moves == network.n
    held(network, symmetry)
    assert len(set(symmetry.vertex[:, network.ranks[0]].tolist())) == network.n


def test_spines_are_turned_as_their_leaves_are() -> None:
    """Two leaves of three ranks below three spines: the images of a way over one spine go over all."""
    links = [(f"g{3 * leaf + i}", f"leaf{leaf}", 1, 0.0) for leaf in range(2) for i in range(3)]
    links += [(f"leaf{leaf}", f"spine{k}", 1, 0.0) for leaf in range(2) for k in range(3)]
    both = links + [(b, a, rate, late) for a, b, rate, late in links]
    network = network_of(both, [f"g{i}" for i in range(6)])
    symmetry = symmetry_of(network)
    assert symmetry is not None
    held(network, symmetry)
    assert symmetry.moves == 6
    assert len(set(symmetry.edge_class.tolist())) == 4  # up and down, of ranks and of leaves


@settings(max_examples=60, deadline=None)
@given(networks(6))
def test_moves_of_any_network_are_moves(network: FlowNetwork) -> None:
    for root in (None, network.n - 1):
        symmetry = symmetry_of(network, root)
        if symmetry is not None:
            held(network, symmetry)
            if root is not None:
                assert symmetry.first[root] == root
                assert (symmetry.vertex[:, network.ranks[root]] == network.ranks[root]).all()


@pytest.mark.parametrize(
    ("name", "nodes", "root", "moves"),
    [("hgx-h100", 1, 5, 7), ("hgx-h100-ndr400", 4, 9, 3), ("gb200-nvl72", 2, 0, 17)],
)
def test_what_is_alike_to_a_root_need_not_be_counted_twice(name: str, nodes: int, root: int, moves: int) -> None:
    network = machine_network(load_preset(name, nodes=nodes))
    symmetry = symmetry_of(network, root)
    assert symmetry is not None
    assert symmetry.moves == moves
    held(network, symmetry)
    folded = Packing(network, Demand(np.eye(network.n)[root], np.zeros(network.n)), symmetry=symmetry)
    folded.solve(gap=1e-3)
    level = float(limit_of(network, "broadcast", root=root, latency=False).per_byte_s) / folded.byte_s
    assert level * (1 - 1e-9) <= folded.level <= level * (1 + 1e-3)
    forest = folded.moved(forest_of(folded))
    assert set(forest.roots) == {root}
    assert forest.seconds_per_byte == pytest.approx(folded.level * folded.byte_s, rel=1e-5)


def test_a_link_at_half_is_like_no_other() -> None:
    links = [(f"g{i}", f"g{(i + 1) % 6}", 1 if i else 0.5, 0.0) for i in range(6)]
    assert symmetry_of(network_of(links, [f"g{i}" for i in range(6)])) is None
    late = [(f"g{i}", f"g{(i + 1) % 6}", 1, 0.0 if i else 1e-6) for i in range(6)]
    assert symmetry_of(network_of(late, [f"g{i}" for i in range(6)])) is None


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter", "all_reduce"])
@pytest.mark.parametrize("machine", [("hgx-h100-ndr400", 2), ("dgx-1v-edr100", 1), ("leonardo", 2)])
def test_what_is_alike_need_not_be_counted_twice(machine: tuple[str, int], collective: str) -> None:
    network = machine_network(load_preset(machine[0], nodes=machine[1]))
    symmetry = symmetry_of(network)
    assert symmetry is not None
    folded = Packing(network, demand(collective, network.n), symmetry=symmetry)
    folded.solve(gap=1e-7)
    whole = Packing(network, demand(collective, network.n))
    whole.solve(gap=1e-4)
    assert folded.level <= whole.level * (1 + 1e-6)
    assert folded.level >= whole.bound * (1 - 1e-6)
    forest = folded.moved(forest_of(folded))
    assert forest.share.sum() == pytest.approx(1.0)
    assert forest.seconds_per_byte == pytest.approx(folded.level * folded.byte_s, rel=1e-5)
    carried = np.bincount(forest.roots, forest.share, network.n)
    if collective != "all_reduce":
        assert carried == pytest.approx(np.full(network.n, 1 / network.n))


@pytest.mark.parametrize("machine", [("hgx-h100-ndr400", 2), ("dgx-1v", 1), ("oci-a100", 1), ("leonardo", 2)])
def test_limits_of_what_is_alike_are_those_of_the_whole(machine: tuple[str, int]) -> None:
    network = machine_network(load_preset(machine[0], nodes=machine[1]))
    symmetry = symmetry_of(network)
    assert symmetry is not None
    sent = np.full((network.n, network.n), 1 / network.n)
    whole, folded = exchange_limit(network, sent), exchange_limit(network, sent, symmetry)
    assert folded.rate == pytest.approx(whole.rate, rel=1e-9)
    assert whole.flow is not None
    assert folded.flow is not None
    for flow in (whole.flow, folded.flow):  # what comes out is what was asked for, within what links carry
        assert (flow.sum(axis=0) <= network.capacity * (1 + 1e-7)).all()
        into = np.array([flow[:, network.head == v].sum(axis=1) for v in network.ranks]).T
        out = np.array([flow[:, network.tail == v].sum(axis=1) for v in network.ranks]).T
        due = folded.rate * (sent - np.eye(network.n))
        np.testing.assert_allclose(into - out, due, atol=1e-6 * network.capacity.max())
    assert reduce_spread_limit(network, symmetry).rate == pytest.approx(reduce_spread_limit(network).rate, rel=1e-9)


def test_limits_of_larger_machines_count_what_is_alike_once() -> None:
    network = machine_network(load_preset("oci-a100", nodes=4))
    limit = limit_of(network, "all_reduce")
    phases = [limit_of(network, phase).bandwidth_s(1 << 30) for phase in ("reduce_scatter", "all_gather")]
    assert limit.by == "program"
    assert limit.bandwidth_s(1 << 30) == pytest.approx(sum(phases), rel=1e-6)  # its cuts are 4 % below
