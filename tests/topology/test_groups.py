"""Clusters of different nodes: figures, routes, and what asks for nodes that are alike."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machines import assert_sound, machine, path
from typer.testing import CliRunner

from commsim.cli.topo import app
from commsim.errors import TopologyError
from commsim.topology.check import check
from commsim.topology.graph import LinkKind, Topology
from commsim.topology.presets import load_file, load_preset

GROUPS = [
    {"preset": "hgx-h100-ndr400", "nodes": 2, "gpus_per_node": 4},
    {"preset": "dgx-1v-edr100", "nodes": 2},
]


def mixed(**fabric: Any) -> Topology:
    return machine(groups=GROUPS, fabric=fabric)


def test_ranks_are_numbered_node_by_node() -> None:
    topology = mixed(kind="single_switch")
    assert (topology.nodes, topology.world_size) == (4, 24)
    assert [topology.node_of(r) for r in (0, 4, 8, 16)] == [0, 1, 2, 3]
    assert topology.group_of(7).gpu.model == "H100 SXM5"
    assert topology.group_of(8).gpu.model == "V100 SXM2"
    assert topology.group_of(8).nic_bandwidth == 12.5e9
    assert topology.nearest_nic(8 + 7) == 3
    assert topology.path_type(8, 9) == "NVL"
    assert topology.path_type(8, 8 + 7) == "NVB"
    assert topology.pair_links(8, 8 + 3) == 2
    assert check(topology) == []


@pytest.mark.parametrize("figure", ["gpu", "ranks_per_node", "nics_per_node", "nic_bandwidth", "node_routes"])
def test_figures_that_differ_are_refused(figure: str) -> None:
    with pytest.raises(TopologyError, match=f"the nodes differ in {figure}: "):
        getattr(mixed(kind="single_switch"), figure)


def test_figures_that_agree_are_given() -> None:
    groups = [{"preset": "hgx-h100-ndr400"}, {"preset": "hgx-h200-ndr400"}]
    topology = machine(groups=groups)
    assert topology.name == "hgx-h100-ndr400+hgx-h200-ndr400"
    assert (topology.ranks_per_node, topology.nic_bandwidth) == (8, 50e9)
    with pytest.raises(TopologyError, match="differ in gpu: H100 SXM5, H200 SXM"):
        _ = topology.gpu


def test_links_between_the_gpus_of_a_node() -> None:
    """Two NVLinks one way for each of four H100 per node, and the 16 NVLinked pairs of a cube mesh."""
    topology = mixed(kind="single_switch")
    assert set(topology.link_kind[topology.gpu_links].tolist()) == {LinkKind.NVLINK}
    assert topology.gpu_links.sum() == 2 * 4 * 2 + 2 * 16 * 2


def test_a_missing_nic_is_replaced_by_one_that_is_there() -> None:
    """NIC 6 of eight meets NIC 2 of four."""
    topology = mixed(kind="single_switch")
    assert "node2.nic2" in path(topology, 0, 8, nic=6)
    with pytest.raises(TopologyError, match="NIC 6 is not one of the 4"):
        topology.route(8, 0, nic=6)


def test_ports_are_as_wide_as_their_nics() -> None:
    topology = mixed(kind="single_switch")
    assert topology.link_bandwidth[topology.route(0, 8)][2:4].tolist() == [50e9, 12.5e9]
    assert topology.bisection_bandwidth() == pytest.approx(2 * 4 * 12e9)


@pytest.mark.parametrize(
    "fabric",
    [
        {"kind": "fat_tree", "nodes_per_leaf": 1},
        {"kind": "rail_fat_tree", "nodes_per_leaf": 1},
        {"kind": "rail_fat_tree", "nodes_per_leaf": 4},
        {"kind": "rail_fat_tree", "nodes_per_leaf": 4, "routing": "rail"},
        {"kind": "torus"},
        {"kind": "dragonfly", "nodes_per_leaf": 1},
    ],
)
def test_mixed_clusters_are_sound(fabric: dict[str, Any]) -> None:
    topology = mixed(**fabric)
    assert topology.period_ranks is None
    assert_sound(topology)


def test_the_same_node_twice_is_not_mixed_in_its_routes() -> None:
    alone = machine(preset="hgx-h100-ndr400", nodes=2)
    twice = machine(groups=[{"preset": "hgx-h100-ndr400"}, {"preset": "hgx-h100-ndr400"}])
    assert twice.route(0, 9).tolist() == alone.route(0, 9).tolist()


@pytest.mark.parametrize(
    ("data", "match"),
    [
        ({"groups": GROUPS, "nodes": 2}, "nodes belong inside each of the groups"),
        ({"groups": [{"nodes": 2}]}, "groups.0: expected a preset, a path, or a machine"),
        ({"groups": [{"preset": "dgx-1v-edr100", "fabric": {"kind": "torus"}}]}, "the fabric joins all groups"),
        ({"groups": [{"preset": "hgx-h100-ndr400"}, {"preset": "hgx-h100"}]}, "2 nodes without a NIC"),
        ({"groups": [{"preset": "hgx-h100-ndr40"}]}, "did you mean hgx-h100-ndr400"),
        ({"groups": [{"preset": "dgx-1v", "gpus_per_node": 9}]}, r"groups.0 \(dgx-1v\): gpus_per_node: found 9"),
    ],
)
def test_groups_that_cannot_be(data: dict[str, Any], match: str) -> None:
    with pytest.raises(TopologyError, match=match):
        machine(**data)


CLUSTER = """
name: cluster
description: Two sorts of nodes, one of them with a slow card
groups:
  - {preset: hgx-h100-ndr400, nodes: 2, gpus_per_node: 4}
  - {path: old.yaml, nodes: 2}
