"""Trees packed up to the limit, on networks by hand and random ones."""

from __future__ import annotations

import numpy as np
import pytest
from flow_networks import networks
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.synthesis.arborescence import PricedWays
from commsim.synthesis.exchange import PathPacking
from commsim.synthesis.flat import flatten, forest_of
from commsim.synthesis.forest import Tree
from commsim.synthesis.limit import limit_of
from commsim.synthesis.network import FlowNetwork, network_of
from commsim.synthesis.packing import Demand, Packing

RING = [(f"g{i}", f"g{(i + k) % 4}", 1, 0.0) for i in range(4) for k in (1, 3)]


def demand(collective: str, n: int) -> Demand:
    even, none = np.full(n, 1 / n), np.zeros(n)
    return {
        "all_gather": Demand(even, none),
        "reduce_scatter": Demand(none, even),
        "broadcast": Demand(np.eye(n)[0], none),
        "all_reduce": Demand(even, even, free=True),
    }[collective]


def reaches_all(tree: Tree, n: int) -> bool:
    """Whether the branches lead from the root to every rank, each once."""
    seen = [tree.root]
    for branch in tree.branches:
        near, far = (branch.dst, branch.src) if tree.into else (branch.src, branch.dst)
        assert near in seen
        assert far not in seen
        seen.append(far)
    return set(range(n)) <= set(seen)


@pytest.mark.parametrize(
    ("collective", "per_byte"),
    [("all_gather", 3 / 8), ("reduce_scatter", 3 / 8), ("broadcast", 1 / 2), ("all_reduce", 3 / 4)],
)
def test_a_ring_both_ways_is_filled(collective: str, per_byte: float) -> None:
    network = network_of(RING, [f"g{i}" for i in range(4)])
    packing = Packing(network, demand(collective, 4))
    packing.solve(gap=1e-9)
    assert packing.level * packing.byte_s == pytest.approx(per_byte, rel=1e-6)
    assert packing.bound <= packing.level * (1 + 1e-9)


@settings(max_examples=25, deadline=None)
@given(networks(6), st.sampled_from(["all_gather", "reduce_scatter", "broadcast", "all_reduce"]))
def test_trees_reach_the_limit_of_any_network(network: FlowNetwork, collective: str) -> None:
    limit = limit_of(network, collective)
    packing = Packing(network, demand(collective, network.n))
    packing.solve(gap=1e-6)
    reached = packing.level * packing.byte_s
    assert reached == pytest.approx(float(limit.per_byte_s), rel=1e-5)
    assert packing.bound * packing.byte_s <= float(limit.per_byte_s) * (1 + 1e-7)
    forest = forest_of(packing)
    assert forest.seconds_per_byte == pytest.approx(reached, rel=1e-4)
    assert all(reaches_all(tree, network.n) for tree in (*forest.out, *forest.into))


@settings(max_examples=15, deadline=None)
@given(networks(5))
def test_paths_of_all_pairs_reach_the_limit(network: FlowNetwork) -> None:
    n = network.n
    limit = limit_of(network, "all_to_all")
    packing = PathPacking(network, np.full((n, n), 1 / n))
    packing.solve(gap=1e-6)
    assert packing.level * packing.byte_s == pytest.approx(float(limit.per_byte_s), rel=1e-5)
    for tree in packing.trees:
        assert [b.src for b in tree.branches] == [tree.root, *(b.dst for b in tree.branches[:-1])]


def test_flat_trees_are_taken_where_the_level_allows_it() -> None:
    links = [(a, b, 1.0, 1e-6) for a in "abcd" for b in "abcd" if a != b]
    network = network_of(links, list("abcd"))
    packing = Packing(network, demand("all_gather", 4))
    packing.solve()
    forest = flatten(packing, network.latency, 1024, most=packing.level * 1.001)
    assert forest.depth == 1


def test_switches_that_copy_take_a_block_once() -> None:
    links = [(a, b, 1.0, 0.0) for rank in "abcd" for a, b in ((rank, "sw"), ("sw", rank))]
    network = network_of(links, list("abcd"), copies=["sw"])
    packing = Packing(network, demand("broadcast", 4), 1.0)
    packing.solve()
    assert packing.level == pytest.approx(1.0)
    plain = Packing(network_of(links, list("abcd")), demand("broadcast", 4))
    plain.solve(gap=1e-9)
    assert plain.level == pytest.approx(1.0)  # by ranks that pass on, each a part


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 7), st.randoms(use_true_random=False))
def test_the_cheapest_tree_is_no_dearer_than_any_other(n: int, chance: object) -> None:
    rng = np.random.default_rng(chance.randrange(2**30))  # type: ignore[attr-defined]
    names = [f"g{i}" for i in range(n)]
    pairs = [(a, b) for a in names for b in names if a != b]
    network = network_of([(a, b, 1.0, 0.0) for a, b in pairs], names)
    ways = PricedWays(network)
    ways.set(rng.integers(1, 9, network.edges).astype(float))
    parent = ways.cheapest(0)
    cost = float(sum(ways.cost[parent[v], v] for v in range(1, n)))
    for _ in range(50):
        order = [0, *(1 + rng.permutation(n - 1)).tolist()]
        other = sum(ways.cost[order[int(rng.integers(0, k))], order[k]] for k in range(1, n))
        assert cost <= other + 1e-9
