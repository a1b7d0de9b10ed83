"""The trainer of an ``rl:`` item: updates and forwards that score, of the actor and the models beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import lcm
from typing import TYPE_CHECKING

from commsim.rl.packing import Bins, packed_bins, padded_bins
from commsim.rl.passes import forward_seconds, update_seconds
from commsim.scenario.rl import RlSpec, mesh_of_role
from commsim.scenario.training_run import training_program

if TYPE_CHECKING:
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology
    from commsim.training.communicators import GroupCalls
    from commsim.training.step_run import StepProgram

ROUNDING = 64
"""Tokens that a micro-batch is rounded up to a multiple of (NeMo-RL, `sequence_length_round`)."""

MOST_LENGTHS = 2000
"""Of documents that a step keeps as a sample of all."""


@dataclass(frozen=True, eq=False)
class Trainer:
    """What trains and scores, on the machine of a scenario; `lengths`: tokens of prompts with their answers."""

    setting: Setting
    topology: Topology
    spec: RlSpec
    comm: GroupCalls
    lengths: tuple[int, ...]

    def program(self, model: str, gpus: int, sequences: int, *, scoring: bool = False) -> StepProgram:
        """One optimizer step, or one forward, of a model over the first so many sequences, on so many GPUs."""
        t, mesh = self.spec.training, mesh_of_role(self.spec, gpus)
        bins = self.bins(sequences, mesh.dp)
        micro = 1 if self.spec.packing else t.micro_batch_size
        changes: dict[str, object] = {
            "model": model,
            "seq_len": bins.tokens,
            "micro_batch_size": micro,
            "global_batch_size": bins.each * mesh.dp * micro,
            "mesh": t.mesh.model_copy(update={"dp": mesh.dp}),
        }
        if self.spec.packing:
            changes["packed"] = tuple(min(n, bins.tokens) for n in sample(self.lengths))
        if model != t.model:
            changes["stage_layers"] = None
        if scoring:
            changes |= {"recompute": "none", "recompute_modules": ("core_attn",), "finetune": None, "offload": None}
        return training_program(self.setting, self.topology, t.model_copy(update=changes), self.comm)

    def bins(self, sequences: int, replicas: int) -> Bins:
        """Micro-batches of so many sequences on each replica."""
        t = self.spec.training
        multiple = lcm(ROUNDING, 2 * t.mesh.cp if t.mesh.cp > 1 else 1, t.mesh.tp * t.mesh.cp)
        longest = max(self.lengths)
        if not self.spec.packing:
            return padded_bins(sequences, longest, t.micro_batch_size, replicas, multiple)
        most = max(t.seq_len or 0, longest)
        return packed_bins(self.lengths[:sequences], most, replicas, multiple, alike=t.mesh.pp > 1)

    def score_s(self, model: str, gpus: int) -> float:
        """Seconds of one forward of a model over all sequences."""
        return forward_seconds(self.program(model, gpus, self.spec.sequences, scoring=True))

    def update_s(self, program: StepProgram) -> float:
        """Seconds of all updates of a step."""
        return update_seconds(program, self.spec.updates)


def sample(lengths: Sequence[int]) -> tuple[int, ...]:
    """At most `MOST_LENGTHS` of them, evenly drawn from the sorted ones."""
    if len(lengths) <= MOST_LENGTHS:
        return tuple(lengths)
    ordered = sorted(lengths)
    return tuple(ordered[(2 * i + 1) * len(ordered) // (2 * MOST_LENGTHS)] for i in range(MOST_LENGTHS))
