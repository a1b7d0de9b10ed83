"""Which GPUs write to each other's memory, and what the others reach through that of a host."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from commsim.nccl.environment import PATHS
from commsim.nccl.graph import discover
from commsim.nccl.paths import peer_level
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.view import view_of
from commsim.topology.presets import load_file, load_preset

NEW, OLD = (2, 22, 3), (2, 8, 3)


@pytest.mark.parametrize(
    ("preset", "version", "env", "level"),
    [
        ("dgx-a100", NEW, {}, "SYS"),  # AMD
        ("dgx-a100", (2, 25, 1), {}, "PXB"),
        ("a100-pcie-bridge:2", (2, 25, 1), {}, "SYS"),  # two GPUs only
        ("hgx-h100", (2, 25, 1), {}, "PXB"),
        ("hgx-h100", NEW, {}, "PXB"),  # Intel
        ("hgx-h100", OLD, {}, "PHB"),
        ("dgx-1v", OLD, {}, "PXB"),  # Broadwell
        ("gh200x4", NEW, {}, "PXB"),  # Arm
        ("hgx-h100", NEW, {"NCCL_P2P_LEVEL": "SYS"}, "SYS"),
        ("dgx-a100", NEW, {"NCCL_P2P_LEVEL": "3"}, "PHB"),
        ("dgx-a100", NEW, {"NCCL_P2P_LEVEL": "4"}, "SYS"),
        ("dgx-a100", NEW, {"NCCL_P2P_LEVEL": "99"}, "SYS"),
        ("dgx-a100", NEW, {"NCCL_P2P_LEVEL": "SYS", "NCCL_P2P_DISABLE": "1"}, "LOC"),
        ("rtx4090", NEW, {"NCCL_P2P_LEVEL": "SYS"}, "NVB"),  # the driver of a GeForce has the last word
    ],
)
def test_how_far_peer_to_peer_goes(preset: str, version: tuple[int, int, int], env: dict[str, str], level: str) -> None:
    name, _, gpus = preset.partition(":")
    machine = load_preset(name, gpus_per_node=int(gpus) if gpus else None)
    assert PATHS[peer_level(machine, version, env)] == level


@pytest.mark.parametrize(
    ("preset", "gpus", "version", "env", "kind", "busbw"),
    [
        # bytes/s that published runs reach
        ("rtx4090", 8, (2, 12, 12), {}, "host", 16.0e9),
        ("rtx4090", 8, (2, 25, 1), {}, "host", 14.9e9),
        ("rtx5090", 4, (2, 26, 2), {}, "host", 27.3e9),
        ("hgx-a100-4", 2, (2, 25, 1), {"NCCL_P2P_DISABLE": "1"}, "host", 13.7e9),
        ("v100-pcie", 4, (2, 8, 3), {}, "host", 9.4e9),
        ("a100-pcie", 8, (2, 12, 12), {}, "host", 15.0e9),  # between the sockets of Intel's
        # no run stands for these: the port's rate below one switch and across the sockets of AMD's, or 0.62 of it
        ("a100-pcie", 4, (2, 12, 12), {}, "pcie", 24e9),
        ("rtx6000d", 8, (2, 22, 3), {}, "pcie", 48e9),
        ("rtx6000d", 8, (2, 30, 3), {}, "host", 0.62 * 48e9),
        ("rtx6000d", 8, (2, 30, 3), {"NCCL_P2P_LEVEL": "SYS"}, "pcie", 48e9),
    ],
)
def test_what_gpus_reach(
    preset: str, gpus: int, version: tuple[int, int, int], env: dict[str, str], kind: str, busbw: float
) -> None:
    model = Predictor(load_preset(preset, nodes=1, gpus_per_node=gpus), Options(version, env | {"NCCL_ALGO": "Ring"}))
    got = model.predict("all_reduce", 1 << 32)
    assert model.machine.intra_kind == kind
    assert 2 * (gpus - 1) / gpus * (1 << 32) / got.time_s == pytest.approx(busbw, rel=0.12)


def test_what_leaves_the_node_passes_the_same_port() -> None:
    """An all_to_all of two nodes of eight RTX 6000D, with NICs of twice the port's rate: 45.8 of 48 GB/s a GPU."""
    two = load_preset("rtx6000d", nodes=2, nics_per_node=8, nic_bandwidth="800 Gb/s")
    for env in ({}, {"NCCL_P2P_LEVEL": "SYS"}):
        got = Predictor(two, Options((2, 30, 1), env)).predict("all_to_all", 1 << 32)
        assert 15 / 16 * (1 << 32) / got.time_s == pytest.approx(45.8e9, rel=0.08)


