"""The topology of an index row: its machine, with the network of its columns laid on top.

What the columns leave open is the machine's own; where the machine has no network, it is one NIC per GPU at the usual
rate of the GPU's generation (`_USUAL_RATE`). No figure is chosen by looking at the times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path

from commsim.errors import TopologyError
from commsim.nccl.environment import PATHS, whole
from commsim.nccl.paths import peer_level
from commsim.nccl.version import ASSUMED
from commsim.topology.graph import Topology
from commsim.topology.presets import Preset, described, load_file, load_preset, preset, preset_names
from commsim.units import gb_per_s, parse_bandwidth
from study.index import NVLINK, IndexRow

_USUAL_RATE = {"volta": 100, "turing": 100, "ampere": 200, "ada": 200, "hopper": 400, "blackwell": 400}
"""Gb/s of a NIC where the row names none: the usual one of the servers of that time."""

_RATE_OF = {"ethernet": 25, "slingshot": 200, "tcpx": 200, "efa_v1": 100}
"""The same of networks that come with one rate, and of sockets: who has more between GPUs goes around the kernel."""

_RATE_OF_BOARD = {"hgx-b300": 800}
"""The same of boards that hold the NICs: a ConnectX-8 beside each GPU (NVIDIA's description of B300)."""

_GPUS_OF_A_SERVER = 16
"""Most GPUs of one server (DGX-2): a machine of more is a rack of trays that NVLink joins."""

_NICS_OF_P4D = 4  # EFA devices beside eight A100 ("Amazon EC2 P4 instances")

_PLUGIN_OF = {"efa": "aws-ofi-nccl", "efa_v1": "aws-ofi-nccl", "tcpx": "tcpx"}
"""NCCL's plugin of a network that needs one, where the machine names none."""

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
class NamedMachine:
    """A machine that a row names: its `topology:` key and value, its figures, its GPU's generation."""

    key: str  # preset or path
    name: str
    figures: Preset
    generation: str
    gpu: str

    def built(self, gpus_per_node: int) -> Topology:
        """One node of it."""
        load = load_preset if self.key == "preset" else _load_path
        return load(self.name, nodes=1, gpus_per_node=gpus_per_node)


@dataclass(frozen=True)
class Wire:
    """The network of a row, stated or assumed: kind, NICs of a host, bytes/s of one, and what was assumed."""

    network: str
    nics: int
    bandwidth: float
    notes: tuple[str, ...] = ()


def _load_path(name: str, **knobs: object) -> Topology:
    return load_file(Path(name), **knobs)


@lru_cache(maxsize=256)
def host_of(machine: str, folder: Path) -> NamedMachine:
    """The machine of a row: a preset, or a topology file whose path is relative to the folder of the index."""
    if machine.endswith((".yaml", ".yml")):
        path = (folder / machine).resolve()
        host = NamedMachine("path", str(path), described(path), "", "")
    elif machine in preset_names():
        host = NamedMachine("preset", machine, preset(machine), "", "")
    else:
        close = get_close_matches(machine.lower(), preset_names(), n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else "`commsim topo list` names them"
        raise TopologyError(f"unknown preset {machine[:60]!r}; {hint}")
    gpu = host.built(1).gpu
    return replace(host, generation=gpu.generation, gpu=gpu.model)


def plugin_of(host: NamedMachine, network: str | None) -> str:
    """NCCL's network plugin on a row's machine (`commsim.nccl.plugins`): the machine's own, else the network's."""
    if host.figures.nics_per_node and network in (None, NVLINK, host.figures.network):
        return host.figures.plugin
    return _PLUGIN_OF.get(network or "", "none")


def machine_of(
    row: IndexRow, host: NamedMachine, env: dict[str, str]
) -> tuple[dict[str, object], str, tuple[str, ...]]:
    """The `topology:` description of a row, the kind of its network, and notes on what was assumed."""
    full = host.figures.gpus_per_node
    nodes, per_node = row.nodes, row.gpus_per_node
    if nodes > 1 and _one_nvlink_domain(row, full, env):
        racks = -(-row.n_ranks // full)
        if row.n_ranks % racks:
            raise TopologyError(f"{row.n_ranks} GPUs do not spread evenly over {racks} racks of {full}")
        return {host.key: host.name, "nodes": racks, "gpus_per_node": row.n_ranks // racks}, host.figures.network, ()
    if nodes == 1:
        return {host.key: host.name, "nodes": 1, "gpus_per_node": per_node}, "one node", ()
    parts = node_parts(host, row, env)
    shape: dict[str, object] = {host.key: host.name, "nodes": nodes * parts, "gpus_per_node": per_node // parts}
    notes = (f"each node counts as {parts}: its environment keeps GPUs apart",) if parts > 1 else ()
    gpus = per_node if full > _GPUS_OF_A_SERVER else full  # of a host, which in a rack is a tray
    if host.figures.nics_per_node:
        blocks = _over_own(row, host.figures, full // gpus)
        return {**shape, **blocks}, row.network or host.figures.network, notes
    wire = wire_of(row, host, gpus)
    nics = wire.nics * full // gpus  # a description counts those of its whole node
    bandwidth = wire.bandwidth
    if parts > 1 and wire.nics < per_node:  # which then share its NICs
        nics = max(1, wire.nics // parts)
        bandwidth *= wire.nics / (nics * parts)
    return {**shape, **network_blocks(wire.network, nics, bandwidth)}, wire.network, (*wire.notes, *notes)


def _one_nvlink_domain(row: IndexRow, full: int, env: dict[str, str]) -> bool:
    """Whether NVLink joins the hosts of a row, which then are trays: where it says so, or names no other network."""
    if row.network == NVLINK:
        return True
    return full > _GPUS_OF_A_SERVER and row.network is None and env.get("NCCL_MNNVL_ENABLE", "") != "0"


def node_parts(host: NamedMachine, row: IndexRow, env: dict[str, str]) -> int:
    """Into how many equal parts NCCL cuts a node whose GPUs it may not let talk to each other: 1 where they may.

    Without shared memory (NCCL_SHM_DISABLE=1) GPUs that may not write to each other's memory (`peer_level`) reach each
    other through NICs only, and each group is a node (src/graph/paths.cc, ncclTopoTrimSystem). Raises ScenarioError for
    values that NCCL does not know.
    """
    if whole(env, "NCCL_SHM_DISABLE") != 1:
        return 1
    gpus = row.gpus_per_node
    topology = host.built(gpus)
    level = peer_level(topology, row.version or ASSUMED, env)
    near = [PATHS.index(topology.path_type(0, other)) <= level for other in range(1, gpus)]
    together = 1 + sum(near)
    return gpus // together if all(near[: together - 1]) and gpus % together == 0 else 1


def _over_own(row: IndexRow, own: Preset, hosts: int) -> dict[str, object]:
    """What a row says of the network beside a machine's own, which `hosts` hosts make up."""
    nics = row.nics_per_node and row.nics_per_node * hosts
    bandwidth = row.nic_bandwidth
    if row.network not in (None, own.network):
        return network_blocks(row.network, nics, bandwidth)
    changed: dict[str, object] = {}
    if nics not in (None, own.nics_per_node):
        changed["count"] = nics
    if bandwidth not in (None, own.nic_bandwidth):
        changed["bandwidth"] = f"{bandwidth:.0f} B/s"
    return {"node": {"nic": changed}} if changed else {}


def wire_of(row: IndexRow, host: NamedMachine, gpus: int) -> Wire:
    """The network of a row on a machine that has none; `gpus` of a host."""
    notes = []
    network = row.network
    if network is None:
        network = "infiniband"
        notes.append("network not named: taken as infiniband")
    if network == "efa" and host.generation in ("volta", "turing", "ampere"):
        network = "efa_v1"  # its second generation came with the instances of Hopper
    bandwidth, nics = row.nic_bandwidth, row.nics_per_node
    if bandwidth is None:
        rate = _RATE_OF.get(network, _RATE_OF_BOARD.get(host.figures.name, _USUAL_RATE[host.generation]))
        bandwidth = parse_bandwidth(f"{rate} Gb/s")
        notes.append(f"NIC rate not stated: taken as {rate} Gb/s")
    if nics is None:
        nics, why = _usual_count(network, 8 * gb_per_s(bandwidth), gpus, host.generation)
        notes.append(f"NIC count not stated: taken as {nics} ({why})")
    if network == "efa" and nics > gpus and nics % gpus == 0:  # its plugin joins the devices beside one GPU
        nics, bandwidth = gpus, bandwidth * nics / gpus
    return Wire(network, nics, bandwidth, tuple(notes))


def _usual_count(network: str, rate: float, gpus: int, generation: str) -> tuple[int, str]:
    """NICs of a host whose row does not count them, and why; `rate` in Gb/s."""
    if network == "ethernet":
        return 1, "sockets of the host"
    if network == "efa_v1":
        return (_NICS_OF_P4D, "as P4d") if gpus == 8 and generation == "ampere" else (1, "as P3dn and smaller ones")
    return (gpus, "one per GPU") if rate >= 100 else (1, "a slow network")


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
