"""What the tuner gives NVLS, NVLSTree and CollNetDirect, by hand from src/graph/tuning.cc of each version."""

from __future__ import annotations

import pytest

from commsim.nccl.system import Graph, System
from commsim.nccl.tuner_formulas import generation, nvls_bandwidth
from commsim.nccl.version import Version

EIGHT = Graph(8, 40.0, 48.0, "NVLS", "NVL", "PIX")
RING = Graph(8, 48.0, 48.0, "RING", "NVL", "PXB")


@pytest.mark.parametrize(
    ("version", "nodes", "collective", "algorithm", "gbps"),
    [
        ((2, 17, 1), 1, "all_reduce", "nvls", 100.0 * 3 / 4),
        ((2, 18, 1), 1, "all_reduce", "nvls", 100.0 * 3 / 4),
        ((2, 18, 3), 1, "all_reduce", "nvls", 100.0 * 5 / 6),
        # Of NVLSTree 0.7, and of that M / 2 (M - 1): all_reduce's share of M nodes.
        ((2, 18, 3), 2, "all_reduce", "nvls_tree", 100.0 * 0.7 * 2 / 2),
        ((2, 18, 3), 4, "all_reduce", "nvls_tree", 100.0 * 0.7 * 4 / 6),
        ((2, 18, 3), 1, "all_reduce", "nvls_tree", 0.0),
        # From 2.19 the channels' slower side, of which the tree halves what crosses more than two nodes.
        ((2, 19, 3), 2, "all_reduce", "nvls", 8 * 40.0 * 5 / 6),
        ((2, 19, 3), 2, "all_reduce", "nvls_tree", 8 * 40.0 * 5 / 6),
        ((2, 19, 3), 4, "all_reduce", "nvls_tree", 8 * 24.0 * 5 / 6),
        ((2, 22, 3), 2, "all_gather", "nvls", 8 * 40.0 * 5 / 6),
        ((2, 23, 4), 2, "all_gather", "nvls", 8 * 40.0),
        # From 2.27 an all_gather takes 7 of 8 parts in the node, and 0.9 of the network.
        ((2, 27, 3), 1, "all_gather", "nvls", 8 * 40.0 * 7 / 8),
    ],
)
def test_the_bandwidth_of_each_version(
    version: Version, nodes: int, collective: str, algorithm: str, gbps: float
) -> None:
    machine = System(8 * nodes, nodes, 90, "intel", "x86_64", "NVL", "PXB", 0.0, RING, RING, EIGHT, 16)
    assert nvls_bandwidth(machine, EIGHT, 100.0, collective, algorithm, version) == pytest.approx(gbps)


@pytest.mark.parametrize(
    ("sm", "version", "mixed", "row"),
    [
        (70, (2, 22, 3), False, 0),
        (80, (2, 22, 3), False, 1),
        (89, (2, 22, 3), False, 1),
        (90, (2, 22, 3), False, 2),
        (100, (2, 24, 3), False, 2),
        (100, (2, 25, 1), False, 3),
        (80, (2, 16, 2), False, 1),
        (80, (2, 16, 2), True, 0),
        (86, (2, 16, 2), False, 0),
        (86, (2, 17, 0), False, 1),  # what a user's "2.17" is read as
        (86, (2, 17, 1), True, 1),
        (90, (2, 16, 2), False, 2),
        (90, (2, 14, 3), False, 0),
        (90, (2, 15, 1), False, 2),
        (70, (2, 16, 2), False, 0),
    ],
)
def test_the_row_of_the_tables(sm: int, version: Version, mixed: bool, row: int) -> None:
    machine = System(8, 1, sm, "intel", "x86_64", "NVL", "PXB", 0.0, RING, RING, EIGHT, 16, mixed_gpus=mixed)
    assert generation(machine, version) == row
