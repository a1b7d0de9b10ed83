"""Parts of a ``training:`` item: the mesh, the task, what is offloaded, and what is fine-tuned."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from commsim.document import refuse
from commsim.document.types import KeyPath
from commsim.errors import CommsimError
from commsim.fields import Bandwidth
from commsim.scenario.strict import Strict
from commsim.training.finetune import Kind
from commsim.training.mesh import ORDER
from commsim.training.model import model

Module = Literal["core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe", "shared_experts"]

Count = Annotated[int, Field(ge=1, le=2**20)]


class MeshSpec(Strict):
    """Sizes of the axes; dp left out is what the machine leaves."""

    tp: Count = Field(default=1, description="tensor parallel ranks")
    pp: Count = Field(default=1, description="pipeline stages")
    cp: Count = Field(default=1, description="context parallel ranks")
    dp: Count | None = Field(default=None, description="data parallel replicas; left out: what the GPUs leave")
    ep: Count = Field(default=1, description="expert parallel ranks, inside dp and tp")
    expert_tp: Count | None = Field(
        default=None, description="tensor parallel ranks of an expert; left out: tp where ep divides the rest"
    )
    order: tuple[str, ...] = Field(default=ORDER, description="axes, innermost first")


class TaskSpec(Strict):
    """What the steps are for: tokens to see, and what a GPU-hour costs."""

    kind: Literal["pretrain", "sft", "reward_model", "rlhf_ppo", "rl_verifiable"] = Field(
        default="pretrain", description="what the steps are for"
    )
    tokens: float = Field(default=0.0, ge=0, description="to train on, such as `15.6e+12`; or give `steps`")
    steps: Count | None = Field(default=None, description="number of steps; or give `tokens`")
    gpu_hour_usd: float | None = Field(default=None, ge=0, description="price of a GPU-hour, in dollars")
    prompt_len: Count = Field(default=256, description="tokens of a prompt (`rlhf_ppo`, `rl_verifiable`)")
    answer_len: Count = Field(default=256, description="tokens of an answer (`rlhf_ppo`, `rl_verifiable`)")
    critic: str | None = Field(default=None, description="the critic's model (`rlhf_ppo`); left out: the model itself")
    generation_tp: Count = Field(default=1, description="tensor parallel ranks of generation")

    @model_validator(mode="after")
    def _has_an_end(self) -> TaskSpec:
        endless = not self.tokens and self.steps is None
        refuse(
            (endless, (), "found neither tokens nor steps, expected one of them"),
            *refusals(model, self.critic, ("critic",)),
        )
        return self


class OffloadSpec(Strict):
    """ZeRO-Offload (optimizer) and ZeRO-Infinity (parameters); rates are those of a node."""

    optimizer: bool = Field(default=True, description="optimizer states lie on the host (ZeRO-Offload)")
    activations: bool = Field(
        default=False,
        description="what forwards keep for backwards lies on the host; passes wait for copies that last longer",
    )
    parameters: bool = Field(default=False, description="parameters too (ZeRO-Infinity, with `zero_stage: 3`)")
    host_memory_bandwidth: Bandwidth = Field(default=200e9, description="of a node")
    nvme_bandwidth: Bandwidth | None = Field(default=None, description="of a node, where they lie on NVMe drives")


class FineTuneSpec(Strict):
    """Training few weights beside a frozen base, which all ranks hold or share; LoRA also goes with tp and pp."""

    kind: Kind = Field(description="`lora`, `qlora` (a 4-bit base), `adapters`, `prefix` or `prompt`")
    rank: Count = Field(default=16, description="of LoRA's matrices")
    targets: tuple[Literal["q", "k", "v", "o", "up", "gate", "down"], ...] = Field(
        default=("q", "v"), min_length=1, description="the matrices that LoRA stands beside"
    )
    bottleneck: Count = Field(default=64, description="inner width of adapters")
    length: Count = Field(default=20, description="positions of a prefix or prompt")


def refusals(call: Any, value: Any, path: KeyPath) -> list[tuple[bool, KeyPath, str]]:
    """The fault of a value that ``call`` refuses, if there is one; None is none."""
    try:
        if value is not None:
            call(value)
    except CommsimError as error:
        return [(True, path, str(error))]
    return []
