"""What collectives take from compute: the SMs that their kernels hold, one for each channel.

A block of NCCL's kernels has an SM to itself while it runs. A matrix product beside it has the others: with 24 of an
H100's 132 it takes 1.22 times as long. Persistent products, which begin with a block for every SM, lose more (30 to
40 % in pytorch/pytorch#179937, a whole second wave in #143988). Copies by the engines for that hold none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from commsim.errors import ScenarioError

if TYPE_CHECKING:
    from commsim.training.communicators import GroupCalls, HeldSms
    from commsim.training.mesh import Mesh
    from commsim.training.spec import Step, StepPlan

CommSms = int | Literal["channels"]
"""A number, or as many as the channels of each call."""

MOST = 0.5
"""Share of a GPU that compute lacks at most: kernels that would fill it take turns."""


def slowed_by(held: int, sms: int) -> float:
    """How many times as long compute takes beside a kernel that holds so many SMs of a GPU's."""
    return 1.0 / (1.0 - min(held / sms, MOST))


def check_comm_sms(step: Step, slowdown: float | None, chosen: CommSms) -> None:
    """ScenarioError for more than half of the GPU's SMs, and beside a factor that says the same."""
    if slowdown is not None:
        raise ScenarioError("found slowdown beside it, expected one of them")
    most = int(MOST * step.accelerator.sms)
    if chosen != "channels" and chosen > most:
        raise ScenarioError(f"found {chosen}, expected up to {most}, half of the SMs of {step.accelerator.name}")


def held_sms(chosen: CommSms, calls: GroupCalls) -> HeldSms:
    """SMs by call: those chosen, or those that the library's kernels hold."""
    if chosen == "channels":
        return calls.sms
    return lambda collective, nbytes, ranks: chosen


def slowdown_of_gradients(step: Step, mesh: Mesh, plan: StepPlan, bucket_bytes: float) -> float:
    """How many times as long compute takes beside a bucket of gradients, or of what ZeRO-3 gathers; 1 without any."""
    assert plan.held_sms is not None
    groups = mesh.groups_of(0, "dp", "cp", ranks=step.shards if step.zero_stage else 0)
    if groups.shape[1] < 2:
        return 1.0
    collective = {0: "all_reduce", 3: "all_gather"}.get(step.zero_stage, "reduce_scatter")
    return slowed_by(plan.held_sms(collective, bucket_bytes, np.asarray(groups)), step.accelerator.sms)
