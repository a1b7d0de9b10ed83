"""Dragonflies and tori: wiring and hops by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from machines import assert_alike_both_ways, assert_sound, small, switches

from commsim.errors import TopologyError
from commsim.topology.graph import LinkKind, Topology
from commsim.topology.presets import load_preset


def fabric_hops(topology: Topology, src: int, dst: int) -> int:
    return int((topology.link_kind[topology.route(src, dst)] == LinkKind.FABRIC).sum())


def balanced(**more: object) -> Topology:
    """A dragonfly of 2 nodes per switch, 4 switches per group, 2 global ports each, 9 groups: all ports in use."""
    return small(72, kind="dragonfly", nics=1, nodes_per_leaf=2, leaves_per_group=4, global_links=1, **more)


def test_a_balanced_dragonfly() -> None:
    """Kim et al. 2008, section 3.1: a = 2p = 2h, g = ah + 1."""
    topology = balanced()
    wires = topology.link_src[topology.link_kind == LinkKind.FABRIC]
    ports = np.bincount(wires - topology.node_first_vertex[-1])
    assert ports.tolist() == [3 + 2] * 36
    assert len(wires) == 2 * (9 * 6 + 36)


def test_a_dragonfly_has_at_most_three_hops_between_switches() -> None:
    topology = balanced()
    hops = [fabric_hops(topology, 0, r) for r in range(0, 144, 2)]
    assert hops[:2] == [0, 0]
    assert hops[2:8] == [1] * 6
    assert sorted(set(hops[8:])) == [1, 2, 3]
    # Of 32 switches in other groups, 2 are across an own global port; 2 * 3 beyond them, 3 * 2 before others.
    assert [hops[8::2].count(h) for h in (1, 2, 3)] == [2, 12, 18]


def test_bisection_of_a_dragonfly() -> None:
    """4 x 4 pairs of 8 groups, one global link of 50 GB/s each."""
    topology = small(64, kind="dragonfly", nics=1, nodes_per_leaf=2, leaves_per_group=4, global_links=1)
    assert topology.bisection_bandwidth() == pytest.approx(16 * 50e9)


def test_among_parallel_global_links_the_nearest_is_taken() -> None:
    topology = small(8, kind="dragonfly", nics=1, nodes_per_leaf=1, leaves_per_group=4, global_links=4)
    assert [fabric_hops(topology, 0, 2 * r) for r in range(4, 8)] == [1, 2, 2, 2]
    assert switches(topology, 0, 8) == ["group0.switch0", "group1.switch0"]


def test_spraying_merges_the_links_of_a_group() -> None:
    topology = small(
        *(8,), kind="dragonfly", nics=1, nodes_per_leaf=1, leaves_per_group=4, global_links=4, routing="spray"
    )
    assert switches(topology, 0, 2) == ["group0.switch0", "group0", "group0.switch1"]
    assert switches(topology, 0, 8) == ["group0.switch0", "group0", "group1", "group1.switch0"]
    inside, across = topology.route(0, 2), topology.route(0, 8)
    assert topology.link_bandwidth[inside[3]] == 3 * 50e9  # three local links
    assert topology.link_bandwidth[across[3:5]].tolist() == [4 * 50e9, 4 * 50e9]  # and one global; four in all


def test_latencies_of_sprayed_and_wired_hops() -> None:
    fabric = {"kind": "dragonfly", "nics": 1, "nodes_per_leaf": 1, "leaves_per_group": 4, "global_links": 1}
    wired, sprayed = small(12, **fabric), small(12, **fabric, routing="spray")

    def seconds(topology: Topology, dst: int) -> float:
        return float(topology.link_latency[topology.route(0, dst)].sum())

    assert seconds(wired, 2) == pytest.approx(seconds(sprayed, 2))
    longest = max(range(8, 24, 2), key=lambda r: fabric_hops(wired, 0, r))
    assert fabric_hops(wired, 0, longest) == 3
    assert seconds(wired, longest) == pytest.approx(seconds(sprayed, longest))


def test_the_shipped_dragonfly_is_one_group_up_to_128_nodes() -> None:
    topology = load_preset("gh200x4-dragonfly200", nodes=64)
    assert topology.bisection_bandwidth() == load_preset("gh200x4-slingshot200", nodes=64).bisection_bandwidth()
    assert "group1" not in topology.vertex_name
    assert "group1" in load_preset("gh200x4-dragonfly200", nodes=129).vertex_name


@pytest.mark.parametrize("routing", ["shortest", "ecmp", "spray", "rail"])
@pytest.mark.parametrize(("nodes", "links"), [(4, 2), (8, 3), (12, 2), (7, 1)])
def test_dragonflies_are_sound(nodes: int, links: int, routing: str) -> None:
    topology = small(nodes, kind="dragonfly", nodes_per_leaf=1, leaves_per_group=4, global_links=links, routing=routing)
    assert topology.period_ranks == {4: 2, 8: 8, 12: 8, 7: None}[nodes]
    assert_sound(topology)
    assert_alike_both_ways(topology)


# -- torus ------------------------------------------------------------------


def test_dimension_order() -> None:
    topology = small(12, kind="torus", dimensions=[3, 4])
    steps = ["router0.0", "router1.0", "router1.1", "router1.2"]
    assert switches(topology, 0, 2 * 6) == steps
    assert switches(topology, 0, 2 * 11) == ["router0.0", "router2.0", "router2.3"]  # the short way round


@given(st.lists(st.integers(1, 5), min_size=1, max_size=3).filter(lambda s: 1 < int(np.prod(s)) <= 30), st.data())
@settings(max_examples=30)
def test_hops_of_a_torus(sizes: list[int], data: st.DataObject) -> None:
    nodes = int(np.prod(sizes))
    topology = small(nodes, kind="torus", dimensions=sizes, nics=1)
    node = st.integers(0, nodes - 1)
    a, b = data.draw(node), data.draw(node)
    apart = np.abs(np.array(np.unravel_index(a, sizes)) - np.array(np.unravel_index(b, sizes)))
    assert fabric_hops(topology, 2 * a, 2 * b) == int(np.minimum(apart, np.array(sizes) - apart).sum())


@pytest.mark.parametrize(
    ("dimensions", "links"), [([4, 4], 2 * 4 * 2), ([4, 4, 4], 2 * 16 * 2), ([6], 2), ([2, 3], 3), ([8, 2], 4)]
)
def test_bisection_of_a_torus(dimensions: list[int], links: int) -> None:
    """The cut through the first dimension, twice where it closes: of 4 x 4, 8 links of 50 GB/s one way."""
    nodes = int(np.prod(dimensions))
    topology = small(nodes, kind="torus", dimensions=dimensions, link_bandwidth="1 GB/s")
    cut = 2 * nodes // dimensions[0] if dimensions[0] > 2 else nodes // dimensions[0]
    assert topology.bisection_bandwidth() == pytest.approx(cut * 1e9)
    del links


@pytest.mark.parametrize("routing", ["shortest", "ecmp"])
@pytest.mark.parametrize(("dimensions", "period"), [([6], 2), ([3, 4], 8), ([2, 2, 2], 8), ([1, 5], None)])
def test_tori_are_sound(dimensions: list[int], period: int | None, routing: str) -> None:
    topology = small(int(np.prod(dimensions)), kind="torus", dimensions=dimensions, routing=routing)
    assert topology.period_ranks == period
    assert_sound(topology)
    assert_alike_both_ways(topology)


@pytest.mark.parametrize(("number", "nodes", "shape"), [(2, 64, "8.8"), (3, 64, "4.4.4"), (2, 7, "7.1"), (3, 100, "")])
def test_a_number_of_dimensions_gives_the_shape_nearest_to_a_cube(number: int, nodes: int, shape: str) -> None:
    topology = small(nodes, kind="torus", dimensions=number)
    last = [int(c) + 1 for c in topology.vertex_name[-1].removeprefix("router").split(".")]
    assert int(np.prod(last)) == nodes
    assert not shape or last == [int(c) for c in shape.split(".")]


@pytest.mark.parametrize(
    ("fabric", "match"),
    [({"dimensions": [3, 3]}, "3x3 has 9 nodes, found 8"), ({"routing": "spray"}, "cannot be merged into one")],
)
def test_tori_that_cannot_be(fabric: dict[str, object], match: str) -> None:
    with pytest.raises(TopologyError, match=match):
        small(8, kind="torus", **fabric)
