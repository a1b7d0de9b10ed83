"""The rates of links as a version counts them, by hand from src/graph/topo.h and topo.cc."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commsim.nccl.version import Version
from commsim.nccl.view import cpu_link_gbps, nvlink_gbps
from commsim.topology.presets import load_preset


@pytest.mark.parametrize(
    ("sm", "version", "gbps"),
    [
        (60, (2, 22, 3), 18.0),  # SM60_NVLINK_BW
        (70, (2, 11, 4), 21.0),
        (70, (2, 12, 0), 22.0),
        (75, (2, 14, 3), 22.0),
        (80, (2, 15, 0), 20.0),  # SM80_NVLINK_BW
        (86, (2, 22, 3), 12.0),  # SM86_NVLINK_BW
        (89, (2, 22, 3), 12.0),
        (90, (2, 19, 3), 20.0),
        (90, (2, 20, 0), 20.6),  # SM90_NVLINK_BW
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
