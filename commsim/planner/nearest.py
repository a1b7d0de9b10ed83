"""Where nothing fits: what comes nearest, and the cheapest change that makes it fit."""

from __future__ import annotations

from collections.abc import Sequence

from commsim.errors import CommsimError
from commsim.planner.clusters import ClusterSpace, space_of
from commsim.planner.question import PlanSpec
from commsim.planner.ranking import Ranked, rank_space
from commsim.topology.presets import load_topology
from commsim.training.advice import advice
from commsim.training.memory import step_memory
from commsim.training.parameters import shipped_values
from commsim.units import GIB

MOST_HINTS = 2
"""Changes that a message names."""

MOST_GPUS = 16_384
"""Of the larger machines that are tried: those of the largest published runs."""


def would_fit(spec: PlanSpec, leanest: Sequence[tuple[ClusterSpace, Ranked]]) -> str:
    """What the leanest combination of each machine lacks and what mends it, as the end of a sentence; empty of none."""
    if not leanest:
        return ""
    machine, ranked = min(leanest, key=lambda pair: pair[1].memory_bytes - pair[0].space.accelerator.room_bytes)
    step = machine.space.step(ranked.places)
    memory = step_memory(step, spec.memory)
    needs = f"; the leanest, on {machine.title}, needs {memory.peak / GIB:.1f} of {memory.capacity / GIB:.1f} GiB"
    if hints := advice(step, memory, spec.memory):
        return f"{needs}; it would fit with {' or '.join(hints[:MOST_HINTS])}"
    nodes = fitting_nodes(spec, machine)
    return f"{needs}; it would fit on {nodes:,} nodes in place of {machine.topology.nodes:,}" if nodes else needs


def fitting_nodes(spec: PlanSpec, machine: ClusterSpace) -> int:
    """The least power of two times the machine's nodes on which something fits; 0 where none up to `MOST_GPUS` does."""
    cluster, nodes = machine.cluster, 2 * machine.topology.nodes
    while nodes * machine.topology.ranks_per_node <= MOST_GPUS:
        larger = cluster.model_copy(update={"topology": cluster.topology.model_copy(update={"nodes": nodes})})
        try:
            topology = load_topology(larger.topology, machine.setting.base_dir)
        except CommsimError:
            return 0
        if rank_space(space_of(spec, larger, topology), spec.memory, shipped_values(), keep=1).best:
            return nodes
        nodes *= 2
    return 0
