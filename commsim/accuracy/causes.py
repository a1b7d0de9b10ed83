"""What could make a machine slower or faster than predicted, each as a change of its scenario.

A kind of cause may have several forms (half the NICs, one NIC): they share its prior probability. What the model cannot
say is not here: which core a process is bound to, virtual machines, a GPU that is throttled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commsim.nccl.plugins import PLUGINS, plugin_note
from commsim.nccl.version import ASSUMED, NEWEST, format_version

if TYPE_CHECKING:
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology

KINDS = (
    "launch", "algorithm", "protocol", "channels", "nvls", "sharp", "host memory", "gdr", "plugin", "tcp", "rate",
    "double rate", "nics", "nvlink", "pcie", "node", "version", "cores",
)  # fmt: skip
"""Kinds of causes."""


@dataclass(frozen=True)
class WhatIf:
    """A cause in words, of a kind of `KINDS`, and the value that it gives to a path of the scenario."""

    kind: str
    cause: str
    path: str
    value: Any

    def change(self, scenario: Scenario) -> Scenario:
        """The scenario with the cause at work."""
        other: Scenario = _with_value(scenario, self.path, self.value)
        other._document, other._base_dir = scenario.document, scenario.base_dir
        return other


def _with_value(model: Any, path: str, value: Any) -> Any:
    """A copy of a description with a value at a path; a block that was left out is begun."""
    from commsim.topology.spec import CpuSpec, FabricSpec, NodeSpec, NvlinkSpec, PcieSpec

    blocks = {"cpu": CpuSpec, "fabric": FabricSpec, "node": NodeSpec, "nvlink": NvlinkSpec, "pcie": PcieSpec}
    head, _, rest = path.partition(".")
    if rest:
        value = _with_value(getattr(model, head) or blocks[head](), rest, value)
    return model.model_copy(update={head: value})


def what_ifs(scenario: Scenario, said: Mapping[str, str] | None = None) -> list[WhatIf]:
    """The causes worth trying for a scenario; those that its own environment decides already are left out.

    `said`: the conditions of the log. How it was launched, and NCCL's version, are then no causes.
    """
    from commsim.scenario.setting import build_topology

    topology, said = build_topology(scenario), said or {}
    causes = list(_network(topology))
    if scenario.library.name == "nccl":
        return [
            *_launch(scenario, topology, said.get("launch", "")),
            *_nccl_choices(scenario, topology),
            *causes,
            *_machine(scenario, topology),
            *_version(scenario, said.get("nccl_version", "")),
        ]
    return causes + (_cores(topology) if scenario.library.name == "gloo" else [])


_LAUNCHES = {
    "one_process": "one process drives all GPUs of a node",
    "process_per_gpu": "every GPU has a process or a thread of its own",
}


def _launch(scenario: Scenario, topology: Topology, logged: str) -> list[WhatIf]:
    alike = {"process_per_node": "one_process", "thread_per_gpu": "process_per_gpu"}  # threads launch side by side
    stated, logged = (alike.get(launch, launch) for launch in (scenario.library.launch_mode, logged))
    (other,) = set(_LAUNCHES) - {stated}
    if topology.ranks_per_node == 1 or logged == stated:
        return []
    words = f"{_LAUNCHES[other]}{', as the log says' if logged == other else ''}"
    return [WhatIf("launch", f"{words} (library.launch_mode={other})", "library.launch_mode", other)]


_FALLBACKS = ("gdr", "tcp")
"""What NCCL falls back to whatever its variables ask for, where a driver or a plugin is missing."""


def _nccl_choices(scenario: Scenario, topology: Topology) -> list[WhatIf]:
    options = [
        ("algorithm", "NCCL runs Ring (NCCL_ALGO=Ring, or a tuner plugin)", {"NCCL_ALGO": "Ring"}),
        ("algorithm", "NCCL runs Tree (NCCL_ALGO=Tree, or a tuner plugin)", {"NCCL_ALGO": "Tree"}),
        ("protocol", "LL128 is off (NCCL_PROTO=^LL128)", {"NCCL_PROTO": "^LL128"}),
        ("protocol", "only Simple is used (NCCL_PROTO=Simple)", {"NCCL_PROTO": "Simple"}),
        ("protocol", "only LL is used (NCCL_PROTO=LL)", {"NCCL_PROTO": "LL"}),
        ("channels", "few channels (NCCL_MAX_NCHANNELS=4)", {"NCCL_MAX_NCHANNELS": "4"}),
        ("channels", "one channel (a tuner plugin without channels)", {"NCCL_MAX_NCHANNELS": "1"}),
    ]
    if topology.has_nvswitch and topology.gpu.sm >= 90:
        options.append(("nvls", "no reduction in the NVSwitch (NCCL_NVLS_ENABLE=0)", {"NCCL_NVLS_ENABLE": "0"}))
    if topology.ranks_per_node > 1:
        words = "GPUs of a node talk through host memory (NCCL_P2P_DISABLE=1)"
        options.append(("host memory", words, {"NCCL_P2P_DISABLE": "1"}))
    if topology.nodes > 1:
        # To the model PCIe access control is the same: what GPU and NIC exchange passes the root of the tree.
        words = "no GPUDirect RDMA, or PCIe access control (ACS, IOMMU)"
        options.append(("gdr", words, {"NCCL_NET_GDR_LEVEL": "LOC"}))
    if topology.nodes > 1 and topology.network not in ("ethernet", "none"):
        options.append(("tcp", "TCP over the same NICs (NCCL_NET=Socket)", {"NCCL_NET": "Socket"}))
    set_already = scenario.library.env.keys()
    causes = [
        WhatIf(kind, cause, "library.env", scenario.library.env | env)
        for kind, cause, env in options
        if kind in _FALLBACKS or not env.keys() & set_already
    ]
    if scenario.library.env.get("NCCL_COLLNET_ENABLE") == "1":
        env = scenario.library.env | {"NCCL_COLLNET_ENABLE": "0"}
        causes.append(WhatIf("sharp", "switches of the network do not reduce (SHARP)", "library.env", env))
    if plugin_note(topology, env=set_already):
        cause = f"{PLUGINS[topology.plugin]} does not set its variables (fabric.plugin=none)"
        causes.append(WhatIf("plugin", cause, "topology.fabric.plugin", "none"))
    return causes


def _machine(scenario: Scenario, topology: Topology) -> Iterator[WhatIf]:
    if topology.nodes > 1 and topology.network not in ("ethernet", "none"):
        yield WhatIf("tcp", "TCP sockets instead of RDMA", "topology.fabric.network", "ethernet")
    if scenario.topology.groups is not None:
        return
    if topology.nvlink_links:
        yield WhatIf("nvlink", "PCIe instead of NVLink", "topology.node.nvlink.kind", "none")
    if topology.nvlink_links > 1:
        half = topology.nvlink_links // 2
        yield WhatIf("nvlink", f"{half} of {topology.nvlink_links} NVLinks", "topology.node.nvlink.links", half)
    described = scenario.topology.node
    if described is None or described.vertices is None:
        halved = _pcie_bandwidth(topology) / 2
        if halved:
            words = "PCIe at half its rate (x8, or a generation back)"
            yield WhatIf("pcie", words, "topology.node.pcie.bandwidth", halved)


def _pcie_bandwidth(topology: Topology) -> float:
    """Of the PCIe link of the first GPU, bytes/s; zero where it has none."""
    from commsim.topology.kinds import LinkKind

    at = (topology.link_src == topology.rank_vertex[0]) & (topology.link_kind == LinkKind.PCIE)
    return float(topology.link_bandwidth[at].max()) if at.any() else 0.0


def _network(topology: Topology) -> Iterator[WhatIf]:
    if topology.nodes < 2:
        return
    rate = topology.nic_bandwidth
    yield WhatIf("rate", "links of the network at half their rate", "topology.nic_bandwidth", rate / 2)
    yield WhatIf("double rate", "links of the network at twice their rate", "topology.nic_bandwidth", 2 * rate)
    nics = topology.nics_per_node
    fewer = (
        (1, f"one NIC of {nics} missing in every node", nics - 1),
        (3, f"half of the {nics} NICs of a node", nics // 2),
        (2, f"one NIC of {nics} in use", 1),
    )
    for above, cause, n in fewer:
        if nics > above:
            yield WhatIf("nics", cause, "topology.nics_per_node", n)
    yield from _one_node(topology)


def _one_node(topology: Topology) -> Iterator[WhatIf]:
    """One node that is worse than the others; which one makes no difference."""
    from commsim.topology.spec import FaultSpec

    faults = [("NICs at half their rate", FaultSpec(node=0, bandwidth_factor=0.5))]
    if topology.network not in ("ethernet", "none") and topology.gpu.sm:
        faults.append(("no GPUDirect RDMA", FaultSpec(node=0, no_gdr=True)))
    for words, fault in faults:
        yield WhatIf("node", f"one node has {words}", "topology.faults", [fault])


_OLDER = ((2, 18, 5), (2, 23, 4))
"""Releases of NCCL beside the newest that other choices go back to."""


def _version(scenario: Scenario, logged: str) -> Iterator[WhatIf]:
    if logged:
        return
    meant = (scenario.library.named_version or ASSUMED)[:2]
    for version in (*_OLDER, NEWEST):
        if version[:2] != meant:
            yield WhatIf("version", f"NCCL {format_version(version)}", "library.version", format_version(version))


def _cores(topology: Topology) -> list[WhatIf]:
    cores = topology.cpu.cores
    return [WhatIf("cores", f"one core instead of {cores}", "topology.cpu.cores", 1)] if cores > 1 else []
