"""Around a configuration: every single change of it, and what a tenth more of each part of the machine would give."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commsim.planner.plan import Configuration
from commsim.planner.question import PlanSpec
from commsim.planner.ranking import Ranked, evaluated
from commsim.planner.space import Block, Space
from commsim.training.parameters import shipped_values
from commsim.training.spec import Step
from commsim.training.step_time import step_time
from commsim.units import GIB


@dataclass(frozen=True)
class Neighbour:
    """What one other value of one axis would do: seconds per token over the winner's, or why it cannot run."""

    axis: str
    value: Any
    ratio: float
    reason: str
    memory_bytes: float


def neighbours(spec: PlanSpec, choice: Configuration) -> list[Neighbour]:
    """All single changes of a choice, quickest first: those that fit lose, those that would win do not fit."""
    space, own = choice.machine.space, choice.ranked.seconds_per_token
    changed = []
    for axis, other in single_changes(spec, space, choice.ranked):
        peak, capacity = other.memory_bytes, space.accelerator.room_bytes
        why = "" if peak <= capacity else f"needs {peak / GIB:.0f} GiB of {capacity / GIB:.0f}"
        value = space.axes[axis][other.places[axis]]
        changed.append(Neighbour(axis, value, other.seconds_per_token / own, why, peak))
    return sorted(changed, key=lambda n: n.ratio)


def single_changes(spec: PlanSpec, space: Space, start: Ranked) -> Iterator[tuple[str, Ranked]]:
    """(axis, closed form) of every combination that can run and differs from the start in the value of that axis."""
    for axis, here in start.places.items():
        for there in range(len(space.axes[axis])):
            if there == here:
                continue
            for places in _with_schedule(space, start.places | {axis: there}, axis):
                block = Block(space, {n: np.array([i]) for n, i in places.items()})
                if not block.reasons()[0]:
                    yield axis, evaluated(block, spec.memory, shipped_values()).ranked(0)
                    break


def _with_schedule(space: Space, places: dict[str, int], axis: str) -> list[dict[str, int]]:
    """The places, and where chunks or stages are changed those with 1F1B, interleaved or not, as chunks ask for."""
    schedules = [space.axes["schedule"].index(s) for s in ("1f1b", "interleaved_1f1b") if s in space.axes["schedule"]]
    return [places, *({**places, "schedule": at} for at in schedules if axis in ("virtual_stages", "pp"))]


@dataclass(frozen=True)
class Sensitivity:
    """How the winner's step would change if a property of the machine were a tenth better."""

    what: str
    seconds: float
    change: float


def sensitivity(choice: Configuration) -> list[Sensitivity]:
    """The closed form of the winner with 10 % more of each: bandwidths, efficiency; and a tenth less latency."""
    own, values = choice.step, dict(shipped_values())

    def seconds(changed: dict[str, float], step: Step = own) -> float:
        return float(step_time(step, values | changed).total)

    def with_gpu(**changes: float) -> Step:
        return replace(own, accelerator=replace(own.accelerator, **changes))  # type: ignore[arg-type]

    base = seconds({})
    gemms = {name: value * 1.1 for name, value in values.items() if name.startswith("gemm")}
    attention = {name: value * 1.1 for name, value in values.items() if name.startswith("attention.")}
    latency = {name: values[name] * 0.9 for name in ("alpha", "alpha_node", "alpha_z", "alpha_rank")}
    variants = [
        ("NIC bandwidth + 10 %", seconds({}, replace(own, nic_bytes_per_s=own.nic_bytes_per_s * 1.1))),
        ("NVLink bandwidth + 10 %", seconds({}, with_gpu(nvlink_bytes_per_s=own.accelerator.near_bytes_per_s * 1.1))),
        ("memory bandwidth + 10 %", seconds({}, with_gpu(memory_bytes_per_s=own.accelerator.memory_bytes_per_s * 1.1))),
        ("GEMM efficiency + 10 %", seconds(gemms)),
        ("attention efficiency + 10 %", seconds(attention)),
        ("collective latency - 10 %", seconds(latency)),
    ]
    return [Sensitivity(name, then, then / base - 1.0) for name, then in variants]
