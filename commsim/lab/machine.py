"""The machine at hand as a topology and a scenario: what NCCL itself wrote of it in the capture pass."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from commsim.errors import CommsimError, MeasurementError, TopologyError
from commsim.files import write_atomically
from commsim.lab.stages import MEASURED
from commsim.measure.gpu import Gpus
from commsim.measure.gpu_conditions import hcas
from commsim.nccl.graph_file import read_graph_file
from commsim.topology.imported import Given, Imported
from commsim.topology.importing import checked, import_file

TOPOLOGY, SCENARIO = "topology.yaml", "scenario.yaml"

_NO_SETTINGS = ("NCCL_DEBUG", "NCCL_TOPO_", "NCCL_GRAPH_", "NCCL_HOSTID", "NCCL_VERSION")
"""Say what NCCL logs, where it is, or (of containers) which one was put in."""

_SOCKET_GBIT = 10
"""Of an interface whose speed the kernel does not tell, such as loopback (NCCL src/misc/socket.cc and net_socket.cc,
ncclNetSocketGetSpeed: 10000 Mb/s)."""


@dataclass(frozen=True)
class Site:
    """What is known of the job before anything is predicted: its size, its GPUs, its library."""

    ranks: int
    nodes: int  # of NCCL: several ranks that share a GPU over sockets are a node each
    gpu: str
    sm: int
    memory_bytes: int  # of one GPU
    nccl_version: str
    network: str = "none"  # infiniband, roce, ethernet ...: as `topo import --network` takes it
    env: Mapping[str, str] | None = None  # of NCCL, as the user has set it
    shared: bool = False  # whether ranks share a GPU

    @property
    def gpus_per_node(self) -> int:
        """Ranks of a node."""
        return self.ranks // self.nodes

    def __str__(self) -> str:
        where = f"{self.nodes} nodes of {self.gpus_per_node}" if self.nodes > 1 else f"{self.ranks}"
        shared = ", ranks sharing a GPU" if self.shared else ""
        return f"{where} x {self.gpu}, NCCL {self.nccl_version}, network {self.network}{shared}"


def site_of(gpus: Gpus, ranks: int, ranks_per_gpu: int, choices: Mapping[str, Any]) -> Site:
    """The site of a job: what this process sees of its GPU and its NICs, and what NCCL said (`nccl_choices.json`).

    Raises MeasurementError where there is no libnccl.
    """
    first, version = gpus.properties(0), gpus.nccl_version()
    if version is None:
        raise MeasurementError("no libnccl can be loaded; name one in COMMSIM_NCCL_LIBRARY")
    nodes = int(choices.get("nodes") or 1)
    return Site(
        ranks=ranks,
        nodes=nodes,
        gpu=first.name.removeprefix("NVIDIA "),
        sm=first.sm,
        memory_bytes=first.memory_bytes // ranks_per_gpu,
        nccl_version=".".join(map(str, version)),
        network=_network(nodes, ranks_per_gpu, gpus.sysfs),
        env={k: v for k, v in os.environ.items() if k.startswith("NCCL_") and not k.startswith(_NO_SETTINGS)},
        shared=ranks_per_gpu > 1,
    )


def _network(nodes: int, ranks_per_gpu: int, sysfs: Path) -> str:
    """The network between nodes by the devices that the kernel lists, as `topo import --network` names it."""
    if nodes == 1:
        return "none"
    if ranks_per_gpu > 1:
        return "ethernet"  # sockets (`commsim.measure.rank_environment.sharing`)
    if any((sysfs / "class" / "cxi").glob("*")):
        return "slingshot"
    ports = [(adapter["name"], port["link"]) for adapter in hcas(sysfs) for port in adapter["ports"]]
    if any(name.startswith(("efa", "rdmap")) for name, _ in ports):
        return "efa"
    layers = {layer for _, layer in ports}
    return "infiniband" if "InfiniBand" in layers else "roce" if "Ethernet" in layers else "ethernet"


def describe(site: Site, topology_xml: Path, graphs: Path, folder: Path) -> list[str]:
    """Writes ``topology.yaml`` and ``scenario.yaml``; returns what the reader should know.

    The graph file is named by the scenario as `library.graph`, so that predictions begin with what NCCL found here.
    Raises TopologyError where the description of the machine is not whole, or not that of the ranks.
    """
    imported = import_file(topology_xml, Given(sm=site.sm, network=None if site.network == "none" else site.network))
    gpus = sum(kind == "gpu" for kind in imported.data["node"]["vertices"].values())
    if gpus * site.nodes != site.ranks:
        raise TopologyError(
            f"{topology_xml.name}: found {gpus} GPUs, expected {site.ranks} ranks on {site.nodes} nodes alike"
        )
    notes = list(imported.notes)
    if site.nodes > 1 and "nic" not in imported.data["node"]:
        notes.append(_with_a_socket(imported))
    checked(imported, topology_xml, site.nodes)
    text = yaml.safe_dump(imported.data, sort_keys=False, default_flow_style=None, width=110)
    write_atomically(folder / TOPOLOGY, text)
    try:
        misfit = read_graph_file(graphs).misfit(site.gpus_per_node, site.nodes)
    except (CommsimError, OSError) as error:
        misfit = str(error)
    if misfit:  # predictions search the graphs anew
        notes.append(f"NCCL's own graphs are not used: {misfit}")
    graph = None if misfit else str(graphs.relative_to(folder))
    write_atomically(folder / SCENARIO, _scenario_text(site, graph))
    return notes


def _scenario_text(site: Site, graph: str | None) -> str:
    """The scenario of the machine: its topology file, NCCL's version and environment, its graphs, its collectives."""
    library: dict[str, Any] = {"name": "nccl", "version": site.nccl_version}
    if graph is not None:
        library["graph"] = graph
    if site.env:
        library["env"] = dict(site.env)
    document = {
        "name": f"{site.ranks} {site.gpu}",
        "topology": {"path": TOPOLOGY, "nodes": site.nodes},
        "library": library,
        "workload": [{"collective": name, "sizes": "8 B .. 8 GiB x2"} for name in MEASURED],
    }
    head = "# Written by `commsim gpu` from what NCCL said of this machine.\n"
    return head + yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=110)


def _with_a_socket(imported: Imported) -> str:
    """Gives a machine without a NIC the interface that NCCL's sockets use; returns a note that says so."""
    machine = imported.data
    host = next(name for name, kind in machine["node"]["vertices"].items() if kind == "host")
    machine["node"]["vertices"]["nic0"] = "nic"
    machine["node"]["links"].append({"ends": ["nic0", host], "kind": "pcie", "bandwidth": "12 GB/s"})
    machine["node"]["nic"] = {"bandwidth": f"{_SOCKET_GBIT} Gb/s"}
    machine["fabric"] = {"kind": "single_switch", "network": "ethernet"}
    return (
        f"no NIC is a device of its own here: the nodes are taken to talk through sockets at {_SOCKET_GBIT} Gb/s, "
        "which is what NCCL assumes of an interface that does not tell its speed"
    )
