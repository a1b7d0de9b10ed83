"""Training tasks as numbers of steps: tokens, days, GPU-hours and money of pre-training, fine-tuning and RL.

A task is phases that follow one another; each knows the seconds that one of its steps takes. Generation is timed as a
roofline: every new token reads the weights and the KV cache once, a prompt costs its FLOPs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commsim.errors import InfeasibleError
from commsim.training.accelerator import Accelerator
from commsim.training.model import Model
from commsim.training.utilisation import forward_flops
from commsim.units import GIB

DAY_S = 86400.0


@dataclass(frozen=True)
class TaskPhase:
    """Part of every step of a task: seconds on all GPUs."""

    name: str
    seconds: float


@dataclass(frozen=True)
class TaskCost:
    """What a task takes: ``steps`` times its phases."""

    name: str
    steps: float
    tokens: float
    gpus: int
    phases: tuple[TaskPhase, ...]

    @property
    def seconds(self) -> float:
        """From start to end."""
        return self.steps * sum(phase.seconds for phase in self.phases)

    @property
    def days(self) -> float:
        """The same in days."""
        return self.seconds / DAY_S

    @property
    def gpu_hours(self) -> float:
        """GPUs times hours."""
        return self.gpus * self.seconds / 3600.0

    def usd(self, gpu_hour_usd: float) -> float:
        """Money at a price per GPU-hour."""
        return self.gpu_hours * gpu_hour_usd


def supervised(name: str, tokens: float, step_tokens: float, step_s: float, gpus: int) -> TaskCost:
    """Pre-training, supervised fine-tuning, or a reward model: steps of one kind until the tokens are seen."""
    return TaskCost(name, tokens / step_tokens, tokens, gpus, (TaskPhase("training step", step_s),))


@dataclass(frozen=True)
class Rollout:
    """Generation of one step: ``sequences`` over all GPUs, each a prompt and an answer, in tokens.

    ``gpus_per_replica``: tp of generation; ``reach``: share of memory bandwidth, and of the peak for prompts.
    """

    sequences: int
    prompt: int
    answer: int
    gpus_per_replica: int = 1
    weight_bytes: float = 2.0
    cache_bytes: float = 2.0
    memory_reach: float = 0.6
    compute_reach: float = 0.5

    @property
    def tokens(self) -> float:
        """Of all prompts and answers."""
        return float(self.sequences * (self.prompt + self.answer))


def cache_bytes_per_token(model: Model, element_bytes: float = 2.0) -> float:
    """Bytes of the KV cache of one token; latent attention keeps its low-rank vector and the rotated key."""
    if model.mla is not None:
        return model.layers * (model.mla.kv_lora_rank + model.mla.qk_rope_head_dim) * element_bytes
    return model.layers * 2 * model.kv_width * element_bytes


def generation_seconds(model: Model, gpu: Accelerator, rollout: Rollout, gpus: int) -> float:
    """Seconds until all answers of a step are written.

    As many sequences run at once as caches fit beside the weights; InfeasibleError when not one does.
    """
    replicas = gpus // rollout.gpus_per_replica
    each = -(-rollout.sequences // max(1, replicas))
    bandwidth = gpu.memory_bytes_per_s * rollout.gpus_per_replica * rollout.memory_reach
    weights = model.parameters() * rollout.weight_bytes
    room = gpu.memory_bytes * rollout.gpus_per_replica * 0.9 - weights
    longest = (rollout.prompt + rollout.answer) * cache_bytes_per_token(model, rollout.cache_bytes)
    at_once = min(each, int(room // longest)) if room > 0 else 0
    if at_once < 1:
        raise InfeasibleError(
            f"generation with {model.name} needs {(weights + longest) / GIB:.1f} GiB per replica of "
            f"{rollout.gpus_per_replica} GPUs, found {(room + weights) / GIB:.1f} GiB; use more GPUs per replica"
        )
    peak = gpu.half_peak * rollout.gpus_per_replica * rollout.compute_reach
    mean_cache = (rollout.prompt + rollout.answer / 2) * cache_bytes_per_token(model, rollout.cache_bytes)
    active = model.active_parameters() * rollout.weight_bytes if at_once == 1 else weights
    per_token = max(
        (active + at_once * mean_cache) / bandwidth, at_once * forward_flops(model, rollout.prompt, causal=True) / peak
    )
    prompts = at_once * rollout.prompt * forward_flops(model, rollout.prompt, causal=True) / peak
    rounds = -(-each // at_once)
    return rounds * (rollout.answer * per_token + prompts)


def scoring_seconds(model: Model, gpu: Accelerator, tokens: float, gpus: int, reach: float = 0.4) -> float:
    """Seconds of forwards over ``tokens`` tokens on all GPUs: reference model, reward model, critic."""
    peak = gpu.half_peak * gpus * reach
    return tokens * forward_flops(model, 1024, causal=True) / peak


@dataclass(frozen=True)
class Learner:
    """A model that is trained by its own answers, and the seconds of one of its updates."""

    model: Model
    update_s: float


def ppo(steps: float, actor: Learner, critic: Learner, gpu: Accelerator, gpus: int, rollout: Rollout) -> TaskCost:
    """RLHF with PPO: generate, score by reference, actor, reward and critic, then update actor and critic."""
    scored = sum(2 * scoring_seconds(one.model, gpu, rollout.tokens, gpus) for one in (actor, critic))
    phases = (
        TaskPhase("generation", generation_seconds(actor.model, gpu, rollout, gpus)),
        TaskPhase("scoring", scored),
        TaskPhase("actor update", actor.update_s),
        TaskPhase("critic update", critic.update_s),
    )
    return TaskCost("rlhf_ppo", steps, steps * rollout.tokens, gpus, phases)


def verifiable_rewards(steps: float, actor: Learner, gpu: Accelerator, gpus: int, rollout: Rollout) -> TaskCost:
    """RL with verifiable rewards (GRPO and its kind): generate a group of answers, score them by actor and reference,
    one update. Checking an answer takes the GPUs no time."""
    phases = (
        TaskPhase("generation", generation_seconds(actor.model, gpu, rollout, gpus)),
        TaskPhase("verification", 0.0),
        TaskPhase("scoring", 2 * scoring_seconds(actor.model, gpu, rollout.tokens, gpus)),
        TaskPhase("actor update", actor.update_s),
    )
    return TaskCost("rl_verifiable", steps, steps * rollout.tokens, gpus, phases)


def share(phases: Sequence[TaskPhase]) -> dict[str, float]:
    """Each phase's share of a step."""
    total = sum(phase.seconds for phase in phases)
    return {phase.name: phase.seconds / total for phase in phases}
