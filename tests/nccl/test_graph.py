"""The search against channel counts, speeds and patterns that public logs print."""

from __future__ import annotations

import pytest

from commsim.errors import TopologyError
from commsim.nccl import tuner
from commsim.nccl.graph import _names, discover
from commsim.nccl.system import Graph
from commsim.topology.presets import load_preset

# Channels and speeds that public logs print, or that follow from the links (nccl-model notes, 4.2):
# (channels, intra, inter) of ring and tree, the tree's pattern, NVLS, collective channels.
KNOWN = [
    ("dgx-a100", {}, (12, 20.0, 20.0), (12, 20.0, 20.0), "BALANCED_TREE", None, 24),
    ("dgx-a100", {"gpus_per_node": 2}, (12, 20.0, 20.0), (12, 40.0, 40.0), "BALANCED_TREE", None, 24),
    ("hgx-h100", {}, (12, 30.0, 30.0), (12, 30.0, 30.0), "BALANCED_TREE", (8, 40.0, 60.0), 24),
    ("hgx-h200", {}, (12, 30.0, 30.0), (12, 30.0, 30.0), "BALANCED_TREE", (8, 40.0, 60.0), 24),
    ("h800", {}, (8, 20.0, 20.0), (8, 20.0, 20.0), "BALANCED_TREE", (8, 15.0, 30.0), 16),
    ("hgx-b200", {}, (16, 45.0, 45.0), (16, 45.0, 45.0), "BALANCED_TREE", (8, 80.0, 90.0), 32),
    ("dgx-1v", {}, (6, 20.0, 20.0), (6, 20.0, 20.0), "BALANCED_TREE", None, 12),
    ("dgx-2", {}, (6, 20.0, 20.0), (6, 20.0, 20.0), "BALANCED_TREE", None, 12),
    ("dgx-a100-hdr200", {"nodes": 2}, (8, 24.0, 24.0), (8, 30.0, 24.0), "BALANCED_TREE", None, 16),
    ("hgx-h100-ndr400", {"nodes": 4}, (8, 48.0, 48.0), (8, 48.0, 48.0), "TREE", (8, 40.0, 48.0), 16),
    ("h800-ndr400", {"nodes": 2}, (8, 22.0, 22.0), (8, 22.0, 22.0), "TREE", (8, 17.5, 40.0), 16),
    ("polaris", {"nodes": 2}, (2, 24.0, 24.0), (2, 48.0, 24.0), "BALANCED_TREE", None, 4),
]


@pytest.mark.parametrize(("preset", "knobs", "ring", "tree", "pattern", "nvls", "coll"), KNOWN)
def test_graphs_of_known_systems(
    preset: str,
    knobs: dict[str, object],
    ring: tuple[int, float, float],
    tree: tuple[int, float, float],
    pattern: str,
    nvls: tuple[int, float, float] | None,
    coll: int,
) -> None:
    system = discover(load_preset(preset, **knobs), (2, 30, 7))
    assert figures(system.ring) == ring
    assert (figures(system.tree), system.tree.pattern) == (tree, pattern)
    assert (system.nvls and figures(system.nvls)) == nvls
    assert system.coll_channels == coll


def figures(graph: Graph) -> tuple[int, float, float]:
    """Channels and the two speeds."""
    return graph.channels, graph.intra_gbps, graph.inter_gbps


def test_rings_of_rails_are_not_all_the_same_and_those_of_a_switch_are() -> None:
    assert discover(load_preset("dgx-a100"), (2, 30, 7)).ring.same_channels
    ring = discover(load_preset("dgx-a100-hdr200", nodes=2), (2, 30, 7)).ring
    assert not ring.same_channels
    assert len(ring.orders) == ring.channels
    assert len(set(ring.orders)) == 8
    assert all(sorted(order) == list(range(8)) for order in ring.orders)


def test_a_gpu_pair_over_host_memory_when_p2p_is_off() -> None:
    topology = load_preset("dgx-a100", gpus_per_node=2)
    system = discover(topology, (2, 30, 7), {"NCCL_P2P_DISABLE": "1"})
    assert system.intra_type in ("PHB", "SYS")
    assert system.ring.channels * system.ring.intra_gbps <= 24.0


def test_nics_of_other_gpus_are_reached_by_pxn_only_if_allowed() -> None:
    topology = load_preset("hgx-a100-4-hdr200", nodes=2)
    assert discover(topology, (2, 26, 2)).inter_type == "PXN"
    assert discover(topology, (2, 26, 2), {"NCCL_PXN_DISABLE": "1"}).inter_type in ("PHB", "SYS")


def test_far_nics_go_through_the_host_where_the_level_says_so() -> None:
    topology = load_preset("dgx-a100-hdr200", nodes=2)
    assert discover(topology, (2, 26, 2)).inter_type in ("PIX", "PXB")
    assert discover(topology, (2, 26, 2), {"NCCL_NET_GDR_LEVEL": "LOC"}).inter_type == "PHB"


