"""Knobs that change nothing say so, and only those."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commsim.errors import TopologyError
from commsim.topology.graph import Topology
from commsim.topology.idle import idle_knobs
from commsim.topology.presets import load_topology, topology_spec


def _machine(**described: Any) -> tuple[Topology, dict[tuple[str, ...], str]]:
    spec = topology_spec("test", {"preset": "hgx-h100-ndr400", **described})
    topology = load_topology(spec, Path())
    return topology, idle_knobs(spec, topology, Path())


ONE_LEAF = "all 4 nodes hang on one leaf of each rail (nodes_per_leaf: 32)"
TREE3 = {"kind": "fat_tree", "levels": 3, "nodes_per_leaf": 1}


@pytest.mark.parametrize(
    ("described", "knob", "why"),
    [
        ({"nodes": 4, "oversubscription": 64}, "oversubscription", f"{ONE_LEAF}; set nodes_per_leaf below 4 to see it"),
        ({"nodes": 4, "fabric": {"oversubscription": 2}}, "fabric.oversubscription", ONE_LEAF),
        ({"nodes": 4, "nodes_per_leaf": 8}, "nodes_per_leaf", "one leaf of each rail (nodes_per_leaf: 8)"),
        ({"nodes": 4, "fabric": {"kind": "fat_tree", "spines": 4}}, "fabric.spines", "all 4 nodes hang on one leaf ("),
        ({"nodes": 4, "fabric": {"rails": 4}}, "fabric.rails", "messages stay on their rail"),
        ({"nodes": 4, "fabric": {"cable_latency": "1 us"}}, "fabric.cable_latency", ONE_LEAF),
        ({"nodes": 1, "oversubscription": 2}, "oversubscription", "one node has no network"),
        ({"nodes": 4, "fabric": TREE3 | {"core_oversubscription": 4}}, "fabric.core_oversubscription",
         "all 4 groups of leaves are one pod; set leaves_per_pod below 4"),
        ({"nodes": 4, "nodes_per_leaf": 1, "fabric": {"spines": 4, "routing": "spray"}}, "fabric.spines",
         "spray makes one of equal paths"),
        ({"nodes": 4, "fabric": {"hash_seed": 3}}, "fabric.hash_seed", "routing: shortest has no hash"),
        ({"nodes": 4, "fabric": {"kind": "single_switch", "nodes_per_leaf": 2}}, "fabric.nodes_per_leaf",
         "one switch holds all 4 nodes; set fabric.kind to fat_tree"),
        ({"nodes": 4, "fabric": {"kind": "dragonfly", "link_bandwidth": "50 GB/s", "global_bandwidth": "5 GB/s"}},
         "fabric.global_bandwidth", "set leaves_per_group below"),
    ],
)  # fmt: skip
def test_a_knob_without_effect_is_named_with_what_to_set(described: dict[str, Any], knob: str, why: str) -> None:
    _, idle = _machine(**described)
    assert why in idle[tuple(knob.split("."))]
    assert idle[tuple(knob.split("."))].startswith("has no effect: ")


@pytest.mark.parametrize(
    "described",
    [
        {"nodes": 4, "oversubscription": 64, "nodes_per_leaf": 2},
        {"nodes": 4, "oversubscription": 1},  # asks for nothing
        {"nodes": 40, "oversubscription": 2},
        {"nodes": 40, "nodes_per_leaf": 64},  # two groups of leaves without it
        {"nodes": 4, "fabric": TREE3 | {"core_oversubscription": 4, "leaves_per_pod": 2}},
        {"nodes": 4, "nodes_per_leaf": 1, "fabric": {"spines": 4, "routing": "ecmp", "hash_seed": 3}},
        {"nodes": 4},
    ],
)
def test_a_knob_that_is_felt_is_not(described: dict[str, Any]) -> None:
    assert _machine(**described)[1] == {}


def _same(one: Topology, other: Topology) -> bool:
    """Whether all messages between two ranks take the same links, of the same rates."""
    n = one.world_size
    src, dst = (x.ravel() for x in np.meshgrid(np.arange(n), np.arange(n)))
    a, b = one.routes(src, dst), other.routes(src, dst)

    def felt(topology: Topology, table: Any) -> list[Any]:
        return [topology.link_bandwidth[table.link], topology.link_latency[table.link], table.ptr]

    return all(np.array_equal(x, y) for x, y in zip(felt(one, a), felt(other, b), strict=True))


def test_no_route_feels_a_knob_that_is_called_idle() -> None:
    """Over trees of every shape: a machine without the knob has the same links on all ways."""
    tried = 0
    kinds = ("rail_fat_tree", "fat_tree", "rail_only", "single_switch")
    knobs = {
        "oversubscription": 4, "spines": 3, "levels": 3, "leaves_per_pod": 2, "cores": 4, "core_oversubscription": 2,
        "cable_latency": "3 us", "rails": 2, "nodes_per_leaf": 8, "hash_seed": 5,
    }  # fmt: skip
    for kind, nodes, per_leaf, (knob, value) in product(kinds, (2, 6), (None, 1, 3), knobs.items()):
        base: dict[str, Any] = {"kind": kind}
        if per_leaf is not None and kind != "single_switch":
            base["nodes_per_leaf"] = per_leaf
        if knob in {"leaves_per_pod", "cores", "core_oversubscription"}:
            base["levels"] = 3
        try:
            with_it, idle = _machine(nodes=nodes, gpus_per_node=4, nics_per_node=4, fabric=base | {knob: value})
            base.pop(knob, None)
            without, _ = _machine(nodes=nodes, gpus_per_node=4, nics_per_node=4, fabric=base)
        except TopologyError:
            continue  # the kind has not what is asked for
        if ("fabric", knob) in idle:
            tried += 1
            assert _same(with_it, without), (base, knob, nodes)
    assert tried > 40
