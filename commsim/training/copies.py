"""Copies of what forwards keep to the host and back, and the passes that wait for those that last longer."""

from __future__ import annotations

from dataclasses import replace

from commsim.training.finetune import FineTune, kept_of_tune
from commsim.training.memory import Framework, kept_of_micro_batch
from commsim.training.spec import Step, StepPlan
from commsim.training.stages import Chunk, chunks_of
from commsim.training.work import ChunkSeconds, ComputeTime


def copied_bytes(step: Step, plan: StepPlan, framework: Framework, tune: FineTune | None) -> float:
    """Bytes of a micro-batch on the stage where they are most that go to the host and come back."""
    return kept_of_micro_batch(step, framework, plan.layers) if tune is None else kept_of_tune(step, tune)


def beside_copies(compute: ComputeTime, step: Step, plan: StepPlan, nbytes: float) -> ComputeTime:
    """The passes with the copies beside them; ``nbytes``: those of a stage."""
    layers: dict[int, int] = {}
    for chunk in chunks_of(step, plan.layers):
        layers[chunk.stage] = layers.get(chunk.stage, 0) + chunk.layers
    each = nbytes / max(*layers.values(), 1) / plan.pcie_bytes_per_s

    def seconds(chunk: Chunk) -> ChunkSeconds:
        return replace(compute(chunk), copies=each * chunk.layers)

    return seconds
