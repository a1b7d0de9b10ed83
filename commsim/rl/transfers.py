"""Trainer and engines on the same GPUs: what leaves them for the host so that the other has room, and comes back.

What a framework moves between two phases is counted per GPU. Copies into memory that torch takes anew from the system
(``tensor.to("cpu")``) are slow: the host clears pages and copies by one thread; those from and to pinned memory run at
the rate of PCIe.
"""

from __future__ import annotations

from dataclasses import dataclass

from commsim.training.spec import Step
from commsim.training.step_time import stage_parameters

PAGEABLE_OUT_BYTES_PER_S = 2.5e9
"""Of a GPU into host memory that is taken for the copy: assumed; one thread clears each page, then writes it."""

PAGEABLE_IN_BYTES_PER_S = 8.0e9
"""From host memory that is not pinned: assumed, a copy by one thread into pinned memory and on from there."""


@dataclass(frozen=True)
class Moved:
    """Bytes that a GPU moves in one step: to the host and from it, pageable and pinned."""

    out: float = 0.0
    back: float = 0.0
    pinned_out: float = 0.0
    pinned_back: float = 0.0

    def __add__(self, other: Moved) -> Moved:
        return Moved(
            self.out + other.out,
            self.back + other.back,
            self.pinned_out + other.pinned_out,
            self.pinned_back + other.pinned_back,
        )

    def seconds(self, pcie_bytes_per_s: float) -> float:
        """Of all of it, one after the other, while all GPUs of a node do the same."""
        out, back = (min(rate, pcie_bytes_per_s) for rate in (PAGEABLE_OUT_BYTES_PER_S, PAGEABLE_IN_BYTES_PER_S))
        return self.out / out + self.back / back + (self.pinned_out + self.pinned_back) / pcie_bytes_per_s


def held_bytes(step: Step) -> tuple[float, float]:
    """(16-bit weights, optimizer's states) on a GPU of the fullest stage, the states cut over its copies."""
    dense, experts = (float(n) for n in stage_parameters(step))
    states = step.precision.resident_bytes(step.optimizer)
    cut = (step.shards, step.expert_dp) if step.zero_stage else (1, 1)
    weights = dense / cut[0] + experts / cut[1] if step.zero_stage == 3 else dense + experts
    return step.precision.weight_bytes * weights, float(states) * (dense / cut[0] + experts / cut[1])