@pytest.mark.slow  # the search of four such nodes takes long
def test_what_leaves_the_node_is_not_held_up_between_its_sockets() -> None:
    """Each GPU of four nodes sends 31/32 through its port, whatever the sockets or a shared uplink carry."""
    four = load_preset("a100-pcie", nodes=4, nics_per_node=8, nic_bandwidth="200 Gb/s")
    for env in ({}, {"NCCL_P2P_LEVEL": "SYS"}):
        got = Predictor(four, Options(NEW, env)).predict("all_to_all", 1 << 30)
        assert got.time_s < 1.5 * 31 / 32 * (1 << 30) / (24e9 * 0.85)


@pytest.mark.parametrize(("preset", "pieces", "port"), [("rtx2080ti", 7, 12e9), ("a100-pcie", 16, 24e9)])
def test_staged_sends_pass_memory_and_not_the_link_of_the_sockets(preset: str, pieces: int, port: float) -> None:
    """Each RTX has a port of the host for itself; four A100 share one, by which 4 * 4 pieces leave their socket."""
    model = Predictor(load_preset(preset), Options(NEW))
    got = model.predict("all_to_all", 1 << 30)
    assert got.bottleneck == "host memory"
    assert got.busy_s == pytest.approx(pieces * (1 << 27) / (port * model.parameters.efficiency.host))


@pytest.mark.parametrize(("preset", "seconds"), [("a100-pcie", 16 / 24e9), ("v100-pcie-8", 16 / 12e9)])
def test_all_pairs_across_switches_share_their_uplinks(preset: str, seconds: float) -> None:
    """Published ratings by hand, whatever share of them is reached: 0.94 and 0.9 of it before the uplinks counted."""
    for env in ({}, {"NCCL_P2P_LEVEL": "SYS"}):
        got = Predictor(load_preset(preset), Options(NEW, env)).predict("all_to_all", 1 << 30)
        assert got.time_s > (1 << 27) * seconds


def test_a_node_may_be_written_without_a_host(tmp_path: Path) -> None:
    """GPUs and a switch are all that the file names: without peer to peer they still meet where they can."""
    file = tmp_path / "switch.yaml"
    file.write_text(
        "gpu: {model: A100 PCIe, generation: ampere, sm: 80}\ncpu: {arch: x86_64, vendor: amd}\nnode:\n"
        "  vertices: {gpu0: gpu, gpu1: gpu, pcie0: pcie_switch}\n  links:\n"
        "  - {ends: [gpu0, pcie0], kind: pcie, bandwidth: 24 GB/s}\n"
        "  - {ends: [gpu1, pcie0], kind: pcie, bandwidth: 24 GB/s}\n"
    )
    machine = load_file(file)
    off = Predictor(machine, Options(NEW, {"NCCL_P2P_DISABLE": "1"}))
    assert off.machine.intra_bandwidth == 24e9
    assert off.predict("all_reduce", 1 << 20).time_s > 0


def test_levels_are_searched_apart() -> None:
    """Graphs are kept: those of one level must not serve another, in whatever order they are asked for."""
    mesh = load_preset("hgx-h100-4")
    levels = ("LOC", "NVL", "LOC", "NVL")
    kinds = [Predictor(mesh, Options(NEW, {"NCCL_P2P_LEVEL": level})).machine.intra_kind for level in levels]
    assert kinds == ["host", "nvlink_direct", "host", "nvlink_direct"]


@pytest.mark.parametrize("collective", ["all_reduce", "all_gather", "broadcast", "send_recv", "all_to_all"])
def test_a_driver_that_allows_peer_to_peer_is_never_slower(collective: str) -> None:
    host = load_preset("rtx4090")
    groups = tuple(dataclasses.replace(g, gpu=dataclasses.replace(g.gpu, peer_to_peer=True)) for g in host.groups)
    peers = dataclasses.replace(host, groups=groups)
    for size in (8, 1 << 14, 1 << 20, 1 << 28):
        one, other = (Predictor(machine, Options(NEW)).predict(collective, size).time_s for machine in (peers, host))
        assert one <= 1.01 * other


def test_the_search_counts_sockets_as_nccl_does() -> None:
    """What the wires between two sockets carry changes no channel."""
    own = load_preset("rtx4090")
    slower = dataclasses.replace(own, link_bandwidth=own.link_bandwidth.clip(max=24e9))
    assert float(own.link_bandwidth.max()) == 96e9
    assert discover(own, NEW, {}).ring == discover(slower, NEW, {}).ring


def test_gpus_under_one_switch_without_peer_to_peer_are_searched_through_the_host() -> None:
    switch = load_preset("a100-pcie", gpus_per_node=4)
    found = [view_of(switch, NEW, env).gpu_gpu[0][1].type for env in ({}, {"NCCL_P2P_LEVEL": "LOC"})]
    assert [PATHS[kind] for kind in found] == ["PIX", "PHB"]
