"""Trees: k-ary fat trees by hand, rail-only, planes, NVL72 racks, and their paths."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
from machines import assert_alike_both_ways, assert_sound, machine, path, small, switches

from commsim.errors import TopologyError
from commsim.topology.fabric import of_fewer_nics
from commsim.topology.graph import LinkKind, Topology, VertexKind
from commsim.topology.presets import load_preset
from commsim.topology.spec import FabricSpec


def switch_names(topology: Topology) -> list[str]:
    return [n for n, k in zip(topology.vertex_name, topology.vertex_kind, strict=True) if k == VertexKind.SWITCH]


def level(topology: Topology, word: str) -> int:
    return sum(word in n for n in switch_names(topology))


@pytest.mark.parametrize(("ports", "nodes"), [(4, 8), (8, 32)])
def test_a_two_level_tree_of_k_ports_holds_k_squared_over_two_nodes(ports: int, nodes: int) -> None:
    topology = small(nodes, kind="fat_tree", ports=ports, nics=1)
    assert level(topology, "leaf") == ports
    assert level(topology, "spine") == ports // 2
    fabric = topology.link_bandwidth[topology.link_kind == LinkKind.FABRIC]
    assert fabric == pytest.approx(np.full(2 * ports * ports // 2, 50e9))
    with pytest.raises(TopologyError, match=rf"switches of {ports} ports hold {nodes} nodes"):
        small(nodes + 1, kind="fat_tree", ports=ports, nics=1)


@pytest.mark.parametrize("ports", [4, 8])
def test_a_three_level_tree_of_k_ports_holds_k_cubed_over_four_nodes(ports: int) -> None:
    """Al-Fares et al. 2008, section 2.2: k pods of k switches, (k/2)^2 cores, full bisection."""
    nodes = ports**3 // 4
    topology = small(nodes, kind="fat_tree", levels=3, ports=ports, nics=1)
    assert (level(topology, "leaf"), level(topology, "spine")) == (ports**2 // 2, ports**2 // 2)
    assert level(topology, "core") == (ports // 2) ** 2
    fabric = topology.link_bandwidth[topology.link_kind == LinkKind.FABRIC]
    assert fabric == pytest.approx(np.full(2 * 2 * ports * (ports // 2) ** 2, 50e9))
    assert topology.bisection_bandwidth() == pytest.approx(nodes // 2 * 48e9)  # the NICs' PCIe slots
    with pytest.raises(TopologyError, match="in 3 levels"):
        small(nodes + 1, kind="fat_tree", levels=3, ports=ports, nics=1)


def test_oversubscription_of_each_level() -> None:
    """4 pods of 2 leaves of 2 nodes: a leaf 200 GB/s down, 100 up; a pod 200 up to spines, 50 to cores."""
    fabric = {"kind": "fat_tree", "levels": 3, "nodes_per_leaf": 2, "leaves_per_pod": 2}
    topology = small(16, **fabric, oversubscription=2.0, core_oversubscription=4.0)
    wires = topology.link_bandwidth[topology.link_kind == LinkKind.FABRIC]
    assert sorted(set(wires.tolist())) == [50e9, 100e9]
    assert topology.bisection_bandwidth() == pytest.approx(2 * 50e9)


def test_levels_of_a_path() -> None:
    fabric = {"kind": "fat_tree", "levels": 3, "nodes_per_leaf": 2, "leaves_per_pod": 2, "spines": 2, "cores": 4}
    topology = small(16, **fabric)
    assert switches(topology, 0, 2) == ["leaf0"]
    assert switches(topology, 0, 4) == ["leaf0", "pod0.spine0", "leaf1"]
    assert switches(topology, 0, 8) == ["leaf0", "pod0.spine0", "core0", "pod1.spine0", "leaf2"]
    assert switches(topology, 1, 11)[1:4] == ["pod0.spine0", "core1", "pod1.spine0"]


def test_a_core_is_above_one_spine_of_every_pod() -> None:
    fabric = {"kind": "fat_tree", "levels": 3, "nodes_per_leaf": 1, "leaves_per_pod": 2, "spines": 2, "cores": 4}
    graph = small(8, **fabric).to_networkx()
    assert set(graph["core3"]) == {f"pod{p}.spine1" for p in range(4)}


def test_the_shipped_three_level_tree() -> None:
    topology = load_preset("hgx-h100-fat-tree-3level", nodes=256)
    assert topology.nodes_per_leaf == 4
    assert level(topology, "core") == 1024
    assert topology.period_ranks == 8 * 128


def test_rail_only_changes_rails_over_nvlink() -> None:
    topology = load_preset("hgx-h100-rail-only", nodes=2)
    assert path(topology, 3, 8 + 5) == [
        *("node0.gpu3", "node0.nvswitch", "node0.gpu5", "node0.pcie5", "node0.nic5"),
        "leaf0.rail5",
        *("node1.nic5", "node1.pcie5", "node1.gpu5"),
    ]
    assert topology.nic_path_type(3, 5) == "PXN"
    assert topology.nic_path_type(3, 3) == "PIX"


def test_rails_of_rail_only_are_islands() -> None:
    topology = small(4, kind="rail_only", nodes_per_leaf=2)
    fabric = topology.to_networkx().subgraph(switch_names(topology))
    islands = sorted(sorted(island) for island in nx.strongly_connected_components(fabric))
    assert [len(island) for island in islands] == [3, 3]
    assert len({name.split("rail")[1][0] for name in islands[0]}) == 1
    assert switches(topology, 0, 4) == ["leaf0.rail0", "rail0.spine0", "leaf1.rail0"]


def test_rail_routing_on_a_tree_with_spines() -> None:
    topology = small(4, kind="rail_fat_tree", nodes_per_leaf=2, routing="rail")
    assert switches(topology, 0, 3) == ["leaf0.rail1"]
    assert switches(topology, 0, 3, nic=0) == ["leaf0.rail0"]
    assert path(topology, 0, 3, nic=0)[-3:] == ["node1.gpu0", "node1.nvswitch", "node1.gpu1"]


def test_planes_share_nothing() -> None:
    topology = small(8, kind="fat_tree", planes=2, nodes_per_leaf=2, spines=2)
    assert switches(topology, 0, 15, nic=0)[0] == "leaf0.plane0"
    assert switches(topology, 1, 15)[1].startswith("plane1.spine")
    assert level(topology, "spine") == 4
    assert topology.bisection_bandwidth() == small(8, kind="fat_tree", nodes_per_leaf=2).bisection_bandwidth()


def test_racks_have_four_rails() -> None:
    topology = load_preset("gb200-nvl72-ndr", nodes=2)
    assert level(topology, "leaf") == 8
    assert switches(topology, 5, 72 + 5)[0] == "leaf0.rail1"
    fabric = topology.link_bandwidth[topology.link_kind == LinkKind.FABRIC]
    assert fabric == pytest.approx(np.full(2 * 8 * 18, 50e9))  # one uplink for each of 18 NICs
    assert topology.bisection_bandwidth() == pytest.approx(72 * 48e9)


@pytest.mark.parametrize(("gpus", "spines"), [(72, 18), (64, 16), (18, 5), (6, 2), (4, 1), (1, 1)])
def test_part_of_a_rack_has_as_many_spines_for_each_nic(gpus: int, spines: int) -> None:
    topology = load_preset("gb200-nvl72-ndr", nodes=2, gpus_per_node=gpus)
    assert level(topology, "spine") == spines
    assert topology.bisection_bandwidth() == pytest.approx(gpus * 48e9)


def test_spines_that_a_scenario_states_stay() -> None:
    topology = machine(preset="gb200-nvl72-ndr", nodes=2, gpus_per_node=4, fabric={"spines": 18})
    assert level(topology, "spine") == 18


def test_cores_go_with_the_spines_below_them() -> None:
    fewer = of_fewer_nics(FabricSpec(kind="fat_tree", levels=3, spines=4, cores=16), 2, 4, "machine")
    assert (fewer.spines, fewer.cores) == (2, 8)


@pytest.mark.parametrize("routing", ["shortest", "ecmp", "spray", "rail"])
@pytest.mark.parametrize("kind", ["fat_tree", "rail_fat_tree"])
def test_three_levels_are_sound(kind: str, routing: str) -> None:
    fabric = {"levels": 3, "nodes_per_leaf": 1, "leaves_per_pod": 2, "spines": 2, "cores": 4}
    topology = small(6, kind=kind, routing=routing, **fabric)
    assert topology.period_ranks == 4
    assert_sound(topology)
    assert_alike_both_ways(topology)


@pytest.mark.parametrize(
    ("fabric", "match"),
    [
        ({"kind": "fat_tree", "levels": 2, "cores": 4}, "belongs to a tree of levels: 3"),
        ({"kind": "fat_tree", "levels": 3, "spines": 3, "cores": 4}, "cannot be shared evenly by 3 spines"),
        ({"kind": "fat_tree", "dimensions": 2}, "fabric.dimensions belongs to torus; found kind fat_tree"),
        ({"kind": "torus", "spines": 2}, "fabric.spines belongs to fat_tree, rail_fat_tree or rail_only"),
        ({"kind": "rail_fat_tree", "nics": 6, "planes": 4}, "6 rails of 6 NICs per node do not divide into 4 planes"),
        (
            {"kind": "fat_tree", "ports": 8, "oversubscription": 2.0},
            "2 does not divide 8 ports into down and up; whole ratios that do: 1, 3, 7",
        ),
        ({"kind": "fat_tree", "ports": 2}, "1 ports down do not hold 2 NICs"),
        ({"kind": "rail_only", "routing": "shortest"}, "rail_only changes rails inside a node"),
        ({"kind": "fat_tree", "routing": "ecpm"}, "did you mean 'ecmp'"),
    ],
)
def test_trees_that_cannot_be(fabric: dict[str, object], match: str) -> None:
    with pytest.raises(TopologyError, match=match):
        small(4, **fabric)


def test_another_kind_of_fabric_drops_what_it_does_not_have() -> None:
    topology = machine(preset="gb200-nvl72-ndr", nodes=2, gpus_per_node=4, fabric={"kind": "torus"})
    assert topology.kind == "torus"
