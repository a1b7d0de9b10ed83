"""What a training step loses to what varies: to its slowest node, and to messages that are late by a draw each."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from commsim.engine.variation import P99, Variation
from commsim.scenario.variation import VariationSpec
from commsim.training.simulate import StepRun
from commsim.training.step_run import StepProgram
from commsim.units import format_percent, format_time

_MOST_STAGES = 8
"""Stages up to which the slowest node is tried at each; of more at so many, evenly apart."""


def idle_draws(library: str, variation: VariationSpec | None) -> str:
    """What of a variation a training step does not feel: its nodes are no draws but order statistics; else empty."""
    if library != "nccl" or variation is None or variation.jitter is not None:
        return ""
    idle = " and ".join(name for name in ("seed", "repeats") if name in variation.model_fields_set)
    verb = "have" if " " in idle else "has"
    return f"variation: {idle} {verb} no effect on a training step: node_spread is not drawn there" if idle else ""


def lost_to_variation(
    variation: Variation | None,
    nodes: int,
    program: StepProgram,
    step_s: float,
    late: Callable[[Variation], StepRun],
) -> str:
    """In words what a step on so many nodes loses; empty where nothing varies. `late` runs it with late messages."""
    return "" if variation is None else ". ".join(_parts(variation, nodes, program, step_s, late))


def _parts(
    variation: Variation, nodes: int, program: StepProgram, step_s: float, late: Callable[[Variation], StepRun]
) -> Iterator[str]:
    if variation.node_spread and nodes > 1:
        yield _to_slowest(variation, nodes, program, step_s)
    if variation.jitter is not None:
        late_s = late(variation).step_s
        yield (
            f"This step loses {format_percent(late_s / step_s - 1)} to messages that are late by "
            f"{format_time(variation.jitter.mean_s)} in the mean: {late_s:.4g} s; each call takes its mean, of groups "
            "that call at once the latest's"
        )


def _to_slowest(variation: Variation, nodes: int, program: StepProgram, step_s: float) -> str:
    """What the slowest node costs, where nodes are unlike by a draw: its compute is slower, at the stage that feels it
    most. Gradients wait for its replica, so that the step is that of replicas like it. A step grows with the factor, so
    that its quantiles are those of the factor."""
    every = program.order.stages
    stages = range(0, every, -(-every // _MOST_STAGES))

    def slowed(chance: float) -> float:
        factor = variation.slowest(nodes, chance)
        return max(program.run({stage: factor}).step_s for stage in stages)

    median_s, p99_s = slowed(0.5), slowed(P99)
    return (
        f"This step loses {format_percent(median_s / step_s - 1)} to the slowest of {nodes:,} nodes: {median_s:.4g} s, "
        f"and in one of 100 steps {p99_s:.4g} s (node_spread {100 * variation.node_spread:.3g} %); "
        "the rest is of alike nodes"
    )
