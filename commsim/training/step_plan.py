"""How a step is run, beside what it computes: what `commsim.training.spec.Step` does not fix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from commsim.training.offload import Offload
from commsim.training.spec import Step


@dataclass(frozen=True)
class StepPlan:
    """Choices of the software that runs a step, and what disturbs it."""

    layers: Sequence[int] | None = None  # of each chunk, None: `split_layers`
    context: Literal["ring", "all_gather", "ulysses"] = "ring"
    capacity_factor: float | None = None
    bucket_bytes: float | None = None  # None: Megatron-LM's
    trainable: float = 0.0  # parameters beside a frozen base whose gradients are summed
    parameter_server: bool = False  # gradients go to one process on the first host and parameters come from it
    slowdown: float = 1.0  # of compute while communication runs
    stragglers: Mapping[int, float] | None = None
    contention: bool = True
    overlap_ep: bool | None = None  # experts' exchanges hide behind another micro-batch's pass; None: with DualPipe
    offload: Offload | None = None
    pcie_bytes_per_s: float = 25e9  # between a GPU and its host, for offload

    def overlaps_ep(self, step: Step) -> bool:
        """Whether experts' exchanges hide behind the pass of another micro-batch: DualPipe pairs passes for that."""
        return step.schedule == "dualpipe" if self.overlap_ep is None else self.overlap_ep

    @property
    def fetches(self) -> Offload | None:
        """The offload, where parameters are fetched for every pass."""
        return self.offload if self.offload is not None and self.offload.parameters else None
