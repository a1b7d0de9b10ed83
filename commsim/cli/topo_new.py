"""``commsim topo new``: questions, and the machine that the answers make, as a topology file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from commsim.cli.ask import asked, whole
from commsim.cli.init import refuse_existing
from commsim.cli.say import aside
from commsim.errors import CommsimError

if TYPE_CHECKING:
    from commsim.topology.presets import Preset

Given = str | None


@dataclass(frozen=True)
class MachineAnswers:
    """What a machine is made of, as text; None is asked for."""

    gpu: Annotated[Given, typer.Option(help="GPU, such as 'H100 SXM5'; of one that we ship others are taken.")] = None
    generation: Annotated[Given, typer.Option(help="Of a GPU that we do not ship, such as hopper.")] = None
    sm: Annotated[Given, typer.Option(help="Compute capability times ten: 90.")] = None
    gpus: Annotated[Given, typer.Option(help="GPUs of a node.")] = None
    nvlink: Annotated[Given, typer.Option(help="switch, mesh, cube_mesh, pairs or none.")] = None
    nvlink_links: Annotated[Given, typer.Option(help="NVLinks of one GPU: 18.")] = None
    nvlink_bandwidth: Annotated[Given, typer.Option(help="Of one link, one direction: '25 GB/s'.")] = None
    cpu_vendor: Annotated[Given, typer.Option(help="intel, amd, arm, ibm or zhaoxin.")] = None
    sockets: Annotated[Given, typer.Option(help="CPUs of a node.")] = None
    socket_bandwidth: Annotated[Given, typer.Option(help="Between two sockets: '22 GB/s'.")] = None
    pcie_bandwidth: Annotated[Given, typer.Option(help="Of one GPU, one direction: '48 GB/s'.")] = None
    nics: Annotated[Given, typer.Option(help="Network cards of a node; 0 for none.")] = None
    nic_bandwidth: Annotated[Given, typer.Option(help="Of one card: '400 Gb/s'.")] = None
    network: Annotated[Given, typer.Option(help="infiniband, roce, slingshot, efa, efa_v1, tcpx or ethernet.")] = None
    nodes_per_leaf: Annotated[Given, typer.Option(help="Nodes whose cards meet in one leaf switch.")] = None
    oversubscription: Annotated[Given, typer.Option(help="Bandwidth to nodes over bandwidth to spines: 1.")] = None


def write_new(file: Path, answers: MachineAnswers, yes: bool, force: bool) -> None:
    """Asks for what is not given, writes the machine, and says how to look at it.

    CommsimError with every answer that is missing where nobody is asked.
    """
    from commsim.files import write_atomically
    from commsim.topology.presets import load_topology, topology_spec

    refuse_existing(file, force)
    values = _values(asdict(answers), yes)
    blocks = _blocks(values)
    topology = load_topology(topology_spec(str(file), blocks), Path())  # whose faults are told before it is written
    write_atomically(file, _text(file, blocks))
    gpus, nics = topology.ranks_per_node, topology.nics_per_node
    aside(f"# wrote {file}: {gpus} GPU{'s' * (gpus != 1)} and {nics} NIC{'s' * (nics != 1)} a node")
    aside(f"# commsim topo show {file} shows it, commsim run all_reduce --on {file} asks it")


@dataclass(frozen=True)
class _Ask:
    """A question: the answer's name, its words, an example, how it is judged, and of which answers it depends."""

    name: str
    words: str
    example: str
    judge: Callable[[str], Any]
    applies: Callable[[Mapping[str, Any]], bool] = lambda values: True


def _rate(text: str) -> str:
    from commsim.units import parse_bandwidth

    parse_bandwidth(text)
    return text


def _count(text: str) -> int:
    return 0 if text == "0" else whole(text)


def _one_of(*names: str) -> Callable[[str], str]:
    def judge(text: str) -> str:
        from commsim.document.types import show, suggest

        if text not in names:
            raise CommsimError(f"found {show(text)}, {suggest(text, names)}")
        return text

    return judge


def _factor(text: str) -> float:
    try:
        factor = float(text)
    except ValueError:
        factor = 0.0
    if not 1 <= factor <= 1e6:
        raise CommsimError(f"found {text[:40]!r}, expected a number from 1 up, such as 2")
    return factor


