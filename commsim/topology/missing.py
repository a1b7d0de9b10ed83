"""What a description of a machine must say and does not, all of it at once."""

from __future__ import annotations

from commsim.document import Document
from commsim.document.types import KeyPath
from commsim.errors import Fault
from commsim.topology.spec import GroupSpec, MachineSpec, TopologySpec

EXAMPLES: dict[str, tuple[str, str]] = {
    "gpu.model": ("H100 SXM5", "as the vendor calls it"),
    "gpu.generation": ("hopper", "volta, turing, ampere, ada, hopper, blackwell or cpu"),
    "gpu.sm": ("90", "compute capability times ten"),
    "cpu.arch": ("x86_64", "x86_64, arm64 or ppc64"),
    "cpu.vendor": ("intel", "intel, amd, arm, ibm or zhaoxin"),
    "node.gpus": ("8", "how many"),
    "node.nvlink.bandwidth": ("25 GB/s", "of one link, one direction"),
    "node.pcie.bandwidth": ("48 GB/s", "of a GPU's link, one direction"),
    "node.pcie.socket_bandwidth": ("22 GB/s", "between two sockets"),
    "node.c2c.bandwidth": ("450 GB/s", "of a GPU to its own CPU"),
    "node.nic.bandwidth": ("400 Gb/s", "of one card, one direction"),
}
"""What may be missing, by its path: an example, and what it is."""


def missing_keys(machine: MachineSpec, knobs: TopologySpec | GroupSpec) -> list[str]:
    """The paths that a machine with some knobs needs and does not state, in the order of `EXAMPLES`."""
    node = machine.node
    gpu, cpu = machine.gpu, machine.cpu
    keys = {f"gpu.{name}" for name in ("model", "generation", "sm") if getattr(gpu, name, None) is None}
    keys |= {f"cpu.{name}" for name in ("arch", "vendor") if getattr(cpu, name, None) is None}
    nic = node and node.nic
    cards = knobs.nics_per_node if knobs.nics_per_node is not None else (nic and nic.count) or 0
    if node is not None and node.vertices is not None:
        cards = list(node.vertices.values()).count("nic")
    if cards and not (knobs.nic_bandwidth or (nic and nic.bandwidth)):
        keys.add("node.nic.bandwidth")
    if node is None or node.vertices is None:
        keys |= _of_pattern(machine)
    return [key for key in EXAMPLES if key in keys]


def _of_pattern(machine: MachineSpec) -> set[str]:
    """What a node needs that is not written out link by link."""
    node = machine.node
    if node is None:
        return {"node.gpus", "node.pcie.bandwidth"}
    pcie, nvlink, c2c = node.pcie, node.nvlink, node.c2c
    keys = set() if node.gpus else {"node.gpus"}
    if c2c is not None and c2c.bandwidth is None:
        keys.add("node.c2c.bandwidth")
    if c2c is None and (pcie is None or pcie.bandwidth is None):
        keys.add("node.pcie.bandwidth")
    if pcie and (pcie.sockets or 1) > 1 and pcie.socket_bandwidth is None:
        keys.add("node.pcie.socket_bandwidth")
    if nvlink and (nvlink.kind or "none") != "none" and nvlink.links and nvlink.bandwidth is None:
        keys.add("node.nvlink.bandwidth")
    return keys


def missing_faults(keys: list[str], document: Document) -> list[Fault]:
    """A fault for each, at the line of the block that it belongs in."""
    faults = []
    for key in keys:
        path: KeyPath = tuple(key.split("."))
        example, what = EXAMPLES[key]
        text = f"found no key {path[-1]!r}, expected it, such as {path[-1]}: {example} ({what})"
        faults.append(document.fault(path, text))
    return faults
