"""What the controls of the page offer: machines, libraries, collectives, algorithms, models."""

from __future__ import annotations

from functools import cache
from typing import Any

from commsim.collectives.registry import ALGORITHMS
from commsim.collectives.semantics import COLLECTIVES, NCCL_TESTS
from commsim.explorer.state import DEFAULTS
from commsim.nccl.environment import ALGORITHM_NAMES, PROTOCOL_NAMES
from commsim.nccl.version import ASSUMED, format_version
from commsim.topology.presets import list_presets
from commsim.training.model import model, model_names
from commsim.training.pipeline_schedules import SCHEDULES
from commsim.units import gbit_per_s

VERSIONS = (
    "2.18.5",
    "2.19.4",
    "2.20.5",
    "2.21.5",
    "2.22.3",
    "2.23.4",
    "2.24.3",
    "2.25.1",
    "2.26.2",
    "2.27.7",
    "2.28.9",
)
"""Releases that the page offers; any other can be typed in a scenario."""


@cache
def options() -> dict[str, Any]:
    """By control, what may be chosen."""
    return {
        "defaults": DEFAULTS,
        "presets": [
            {
                "name": p.name,
                "text": p.description,
                "gpus": p.gpus_per_node,
                "nics": p.nics_per_node,
                "rate": round(gbit_per_s(p.nic_bandwidth)),
            }
            for p in list_presets()
        ],
        "versions": VERSIONS,
        "version": format_version(ASSUMED),
        "libraries": ["nccl", "gloo", "none", "synthesized"],
        "ncclalgos": list(ALGORITHM_NAMES.values()),
        "protocols": list(PROTOCOL_NAMES),
        "collectives": list(NCCL_TESTS),
        "algorithms": {
            c: [[a, known.summary] for (of, a), known in ALGORITHMS.items() if of == c] for c in COLLECTIVES
        },
        "models": list(model_names()),
        "lengths": {name: model(name).seq_len for name in model_names()},
        "pipelines": list(SCHEDULES),
    }
