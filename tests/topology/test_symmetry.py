"""Periods by hand, and links as images of links."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from machines import assert_sound, machine, small

from commsim.errors import TopologyError
from commsim.topology.presets import load_preset


@pytest.mark.parametrize(
    ("name", "period"),
    [("hgx-h100", 1), ("hgx-a100-4", 1), ("dgx-1v", None), ("gb200-nvl72", 1), ("rtx4090", 4), ("a100-pcie", 4)],
)
def test_period_inside_a_node(name: str, period: int | None) -> None:
    topology = load_preset(name)
    assert topology.period_ranks == period
    if topology.world_size <= 8:
        assert_sound(topology)


@pytest.mark.parametrize(
    ("nodes", "fabric", "period"),
    [
        (5, {"kind": "single_switch"}, 2),
        (6, {"kind": "rail_fat_tree", "nodes_per_leaf": 3}, 6),
        (3, {"kind": "rail_fat_tree", "nodes_per_leaf": 3}, 2),
        (4, {"kind": "rail_fat_tree", "nodes_per_leaf": 3}, None),
        (4, {"kind": "rail_only", "nodes_per_leaf": 2}, 4),
        (8, {"kind": "fat_tree", "levels": 3, "nodes_per_leaf": 1, "leaves_per_pod": 2}, 4),
        (6, {"kind": "fat_tree", "levels": 3, "nodes_per_leaf": 1, "leaves_per_pod": 4}, None),
        (2, {"kind": "fat_tree", "nodes_per_leaf": 1, "spines": 3}, 2),
    ],
)
def test_period_between_nodes(nodes: int, fabric: dict[str, Any], period: int | None) -> None:
    topology = small(nodes, **fabric)
    assert topology.period_ranks == period
    assert_sound(topology)


def test_one_gpu_per_node_below_one_switch_repeats_every_rank() -> None:
    knobs = {"gpus_per_node": 1, "nics_per_node": 1, "nic_bandwidth": "100 Gb/s"}
    assert machine(preset="hgx-h100", nodes=7, **knobs).period_ranks == 1


def test_a_shift_that_is_no_multiple_is_refused() -> None:
    topology = small(4, kind="rail_fat_tree", nodes_per_leaf=2)
    assert topology.link_image(0).tolist() == list(range(len(topology.link_src)))
    assert topology.period_ranks == 4
    with pytest.raises(TopologyError, match="2 ranks is no multiple of the period, 4"):
        topology.link_image(2)
    odd = small(3, kind="rail_fat_tree", nodes_per_leaf=2)
    assert odd.period_ranks is None
    with pytest.raises(TopologyError, match="no multiple of the period, None"):
        odd.link_image(4)


@pytest.mark.parametrize(
    "fabric",
    [
        {},
        {"kind": "fat_tree", "levels": 3, "ports": 64},
        {"kind": "rail_only"},
        {"kind": "torus", "dimensions": [16, 20, 40]},
        {"kind": "dragonfly", "nodes_per_leaf": 2},
    ],
)
def test_a_hundred_thousand_ranks(fabric: dict[str, Any]) -> None:
    """Measured on two cores: 0.1 s to build, 0.03 s to route a ring, 60 MB held; bounds for a busy machine."""
    nodes = 8192 if "ports" in fabric else 12_800
    start = time.process_time()
    topology = machine(preset="hgx-h100-ndr400", nodes=nodes, fabric=fabric)
    ranks = np.arange(topology.world_size)
    table = topology.routes(ranks, (ranks + 1) % topology.world_size)
    assert topology.period_ranks is not None
    assert time.process_time() - start < 3.0
    assert topology.nbytes < 100e6
    assert len(table.index) == topology.world_size == 8 * nodes
    image = topology.link_image(topology.period_ranks)
    shifted = (ranks[:8] + topology.period_ranks) % topology.world_size
    assert image[topology.routes(ranks[:8], ranks[:8] + 8).link].tolist() == (
        topology.routes(shifted, (shifted + 8) % topology.world_size).link.tolist()
    )
