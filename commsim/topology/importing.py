"""A machine's own description, of either kind, as a checked topology."""

from __future__ import annotations

from pathlib import Path

from commsim.errors import Fault, TopologyError
from commsim.topology.check import check
from commsim.topology.from_nccl import read_topology_xml
from commsim.topology.from_smi import read_topology_matrix
from commsim.topology.graph import Topology
from commsim.topology.imported import Given, Imported
from commsim.topology.presets import load_topology, topology_spec


def import_file(path: Path, given: Given | None = None) -> Imported:
    """The description in a file of NCCL (XML) or of ``nvidia-smi topo -m`` (anything else)."""
    try:
        with path.open("rb") as file:
            start = file.read(4096).lstrip()
    except OSError as fault:
        raise TopologyError([Fault(str(path), 0, 0, "", f"cannot be read: {fault.strerror or fault}")]) from None
    if path.suffix == ".xml" or start.startswith(b"<"):
        return read_topology_xml(path, given)
    return read_topology_matrix(path, given)


def checked(imported: Imported, path: Path, nodes: int = 1) -> Topology:
    """The topology of a description with so many nodes; TopologyError where it is not whole."""
    described = {key: value for key, value in imported.data.items() if key != "description"} | {"nodes": nodes}
    topology = load_topology(topology_spec(str(path), described), path.parent)
    faults = check(topology)
    if faults:
        raise TopologyError([Fault(str(path), 0, 0, "", fault) for fault in faults])
    return topology
