"""NCCL's tuner against golden vectors: tables and selections computed from, and seen with, NCCL 2.30.7."""

from __future__ import annotations

from dataclasses import replace

import pytest

from commsim.nccl.system import Graph, System
from commsim.nccl.tuner import candidates, choose

VERSION = (2, 30, 7)


def system(
    ranks: int, nodes: int, sm: int, ring: tuple[int, float], pattern: str, nvls: tuple[float, float] | None = None,
    cpu: str = "intel",
) -> System:  # fmt: skip
    graph = Graph(ring[0], ring[1], ring[1], "RING", "NVL", "PXB")
    return System(
        ranks=ranks,
        nodes=nodes,
        sm=sm,
        cpu_vendor=cpu,
        cpu_arch="x86_64",
        intra_type="NVL",
        inter_type="PXB",
        nic_latency_us=0.0,
        ring=graph,
        tree=replace(graph, pattern=pattern),
        nvls=Graph(8, *nvls, "NVLS", "NVL", "PIX") if nvls else None,
        coll_channels=2 * ring[0],
    )


SYSTEMS = {
    "8xH100": system(8, 1, 90, (12, 30.0), "BALANCED_TREE", (40.0, 60.0)),
    "8xA100": system(8, 1, 80, (12, 20.0), "BALANCED_TREE"),
    "DGX-1": system(8, 1, 70, (6, 20.0), "BALANCED_TREE"),
    "8xB200": system(8, 1, 100, (16, 45.0), "BALANCED_TREE", (80.0, 90.0)),
    "2x8 H100": system(16, 2, 90, (8, 48.0), "TREE", (40.0, 48.0)),
    "4x8 H100": system(32, 4, 90, (8, 48.0), "TREE", (40.0, 48.0)),
    "2x8 A100": system(16, 2, 80, (8, 24.0), "BALANCED_TREE", cpu="amd"),
    "4x8 A100": system(32, 4, 80, (8, 24.0), "BALANCED_TREE", cpu="amd"),
}

TABLES = {
    "8xH100": "15.2/43.6 31.5/128.8 64.4/165.6 15.0/80.6 40.6/189.3 56.0/205.7 25.0/272.0",
    "8xA100": "15.2/29.1 31.5/85.9 64.4/110.4 15.0/50.1 40.6/126.2 56.0/137.1",
    "DGX-1": "15.2/14.5 31.5/42.9 64.4/55.2 15.0/22.3 40.6/63.1 56.0/68.6",
    "8xB200": "15.2/87.2 31.5/257.6 64.4/331.2 15.0/161.1 40.6/365.7 56.0/411.4 25.0/411.4",
    "2x8 H100": "25.2/16.6 48.5/124.8 92.4/140.8 40.0/20.8 75.2/156.6 131.6/204.8 66.8/246.2",
    "4x8 H100": "35.2/8.7 65.5/98.6 120.4/122.4 78.8/10.5 144.4/151.5 282.8/198.2 108.6/187.9",
    "2x8 A100": "25.2/11.2 48.5/80.0 92.4/88.3 68.0/12.0 78.0/85.3 204.4/102.4",
    "4x8 A100": "35.2/9.5 65.5/66.8 120.4/71.2 134.8/9.8 150.0/82.6 428.4/99.1",
}

MAPS = {
    "8xH100": {8: "ring/LL", 21: "nvls/Simple"},
    "8xA100": {8: "ring/LL", 22: "ring/LL128", 25: "ring/Simple"},
    "DGX-1": {8: "ring/LL", 20: "ring/LL128", 24: "ring/Simple"},
    "8xB200": {8: "ring/LL", 22: "nvls/Simple"},
    "2x8 H100": {8: "tree/LL", 18: "tree/LL128", 21: "nvls_tree/Simple"},
    "4x8 H100": {8: "tree/LL", 18: "tree/LL128", 23: "nvls_tree/Simple", 30: "ring/Simple"},
    "2x8 A100": {8: "tree/LL", 18: "tree/LL128", 24: "ring/LL128", 27: "ring/Simple"},
    "4x8 A100": {8: "tree/LL", 18: "tree/LL128", 25: "ring/LL128", 28: "ring/Simple"},
}


@pytest.mark.parametrize("name", TABLES)
def test_latency_and_bandwidth_of_every_candidate(name: str) -> None:
    table = candidates(SYSTEMS[name], "all_reduce", 1024, VERSION)
    assert " ".join(f"{c.latency_us:.1f}/{c.algbw_gbps:.1f}" for c in table) == TABLES[name]


@pytest.mark.parametrize("name", MAPS)
def test_choice_by_size(name: str) -> None:
    switches: dict[int, str] = {}
    last = ""
    for exponent in range(8, 36):
        best = choose(candidates(SYSTEMS[name], "all_reduce", 2**exponent, VERSION))
        assert best is not None
        chosen = f"{best.algorithm}/{best.protocol}"
        if chosen != last:
            switches[exponent] = last = chosen
    assert switches == MAPS[name]


def test_rings_of_other_collectives_on_eight_h100() -> None:
    table = candidates(SYSTEMS["8xH100"], "all_gather", 1024, VERSION)
    ring = [f"{c.latency_us:.1f}/{c.algbw_gbps:.1f}" for c in table if c.algorithm == "ring"]
    assert ring == ["10.8/161.1", "27.3/378.5", "32.2/411.4"]
    broadcast = candidates(SYSTEMS["8xH100"], "broadcast", 1024, VERSION)
    assert [f"{c.latency_us:.1f}/{c.algbw_gbps:.1f}" for c in broadcast if c.algorithm == "ring"] == [
        "7.2/141.0",
        "15.9/331.2",
        "11.8/360.0",
    ]


def test_socket_pair_of_one_gpu_nodes() -> None:
    # A public log of NCCL 2.29.7: two ranks that are each a node of their own, over sockets.
    graph = Graph(2, 1.2, 1.2, "RING", "LOC", "PHB")
    pair = System(
        2, 2, 120, "intel", "x86_64", "LOC", "PHB", 0.0, graph, Graph(2, 2.4, 1.2, "TREE", "LOC", "PHB"), None, 4
    )
    shown = {
        f"{c.algorithm}/{c.protocol}": f"{c.latency_us:.1f}/{c.algbw_gbps:.1f}"
        for c in candidates(pair, "all_reduce", 1024, (2, 29, 7))
    }
    assert shown == {
        "tree/LL": "16.8/0.5",
        "tree/Simple": "36.4/1.9",
        "ring/LL": "16.6/1.2",
        "ring/Simple": "36.4/2.4",
    }
