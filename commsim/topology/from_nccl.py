"""NCCL's topology XML (NCCL_TOPO_FILE, NCCL_TOPO_DUMP_FILE) as a description of a machine.

Read are full dumps and the partial files of cloud images, which only list PCI devices. For what a file does not say
the error names the flag that says it. The dialect of RCCL (AMD GPUs) is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from commsim.errors import Fault, TopologyError
from commsim.topology.imported import (
    NVLINK_GB_PER_S,
    Given,
    Imported,
    gb_per_s,
    generation_of,
    imported,
    link,
    nvlinks,
    socket_links,
)
from commsim.topology.sockets import model_text
from commsim.units import GIGA
from commsim.xml_tree import Element, read_xml

_PCIE = {"2.5": 15, "5": 30, "8": 60, "16": 120, "32": 240, "64": 480}
"""100 Mb/s a lane by GT/s, which newer kernels print with a decimal (src/graph/topo.cc, kvDictPciGen)."""

_THIRD_GENERATION = 60
"""Of a speed that is none of these."""

_VENDORS = {
    "GenuineIntel": "intel",
    "AuthenticAMD": "amd",
    "IBM": "ibm",
    "CentaurHauls": "zhaoxin",
    "  Shanghai  ": "zhaoxin",
}
_NVSWITCH, _CPU = "0x068000", "0x068001"
"""PCI classes at the far end of NVLinks (src/graph/topo.cc, kvDictPciClass)."""

_VIRTUAL = re.compile(r"^(br-|veth|docker|cali|tunl|flannel|virbr|tailscale|wl|vxlan|cni|lo$)")
_SM_OF_DEVICE = {
    "0x1db1": 70, "0x1db4": 70, "0x1db5": 70, "0x1db6": 70, "0x20b0": 80, "0x20b2": 80, "0x20b5": 80, "0x20f1": 80,
    "0x2204": 86, "0x2230": 86, "0x2235": 86, "0x2236": 86, "0x2237": 86, "0x2684": 89, "0x26b5": 89, "0x26b9": 89,
    "0x2330": 90, "0x2331": 90, "0x2335": 90, "0x2324": 90, "0x2329": 90, "0x2901": 100, "0x2b85": 120,
}  # fmt: skip
"""Compute capability by PCI device number, of files that do not state it."""


@dataclass
class _Gpu:
    name: str
    bus: str
    line: int
    rank: int | None
    sm: int | None
    element: Element | None


@dataclass
class _Nic:
    parent: str
    line: int
    speed: float | None  # Mb/s, None where the file does not say
    label: str
    pcie: float  # GB/s, 0 without a PCI parent
    card: int | None = None  # the device that it shares with other ports


@dataclass
class _Parts:
    file: str
    vertices: dict[str, str] = field(default_factory=dict)
    links: list[dict[str, Any]] = field(default_factory=list)
    gpus: list[_Gpu] = field(default_factory=list)
    nics: list[_Nic] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    unknown_speeds: list[tuple[int, str]] = field(default_factory=list)  # (line, what it says) of PCI devices

    def fault(self, line: int, attribute: str, message: str) -> None:
        self.faults.append(Fault(self.file, line, 1, attribute, message))

    def number(self, element: Element, name: str) -> float:
        """The number of an attribute, from 0 to a thousand million; anything else is a fault, and 0."""
        text = element.attributes.get(name, "")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if 0 <= value <= GIGA:
            return value
        self.fault(element.line, name, f"found {text[:40]!r}, expected a number")
        return 0.0

    def speed(self, net: Element) -> float | None:
        """Mb/s of a port, None where the file does not say."""
        return (self.number(net, "speed") or 10_000.0) if "speed" in net.attributes else None


def read_topology_xml(path: Path, given: Given | None = None) -> Imported:
    """The machine of a topology file; TopologyError names what is broken or missing, with its line or its flag."""
    given = given or Given()
    root = read_xml(path)
    file = str(path)
    _check_dialect(root, file)
    parts = _Parts(file)
    for cpu in root.each("cpu"):
        host = f"cpu{len(parts.hosts)}"
        parts.hosts.append(host)
        parts.vertices[host] = "host"
        _devices(parts, cpu, host, host)
    if not parts.hosts:
        parts.fault(root.line, "", "found no <cpu>")
    _keep_ranked(parts)
    if not parts.gpus and not parts.faults:
        parts.fault(root.line, "", "found no GPU: no <gpu>, and no <pci> of class 0x03")
    sm = _sm(parts, given)
    vendor = _cpu(root, parts, given)
    speed = _nics(parts, given)
    _note_speeds(parts)
    _nvlink(parts, given, sm)
    if parts.faults:
        raise TopologyError(sorted(parts.faults))
    if generation_of(sm) is None:
        raise TopologyError([Fault(file, 0, 0, "", f"found compute capability {sm / 10:g}, expected 7.0 or later")])
    model = _model(root, parts)
    parts.links += socket_links(parts.hosts, vendor, model.get("model", ""))
    processor = {"arch": root.each("cpu")[0].attributes.get("arch", "x86_64"), "vendor": vendor, **model}
    return imported(path, sm, processor, {"vertices": parts.vertices, "links": parts.links}, speed, given, parts.notes)


def _check_dialect(root: Element, file: str) -> None:
    if root.name != "system":
        hint = "; this is a graph file, which holds channels and no machine: name it as library.graph of a scenario"
        hint = hint if root.name == "graphs" else ""
        raise TopologyError([Fault(file, root.line, 1, "", f"found <{root.name[:40]}>, expected <system>{hint}")])
    for element in root.walk():
        if element.name == "xgmi" or "gcn" in element.attributes:
            message = "this is the dialect of RCCL (AMD GPUs and xGMI links), which commsim does not model"
            raise TopologyError([Fault(file, element.line, 1, "", message)])
    version = root.attributes.get("version", "1")
    if version != "1":
        raise TopologyError([Fault(file, root.line, 1, "version", f"found {version[:20]!r}, expected 1")])


def _devices(parts: _Parts, parent: Element, vertex: str, host: str) -> None:
    for element in parent.children:
        if element.name == "pci":
            _pci(parts, element, vertex, host)
        elif element.name == "nic":
            for net in element.each("net"):
                parts.nics.append(_Nic(host, net.line, parts.speed(net), net.attributes.get("name", ""), 0.0))


def _pci(parts: _Parts, element: Element, vertex: str, host: str) -> None:
    gpu, nics = next(iter(element.each("gpu")), None), element.each("nic")
    kind = element.attributes.get("class", "")
    bandwidth = _pcie_bandwidth(parts, element)
    if gpu is not None or kind.startswith("0x03"):
        name = f"gpu@{len(parts.gpus)}"
        parts.gpus.append(_new_gpu(parts, name, element, gpu))
        parts.links.append(link(name, vertex, "pcie", gb_per_s(bandwidth)))
        for c2c in gpu.each("c2c") if gpu is not None else []:
            megabytes = parts.number(c2c, "bw") * parts.number(c2c, "count")
            _to_host(parts, name, host, gb_per_s(megabytes / 1000))
        for nvlink in gpu.each("nvlink") if gpu is not None else []:
            if nvlink.attributes.get("tclass", "") == _CPU:
                count, sm = int(parts.number(nvlink, "count")), parts.gpus[-1].sm or 70
                _to_host(parts, name, host, gb_per_s(count * NVLINK_GB_PER_S.get(sm, 25.0)))
    elif nics or kind.startswith("0x02"):
        ports = [net for nic in nics for net in nic.each("net")]
        label = element.attributes.get("busid", "")
        known = [(parts.speed(net), net.attributes.get("name", ""), net.line) for net in ports]
        card = len(parts.nics) if len(ports) > 1 else None
        for speed, name, line in known or [(None, label, element.line)]:
            parts.nics.append(_Nic(vertex, line, speed, name, bandwidth, card))
    elif element.each("pci") or kind.startswith("0x0604"):
        name = f"pcie{sum(k == 'pcie_switch' for k in parts.vertices.values())}"
        parts.vertices[name] = "pcie_switch"
        parts.links.append(link(name, vertex, "pcie", gb_per_s(bandwidth)))
        _devices(parts, element, name, host)
    elif not kind:
        message = "is missing, so nothing says whether this device is a GPU, a NIC or a switch; complete the file"
        parts.fault(element.line, "class", message)


def _to_host(parts: _Parts, gpu: str, host: str, bandwidth: str) -> None:
    """Joins a GPU to its host by C2C, or POWER9's NVLinks to the CPU; PCIe of the same two ends gives way."""
    parts.links[:] = [one for one in parts.links if one["ends"] != [gpu, host]]
    parts.links.append(link(gpu, host, "c2c", bandwidth))


