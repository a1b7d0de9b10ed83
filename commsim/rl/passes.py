"""Seconds of a trainer's part of a step: forwards that score, and updates."""

from __future__ import annotations

from commsim.training.step_run import StepProgram


def forward_seconds(program: StepProgram) -> float:
    """Seconds in which all micro-batches of a step pass forward once: nothing is kept, nothing is updated.

    Stages follow each other, and the slowest sets the pace: the sum over stages and, for all micro-batches but the
    first, the longest. Messages between stages are in the open once a stage, and every time without `overlap_pp`.
    """
    step, slowdown = program.step, program.plan.values["slowdown"]
    stages = [0.0] * step.pp
    for chunk in program.places:
        stages[chunk.stage] += program.works[chunk.stage, chunk.chunk].F.seconds(slowdown)
    if program.step.schedule == "dualpipe" and step.pp > 1:
        stages = [seconds / 2.0 for seconds in stages]  # each holds its layers and those of the stage opposite
    hop = max((flow.seconds for flow in program.machine.sends.values()), default=0.0)
    rounds = step.num_microbatches - 1
    sends = hop * ((step.pp - 1) + (0 if step.overlap_pp else rounds))
    return sum(stages) + rounds * max(stages) + (sends if step.pp > 1 else 0.0)


def update_seconds(program: StepProgram, updates: int) -> float:
    """Seconds of so many optimizer steps, each simulated as a training step is."""
    return updates * program.run().step_s
