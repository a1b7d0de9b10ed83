"""The machine of a question whose document is not judged yet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from commsim.errors import CommsimError
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec


def built(block: dict[str, Any]) -> Topology | None:
    """The topology of a block; None of one that cannot be built, whose faults are told with all others."""
    try:
        return load_topology(TopologySpec.model_validate(block), Path(), joined=False)
    except (CommsimError, ValidationError):
        return None


def nodes_for(topology: Topology | None, gpus: int, block: dict[str, Any]) -> int | None:
    """Nodes that so many GPUs need; None where the machine says itself how many it has, or has room on one."""
    if topology is None or {"nodes", "groups"} & set(block) or topology.nodes > 1 or gpus <= topology.world_size:
        return None
    return -(-gpus // topology.world_size)