def _new_gpu(parts: _Parts, name: str, pci: Element, gpu: Element | None) -> _Gpu:
    sm, rank = (
        int(parts.number(gpu, text)) if gpu is not None and text in gpu.attributes else None for text in ("sm", "rank")
    )
    sm = sm or _SM_OF_DEVICE.get(pci.attributes.get("device", ""))
    return _Gpu(name, pci.attributes.get("busid", ""), pci.line, rank, sm, gpu)


def _pcie_bandwidth(parts: _Parts, element: Element) -> float:
    """GB/s of a device's PCIe link as NCCL counts it: lanes times speed over 80, third generation where unknown."""
    speed = element.attributes.get("link_speed", "")
    text = speed.split(" ")[0].removesuffix(".0")
    width = element.attributes.get("link_width", "") or "16"
    if not width.isdecimal() or int(width) > 64:
        parts.fault(element.line, "link_width", f"found {width[:20]!r}, expected lanes")
        return 12.0
    if text not in _PCIE:
        parts.unknown_speeds.append((element.line, speed[:20]))
    return (int(width) or 16) * _PCIE.get(text, _THIRD_GENERATION) / 80


def _note_speeds(parts: _Parts) -> None:
    """Says where NCCL, and so this, takes a speed for want of one."""
    if not parts.unknown_speeds:
        return
    line, text = parts.unknown_speeds[0]
    more = f" and {len(parts.unknown_speeds) - 1} more devices" if len(parts.unknown_speeds) > 1 else ""
    value = f"is {text!r}" if text.strip() else "is empty"
    parts.notes.append(
        f"line {line}{more}: link_speed {value}, so 8 GT/s a lane is taken (third generation), as NCCL does; where the "
        "machine has faster PCIe, write its link_speed into the file"
    )


