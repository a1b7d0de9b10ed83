"""A machine's own description, of either kind, as a checked topology."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from commsim.document import Document, validate
from commsim.errors import Fault, TopologyError
from commsim.topology.imported import Given, Imported

if TYPE_CHECKING:
    from commsim.topology.graph import Topology


def import_file(path: Path, given: Given | None = None) -> Imported:
    """The description in a file of NCCL (XML) or of ``nvidia-smi topo -m`` (anything else)."""
    from commsim.topology.from_nccl import read_topology_xml
    from commsim.topology.from_smi import read_topology_matrix

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
    from commsim.topology.check import check
    from commsim.topology.presets import load_topology
    from commsim.topology.spec import TopologySpec

    data = {key: value for key, value in imported.data.items() if key != "description"} | {"nodes": nodes}
    try:
        spec = validate(TopologySpec, Document(file=str(path), data=data, marks={}), error=TopologyError)
    except TopologyError as error:  # the places are of the description, not of the file that was read
        raise TopologyError([replace(fault, line=0, column=0) for fault in error.faults]) from None
    topology = load_topology(spec, path.parent)
    faults = check(topology)
    if faults:
        raise TopologyError([Fault(str(path), 0, 0, "", fault) for fault in faults])
    return topology
