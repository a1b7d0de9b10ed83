"""The rates of links as a version counts them, by hand from src/graph/topo.h and topo.cc."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from commsim.nccl.graph import discover
from commsim.nccl.system import speeds
from commsim.nccl.version import Version
from commsim.nccl.view import cpu_link_gbps, nvlink_gbps
from commsim.topology.presets import load_preset, load_topology
from commsim.topology.spec import TopologySpec


@pytest.mark.parametrize(
    ("sm", "version", "gbps"),
    [
        (60, (2, 22, 3), 18.0),  # SM60_NVLINK_BW
        (70, (2, 9, 9), 21.0),
        (70, (2, 10, 3), 22.0),
        (75, (2, 14, 3), 22.0),
        (80, (2, 17, 1), 22.0),
        (80, (2, 18, 1), 20.0),  # SM80_NVLINK_BW
        (86, (2, 22, 3), 12.0),  # SM86_NVLINK_BW
        (89, (2, 22, 3), 12.0),
        (90, (2, 12, 12), 22.0),  # as sm 80, the newest that it knows
        (90, (2, 18, 1), 20.0),
        (90, (2, 19, 3), 20.0),
        (90, (2, 20, 0), 20.6),  # SM90_NVLINK_BW
        (100, (2, 24, 3), 20.6),
        (100, (2, 26, 2), 40.0),
        (100, (2, 27, 0), 40.1),  # SM100_NVLINK_BW
        (120, (2, 27, 0), 40.1),
        (61, (2, 22, 3), 20.0),  # 0.8 of the 25 GB/s that the machine's own links carry
    ],
)
def test_an_nvlink_of_each_generation(sm: int, version: Version, gbps: float) -> None:
    machine = load_preset("hgx-h100")
    (nodes,) = machine.groups
    nodes = replace(nodes, gpu=replace(nodes.gpu, sm=sm), nvlink_link_bandwidth=25e9)
    assert nvlink_gbps(replace(machine, groups=(nodes,)), version) == pytest.approx(gbps)


@pytest.mark.parametrize(
    ("vendor", "model", "version", "gbps"),
    [
        ("intel", "Intel(R) Xeon(R) Platinum 8592+", (2, 26, 2), 40.0),
        ("intel", "Intel(R) Xeon(R) Platinum 8480C", (2, 26, 2), 22.0),
        ("intel", "Broadwell", (2, 26, 0), 6.0),
        ("intel", "Intel(R) Xeon(R) Platinum 8592+", (2, 25, 1), 10.0),
        ("intel", "", (2, 26, 2), 10.0),
    ],
)
def test_the_link_between_sockets(vendor: str, model: str, version: Version, gbps: float) -> None:
    machine = load_preset("hgx-h100")
    (nodes,) = machine.groups
    nodes = replace(nodes, cpu=replace(nodes.cpu, vendor=vendor, model=model))
    assert cpu_link_gbps(replace(machine, groups=(nodes,)), version) == pytest.approx(gbps)


@pytest.mark.parametrize(
    ("sm", "version", "inside", "between"),
    # src/graph/search.cc, speedArray*, at the tags of these releases; the fastest of each.
    [
        (80, (2, 9, 9), (42.0, 30.0, 24.0), (42.0, 30.0, 24.0)),
        (80, (2, 10, 3), (44.0, 30.0, 22.0), (48.0, 30.0, 24.0)),
        (80, (2, 14, 3), (44.0, 30.0, 22.0), (48.0, 30.0, 24.0)),
        (80, (2, 17, 1), (44.0, 30.0, 22.0), (48.0, 30.0, 28.0)),
        (80, (2, 18, 1), (40.0, 30.0, 20.0), (48.0, 30.0, 28.0)),
        (90, (2, 15, 5), (44.0, 30.0, 22.0), (48.0, 30.0, 28.0)),
        (90, (2, 16, 5), (66.0, 33.0, 24.0), (48.0, 45.0, 30.0)),
        (90, (2, 18, 1), (60.0, 40.0, 30.0), (48.0, 45.0, 42.0)),
    ],
)
def test_speeds_tried_by_release(
    sm: int, version: Version, inside: tuple[float, ...], between: tuple[float, ...]
) -> None:
    assert speeds(sm, False, version)[:3] == inside
    assert speeds(sm, True, version)[:3] == between


def test_two_speeds_of_hopper_came_with_2_18_3() -> None:
    added = set(speeds(90, True, (2, 18, 3))) - set(speeds(90, True, (2, 18, 1)))
    assert added == {20.0, 17.5}


@pytest.mark.parametrize(
    ("version", "channels", "gbps"),
    # 8 links of 22 GB/s hold four channels of 44, which are doubled, or seven of 24 of the table of 2.16.5 and 2.17.
    [((2, 12, 12), 8, 22.0), ((2, 17, 1), 7, 24.0), ((2, 18, 3), 8, 20.0)],
)
def test_channels_of_eight_h800_by_release(version: Version, channels: int, gbps: float) -> None:
    ring = discover(load_preset("h800"), version, {}, None).ring
    assert (ring.channels, ring.intra_gbps) == (channels, gbps)


def test_a100_meets_its_nic_at_24_on_amd() -> None:
    # thomaslie210/NCCL_Test_Results, NCCL 2.16.5: "nChannels 1, bw 24/24" of rings, 48/24 of trees.
    spec = {"preset": "a100-pcie", "nodes": 2, "gpus_per_node": 1, "cpu": {"vendor": "amd", "model": "EPYC"}}
    nic = {"nic": {"attach": "host", "count": 1, "bandwidth": "200 Gb/s"}}
    topology = load_topology(TopologySpec.model_validate({**spec, "node": nic}), Path())
    system = discover(topology, (2, 16, 5), {"NCCL_NET_GDR_LEVEL": "SYS"}, None)
    assert [(g.channels, g.intra_gbps, g.inter_gbps) for g in (system.ring, system.tree)] == [
        (1, 24.0, 24.0),
        (1, 48.0, 24.0),
    ]
