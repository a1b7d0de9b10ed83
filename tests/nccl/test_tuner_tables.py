"""The tuner's constants by version, by hand from src/graph/tuning.cc, search.cc and topo.h of each release."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commsim.nccl import tuner_tables as tables
from commsim.nccl.environment import PATHS
from commsim.nccl.system import Graph, System, speeds
from commsim.nccl.tuner import max_threads, table, whole_lines
from commsim.nccl.version import Version
from commsim.nccl.view import view_of
from commsim.topology.presets import load_preset

_FIRST_RELEASE = {
    8: 3, 9: 6, 10: 3, 11: 4, 12: 7, 13: 4, 14: 3, 15: 1, 16: 2, 17: 1, 18: 1, 19: 1, 20: 3, 21: 5, 22: 3, 23: 4, 24: 3,
    25: 1, 26: 2, 27: 3, 28: 3, 29: 2, 30: 3,
}  # fmt: skip
"""Of NCCL 2.x: no minor version began with 0, but a user's "2.18" is read as 2.18.0."""

_RING = Graph(4, 24.0, 24.0, "RING", "NVL", "PXN")


def _system(sm: int, nodes: int) -> System:
    """A machine that has every graph."""
    nvls = replace(_RING, pattern="NVLS")
    return System(
        8 * nodes, nodes, sm, "intel", "x86_64", "NVL", "PXN", 0.0, _RING, replace(_RING, pattern="TREE"), nvls, 8,
        collnet_direct=replace(_RING, pattern="COLLNET_DIRECT"), collnet_chain=replace(_RING, pattern="TREE"),
        collnet=True, nvswitch=True,
    )  # fmt: skip


def _constants(version: Version) -> dict[str, object]:
    """What the tuner holds for a version, and the speeds that its search tries."""
    found: dict[str, object] = {
        "algorithms": tables.algorithms(version),
        "LL": tables.ll_max(version),
        "LL128 of rings": tables.ring_ll128_cap(version, "all_reduce"),
        "LL128 of trees": tables.tree_ll128_cap(version, "all_reduce"),
        "trees": tables.tree_cap(version),
        "NVLSTree": tables.nvls_tree_cap(version),
    }
    for protocol in range(3):
        sizes = [
            tables.tree_correction("tree", protocol, size, version) for size in (1, 63, *(1 << i for i in range(32)))
        ]
        found[f"correction {protocol}"] = sizes
    for algorithm in ("tree", "ring", "nvls", "nvls_tree"):
        for link in ("NVLINK", "PCI", "NET"):
            found[f"{algorithm} over {link}"] = tables.hop_latency(algorithm, link, version)
    for sm in (70, 80, 90, 100):
        found[f"speeds of {sm}"] = [speeds(sm, between, version) for between in (False, True)]
        for nodes in (1, 2, 4):
            for collective in ("all_reduce", "all_gather", "broadcast"):
                found[f"{collective} of {nodes} x {sm}"] = table(_system(sm, nodes), collective, version)
    return found


@pytest.mark.parametrize(("minor", "patch"), _FIRST_RELEASE.items())
def test_a_version_without_a_patch_is_its_first_release(minor: int, patch: int) -> None:
    stated, first = _constants((2, minor, 0)), _constants((2, minor, patch))
    assert {name for name in stated if stated[name] != first[name]} == set()


@pytest.mark.parametrize(
    ("version", "cap"),
    [
        ((2, 24, 3), (36.7, 36.7, 36.7)),
        ((2, 25, 1), (73.4, 73.4, 73.4)),
        ((2, 28, 3), (73.4, 73.4, 73.4)),
        ((2, 28, 7), (73.4, 34.6, 73.4)),
        ((2, 28, 9), (73.4, 34.6, 73.4)),
        ((2, 29, 2), (34.5, 34.6, 34.5)),
        ((2, 29, 3), (34.5, 34.6, 34.5)),
        ((2, 29, 7), (40.0, 40.0, 40.0)),
    ],
)
def test_what_ll128_carries_in_a_ring_of_blackwell(version: Version, cap: tables.Triple) -> None:
    """The last row of perChMaxRingLL128Bws: one node, two, more."""
    assert tables.ring_ll128_cap(version, "all_reduce")[3] == cap


@pytest.mark.parametrize(
    ("exponent", "before", "since"),
    [  # treeCorrectionFactor of LL128 in 2.9.9 and in 2.10.3: 23 powers of two from 64 B, 24 from 2.10 on
        (10, 1.0, 1.0), (11, 0.9, 0.9), (15, 0.7, 0.7), (18, 0.6, 0.6), (19, 0.5, 0.6), (20, 0.6, 0.6),
        (22, 0.7, 0.8), (23, 0.7, 0.9), (24, 0.8, 0.9), (25, 0.9, 0.9), (26, 0.9, 0.9), (27, 0.92, 1.0),
        (28, 0.92, 1.0), (29, 1.0, 1.0),
    ],
)  # fmt: skip
def test_2_10_corrects_ll128_of_trees_anew(exponent: int, before: float, since: float) -> None:
    factors = [tables.tree_correction("tree", 1, 1 << exponent, version) for version in ((2, 9, 9), (2, 10, 3))]
    assert factors == [before, since]


@pytest.mark.parametrize(("version", "factor"), [((2, 22, 3), 0.9), ((2, 23, 4), 1.0)])
def test_less_than_64_bytes_are_not_corrected_from_2_23_on(version: Version, factor: float) -> None:
    """Before, a logarithm of zero read the first entry, 0.9 of Simple."""
    assert tables.tree_correction("tree", 2, 63, version) == factor


@pytest.mark.parametrize(
    ("sm", "version", "allowed"),
    [(90, (2, 16, 5), False), (90, (2, 17, 0), True), (90, (2, 17, 1), True), (80, (2, 17, 1), False)],
)
def test_from_2_17_on_ll128_of_hopper_goes_to_nics_by_pxn(sm: int, version: Version, allowed: bool) -> None:
    assert whole_lines(_system(sm, 2), "ring", version) is allowed


@pytest.mark.parametrize(
    ("asked", "threads"),
    [("32", 64), ("64", 64), ("96", 96), ("512", 512), ("544", 512), ("100", 512), ("0", 512)],
)
def test_a_block_has_the_threads_asked_for_in_whole_warps_from_64_to_512(asked: str, threads: int) -> None:
    """src/graph/tuning.cc, getNthreads: what is no multiple of a warp counts as too many."""
    assert max_threads(_system(80, 1), "ring", "LL", {"NCCL_NTHREADS": asked}) == threads


@pytest.mark.parametrize(
    ("version", "newer"),
    [((2, 24, 3), set()), ((2, 25, 0), {"C2C"}), ((2, 26, 6), {"C2C"}), ((2, 27, 0), {"C2C", "P2C"})],
)
def test_path_types_that_came_with_superchips(version: Version, newer: set[str]) -> None:
    known = {PATHS[kind] for kind in view_of(load_preset("hgx-h100"), version, {}).types}
    assert known & {"C2C", "P2C"} == newer