# -- completing ---------------------------------


def _keep_ranked(parts: _Parts) -> None:
    """GPUs in the order of their ranks; those without a rank, in a file that has ranks, are not in use."""
    if any(gpu.rank is not None for gpu in parts.gpus):
        unused = {gpu.name for gpu in parts.gpus if gpu.rank is None}
        if unused:
            parts.notes.append(f"{len(unused)} GPUs without a rank are left out, as NCCL does")
        parts.gpus = sorted((g for g in parts.gpus if g.rank is not None), key=lambda g: g.rank or 0)
        parts.links = [one for one in parts.links if not unused & set(one["ends"])]
    names = {gpu.name: f"gpu{i}" for i, gpu in enumerate(parts.gpus)}
    for one in parts.links:
        one["ends"] = [names.get(end, end) for end in one["ends"]]
    for gpu in parts.gpus:
        gpu.name = names[gpu.name]
    parts.vertices = dict.fromkeys(names.values(), "gpu") | parts.vertices


def _sm(parts: _Parts, given: Given) -> int:
    if given.sm:
        return given.sm
    known = {gpu.sm for gpu in parts.gpus if gpu.sm}
    if parts.gpus and not known:
        message = "the file does not say which GPUs these are; give --sm, such as --sm 90 for an H100"
        parts.fault(parts.gpus[0].line, "gpu", message)
    if len(known) > 1:
        parts.notes.append(f"GPUs of several kinds (sm {', '.join(map(str, sorted(known)))}): the lowest is taken")
    return min(known, default=80)


def _cpu(root: Element, parts: _Parts, given: Given) -> str:
    if given.cpu_vendor:
        return given.cpu_vendor
    cpu = next(iter(root.each("cpu")), None)
    if cpu is None:
        return "intel"
    vendor = _VENDORS.get(cpu.attributes.get("vendor", ""))
    if vendor is None:
        vendor = {"arm64": "arm", "ppc64": "ibm"}.get(cpu.attributes.get("arch", ""))
    if vendor is None and not parts.faults:
        message = "the file does not say the CPU's vendor; give --cpu-vendor intel, amd, arm or ibm"
        parts.fault(cpu.line, "vendor", message)
    return vendor or "intel"


def _model(root: Element, parts: _Parts) -> dict[str, str]:
    """Family and model number of the processor, by which NCCL rates the links between sockets; nothing where unsaid."""
    numbers = [(cpu.attributes.get("familyid", ""), cpu.attributes.get("modelid", "")) for cpu in root.each("cpu")]
    if not all(text.isdecimal() for pair in numbers for text in pair):
        return {}
    if len(set(numbers)) > 1:
        parts.notes.append("processors of several models: the first is taken for all")
    return {"model": model_text(*map(int, numbers[0]))}


