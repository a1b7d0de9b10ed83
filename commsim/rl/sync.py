"""Weights on their way from a trainer to the engines that generate: gathered from the trainer's mesh, then handed on.

The trainer makes whole tensors of its shards, tensor by tensor: broadcast from the stage that has them, gathered over
tp, and of experts over ep (Megatron-Bridge's and mbridge's export); under ZeRO-3 gathered over all that share a copy.
Engines on the same GPUs read them there. Engines elsewhere get them by a broadcast among all ranks of both (NeMo-RL,
`broadcast_weights_for_collective`; verl does the same), or each GPU its part from one of the trainer's (point to
point).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from commsim.rl.weights import ModelWeights, Tensors
from commsim.training.communicators import SEND, CommTime
from commsim.training.mesh import Mesh
from commsim.training.spec import Step
from commsim.units import GIB

Way = Literal["same_gpus", "broadcast", "point_to_point"]

BUCKET_BYTES = GIB
"""Of tensors that are broadcast together: assumed; NeMo-RL takes 2 % of the GPU's memory for two of them
(`packed_tensor.py`), 0.8 GB each on an H100."""

HOST_CALLS = 4
"""Calls of a framework that a tensor takes on the host beside its collectives, each as long as the launch of a kernel:
look-up, conversion of names, copy into the bucket, and out of it."""


@dataclass(frozen=True)
class SyncTime:
    """Seconds of a synchronisation: whole tensors made by the trainer, handed on, and what the host takes longer."""

    gather: float = 0.0
    send: float = 0.0
    host: float = 0.0
    load: float = 0.0

    @property
    def total_s(self) -> float:
        """Of all, one after the other."""
        return self.gather + self.send + self.host + self.load


@dataclass(frozen=True)
class Engines:
    """The engines: ranks of their GPUs, in order, and how many of them share the weights of one."""

    ranks: tuple[int, ...]
    each: int

    @property
    def replicas(self) -> int:
        """Engines."""
        return len(self.ranks) // self.each


def gather_seconds(weights: ModelWeights, step: Step, mesh: Mesh, comm: CommTime, element_bytes: float) -> float:
    """Seconds until every rank of the trainer had every whole tensor, one after the other."""
    dense, experts = weights.dense, weights.experts
    one, expert = dense.elements * element_bytes, experts.elements * element_bytes
    if step.zero_stage == 3:
        groups = mesh.groups_of(0, "dp", "cp", ranks=step.shards)
        return dense.count * comm("all_gather", one, groups) + _of_experts(experts, expert, mesh, comm)
    seconds = 0.0
    if mesh.pp > 1:
        stages = mesh.groups("pp")
        seconds += dense.count * comm("broadcast", one / mesh.tp, stages)
        seconds += experts.count / mesh.ep * comm("broadcast", expert / mesh.expert_tp, stages)
    if mesh.tp > 1:
        seconds += dense.count * comm("all_gather", one, mesh.groups("tp"))
    return seconds + _of_experts(experts, expert, mesh, comm)


def _of_experts(experts: Tensors, nbytes: float, mesh: Mesh, comm: CommTime) -> float:
    """Experts of the same place on all ranks of ep are gathered together."""
    seconds = 0.0
    if not experts.count:
        return seconds
    if mesh.ep > 1:
        seconds += experts.count / mesh.ep * comm("all_gather", nbytes / mesh.expert_tp * mesh.ep, mesh.groups("ep"))
    if mesh.expert_tp > 1:
        seconds += experts.count * comm("all_gather", nbytes, mesh.groups("etp"))
    return seconds


def sync_seconds(
    weights: ModelWeights,
    trainer: tuple[Step, Mesh],
    engines: Engines,
    way: Way,
    comm: CommTime,
    *,
    element_bytes: float = 2.0,
    host_s: float = 0.0,
    memory_bytes_per_s: float = 1e12,
) -> SyncTime:
    """Seconds from the last update to the first token of new weights; ``host_s``: of one call of the host."""
    step, mesh = trainer
    nbytes = weights.elements * element_bytes
    load = 2.0 * nbytes / engines.each / memory_bytes_per_s
    if way == "point_to_point":
        return SyncTime(send=_point_to_point(nbytes, mesh, engines, comm), host=weights.count * host_s, load=load)
    gather = gather_seconds(weights, step, mesh, comm, element_bytes)
    host = HOST_CALLS * weights.count * host_s
    if way == "same_gpus":
        return SyncTime(gather=gather, host=host, load=load + nbytes / memory_bytes_per_s)
    group = np.array([[*range(mesh.world_size), *engines.ranks]])
    buckets = max(1, round(nbytes / BUCKET_BYTES))
    return SyncTime(gather, buckets * comm("broadcast", nbytes / buckets, group), host, load)


def _point_to_point(nbytes: float, mesh: Mesh, engines: Engines, comm: CommTime) -> float:
    """Every GPU of the engines receives its part; those that have the same part are served one after the other by as
    many ranks of the trainer as there are, each of which sends alike."""
    part = nbytes / engines.each
    senders = mesh.world_size
    rounds: Sequence[Sequence[int]] = [engines.ranks[at : at + senders] for at in range(0, len(engines.ranks), senders)]
    seconds = 0.0
    for receivers in rounds:
        stride = max(1, senders // len(receivers))
        pairs = np.array([[i * stride % senders, receiver] for i, receiver in enumerate(receivers)])
        seconds += comm(SEND, part, pairs)
    return seconds
