"""The search by arithmetic against channel counts and speeds that public logs print."""

from __future__ import annotations

import pytest

from commsim.errors import TopologyError
from commsim.nccl.graph import discover
from commsim.topology.presets import load_preset


@pytest.mark.parametrize(
    ("preset", "knobs", "channels", "intra", "coll"),
    [
        ("dgx-a100", {}, 12, 20.0, 24),
        ("dgx-a100", {"gpus_per_node": 2}, 12, 20.0, 24),
        ("hgx-h100", {}, 12, 30.0, 24),
        ("hgx-h200", {}, 12, 30.0, 24),
        ("h800", {}, 8, 20.0, 16),
        ("hgx-b200", {}, 16, 45.0, 32),
        ("dgx-1v", {}, 6, 20.0, 12),
        ("dgx-2", {}, 6, 20.0, 12),
        ("dgx-a100-hdr200", {"nodes": 2}, 8, 24.0, 16),
        ("hgx-h100-ndr400", {"nodes": 4}, 8, 48.0, 16),
        ("h800-ndr400", {"nodes": 2}, 8, 22.0, 16),
    ],
)
def test_rings_of_known_systems(preset: str, knobs: dict[str, object], channels: int, intra: float, coll: int) -> None:
    system = discover(load_preset(preset, **knobs), (2, 30, 7))
    assert (system.ring.channels, system.ring.intra_gbps, system.coll_channels) == (channels, intra, coll)


@pytest.mark.parametrize(("preset", "graph"), [("hgx-h100", (8, 40.0, 60.0)), ("hgx-b200", (8, 80.0, 90.0))])
def test_nvls_graphs_of_known_systems(preset: str, graph: tuple[int, float, float]) -> None:
    nvls = discover(load_preset(preset), (2, 30, 7)).nvls
    assert nvls is not None
    assert (nvls.channels, nvls.intra_gbps, nvls.inter_gbps) == graph


def test_nvls_needs_hopper_and_2_17() -> None:
    assert discover(load_preset("dgx-a100"), (2, 30, 7)).nvls is None
    assert discover(load_preset("hgx-h100"), (2, 16, 0)).nvls is None


def test_channels_are_clipped_by_the_environment() -> None:
    topology = load_preset("hgx-h100")
    assert discover(topology, (2, 26, 2), {"NCCL_MAX_NCHANNELS": "8"}).coll_channels == 8
    assert discover(topology, (2, 26, 2), {"NCCL_MIN_CTAS": "32"}).coll_channels == 32
    assert discover(topology, (2, 20, 0), {"NCCL_MIN_CTAS": "64"}).coll_channels == 32


def test_a_pcie_box_gets_one_ring_and_no_ll128() -> None:
    system = discover(load_preset("rtx4090"), (2, 26, 2))
    assert (system.ring.channels, system.coll_channels) == (1, 2)
    assert system.intra_type in ("PHB", "SYS")


def test_nodes_without_nics_are_an_error() -> None:
    with pytest.raises(TopologyError, match="NIC"):
        discover(load_preset("hgx-h100", nodes=2), (2, 26, 2))
