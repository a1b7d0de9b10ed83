"""Networks of topologies and of plain links: capacities by hand, what is left out, and clear errors."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import TopologyError
from commsim.synthesis.machine import machine_network
from commsim.synthesis.network import Link, network_of
from commsim.synthesis.rates import exact, in_units
from commsim.topology.faults import degraded
from commsim.topology.kinds import VertexKind
from commsim.topology.presets import load_preset
from commsim.topology.spec import FaultSpec


def both(a: str, b: str, rate: float) -> list[Link]:
    return [(a, b, rate, 0.0), (b, a, rate, 0.0)]


def test_an_nvswitch_node_is_a_star() -> None:
    network = machine_network(load_preset("hgx-h100"))
    assert (network.n, network.vertices, network.edges) == (8, 9, 16)
    assert set(network.capacity.tolist()) == {1}
    assert network.unit == 18 * 25_000_000_000


def test_several_nodes_have_their_nics_and_pcie() -> None:
    network = machine_network(load_preset("hgx-h100-ndr400", nodes=2))
    assert (network.kind == VertexKind.NIC).sum() == 16
    at_ranks = network.given_out[network.ranks]
    assert len(set(at_ranks.tolist())) == 1
    assert (network.given_out == network.taken_in).all()


def test_ranks_of_one_node_of_many_meet_over_their_nvlinks_only() -> None:
    network = machine_network(load_preset("hgx-h100-ndr400", nodes=4), [9, 12, 15])
    assert [network.vertex[v] for v in network.ranks] == ["node1.gpu1", "node1.gpu4", "node1.gpu7"]
    assert network.vertices == 4


def test_switches_act_where_the_machine_says_so() -> None:
    plain = load_preset("hgx-h100-ndr400", nodes=2)
    assert not machine_network(plain).copies.any()
    acting = machine_network(plain, in_network=True)
    assert acting.kind[acting.adds].tolist() == [VertexKind.NVSWITCH] * 2
    old = machine_network(load_preset("dgx-a100-hdr200", nodes=2), in_network=True)
    assert not old.copies.any()


def test_what_failed_is_not_there_nor_what_it_leaves_alone() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    hurt = degraded(topology, [FaultSpec(nic=(1, 3), failed=True)])
    names = set(machine_network(topology).vertex) - set(machine_network(hurt).vertex)
    assert names == {"node1.nic3", "leaf0.rail3", "node0.nic3"}


def test_parallel_links_are_one_edge() -> None:
    network = network_of([*both("a", "b", 1e9), ("a", "b", 2e9, 3e-6)], ["a", "b"])
    assert dict(zip(network.tail.tolist(), network.capacity.tolist(), strict=True)) == {0: 3, 1: 1}
    assert network.latency[0] == 3e-6
    assert network.links == ()


def test_dead_ends_are_left_out() -> None:
    links = [*both("a", "s", 1e9), *both("b", "s", 1e9), *both("s", "t", 1e9), *both("t", "u", 1e9)]
    assert network_of(links, ["a", "b"]).vertex == ("a", "b", "s")


@pytest.mark.parametrize(
    ("links", "ranks", "message"),
    [
        (both("a", "b", 1e9), ["a", "b", "c"], r"no way from rank 0 \(a\) to rank 2 \(c\)"),
        ([("a", "b", 1e9, 0.0)], ["a", "b"], r"no way to rank 0 \(a\) from rank 1 \(b\)"),
        (both("a", "b", 0.0), ["a", "b"], r"the link a -> b carries 0.0 bytes/s, expected more than none"),
        (both("a", "b", 1.0), ["a", "a"], "named twice"),
        ([("a", "a", 1.0, 0.0)], ["a"], "joins a vertex to itself"),
        ([], [], "at least one rank"),
    ],
)
def test_bad_input(links: list[Link], ranks: list[str], message: str) -> None:
    with pytest.raises(TopologyError, match=message):
        network_of(links, ranks)


@pytest.mark.parametrize("ranks", [[], [0, 0], [0, 99]])
def test_bad_ranks(ranks: list[int]) -> None:
    with pytest.raises(TopologyError, match=r"expected different ranks within 0\.\.15, found"):
        machine_network(load_preset("hgx-h100-ndr400", nodes=2), ranks)


@pytest.mark.parametrize(
    ("rate", "meant"),
    [(12.5e9, 12_500_000_000), (100e9 / 3, Fraction(100_000_000_000, 3)), (50e9 * 0.37, 18_500_000_000)],
)
def test_rates_are_what_was_meant(rate: float, meant: Fraction | int) -> None:
    assert exact(rate) == meant


@given(st.lists(st.fractions(min_value=Fraction(1, 6), max_value=1000, max_denominator=6), min_size=1))
def test_units_divide_all_rates(rates: list[Fraction]) -> None:
    units, unit = in_units(rates)
    assert [int(k) * unit for k in units] == rates
