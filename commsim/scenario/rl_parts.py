"""Parts of an ``rl:`` item: answers, the engines that make them, GPUs of models beside the actor."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from commsim.document import refuse
from commsim.generation.formats import format_of
from commsim.rl.lengths import ALIKE, USUAL_CV
from commsim.scenario.generation import RELEASE
from commsim.scenario.strict import Strict
from commsim.scenario.training_parts import Count, refusals


class AnswerSpec(Strict):
    """How long answers are: a log-normal distribution, cut at the most tokens."""

    most: Count = Field(description="tokens at which an answer is cut")
    mean: float | None = Field(
        default=None, gt=0, description="tokens of the mean answer, cut ones among them; left out: `most`"
    )
    cv: float = Field(
        default=USUAL_CV,
        ge=0,
        le=10,
        description="standard deviation over the mean before any is cut: how long the tail is; 0: all alike",
    )
    alike: float = Field(
        default=ALIKE, ge=0, le=1, description="share of that spread which the answers to one prompt have in common"
    )

    @model_validator(mode="after")
    def _ordered(self) -> AnswerSpec:
        above = self.mean is not None and self.mean > self.most
        refuse((above, ("mean",), f"found a mean of {self.mean}, expected at most {self.most}, where answers are cut"))
        return self

    @property
    def mean_tokens(self) -> float:
        """Of the mean answer."""
        return float(self.most) if self.mean is None else self.mean


class EnginesSpec(Strict):
    """What generates: engines of one kind, on GPUs of their own or on those of the trainer."""

    framework: Literal["vllm", "sglang", "tensorrt_llm", "hf", "deepspeed"] = Field(
        default="vllm",
        description=(
            "`hf`: `generate` of transformers, one batch to its end; `deepspeed`: the same with the kernels of "
            "DeepSpeed-Chat's hybrid engine, which gathers the trainer's shards"
        ),
    )
    release: str | None = Field(
        default=None, pattern=f"^{RELEASE}$", description="of the framework; left out: the newest that was measured"
    )
    gpus: Count | None = Field(default=None, description="of their own; left out: those of the trainer, by turns")
    tp: Count = Field(default=1, description="tensor parallel ranks of an engine")
    pp: Count = Field(default=1, description="pipeline stages of an engine")
    attention_dp: Count = Field(default=1, description="groups of tp ranks with sequences of their own in attention")
    ep: Count = Field(default=1, description="expert parallel ranks of an engine; left out: experts are cut by tp")
    precision: str = Field(
        default="bf16", description="of weights and products: `bf16`, `fp8`, `fp8_block`, `nvfp4` ..."
    )
    cache_precision: Literal["bf16", "fp8", "fp4"] = Field(default="bf16", description="of keys and values")
    cuda_graphs: bool | None = Field(
        default=None, description="decode steps are replayed, not launched; left out: not by `hf` and `deepspeed`"
    )
    memory_share: float = Field(default=0.9, gt=0, le=1.0, description="of a GPU's memory that an engine takes")
    most_sequences: Count | None = Field(default=None, description="of an engine at once; left out: the framework's")
    log_probs: bool = Field(
        default=False, description="engines give the log-probability of every token as well, which costs the host time"
    )
    deal: Literal["turns", "blocks"] = Field(
        default="turns",
        description=(
            "what engines get: `turns`, each the next sample, as servers do; `blocks`, each a part of the batch with "
            "all samples of a prompt"
        ),
    )
    gather: Literal["once", "every_token"] = Field(
        default="once",
        description="under ZeRO-3 on the same GPUs: weights are gathered once a rollout, or for every token",
    )

    @model_validator(mode="after")
    def _names_exist(self) -> EnginesSpec:
        refuse(*refusals(format_of, self.precision, ("precision",)))
        return self

    @property
    def each(self) -> int:
        """GPUs of one engine."""
        return self.tp * self.pp * self.attention_dp

    @property
    def of_a_library(self) -> bool:
        """Whether a batch is generated to its end, launched kernel by kernel."""
        return self.framework in ("hf", "deepspeed")


class RolesSpec(Strict):
    """GPUs of their own for models beside the actor; left out: those of the trainer, by turns."""

    reference: Count | None = Field(default=None, description="of the reference model")
    reward: Count | None = Field(default=None, description="of the reward model")
    critic: Count | None = Field(default=None, description="of the critic (`ppo`)")

    @property
    def total(self) -> int:
        """All of them."""
        return sum(count or 0 for count in (self.reference, self.reward, self.critic))
