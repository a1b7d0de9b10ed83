"""Thin fabrics and meshes: all_to_all pays for what leaves the leaf, rings do not; nothing passes a cut unpaid."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from commsim.bounds import lower_bound_s
from commsim.collectives.tree import double_binary_tree
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset, load_topology
from commsim.topology.spec import TopologySpec

GIB = 2**30


def seconds(collective: str, nodes: int, oversubscription: float) -> tuple[float, str]:
    spec = TopologySpec(preset="hgx-h100-ndr400", nodes=nodes, oversubscription=oversubscription)
    found = Predictor(load_topology(spec, Path()), Options(version=(2, 26, 2))).predict(collective, GIB)
    return found.time_s, found.bottleneck


def test_all_to_all_slows_with_the_uplinks_once_they_are_the_narrowest() -> None:
    free, half, quarter = (seconds("all_to_all", 64, f) for f in (1, 2, 4))
    assert free[1] != "leaf uplinks"
    assert quarter[1] == "leaf uplinks"
    assert free[0] <= half[0] < quarter[0]
    # 32 of 63 other nodes lie beyond the leaf: at 4:1 their share takes 4 x 32/63 of what the NICs take.
    assert quarter[0] / free[0] == pytest.approx(4 * 32 / 63, rel=0.25)


def test_under_one_leaf_and_in_rings_nothing_changes() -> None:
    assert seconds("all_to_all", 32, 4) == seconds("all_to_all", 32, 1)
    assert seconds("all_gather", 64, 4) == seconds("all_gather", 64, 1)


@pytest.mark.parametrize(
    ("preset", "nodes", "bottleneck"), [("dgx-1v", 1, "NVLink"), ("torus-2d-example", 2, "fabric")]
)
@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "all_to_all", "send_recv"])
def test_no_call_is_quicker_than_the_cut_of_a_mesh_or_torus(
    preset: str, nodes: int, bottleneck: str, collective: str
) -> None:
    topology = load_topology(TopologySpec(preset=preset, nodes=nodes), Path())
    found = Predictor(topology, Options(version=(2, 26, 2))).predict(collective, GIB)
    assert found.time_s > lower_bound_s(collective, GIB, topology).seconds
    if collective == "all_to_all":
        assert found.bottleneck == bottleneck


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "all_to_all"])
def test_no_call_is_quicker_than_the_narrow_links_between_groups_of_a_dragonfly(collective: str) -> None:
    """32 nodes in groups, each joined with the others by one link of 10 Gb/s."""
    fabric = {"routing": "shortest", "leaves_per_group": 2, "global_links": 1, "global_bandwidth": "10 Gb/s"}
    topology = load_preset("gh200x4-dragonfly200", nodes=32, fabric=fabric)
    made = Predictor(topology, Options(version=(2, 26, 2))).predict(collective, GIB)
    assert made.time_s > lower_bound_s(collective, GIB, topology).seconds
    assert made.bottleneck == "fabric"


def test_a_mesh_that_joins_all_pairs_equally_is_bound_by_its_ports_alone() -> None:
    topology = load_topology(TopologySpec(preset="gh200x4"), Path())
    ports = 3 * topology.pair_links(0, 1) * topology.nvlink_link_bandwidth
    found = Predictor(topology, Options(version=(2, 26, 2))).predict("all_to_all", GIB)
    assert found.busy_s == pytest.approx(0.75 * GIB / (ports * 0.85), rel=0.15)


@pytest.mark.parametrize("nodes", [16, 24])
def test_trees_pay_for_the_edges_that_can_be_counted_into_a_leaf(nodes: int) -> None:
    """Each edge of either tree carries half of the bytes each way, over uplinks as wide as one node's cards."""
    topology = load_preset("hgx-h100-ndr400", nodes=nodes, nodes_per_leaf=4, oversubscription=4)
    into = Counter[int]()
    for parent in double_binary_tree(nodes).parent:
        for child, above in enumerate(parent.tolist()):
            if above >= 0 and child // 4 != above // 4:
                into.update((child // 4, above // 4))
    least = max(into.values()) * GIB / 2 / (8 * 50e9)
    options = Options(version=(2, 26, 2), algorithm="nvls_tree")
    assert least < Predictor(topology, options).predict("all_reduce", GIB).time_s < 1.15 * least