_KINDS = ("switch", "mesh", "cube_mesh", "pairs", "none")
_GENERATIONS = ("volta", "turing", "ampere", "ada", "hopper", "blackwell", "cpu")
_NETWORKS = ("infiniband", "roce", "slingshot", "efa", "efa_v1", "tcpx", "ethernet")

_VENDORS = ("intel", "amd", "arm", "ibm", "zhaoxin")

_ASKS = (
    _Ask("gpu", "GPU", "H100 SXM5", str),
    _Ask("generation", "Its generation", "hopper", _one_of(*_GENERATIONS)),
    _Ask("sm", "Its compute capability times ten", "90", _count),
    _Ask("gpus", "GPUs of a node", "8", whole),
    _Ask("nvlink", "NVLink: switch, mesh, cube_mesh, pairs or none", "switch", _one_of(*_KINDS)),
    _Ask("nvlink_links", "NVLinks of one GPU", "18", whole, lambda v: v["nvlink"] != "none"),
    _Ask("nvlink_bandwidth", "Of one NVLink, one direction", "25 GB/s", _rate, lambda v: v["nvlink"] != "none"),
    _Ask("cpu_vendor", "CPU: intel, amd, arm, ibm or zhaoxin", "intel", _one_of(*_VENDORS)),
    _Ask("sockets", "CPUs of a node", "2", whole),
    _Ask("socket_bandwidth", "Between two CPUs", "22 GB/s", _rate, lambda v: v["sockets"] > 1),
    _Ask("pcie_bandwidth", "PCIe of one GPU, one direction", "48 GB/s", _rate),
    _Ask("nics", "Network cards of a node (0: none)", "8", _count),
    _Ask("nic_bandwidth", "Of one card", "400 Gb/s", _rate, lambda v: v["nics"] > 0),
    _Ask("network", "Network: infiniband, roce, slingshot, efa, efa_v1, tcpx or ethernet", "infiniband",
         _one_of(*_NETWORKS), lambda v: v["nics"] > 0),
    _Ask("nodes_per_leaf", "Nodes under one leaf switch", "32", whole, lambda v: v["nics"] > 0),
    _Ask("oversubscription", "Oversubscription of the leaves", "1", _factor, lambda v: v["nics"] > 0),
)  # fmt: skip


def _values(given: Mapping[str, str | None], yes: bool) -> dict[str, Any]:
    """Every answer by name: given, asked for, or with `yes` that of the shipped machine with the same GPU."""
    values: dict[str, Any] = {}
    missing: list[str] = []
    known: dict[str, str] = {}
    for ask in _ASKS:
        if not ask.applies(values):
            continue
        default, option = known.get(ask.name, ""), f"--{ask.name.replace('_', '-')}"
        if yes and given[ask.name] is None and not default:
            missing.append(f"{option}: found none, expected it, such as {ask.example!r}")
            values[ask.name] = ask.judge(ask.example)  # which decides what else belongs to it
            continue
        values[ask.name] = asked(
            ask.words, default or ask.example, ask.judge, given=given[ask.name], yes=yes, option=option
        )
        if ask.name == "gpu":
            values["gpu"], known = _like(values["gpu"], given["nvlink"])
            unknown = "" if known else f"found the GPU {values['gpu'][:40]!r}, which is none that we ship"
            if unknown and not yes:
                aside(f"# {unknown}: its figures are asked for")
    if missing:
        raise CommsimError("\n".join([*([f"--gpu: {unknown}: give what follows"] if unknown else []), *missing]))
    if known.get("nvlink", values["nvlink"]) != values["nvlink"]:
        aside(f"# note: {values['gpu']} has NVLink {known['nvlink']} where we ship it, here {values['nvlink']}")
    return values


_USUAL = 8
"""GPUs of most nodes."""


