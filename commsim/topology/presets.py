"""From a description to a Topology: shipped presets, files and machines written in the scenario.

A description extends another field by field; the knobs of the scenario are applied last.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import BaseModel

from commsim.document import Document, read_documents, validate
from commsim.errors import Fault, TopologyError
from commsim.files import data_root
from commsim.topology.fabric import PLUGIN_NETWORKS, applicable, fabric_of, of_fewer_nics
from commsim.topology.freeze import NodePart, freeze
from commsim.topology.graph import Cpu, Gpu, Topology
from commsim.topology.node import NIC_LATENCY_S, full_gpus, full_nics, node_graph
from commsim.topology.spec import (
    CpuSpec,
    FabricSpec,
    GpuSpec,
    GroupSpec,
    MachineSpec,
    NicSpec,
    NodeSpec,
    TopologyFile,
    TopologySpec,
)

M = TypeVar("M", bound=BaseModel)

_MOST_EXTENDS = 8
_MOST_RANKS = 2**20


@dataclass(frozen=True)
class Preset:
    """A shipped machine, as `topo list` shows it; `nic_bandwidth` in bytes/s, 0.0 without NICs."""

    name: str
    description: str
    gpu: str
    gpus_per_node: int
    nics_per_node: int
    nic_bandwidth: float
    network: str
    plugin: str


def preset_names() -> list[str]:
    """The names of the shipped presets, sorted."""
    return sorted(p.stem for p in _folder().glob("*.yaml"))


def list_presets() -> list[Preset]:
    """The shipped presets, sorted by name."""
    return [preset(name) for name in preset_names()]


def load_topology(spec: TopologySpec, base_dir: Path, *, joined: bool = True) -> Topology:
    """The topology of a description; paths in it are relative to `base_dir`.

    Unless all nodes must be `joined`, those that faults cut off are refused where they are used
    (`commsim.topology.faults.check_joined`). TopologyError says which field of which description cannot be built, and
    why.
    """
    file = None if spec.path is None else _read(base_dir / spec.path)[0]
    if file is not None and file.groups is not None and spec.path is not None:
        base_dir, spec = (base_dir / spec.path).parent, _of_file(spec, file)
    name = file.name or Path(spec.path).stem if file is not None and spec.path else None
    if spec.groups is not None:
        topology = _of_groups(spec, spec.groups, base_dir, name)
    else:
        described, machine = _described(spec, base_dir)
        part = _part(machine, spec, described)
        topology = _joined(described, [part], _fabric_of(machine, part, spec.fabric, described), spec)
    faults = [*((file and file.faults) or ()), *(spec.faults or ())]
    if not faults:
        return topology
    from commsim.topology.faults import check_places, degraded

    check_places(topology, faults)
    return degraded(topology, faults, joined=joined)


def _of_file(spec: TopologySpec, file: TopologyFile) -> TopologySpec:
    """The description with the groups and the fabric of the file that it names."""
    own = [n for n in ("gpu", "cpu", "node", "gpus_per_node", "nics_per_node", "nic_bandwidth") if getattr(spec, n)]
    own += ["nodes"] if spec.nodes != 1 else []
    if own:
        raise TopologyError(f"{spec.path}: {', '.join(own)} belong inside each of the groups of the file")
    fabric = _merged(file.fabric or FabricSpec(), spec.fabric or FabricSpec())
    return spec.model_copy(update={"groups": file.groups, "fabric": fabric})


def _described(spec: TopologySpec | GroupSpec, base_dir: Path) -> tuple[str, MachineSpec]:
    """(name, machine) that a description names, with the fields beside it merged in."""
    if spec.preset is not None:
        name, machine = spec.preset, _read_preset(spec.preset)
    elif spec.path is not None:
        file, machine = _read(base_dir / spec.path)
        name = file.name or (base_dir / spec.path).stem
    else:
        name, machine = "topology", MachineSpec()
    machine = _merged(machine, _machine_of(spec))
    if spec.path is None:
        return name, machine
    from commsim.topology.missing import missing_faults, missing_keys

    if keys := missing_keys(machine, spec):
        document = read_documents(base_dir / spec.path, error=TopologyError)[0]
        raise TopologyError(sorted(missing_faults(keys, document)))
    return name, machine


def load_preset(name: str, **knobs: object) -> Topology:
    """A shipped preset with knobs: ``load_preset("hgx-h100-ndr400", nodes=64, oversubscription=2.0)``."""
    return load_topology(topology_spec(f"preset {name}", {"preset": name, **knobs}), Path())


def load_file(path: Path, **knobs: object) -> Topology:
    """The topology of a description file."""
    return load_topology(topology_spec(str(path), {"path": str(path), **knobs}), Path())


def topology_spec(origin: str, described: dict[str, object]) -> TopologySpec:
    """A description that stands in no file, so that its faults have no lines."""
    try:
        return validate(TopologySpec, Document(file=origin, data=described, marks={}), error=TopologyError)
    except TopologyError as error:
        raise TopologyError([replace(fault, line=0, column=0) for fault in error.faults]) from None


# -- reading ---------------------------------


def _folder() -> Path:
    return data_root() / "topologies"


def preset(name: str) -> Preset:
    """One shipped preset; no other file is read."""
    return described(_folder() / f"{name}.yaml")


def machine_of(name: str) -> MachineSpec:
    """The blocks of a shipped preset, with those of what it extends."""
    return _read_preset(name)


def described(path: Path) -> Preset:
    """The machine of a description file, as `topo list` shows a preset."""
    file, machine = _read(path)
    name = path.stem
    node, nic = machine.node or NodeSpec(), (machine.node and machine.node.nic) or NicSpec()
    gpu, nics = machine.gpu or GpuSpec(), full_nics(node)
    network = (machine.fabric and machine.fabric.network) or "infiniband"
    return Preset(
        name=name,
        description=file.description or "",
        gpu=gpu.model or "",
        gpus_per_node=full_gpus(node, name),
        nics_per_node=nics,
        nic_bandwidth=(nic.bandwidth or 0.0) if nics else 0.0,
        network=network if nics else "none",
        plugin=(machine.fabric and machine.fabric.plugin) or "none",
    )


def _read_preset(name: str) -> MachineSpec:
    if name not in preset_names():
        raise TopologyError(_unknown_preset(name, f"the presets are {', '.join(preset_names())}"))
    return _read(_folder() / f"{name}.yaml")[1]


def _read(path: Path, seen: tuple[str, ...] = ()) -> tuple[TopologyFile, MachineSpec]:
    """A description file, and its machine merged onto what it extends."""
    documents = read_documents(path, error=TopologyError)
    if len(documents) != 1:
        raise TopologyError([Fault(str(path), 0, 0, "", f"expected one topology, found {len(documents)} documents")])
    file = validate(TopologyFile, documents[0], error=TopologyError)
    own = _machine_of(file)
    if file.extends is None:
        return file, own
    line, column = documents[0].marks.get(("extends",), (0, 0))
    fault = _extends_fault(file.extends, path, seen)
    if fault:
        raise TopologyError([Fault(str(path), line, column, "extends", fault)])
    _, base = _read(_folder() / f"{file.extends}.yaml", (*seen, file.extends))
    return file, _merged(base, own)


def _extends_fault(name: str, path: Path, seen: tuple[str, ...]) -> str | None:
    if name in seen or len(seen) >= _MOST_EXTENDS or (path.parent == _folder() and path.stem == name):
        return f"found a circle of topologies that extend each other: {' -> '.join((*seen, name))}"
    return None if name in preset_names() else _unknown_preset(name, "see `topo list`")


def _unknown_preset(name: str, otherwise: str) -> str:
    close = get_close_matches(name.lower(), preset_names(), n=3, cutoff=0.5)
    return f"unknown preset {name[:80]!r}; " + (f"did you mean {' or '.join(close)}?" if close else otherwise)


def _machine_of(spec: MachineSpec) -> MachineSpec:
    """The blocks of a machine that a description states, without all else that it holds."""
    blocks = {k: v for k, v in spec if k in MachineSpec.model_fields and k in spec.model_fields_set}
    return MachineSpec.model_construct(set(blocks), **blocks)


def _merged(base: M, over: M) -> M:
    """`base` with every field that `over` states; blocks merge field by field."""
    if isinstance(over, NodeSpec) and over.vertices is not None:
        return over
    if isinstance(base, FabricSpec) and isinstance(over, FabricSpec):
        base = cast("M", _fitting(base, over))
    update: dict[str, object] = {}
    for field in over.model_fields_set:
        new, old = getattr(over, field), getattr(base, field)
        both = isinstance(new, BaseModel) and isinstance(old, BaseModel)
        update[field] = _merged(old, new) if both else new
    return base.model_copy(update=update)


def _fitting(base: FabricSpec, over: FabricSpec) -> FabricSpec:
    """The fields of a fabric that still fit where another description changes its kind, ports or network."""
    gone: list[str] = []
    if over.kind not in {None, base.kind}:
        base = applicable(base, over.kind)
    if over.ports is not None:
        gone += ["nodes_per_leaf", "spines", "leaves_per_pod", "cores"]
    if over.network not in {None, *PLUGIN_NETWORKS.get(base.plugin or "none", {over.network})}:
        gone += ["plugin"]
    return base.model_copy(update=dict.fromkeys(gone))


# -- building ---------------------------------


def _joined(name: str, parts: Sequence[NodePart], described: FabricSpec | None, knobs: TopologySpec) -> Topology:
    """The topology of nodes in a fabric, with what the knobs of a scenario say of it."""
    fields = ("oversubscription", "nodes_per_leaf")
    update = {field: getattr(knobs, field) for field in fields if getattr(knobs, field) is not None}
    spec = described or FabricSpec()
    if spec.kind is None and update:
        update["kind"] = "rail_fat_tree"
    nodes, nics = sum(p.nodes for p in parts), max(len(p.nics) for p in parts)
    fabric = fabric_of(spec.model_copy(update=update), nodes, nics, name)
    _check_ranks(sum(p.nodes * p.ranks_per_node for p in parts), name)
    return freeze(name, parts, fabric)


def _fabric_of(machine: MachineSpec, part: NodePart, stated: FabricSpec | None, name: str) -> FabricSpec | None:
    """The fabric of a machine for the NICs that are used of its nodes; spines that a scenario has `stated` stay."""
    if machine.fabric is None or machine.node is None or (stated is not None and stated.spines is not None):
        return machine.fabric
    return of_fewer_nics(machine.fabric, len(part.nics), full_nics(machine.node), name)


def _of_groups(spec: TopologySpec, groups: list[GroupSpec], base_dir: Path, title: str | None) -> Topology:
    """Nodes of several descriptions in one fabric: that of the first group, with what is stated beside `groups`."""
    parts, names, first = list[NodePart](), list[str](), None
    for i, group in enumerate(groups):
        name, machine = _described(group, base_dir)
        names.append(name)
        parts.append(_part(machine, group, f"groups.{i} ({name})"))
        first = _fabric_of(machine, parts[0], None, name) if i == 0 else first
    fabric = _merged(first, spec.fabric) if first and spec.fabric else spec.fabric or first
    return _joined(title or "+".join(dict.fromkeys(names))[:64], parts, fabric, spec)


def _check_ranks(ranks: int, name: str) -> None:
    if ranks > _MOST_RANKS:
        raise TopologyError(f"{name}: found {ranks} ranks, expected at most {_MOST_RANKS}")


def _part(machine: MachineSpec, knobs: TopologySpec | GroupSpec, name: str) -> NodePart:
    """The nodes of a machine, not yet frozen."""
    if machine.node is None:
        raise TopologyError(f"{name}: node is missing")
    node = machine.node
    if node.vertices is not None and (node.gpus or node.nvlink or node.pcie or node.c2c):
        raise TopologyError(f"{name}: node: gpus, nvlink, pcie and c2c do not apply to a node that is written out")
    full = full_gpus(node, name)
    gpus = knobs.gpus_per_node or full
    if gpus > full:
        raise TopologyError(f"{name}: gpus_per_node: found {gpus}, but a node has {full} GPUs")
    _check_ranks(knobs.nodes * gpus, name)
    nics, spread = _nic_count(node, knobs, gpus, full, name)
    bandwidth = knobs.nic_bandwidth or (node.nic.bandwidth if node.nic else None) or 0.0
    if nics and not bandwidth:
        raise TopologyError(f"{name}: nic_bandwidth is missing; set it, such as nic_bandwidth: 400 Gb/s")
    graph = node_graph(node, gpus, nics, spread, name)
    if node.nvlink and node.nvlink.links and (node.nvlink.kind or "none") != "none":
        graph.nvlink = (node.nvlink.links, node.nvlink.bandwidth or 0.0)
    latency = node.nic.latency if node.nic else None
    gpu, cpu = machine.gpu or GpuSpec(), machine.cpu or CpuSpec()
    return NodePart(
        gpu=Gpu(**_stated(gpu, "gpu", ("model", "generation", "sm"), name), peer_to_peer=gpu.peer_to_peer is not False),
        cpu=Cpu(**_stated(cpu, "cpu", ("arch", "vendor"), name), model=cpu.model or "", cores=cpu.cores or 0),
        graph=graph,
        ranks_per_node=gpus,
        nodes=knobs.nodes,
        nic_bandwidth=bandwidth,
        nic_latency=NIC_LATENCY_S if latency is None else latency,
    )


def _nic_count(node: NodeSpec, knobs: TopologySpec | GroupSpec, gpus: int, full: int, name: str) -> tuple[int, int]:
    """(NICs per node, number of leading GPUs they stand beside).

    NICs keep their places when fewer GPUs are used; a stated `nics_per_node` spreads over the GPUs in use.
    Only a node of several boards (one rack, one NVLink domain) leaves the NICs of unused boards out.
    """
    described = full_nics(node)
    asked = knobs.nics_per_node
    if node.vertices is not None:
        if asked is not None and asked != described:
            raise TopologyError(f"{name}: nics_per_node: found {asked}, but {described} NICs are written out")
        return described, full
    if asked is not None:
        return asked, gpus
    if gpus < full and node.pcie and node.pcie.linked_sockets:
        return -(-gpus * described // full), gpus
    return described, full


def _stated(spec: GpuSpec | CpuSpec, block: str, fields: Sequence[str], name: str) -> dict[str, Any]:
    """The figures of a block that must be stated."""
    missing = [field for field in fields if getattr(spec, field) is None]
    if missing:
        raise TopologyError(f"{name}: {block}: {', '.join(missing)} missing")
    return {field: getattr(spec, field) for field in fields}
