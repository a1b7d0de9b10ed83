"""An ``rl:`` item of a scenario: a step of PPO or GRPO, from prompts to weights that the engines have."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, model_validator

from commsim.document import failing, refuse
from commsim.document.types import KeyFaults
from commsim.errors import CommsimError
from commsim.generation.requests import MOST_REQUESTS
from commsim.scenario.rl_parts import AnswerSpec, EnginesSpec, RolesSpec
from commsim.scenario.strict import Strict
from commsim.scenario.training import TrainingSpec, model_of
from commsim.scenario.training_parts import Count, refusals
from commsim.topology.graph import Topology
from commsim.training.mesh import Mesh
from commsim.training.model import model


class RlSpec(Strict):
    """One step of reinforcement learning."""

    algorithm: Literal["grpo", "ppo"] = Field(
        default="grpo",
        description="`grpo`: answers are checked; `ppo`: a reward model scores them and a critic learns",
    )
    training: TrainingSpec = Field(
        description="an update of the actor, as a training item; sequences follow from `prompts` and `answer`"
    )
    engines: EnginesSpec = Field(default_factory=EnginesSpec, description="what generates")
    prompts: Count = Field(description="of a step")
    samples: Count = Field(default=1, description="answers to every prompt")
    prompt_len: Count = Field(default=256, description="tokens of a prompt")
    answer: AnswerSpec = Field(description="how long answers are")
    packing: bool = Field(
        default=True,
        description="sequences fill micro-batches of `training.seq_len` tokens; else each is padded to the longest",
    )
    epochs: Count = Field(default=1, description="times that every answer is trained on")
    old_log_probs: bool = Field(default=True, description="the trainer scores answers with the weights that made them")
    reference: bool = Field(default=True, description="so does a copy of the weights of before all training")
    critic: str | None = Field(default=None, description="the critic's model (`ppo`); left out: the actor's")
    reward_model: str | None = Field(default=None, description="the reward model's (`ppo`); left out: the critic's")
    roles: RolesSpec = Field(default_factory=RolesSpec, description="GPUs of their own for other models")
    behind: Literal[0, 1] = Field(
        default=0,
        description="steps by which the trainer is behind the engines: 0 is on-policy; 1 needs `engines.gpus`",
    )
    sync: Literal["broadcast", "point_to_point"] = Field(
        default="broadcast", description="how weights reach engines on GPUs of their own"
    )
    offload: bool = Field(
        default=True, description="on the same GPUs: what the other does not need leaves for the host, and comes back"
    )
    steps: Count | None = Field(default=None, description="of the whole task, for hours and dollars")
    gpu_hour_usd: float | None = Field(default=None, ge=0, description="price of a GPU-hour, in dollars")

    @model_validator(mode="after")
    def _goes_together(self) -> RlSpec:
        t, ppo = self.training, self.algorithm == "ppo"
        learned = (("critic", self.critic), ("reward_model", self.reward_model))
        alone = f"found gpus left out and behind {self.behind}, expected GPUs of their own for the engines"
        samples = self.prompts * self.samples
        many = f"found prompts * samples = {samples:,} requests, expected at most {MOST_REQUESTS:,}"
        refuse(
            (samples > MOST_REQUESTS, ("samples" if self.samples > 1 else "prompts",), many),
            *(
                (not ppo and name is not None, (key,), f"found {name}, expected none with grpo")
                for key, name in learned
            ),
            *(refusal for key, name in learned for refusal in refusals(model, name, (key,))),
            (
                not ppo and (self.roles.critic or self.roles.reward),
                ("roles",),
                "found a critic or reward model with grpo",
            ),
            (self.behind and self.engines.gpus is None, ("engines", "gpus"), alone),
            (bool(t.packed), ("training", "packed"), "found lengths, expected none: they follow from `answer`"),
            (t.task is not None, ("training", "task"), "found a task, expected none: `steps` says how many"),
            (
                samples % t.global_batch_size != 0,
                ("training", "global_batch_size"),
                f"found {t.global_batch_size}, expected a divisor of prompts * samples = {samples}",
            ),
        )
        return self

    @property
    def updates(self) -> int:
        """Optimizer steps of a step."""
        return self.epochs * self.prompts * self.samples // self.training.global_batch_size

    @property
    def sequences(self) -> int:
        """Answers of a step."""
        return self.prompts * self.samples

    @property
    def longest(self) -> int:
        """Tokens of the longest prompt with its answer."""
        return self.prompt_len + self.answer.most


def trainer_gpus(spec: RlSpec, topology: Topology) -> int:
    """GPUs of the actor's trainer: those that engines and other models leave."""
    return topology.world_size - (spec.engines.gpus or 0) - spec.roles.total


def mesh_of_role(spec: RlSpec, gpus: int) -> Mesh:
    """The mesh of the actor, or of another model that is cut alike, on so many GPUs."""
    m = spec.training.mesh
    return Mesh(m.dp or max(gpus // (m.tp * m.pp * m.cp), 1), m.pp, m.cp, m.tp, m.ep, m.expert_tp, m.order)


def rl_faults(spec: RlSpec, topology: Topology, base_dir: Path) -> KeyFaults:
    """What does not go with the machine, each at its key."""
    if not topology.one_build:
        return [((), "found nodes of different kinds, expected nodes that are alike")]
    left = trainer_gpus(spec, topology)
    engines = spec.engines.gpus or left
    taken = f"found {spec.engines.gpus or 0} GPUs of engines and {spec.roles.total} of other models"
    if left < 1:
        return [(("engines", "gpus"), f"{taken}, expected fewer than the machine's {topology.world_size}")]
    unread = refusals(lambda path: model_of(spec.training, path), base_dir, ("training", "model"))
    if unread:
        return failing(*unread)
    try:
        mesh = mesh_of_role(spec, left)
    except CommsimError as error:
        return [(("training", "mesh"), str(error))]
    wrong = mesh.misfit(left, model_of(spec.training, base_dir).heads)
    each = spec.engines.each
    uneven = f"found {each} GPUs for an engine, expected a divisor of the {engines} that generate"
    return failing(
        (wrong, ("training", "mesh"), f"{wrong}; the trainer has {left} GPUs" if wrong else ""),
        (engines % each, ("engines", "tp"), uneven),
    )