def _like(gpu: str, wanted: str | None) -> tuple[str, dict[str, str]]:
    """The whole name of a GPU that we ship, and the answers of a machine with it; no answers where we ship none.

    Of several machines one with that kind of NVLink, if one is given: an A100 without is the A100 PCIe.
    """
    from commsim.topology.presets import list_presets, machine_of
    from commsim.units import format_bandwidth, gbit_per_s

    like = [p for p in list_presets() if gpu.lower() in p.gpu.lower()]
    if not like:
        return gpu, {}
    machines = {p.name: machine_of(p.name) for p in like}

    def unusual(preset: Preset) -> tuple[object, ...]:
        machine = machines[preset.name]
        own = (machine.node and machine.node.nvlink and machine.node.nvlink.kind) or "none"
        return (
            wanted is not None and own != wanted,
            not preset.nics_per_node,
            preset.gpus_per_node != _USUAL,
            preset.nics_per_node != preset.gpus_per_node,
            (machine.fabric and machine.fabric.network) != "infiniband",
            len(preset.name),
            preset.name,
        )

    machine = machines[min(like, key=unusual).name]
    node, fabric = machine.node, machine.fabric
    own, nvlink, pcie, nic = machine.gpu, node and node.nvlink, node and node.pcie, node and node.nic
    found = {
        "generation": own and own.generation,
        "sm": own and own.sm,
        "gpus": node and node.gpus,
        "nvlink": (nvlink and nvlink.kind) or "none",
        "nvlink_links": nvlink and nvlink.links,
        "nvlink_bandwidth": nvlink and nvlink.bandwidth and format_bandwidth(nvlink.bandwidth),
        "cpu_vendor": machine.cpu and machine.cpu.vendor,
        "sockets": (pcie and pcie.sockets) or 1,
        "socket_bandwidth": pcie and pcie.socket_bandwidth and format_bandwidth(pcie.socket_bandwidth),
        "pcie_bandwidth": pcie and pcie.bandwidth and format_bandwidth(pcie.bandwidth),
        "nics": (nic and nic.count) or 0,
        "nic_bandwidth": f"{gbit_per_s(nic.bandwidth):g} Gb/s" if nic and nic.bandwidth else None,
        "network": fabric and fabric.network,
        "nodes_per_leaf": (fabric and fabric.nodes_per_leaf) or 32,
        "oversubscription": 1,
    }
    return (own and own.model) or gpu, {name: f"{value}" for name, value in found.items() if value is not None}


def _blocks(values: Mapping[str, Any]) -> dict[str, Any]:
    """The blocks of the file."""
    node: dict[str, Any] = {"gpus": values["gpus"], "nvlink": {"kind": values["nvlink"]}}
    if values["nvlink"] != "none":
        node["nvlink"] |= {"links": values["nvlink_links"], "bandwidth": values["nvlink_bandwidth"]}
    node["pcie"] = {"bandwidth": values["pcie_bandwidth"], "sockets": values["sockets"]}
    if values["sockets"] > 1:
        node["pcie"]["socket_bandwidth"] = values["socket_bandwidth"]
    arch = {"arm": "arm64", "ibm": "ppc64"}.get(values["cpu_vendor"], "x86_64")
    blocks: dict[str, Any] = {
        "gpu": {"model": values["gpu"], "generation": values["generation"], "sm": values["sm"]},
        "cpu": {
            "arch": arch,
            "vendor": values["cpu_vendor"],
        },
        "node": node,
    }
    if values["nics"]:
        node["nic"] = {"count": values["nics"], "bandwidth": values["nic_bandwidth"]}
        blocks["fabric"] = {
            "kind": "rail_fat_tree",
            "network": values["network"],
            "nodes_per_leaf": values["nodes_per_leaf"],
            "oversubscription": values["oversubscription"],
        }
    return blocks


def _text(file: Path, blocks: Mapping[str, Any]) -> str:
    """The file, each value with what it is."""
    from commsim.scenario.load import plain_yaml
    from commsim.topology.missing import EXAMPLES

    more = {
        "node.nvlink.kind": "switch, mesh, cube_mesh, pairs or none",
        "node.nvlink.links": "of one GPU",
        "node.pcie.sockets": "CPUs, each a host bridge",
        "node.nic.count": "of a node",
        "fabric.kind": "or fat_tree, single_switch, rail_only, dragonfly, torus",
        "fabric.nodes_per_leaf": "nodes whose cards meet in one leaf switch",
        "fabric.oversubscription": "bandwidth to the nodes over bandwidth to the spines",
    }
    words = {key: what for key, (_, what) in EXAMPLES.items()} | more
    lines = [f"# A machine: commsim topo show {file} shows it. All keys: docs/reference/topology.md"]
    for path, line in _lines(plain_yaml(dict(blocks))):
        lines.append(f"{line:<34}  # {words[path]}" if path in words else line)
    return "\n".join(lines) + "\n"


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Each line with the path of its key, by its indentation."""
    path: list[str] = []
    for line in text.splitlines():
        key = line.strip().partition(":")[0]
        path = [*path[: (len(line) - len(line.lstrip())) // 2], key]
        yield ".".join(path), line