fabric: {kind: fat_tree, nodes_per_leaf: 2}
faults:
  - {nic: [1, 0], bandwidth_factor: 0.5}
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    (tmp_path / "old.yaml").write_text("extends: dgx-1v-edr100\n")
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    return tmp_path / "cluster.yaml"


def test_a_file_holds_groups_and_faults(cluster: Path) -> None:
    topology = load_file(cluster)
    assert (topology.name, topology.world_size, topology.kind) == ("cluster", 24, "fat_tree")
    assert 25e9 in topology.link_bandwidth[topology.route(4, 0)]
    with pytest.raises(TopologyError, match="nodes belong inside each of the groups of the file"):
        load_file(cluster, nodes=2)
    cluster.write_text(CLUSTER + "extends: dgx-1v\n")
    with pytest.raises(TopologyError, match="extends belong inside each of the groups"):
        load_file(cluster)


def test_a_cluster_is_shown_drawn_and_checked(cluster: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["show", str(cluster)]).stdout
    assert "4 nodes of 2 sorts, 24 ranks" in shown
    assert "2 nodes of 8 x V100 SXM2" in shown
    assert "the paths of node 0; other nodes differ" in shown
    data = json.loads(CliRunner().invoke(app, ["show", str(cluster), "--json"]).stdout)
    assert [g["nodes"] for g in data["groups"]] == [2, 2]
    assert data["fabric"] == "fat_tree"
    assert CliRunner().invoke(app, ["check", str(cluster)]).stdout.startswith("cluster: sound; 24 ranks")
    assert CliRunner().invoke(app, ["draw", str(cluster), "-o", str(tmp_path / "c.png")]).exit_code == 0


def test_nodes_of_one_model_say_what_tells_them_apart() -> None:
    two = load_preset("rtx4090", nodes=2, nics_per_node=1, nic_bandwidth="100 Gb/s")
    patched = replace(two.groups[0], gpu=replace(two.groups[0].gpu, peer_to_peer=True))
    with pytest.raises(TopologyError, match=r"peer_to_peer=False.*peer_to_peer=True"):
        _ = replace(two, groups=(two.groups[0], patched)).gpu
