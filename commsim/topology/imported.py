"""What the importers share: the figures a person adds, those known by GPU, and the description they end in."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commsim.topology.sockets import socket_gb_per_s

_GENERATIONS = {100: "blackwell", 90: "hopper", 89: "ada", 80: "ampere", 75: "turing", 70: "volta"}
_MOST_SM = 129
"""Least compute capabilities, times ten, of each generation, and the most of the last."""

NVLINK_GB_PER_S = {70: 25.0, 75: 25.0, 80: 25.0, 86: 14.0, 90: 25.0, 100: 50.0, 103: 50.0}
"""One NVLink in one direction, from the datasheets."""

_GEFORCE = (75, 86, 89, 120)
"""Compute capabilities that GeForce and professional cards share."""

NVLINK_MOST = {70: 6, 75: 2, 80: 12, 86: 4, 90: 18, 100: 18, 103: 18}
"""NVLinks of one GPU."""

AMD_SOCKET_GB_PER_S = 96.0
"""Between two sockets of AMD's, for what devices send each other: three xGMI links of 16 lanes at 16 GT/s. Published
runs of 4 and 8 GPUs exceed the 16 GB/s that NCCL counts, by which its search goes all the same."""

MODEL_OF_SM = {
    70: "V100",
    75: "T4",
    80: "A100",
    86: "GA102",
    89: "AD102",
    90: "H100",
    100: "B200",
    103: "B300",
    120: "GB202",
}


@dataclass(frozen=True)
class Given:
    """What a person states beside a file: each is the flag of the same name; None where not stated."""

    sm: int | None = None
    nvlink_links: int | None = None
    nvlink_kind: str = "switch"  # switch, mesh, cube_mesh or pairs, where only the number of links is known
    nic_bandwidth: str | None = None
    pcie_bandwidth: str | None = None
    cpu_vendor: str | None = None
    network: str | None = None
    peer_to_peer: bool | None = None


@dataclass
class Imported:
    """A description as a topology file holds it, and what the reader should know of it."""

    data: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def imported(
    path: Path,
    sm: int,
    cpu: dict[str, str],
    node: dict[str, Any],
    nic_bandwidth: str | None,
    given: Given,
    notes: list[str],
) -> Imported:
    """A description of GPUs of a known generation; `nic_bandwidth` is None for a node without NICs."""
    gpu: dict[str, Any] = {"model": MODEL_OF_SM.get(sm, f"sm{sm}"), "generation": generation_of(sm), "sm": sm}
    if given.peer_to_peer is not None:
        gpu["peer_to_peer"] = given.peer_to_peer
    machine = {"description": f"Imported from {path.name}", "gpu": gpu, "cpu": cpu, "node": node}
    if nic_bandwidth is not None:
        node["nic"] = {"bandwidth": nic_bandwidth}
        machine["fabric"] = {"kind": "single_switch", "network": given.network or "infiniband"}
    if given.peer_to_peer is None and sm in _GEFORCE:
        notes.append(
            "GPUs are taken to write to each other's memory over PCIe; GeForce cards do not: --no-peer-to-peer"
        )
    return Imported(machine, notes)


def generation_of(sm: int) -> str | None:
    """The generation of a compute capability (times ten), None where commsim has none."""
    return next((name for least, name in _GENERATIONS.items() if least <= sm <= _MOST_SM), None)


def gb_per_s(value: float) -> str:
    """A bandwidth as topology files write it."""
    return f"{value:g} GB/s"


def link(a: str, b: str, kind: str, bandwidth: str, count: int = 1) -> dict[str, Any]:
    """One written-out link."""
    entry: dict[str, Any] = {"ends": [a, b], "kind": kind, "bandwidth": bandwidth}
    return entry | ({"count": count} if count != 1 else {})


def socket_links(hosts: list[str], vendor: str, model: str = "") -> list[dict[str, Any]]:
    """All sockets joined with each other, as NCCL rates them but for AMD's."""
    bandwidth = gb_per_s(AMD_SOCKET_GB_PER_S if vendor == "amd" else socket_gb_per_s(vendor, model))
    return [link(a, b, "host", bandwidth) for i, a in enumerate(hosts) for b in hosts[i + 1 :]]


def nvlinks(gpus: list[str], sm: int, count: int, kind: str) -> tuple[dict[str, str], list[dict[str, Any]]]:
    """(vertices, links) of `count` NVLinks per GPU wired as `kind`; nothing for no links."""
    from commsim.topology.node import CUBE_MESH

    bandwidth = gb_per_s(NVLINK_GB_PER_S.get(sm, 25.0))
    if not count or len(gpus) < 2:
        return {}, []
    if kind == "switch":
        return {"nvswitch": "nvswitch"}, [link(gpu, "nvswitch", "nvlink", bandwidth, count) for gpu in gpus]
    if kind == "cube_mesh" and len(gpus) == 8:
        return {}, [link(gpus[a], gpus[b], "nvlink", bandwidth, n) for (a, b), n in CUBE_MESH.items()]
    if kind == "pairs":
        return {}, [link(gpus[i], gpus[i + 1], "nvlink", bandwidth, count) for i in range(0, len(gpus) - 1, 2)]
    each = max(1, count // (len(gpus) - 1))
    return {}, [link(a, b, "nvlink", bandwidth, each) for i, a in enumerate(gpus) for b in gpus[i + 1 :]]
