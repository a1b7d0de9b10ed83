"""What a library's communicators take of a GPU, as a part of a step's memory.

Without a machine a step's memory has them in the base of its framework, where that has them at all
(`commsim.training.memory.Software`); on one NCCL's model gives them, and what the base has for them goes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from commsim.nccl.memory import kernel_bytes
from commsim.nccl.version import ASSUMED, Version
from commsim.training.memory import DDP_BASE, WORKSPACES, Framework, StageMemory, StepMemory
from commsim.units import GIB

if TYPE_CHECKING:
    from commsim.nccl.memory import CommunicatorMemory
    from commsim.training.communicators import GroupCalls
    from commsim.training.mesh import Mesh

PART = "communicators"
"""Their name among the parts of a stage's memory."""

_IN_BASE: dict[Framework, float] = {"deepspeed": 1.3 * GIB, "ddp": DDP_BASE - WORKSPACES}
"""What the base of a framework has for them: of DeepSpeed's, which is read off nvidia-smi, what this model gives for
the groups of BLOOM's trials (median of 58 on nodes of 8 A100 by NCCL 2.10.3: 1.29 GiB; 0.56 to 1.77). The others' bases
are what torch's own allocator shows, in which no buffer of NCCL is."""


@dataclass(frozen=True)
class Communicators:
    """Those of a step: by stage what a GPU's calls made, and NCCL's kernels, which each process loads once."""

    stages: tuple[tuple[CommunicatorMemory, ...], ...]
    kernels: int

    def nbytes(self, stage: int) -> int:
        """Bytes of one GPU of a stage; 0 where nothing is called."""
        held = sum(one.gpu for one in self.stages[stage])
        return held + self.kernels if held else 0

    def beside(self, framework: Framework) -> Callable[[StepMemory], StepMemory]:
        """What adds them to a step's memory; to one of another number of stages those of the fullest to each."""
        each = [self.nbytes(stage) for stage in range(len(self.stages))]
        base = _IN_BASE.get(framework, 0.0)

        def added(memory: StepMemory) -> StepMemory:
            alike = len(memory.stages) == len(each)
            return beside(memory, each if alike else [max(each)] * len(memory.stages), base)

        return added


def communicators_of(calls: GroupCalls, mesh: Mesh, sm: int, version: Version | None) -> Communicators:
    """The communicators of a step that has been run with these calls, of the first rank of each stage."""
    first = [int(mesh.ranks(pp=np.array([stage]))[0]) for stage in range(mesh.pp)]
    return Communicators(
        tuple(tuple(calls.communicators(rank)) for rank in first), kernel_bytes(sm, version or ASSUMED)
    )


def beside(memory: StepMemory, nbytes: Sequence[float], base: float) -> StepMemory:
    """The memory with so many bytes of communicators on each stage, in place of ``base`` of its buffers."""
    return replace(memory, stages=tuple(_beside(s, held, base) for s, held in zip(memory.stages, nbytes, strict=True)))


def _beside(stage: StageMemory, nbytes: float, base: float) -> StageMemory:
    if not nbytes:
        return stage
    buffers = stage.parts.get("buffers", 0.0)
    less = min(base, buffers)
    parts = stage.parts | ({"buffers": buffers - less} if less else {}) | {PART: float(nbytes)}
    return StageMemory(stage.stage, parts, {name: total - less + nbytes for name, total in stage.moments.items()})