def _nics(parts: _Parts, given: Given) -> str | None:
    """Adds the NICs worth having and returns the bandwidth of one; None without NICs."""
    real = [nic for nic in parts.nics if not _VIRTUAL.match(nic.label)]
    on_pci = [nic for nic in real if nic.pcie]
    real = on_pci or list({nic.label: nic for nic in real}.values())
    if not real:
        if parts.nics:
            parts.notes.append(f"{len(parts.nics)} virtual or wireless interfaces are left out: no NIC remains")
        return None
    fastest = max(nic.speed or 0.0 for nic in real)
    kept = [nic for nic in real if nic.speed is None or nic.speed == fastest]
    if len(kept) < len(parts.nics):
        parts.notes.append(f"of {len(parts.nics)} interfaces the {len(kept)} fastest that are devices are kept")
    if given.nic_bandwidth is None and any(nic.speed is None for nic in kept):
        message = (
            "the file does not say how fast the NICs are; give --nic-bandwidth, such as --nic-bandwidth '200 Gb/s'"
        )
        parts.fault(kept[0].line, "net", message)
        return None
    cards: dict[int, str] = {}
    for i, nic in enumerate(kept):
        parts.vertices[f"nic{i}"] = "nic"
        bandwidth, parent = nic.pcie or max(12.0, fastest / 8000), nic.parent
        if nic.card is not None and sum(other.card == nic.card for other in kept) > 1:
            if nic.card not in cards:
                cards[nic.card] = f"card{len(cards)}"
                parts.vertices[cards[nic.card]] = "card"
                parts.links.append(link(cards[nic.card], parent, "pcie", gb_per_s(bandwidth)))
            parent = cards[nic.card]
        parts.links.append(link(f"nic{i}", parent, "pcie", gb_per_s(bandwidth)))
    return given.nic_bandwidth or f"{fastest / 1000:g} Gb/s"


def _nvlink(parts: _Parts, given: Given, sm: int) -> None:
    names = [gpu.name for gpu in parts.gpus]
    counts: dict[tuple[str, str], tuple[int, int]] = {}
    to_switch: dict[str, int] = {}
    bus = {gpu.bus: gpu.name for gpu in parts.gpus}
    for gpu in parts.gpus:
        for element in gpu.element.each("nvlink") if gpu.element is not None else []:
            count, target = int(parts.number(element, "count")), element.attributes.get("target", "")
            if element.attributes.get("tclass", "").startswith(_NVSWITCH):
                to_switch[gpu.name] = to_switch.get(gpu.name, 0) + count
            elif target == gpu.bus:
                parts.notes.append(f"line {element.line}: the NVLinks of {gpu.name} lead to itself and are left out")
            elif target in bus:
                before = counts.get((gpu.name, bus[target]), (0, 0))[0]
                counts[gpu.name, bus[target]] = (before + count, element.line)
    listed = any(gpu.element is not None for gpu in parts.gpus)
    if given.nvlink_links is not None:
        vertices, links = nvlinks(names, sm, given.nvlink_links, given.nvlink_kind)
        parts.vertices |= vertices
        parts.links += links
        return
    if not listed and len(names) > 1:
        message = "the file lists PCI devices only; give --nvlink-links, the NVLinks of one GPU (0 for none)"
        parts.fault(parts.gpus[0].line, "nvlink", message)
        return
    bandwidth = gb_per_s(NVLINK_GB_PER_S.get(sm, 25.0))
    for (a, b), (count, line) in counts.items():
        back = counts.get((b, a), (0, 0))[0]
        if back != count and ((b, a) not in counts or names.index(a) < names.index(b)):
            message = f"found {count} NVLinks from {a} to {b}, but {back} from {b} to {a}: a link is down"
            parts.fault(line, "nvlink", message)
        if (b, a) not in counts or names.index(a) < names.index(b):
            parts.links.append(link(a, b, "nvlink", bandwidth, count))
    if to_switch:
        parts.vertices["nvswitch"] = "nvswitch"
        parts.links += [link(a, "nvswitch", "nvlink", bandwidth, n) for a, n in to_switch.items()]
