"""The engines of an ``rl:`` item: replicas on the scenario's machine, and their rollout."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from commsim.generation.batch import Batch
from commsim.generation.batch import StepSeconds as StepTime
from commsim.generation.collectives import Collectives
from commsim.generation.formats import formats
from commsim.generation.policy import Policy, policy_of
from commsim.generation.replica import Engine, Replica
from commsim.generation.step import StepModel
from commsim.rl.rollout import LOG_PROB_S, RolloutRun, roll_out
from commsim.scenario.generation_run import group_calls
from commsim.units import GIGA

if TYPE_CHECKING:
    from commsim.generation.requests import Requests
    from commsim.scenario.rl_parts import EnginesSpec
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology
    from commsim.training.accelerator import Accelerator
    from commsim.training.model import Model


def replica_of(spec: EnginesSpec, model: Model, gpu: Accelerator) -> Replica:
    """One engine."""
    framework = "hf" if spec.framework == "deepspeed" else spec.framework
    graphs = not spec.of_a_library if spec.cuda_graphs is None else spec.cuda_graphs
    release = (*(int(part) for part in (spec.release or "0").split(".")), 0, 0)
    return Replica(
        model,
        gpu,
        Engine(framework, (release[0], release[1], release[2]), graphs),
        tp=spec.tp,
        pp=spec.pp,
        attention_dp=spec.attention_dp,
        moe_ep=spec.ep,
        formats=formats(spec.precision, "", spec.cache_precision),
    )


def collectives_of(setting: Setting, topology: Topology, replica: Replica, ranks: tuple[int, ...]) -> Collectives:
    """The collectives of engines on these GPUs of the scenario's machine, all of them at once."""
    calls = group_calls(setting, topology)

    def seconds(collective: str, count: int, nbytes: float) -> float:
        return calls(collective, nbytes, np.array(ranks).reshape(-1, count))

    nic = topology.nics_per_node * topology.nic_bandwidth / topology.ranks_per_node
    return Collectives(replica.gpu, replica.engine, seconds, near=topology.ranks_per_node, nic_bytes_per_s=nic or GIGA)


def rollout_of(
    spec: EnginesSpec, replica: Replica, collectives: Collectives, requests: Requests, engines: int, gather_s: float
) -> RolloutRun:
    """The rollout; `gather_s`: of gathering the trainer's shards, for which each step waits where they are not kept."""
    step = StepModel(replica, collectives)
    waits = gather_s if spec.gather == "every_token" else 0.0
    host = LOG_PROB_S if spec.log_probs else 0.0

    def seconds(batch: Batch) -> StepTime:
        time = step.seconds(batch)
        return replace(time, collectives=time.collectives + waits, host=time.host + host * batch.sequences)

    return roll_out(
        replica,
        seconds,
        requests,
        engines,
        memory_share=spec.memory_share,
        policy=scheduler_of(spec, replica, requests, engines),
    )


def scheduler_of(spec: EnginesSpec, replica: Replica, requests: Requests, engines: int) -> Policy:
    """The framework's scheduler, with what the item says; a library takes what an engine has to do as one batch."""
    policy = policy_of(replica)
    if spec.most_sequences is not None:
        return replace(policy, most_sequences=spec.most_sequences)
    return replace(policy, most_sequences=-(-requests.count // engines)) if spec.of_a_library else policy
