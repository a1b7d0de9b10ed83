"""The rule that turns the words of an index row about a machine into a description of its topology.

A row says ``gpu_model``, ``intra_link`` and ``inter_link`` in free words. The GPU and the kind of its links pick a
machine of ``topologies/`` without network; the network is read as "count x rate" and laid on top. What the words leave
open is filled by `_DEFAULT_RATE` and one NIC per GPU. No figure is chosen by looking at the times.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from commsim.errors import TopologyError

_MESH = r"no NVSwitch|^(?!.*NVSwitch)(?!.*cube)(?!.*hybrid).*(\bdirect\b|\bmesh\b|all-to-all)"

_BASES: tuple[tuple[str, str, str], ...] = (
    # GPU model, intra-node links, machine; the first match of both wins ("" matches everything).
    (r"GB[23]00", _MESH, "gb200-nvl4"),
    (r"GB[23]00", "", "gb200-nvl72"),
    (r"GB10|DGX Spark", "", "dgx-spark"),
    (r"GH200", "", "gh200x4"),
    (r"B[23]00", "", "hgx-b200"),
    (r"H200", "", "hgx-h200"),
    (r"H20\b|H20-", "", "h20"),
    (r"H800", "", "h800"),
    (r"H100 (PCIe|NVL)|H100-PCIE", "", "h100-pcie-bridge"),
    (r"H100", _MESH, "hgx-h100-4"),
    (r"H100", "", "hgx-h100"),
    (r"A800", "", "a800"),
    (r"A100.*PCIe|PCIe.*A100|A100-PCIE", r"(?<!no NVLink )bridge", "a100-pcie-bridge"),
    (r"A100.*PCIe|PCIe.*A100|A100-PCIE", "", "a100-pcie"),
    (r"A100", _MESH, "hgx-a100-4"),
    (r"A100", "", "dgx-a100"),
    (r"V100.*PCIe|V100-PCIE", "", "v100-pcie"),
    (r"V100.*SXM3|V100", r"(?<!no )NVSwitch|DGX-2", "dgx-2"),
    (r"V100", _MESH, "v100-sxm2-4"),
    (r"V100", "", "dgx-1v"),
    (r"RTX 50|RTX PRO|RTX 6000D|Blackwell", "", "rtx5090"),
    (r"RTX 40|\bL40|\bL4\b|RTX 6000 Ada|Ada", "", "rtx4090"),
    (r"RTX 30|RTX A\d|\bA10\b|\bA40\b|A6000|A5000", "", "rtx3090"),
    (r"RTX 20|TITAN RTX|\bT4\b|Quadro RTX", "", "rtx2080ti"),
)

_NETWORKS: tuple[tuple[str, str], ...] = (
    (r"TCP sockets|TCP/Ethernet|\bTCP\b|10GbE|sockets", "ethernet"),
    (r"Slingshot|Cassini|CXI", "slingshot"),
    (r"\bEFA\b", "efa"),
    (r"TCPX|FasTrak|GPUDirect-TCP", "tcpx"),
    (r"RoCE|gIB|Spectrum-X", "roce"),
    (r"InfiniBand|\b[EHNX]DR|\bIB\b|Omni", "infiniband"),
    (r"Ethernet|GbE", "ethernet"),
)
_NAMED_RATES = {"EDR": 100, "HDR100": 100, "HDR": 200, "NDR200": 200, "NDR": 400, "XDR": 800, "FDR": 56}
_DEFAULT_RATE = {"volta": 100, "turing": 100, "ampere": 200, "ada": 200, "hopper": 400, "blackwell": 400}
"""Gb/s of a NIC where the row names none: the usual one of the servers of that time."""

# us of switch, cable and NIC as in topologies/: Quantum-2, Rosetta, 51.2 Tb/s Ethernet; half a round trip of a NIC.
_LATENCY = {
    "infiniband": (0.15, 0.1, 0.35),
    "roce": (0.6, 0.1, 0.35),
    "slingshot": (0.35, 0.1, 0.45),
    "efa": (0.6, 0.25, 1.0),
    "efa_v1": (0.6, 0.25, 1.0),
    "tcpx": (0.6, 0.25, 1.0),
    "ethernet": (0.6, 0.25, 1.0),
}


@dataclass(frozen=True)
class Wire:
    """The network of a row: kind, NICs of a node, bytes/s of one, and what the row left open."""

    network: str
    nics: int
    bandwidth: float
    notes: tuple[str, ...] = ()


def base_machine(gpu_model: str, intra_link: str, gpus_per_node: int = 1) -> str:
    """The machine of ``topologies/`` for a GPU and the links between the GPUs of a node; the first with enough GPUs."""
    from commsim.topology.presets import list_presets

    size = {p.name: p.gpus_per_node for p in list_presets()}
    found = [n for g, intra, n in _BASES if re.search(g, gpu_model, re.I) and re.search(intra, intra_link, re.I)]
    if found:
        return next((name for name in found if size[name] >= gpus_per_node), found[-1])
    raise TopologyError(f"no machine is known for the GPU {gpu_model[:60]!r}; add a case that names a preset")


def network_kind(inter_link: str, env: str = "") -> str | None:
    """The network that a row names (`_NETWORKS`); TCP where the environment turns the verbs off. None if neither."""
    if re.search(r"NCCL_IB_DISABLE=1|NCCL_NET=[\"']?Socket|TCP sockets", env, re.I):
        return "ethernet"
    return next((name for pattern, name in _NETWORKS if re.search(pattern, inter_link, re.I)), None)


def wire(inter_link: str, env: str, gpus: int, generation: str) -> Wire:
    """The network that the words of a row describe, for a node of `gpus` GPUs of a generation.

    >>> wire("4x HDR 200Gb/s InfiniBand", "", 8, "ampere")
    Wire(network='infiniband', nics=4, bandwidth=25000000000.0, notes=())
    """
    notes = []
    network = network_kind(inter_link, env)
    if network is None:
        network = "infiniband"
        notes.append("network not named: taken as infiniband")
    rate = _rate(inter_link)
    if rate is None:
        rate = _DEFAULT_RATE[generation]
        notes.append(f"NIC rate not stated: taken as {rate} Gb/s")
    count = re.search(r"\b(\d{1,3})\s?x\b(?! ?GPU)|\((\d) NIC", inter_link)
    nics = int(count[1] or count[2]) if count else gpus if rate >= 100 else 1
    if count is None:
        notes.append(f"NIC count not stated: taken as {nics} ({'one per GPU' if rate >= 100 else 'a slow network'})")
    if "per tray" in inter_link:  # the node is the NVLink domain, a tray holds four of its GPUs
        nics *= max(1, gpus // 4)
    if network == "efa" and generation in ("volta", "turing", "ampere"):
        network = "efa_v1"  # its second generation came with the instances of Hopper
    if network == "efa" and nics > gpus and nics % gpus == 0:  # its plugin joins the devices beside one GPU
        nics, rate = gpus, rate * nics // gpus
    return Wire(network, nics, rate * 1e9 / 8, tuple(notes))


def _rate(text: str) -> int | None:
    match = re.search(r"(\d{2,4})\s?Gb(?:/s|ps|it/s|E)", text) or re.search(r"\b(\d{2,4})G\b", text)
    if match:
        return int(match[1])
    return next((rate for name, rate in _NAMED_RATES.items() if re.search(rf"\b{name}\b", text)), None)


def network_blocks(network: str, nics: int | None = None, bandwidth: float | None = None) -> dict[str, object]:
    """The `node` and `fabric` blocks of a topology description that lay a network on a machine."""
    switch, cable, nic = _LATENCY[network]
    node: dict[str, object] = {"latency": f"{nic} us"}
    if nics is not None:
        node["count"] = nics
    if bandwidth is not None:
        node["bandwidth"] = f"{bandwidth:.0f} B/s"
    fabric = {
        "kind": "rail_fat_tree",
        "network": network,
        "switch_latency": f"{switch} us",
        "cable_latency": f"{cable} us",
        "nodes_per_leaf": 32,
        "oversubscription": 1.0,
    }
    return {"node": {"nic": node}, "fabric": fabric}
