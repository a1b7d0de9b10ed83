"""Compute of model chunks for the simulated step: the closed form's operator times, chunk by chunk."""

from __future__ import annotations

from commsim.training.compute import Values, step_compute
from commsim.training.parameters import shipped_values
from commsim.training.spec import Step
from commsim.training.stages import Chunk
from commsim.training.step_time import optimizer_seconds, recompute_seconds
from commsim.training.work import ChunkSeconds, ComputeTime


def compute_time(step: Step, values: Values | None = None) -> ComputeTime:
    """The function that gives the seconds of a chunk's passes on one micro-batch, communication not counted."""
    values = values or shipped_values()
    work, scale = step_compute(step, values), values["scale"]

    def seconds(chunk: Chunk) -> ChunkSeconds:
        moe = chunk.moe_layers(step.model)
        passes = ((chunk.layers - moe, work.dense), (moe, work.moe), (int(chunk.outputs), work.head))
        forward = sum(n * p.forward for n, p in passes)
        weight = sum(n * p.weight for n, p in passes)
        again = sum(n * recompute_seconds(p, step) for n, p in passes[:2])
        backward = sum(n * p.backward for n, p in passes) + again - weight
        attention = sum(n * p.attention for n, p in passes)
        return ChunkSeconds(*(float(scale * s) for s in (forward, backward, weight, attention)))

    return seconds


def optimizer_time(step: Step, values: Values | None = None) -> list[float]:
    """Seconds of the update on every stage, the fullest one's for all: they are taken to be alike."""
    values = values or shipped_values()
    return [float(values["scale"] * optimizer_seconds(step, values))] * step.pp
