"""The machine of a scenario; its faults are located in the file."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from commsim.document import Document, KeyPath, raise_faults
from commsim.errors import Fault, TopologyError
from commsim.scenario.setting import Setting
from commsim.topology.presets import load_topology

if TYPE_CHECKING:
    from commsim.topology.graph import Topology


def build_topology(scenario: Setting) -> Topology:
    """The scenario's topology; faults that know no line are located at the scenario's ``topology``."""
    try:
        topology = load_topology(scenario.topology, scenario.base_dir)
    except TopologyError as exc:
        if any(f.line for f in exc.faults) or not scenario.source:
            raise
        messages = [": ".join(p for p in (f.file, f.path, f.message) if p) for f in exc.faults] or [str(exc)]
        raise_faults([_topology_fault(scenario.document, m) for m in messages], TopologyError)
    return topology


_NAME_AND_KEYS = re.compile(r"(?:[^:\s]+: )?(?P<keys>[\w.]+): (?P<rest>.+)", re.DOTALL)


def _topology_fault(document: Document, message: str) -> Fault:
    """At the keys that ``NAME: node.links.1: ...`` begins with if the scenario has them, else at ``topology``."""
    match = _NAME_AND_KEYS.fullmatch(message)
    path: KeyPath = ("topology",)
    here = document.data["topology"]
    for key in match["keys"].split(".") if match else ():
        step = int(key) if isinstance(here, list) and key.isdecimal() else key
        path = (*path, step)
        if path not in document.marks and path not in document.overrides:
            return document.fault(("topology",), message.removeprefix("topology: "))
        here = here[step]
    return document.fault(path, match["rest"] if match else message)
