"""Compute of model chunks for the simulated step: the closed form's operator times, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence

from commsim.training.columns import columns, links_of
from commsim.training.compute import Values, step_compute
from commsim.training.parameters import shipped_values
from commsim.training.spec import Step
from commsim.training.stages import Chunk, chunks_of
from commsim.training.step_time import optimizer_seconds, recompute_seconds
from commsim.training.work import ChunkSeconds, ComputeTime
from commsim.units import GIGA

_ANY_NIC = GIGA
"""Bytes per second; compute does not depend on it."""


def compute_time(step: Step, values: Values | None = None) -> ComputeTime:
    """The function that gives the seconds of a chunk's passes on one micro-batch, communication not counted."""
    values = values or shipped_values()
    c = columns([step], [links_of(step.accelerator, _ANY_NIC, step.gpus_per_node)])
    work = step_compute(c, values)
    again = {kind: float(recompute_seconds(getattr(work, kind), c)[0]) for kind in ("dense", "moe")}

    def seconds(chunk: Chunk) -> ChunkSeconds:
        forward = whole = weight = attention = 0.0
        for layer in range(chunk.first, chunk.last):
            kind = "moe" if step.model.is_moe_layer(layer) else "dense"
            passes = getattr(work, kind)
            forward += float(passes.forward[0])
            whole += float(passes.backward[0]) + again[kind]
            weight += float(passes.weight[0])
            attention += float(passes.attention[0])
        if chunk.outputs:
            forward += float(work.head.forward[0])
            whole += float(work.head.backward[0])
            weight += float(work.head.weight[0])
        scale = values["scale"]
        return ChunkSeconds(scale * forward, scale * (whole - weight), scale * weight, scale * attention)

    return seconds


def optimizer_time(step: Step, values: Values | None = None, chunks: Sequence[Chunk] | None = None) -> list[float]:
    """Seconds of the update on every stage, the fullest one's for all: they are taken to be alike."""
    values = values or shipped_values()
    c = columns([step], [links_of(step.accelerator, _ANY_NIC, step.gpus_per_node)])
    stages = 1 + max(chunk.stage for chunk in (chunks or chunks_of(step)))
    return [values["scale"] * float(optimizer_seconds(c, values)[0])] * stages
