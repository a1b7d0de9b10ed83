"""What a step takes beside the order of its passes: flows, updates, and which passes complete gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from commsim.engine.sharing import Sharing
from commsim.training.flows import Flow
from commsim.training.pipeline import Action, Order


@dataclass(frozen=True)
class StepCosts:
    """What the simulation needs beside the schedule: flows between stages and of gradients, and fixed times.

    ``sends[src stage, dst stage]``; ``reduces[stage]`` lists, for each chunk of the stage, its gradient buckets in the
    order in which they fill; ``gathers[stage]`` Muon's momenta, and the parameters' way back (ZeRO-1 and 2).
    ``optimizer_s`` per stage.
    ``inside[stage, chunk, kind]``: what a pass exchanges over cards that others use as well.
    """

    sends: Mapping[tuple[int, int], Flow]
    reduces: Sequence[Sequence[Sequence[Flow]]]
    gathers: Sequence[Sequence[Flow]]
    optimizer_s: Sequence[float]
    overlap_dp: bool = True
    overlap_pp: bool = True
    every_micro_batch: bool = False  # gradients leave after each micro-batch: ZeRO-2, DDP without no_sync
    inside: Mapping[tuple[int, int, str], Flow] = field(default_factory=dict)
    slowdown: float = 1.0  # of compute while communication runs: SMs and memory are shared
    constant_s: float = 0.0  # between steps: data, logging, the norm of gradients
    sharing: Sharing | None = None  # of the flows; None where none meets another


def completes_gradients(machine: StepCosts, last: list[set[Action]], stage: int, action: Action) -> bool:
    """Whether an action completes gradients that are then summed; ``last`` from `last_of`."""
    if not machine.reduces[stage][action.chunk]:
        return False
    if machine.every_micro_batch:
        return action.kind in ("B", "W")
    return action in last[stage]


def last_of(order: Order) -> list[set[Action]]:
    """Per stage the actions after which a chunk's gradients are complete: its last B or W."""
    return [set({a.chunk: a for a in mine if a.kind in ("B", "W")}.values()) for mine in order.actions]
