"""Choice among equal paths: hashes, spreading, routes of the user."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from machines import all_routes, assert_sound, small, switches

from commsim.errors import TopologyError
from commsim.topology.fabric_routes import mixed
from commsim.topology.graph import Topology

TREE: dict[str, Any] = {"kind": "rail_fat_tree", "nodes_per_leaf": 4, "spines": 4}


def spines(topology: Topology) -> Counter[str]:
    found: Counter[str] = Counter()
    for a in range(8):
        for b in range(8, topology.world_size):
            found[switches(topology, a, b)[1]] += 1
    return found


def test_the_hash_is_the_same_on_every_machine_and_run() -> None:
    keys = [np.array([0, 1, 2]), np.array([5, 5, 5])]
    assert mixed(keys, seed=0).tolist() == [224324754666920209, 2145321520441367916, 3075930317503023536]
    assert mixed(keys, seed=1).tolist() != mixed(keys, seed=0).tolist()


def test_ecmp_is_deterministic_and_its_seed_counts() -> None:
    one, two = small(8, **TREE, routing="ecmp"), small(8, **TREE, routing="ecmp")
    assert all_routes(one) == all_routes(two)
    assert all_routes(small(8, **TREE, routing="ecmp", hash_seed=7)) != all_routes(one)


def test_ecmp_collides_where_spreading_by_place_does_not() -> None:
    spread, hashed = spines(small(8, **TREE)), spines(small(8, **TREE, routing="ecmp"))
    assert sorted(spread.values()) == [16, 16, 16, 16]
    assert set(hashed) == set(spread)
    assert max(hashed.values()) > 16


def test_spraying_is_one_spine_as_wide_as_all() -> None:
    topology = small(8, **TREE, routing="spray")
    assert set(spines(topology)) == {"spine0"}
    assert topology.bisection_bandwidth() == small(8, **TREE).bisection_bandwidth()


def test_routes_of_the_user() -> None:
    routes = [
        {"ends": ["leaf0.rail0", "leaf1.rail0"], "via": ["spine3"]},
        {"ends": ["node0.nic1", "node7.nic1"], "via": ["spine2"], "one_way": True},
    ]
    topology = small(8, **TREE, routing="static", routes=routes)
    plain = small(8, **TREE)
    for a, b in ((0, 8), (2, 14), (14, 2)):
        assert switches(topology, a, b)[1] == "spine3"
    assert switches(topology, 1, 15) == ["leaf0.rail1", "spine2", "leaf1.rail1"]
    assert switches(topology, 15, 1) == switches(plain, 15, 1)
    assert switches(topology, 1, 13) == switches(plain, 1, 13)
    assert topology.period_ranks is None
    assert_sound(topology)


def test_a_long_way_round() -> None:
    routes = [{"ends": ["router0", "router1"], "via": ["router3", "router2"]}]
    topology = small(4, kind="torus", dimensions=[4], routing="static", routes=routes)
    assert switches(topology, 0, 2) == ["router0", "router3", "router2", "router1"]
    assert_sound(topology)


@pytest.mark.parametrize(
    ("routes", "match"),
    [
        ([{"ends": ["leaf0.rail0", "leaf1.rail0"], "via": ["leaf1.rail1"]}], "leaf0.rail0 and leaf1.rail1 are not l"),
        ([{"ends": ["leaf0.rail0", "leaf9.rail0"]}], "leaf9.rail0 is neither a switch nor a NIC"),
        ([{"ends": ["leaf0.rail0", "node0.gpu1"]}], "node0.gpu1 is neither a switch nor a NIC"),
        (
            [{"ends": ["leaf0.rail0", "leaf1.rail0"], "via": ["spine0", "leaf0.rail1", "spine0"]}],
            "passes spine0 twice",
        ),
        ([{"ends": ["leaf0.rail0"]}], "fabric.routes.0"),
        (None, "static and fabric.routes belong together"),
    ],
)
def test_routes_that_cannot_be(routes: Any, match: str) -> None:
    with pytest.raises(TopologyError, match=match):
        small(8, **TREE, routing="static", routes=routes)