def test_one_gpu_per_node_has_a_plain_tree() -> None:
    system = discover(load_preset("dgx-a100-hdr200", nodes=4, gpus_per_node=1), (2, 26, 2))
    assert (system.tree.pattern, system.ring.intra_type) == ("TREE", "LOC")


def test_sharp_graphs_only_when_asked_for() -> None:
    fabric = {"in_network_reduction": True}
    topology = load_preset("dgx-a100-hdr200", nodes=2, fabric=fabric)
    assert not discover(topology, (2, 26, 2)).collnet
    asking = {"NCCL_COLLNET_ENABLE": "1"}
    assert not discover(load_preset("dgx-a100-hdr200", nodes=2), (2, 26, 2), asking).collnet
    asked = discover(topology, (2, 26, 2), asking)
    assert asked.collnet
    assert asked.collnet_chain is not None
    assert asked.collnet_direct is not None


@pytest.mark.parametrize(("gpus", "asked"), [(8, True), (9, False)])
def test_sharp_takes_nodes_of_up_to_eight_ranks(gpus: int, asked: bool) -> None:
    """A head hands over to seven others at most (NCCL_MAX_DIRECT_ARITY)."""
    topology = load_preset("dgx-2-edr100", nodes=2, gpus_per_node=gpus, fabric={"in_network_reduction": True})
    assert ("collnet_chain" in _names(topology, {"NCCL_COLLNET_ENABLE": "1"})) is asked


def test_nvls_needs_hopper_and_2_17() -> None:
    assert discover(load_preset("dgx-a100"), (2, 30, 7)).nvls is None
    assert discover(load_preset("hgx-h100"), (2, 16, 0)).nvls is None


def test_nvls_of_a_whole_rack_has_32_heads_and_only_all_reduce() -> None:
    system = discover(load_preset("gb200-nvl72"), (2, 26, 2))
    assert system.nvls is not None
    assert system.nvls.channels == 32
    found = {
        c: tuner.candidates(system, c, 1 << 20, (2, 26, 2)) for c in ("all_reduce", "all_gather", "reduce_scatter")
    }
    assert {c: "nvls" in {e.algorithm for e in entries} for c, entries in found.items()} == {
        "all_reduce": True, "all_gather": False, "reduce_scatter": False,
    }  # fmt: skip


def test_channels_are_clipped_by_the_environment() -> None:
    topology = load_preset("hgx-h100")
    assert discover(topology, (2, 26, 2), {"NCCL_MAX_NCHANNELS": "8"}).coll_channels == 8
    assert discover(topology, (2, 26, 2), {"NCCL_MIN_CTAS": "32"}).coll_channels == 32
    assert discover(topology, (2, 20, 0), {"NCCL_MIN_CTAS": "64"}).coll_channels == 32


@pytest.mark.parametrize(
    ("preset", "nics", "version", "channels"),
    [  # src/graph/connect.cc, ncclTopoPostset: 2.17, 2.18 to 2.19, 2.20 on; newer than Hopper from 2.25 on
        ("hgx-h100-ndr400", 6, (2, 17, 1), 12), ("hgx-h100-ndr400", 6, (2, 18, 5), 24),
        ("hgx-h100-ndr400", 6, (2, 20, 5), 24), ("hgx-h100-ndr400", 8, (2, 17, 1), 16),
        ("hgx-h100-ndr400", 8, (2, 19, 3), 32), ("hgx-h100-ndr400", 8, (2, 20, 5), 16),
        ("hgx-b200-ndr400", 6, (2, 24, 3), 12), ("hgx-b200-ndr400", 6, (2, 25, 1), 24),
        ("hgx-b200-ndr400", 8, (2, 26, 2), 16),
    ],
)  # fmt: skip
def test_few_channels_are_doubled_on_hopper_and_from_2_25_on_on_newer_gpus(
    preset: str, nics: int, version: tuple[int, int, int], channels: int
) -> None:
    assert discover(load_preset(preset, nodes=2, nics_per_node=nics), version).coll_channels == channels


@pytest.mark.parametrize(("version", "doubled"), [((2, 21, 5), 1), ((2, 22, 3), 2), ((2, 26, 2), 2)])
def test_gpudirect_tcpx_doubles_few_channels(version: tuple[int, int, int], doubled: int) -> None:
    topology = load_preset("gcp-a3-high", nodes=2)
    system = discover(topology, version)
    assert 2 * system.ring.channels < 16
    assert system.coll_channels == doubled * 2 * system.ring.channels


def test_a_pcie_box_gets_one_ring_and_no_ll128() -> None:
    system = discover(load_preset("rtx4090"), (2, 26, 2))
    assert (system.ring.channels, system.coll_channels) == (1, 2)
    assert system.intra_type in ("PHB", "SYS")


def test_nodes_without_nics_are_an_error() -> None:
    with pytest.raises(TopologyError, match="NIC"):
        discover(load_preset("hgx-h100", nodes=2), (2, 26, 2))
