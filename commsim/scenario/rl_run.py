"""Runs an ``rl:`` item: rollout by the queue of engines, scoring and updates as training steps, weights by NCCL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from commsim.generation.requests import Requests
from commsim.rl.lengths import asked, lengths_of
from commsim.rl.step import ENGINES, TRAINER, RlStep, StepPhase
from commsim.rl.sync import Engines, SyncTime, Way, gather_seconds, sync_seconds
from commsim.rl.transfers import Moved, held_bytes
from commsim.rl.weights import weights_of
from commsim.scenario.rl import RlSpec, trainer_gpus
from commsim.scenario.rl_engines import collectives_of, replica_of, rollout_of
from commsim.scenario.rl_result import RlItem
from commsim.scenario.rl_trainer import Trainer
from commsim.scenario.training import values_of
from commsim.scenario.training_run import comm_times, finetune_of, offload_of
from commsim.training.finetune import finetune_step_memory
from commsim.training.memory import StepMemory, step_memory
from commsim.training.offload import host_bandwidth
from commsim.training.step_run import StepProgram
from commsim.units import GIB

if TYPE_CHECKING:
    from commsim.generation.replica import Replica
    from commsim.rl.rollout import RolloutRun
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology


def requests_of(spec: RlSpec, engines: int) -> Requests:
    """The prompts of a step, one for each sample, and the answers that they will get from so many engines."""
    a = spec.answer
    lengths = lengths_of(a.mean_tokens, a.most, a.cv)
    blocks = engines if spec.engines.deal == "blocks" else 0
    return asked(spec.prompt_len, lengths, spec.prompts, spec.samples, blocks=blocks, alike=a.alike)


def run_rl(setting: Setting, topology: Topology, spec: RlSpec) -> tuple[RlItem, list[str]]:
    """(item, warnings) of one step on the scenario's machine."""
    comm = comm_times(setting, topology)
    own = trainer_gpus(spec, topology)
    engines = _engines(spec, topology, own)
    requests = requests_of(spec, engines.replicas)
    trainer = Trainer(setting, topology, spec, comm, tuple((requests.prompt + requests.answer).tolist()))
    actor = trainer.program(spec.training.model, own, spec.training.global_batch_size)
    replica = replica_of(spec.engines, actor.step.model, actor.step.accelerator)
    gather_s = _gather(actor, comm)
    collectives = collectives_of(setting, topology, replica, engines.ranks)
    rollout = rollout_of(spec.engines, replica, collectives, requests, engines.replicas, gather_s)
    phases = [
        StepPhase("rollout", "rollout", rollout.total_s, ENGINES),
        *_scoring(spec, trainer, own),
        *_updates(spec, trainer, own, actor),
        *_weights(spec, actor, engines, trainer, topology, replica),
        *_control(spec),
    ]
    step = RlStep(tuple(phase for phase in phases if phase.seconds > 0), bool(spec.behind))
    memory = _memory(spec, actor, topology)
    warnings = [*comm.warnings, *_warnings(spec, actor, memory, rollout), *filter(None, [replica.wide_products])]
    return RlItem.of(setting.name, spec, (actor.step, memory), step, rollout, engines), warnings


def _engines(spec: RlSpec, topology: Topology, own: int) -> Engines:
    """Engines of their own stand on the last GPUs, others on the trainer's."""
    gpus = spec.engines.gpus
    first, count = (0, own) if gpus is None else (topology.world_size - gpus, gpus)
    return Engines(tuple(range(first, first + count)), spec.engines.each)


def _gather(actor: StepProgram, comm: object) -> float:
    step = actor.step
    if step.zero_stage != 3:
        return 0.0
    return gather_seconds(weights_of(step.model), step, actor.mesh, comm, step.precision.weight_bytes)  # type: ignore[arg-type]


def _models(spec: RlSpec) -> tuple[str, str]:
    """(critic, reward model)."""
    critic = spec.critic or spec.training.model
    return critic, spec.reward_model or critic


def _scoring(spec: RlSpec, trainer: Trainer, own: int) -> Iterator[StepPhase]:
    critic, reward = _models(spec)
    roles, actor = spec.roles, spec.training.model

    def score(name: str, model: str, gpus: int | None, place: str) -> StepPhase:
        return StepPhase(name, "scoring", trainer.score_s(model, gpus or own), place if gpus else TRAINER)

    if spec.old_log_probs:
        yield score("old log probs", actor, None, TRAINER)
    if spec.reference:
        yield score("reference", actor, roles.reference, "reference")
    if spec.algorithm == "ppo":
        yield score("reward model", reward, roles.reward, "reward")
        yield score("values", critic, roles.critic, "critic")


def _updates(spec: RlSpec, trainer: Trainer, own: int, actor: StepProgram) -> Iterator[StepPhase]:
    yield StepPhase("actor update", "update", trainer.update_s(actor))
    if spec.algorithm == "ppo":
        critic, gpus = _models(spec)[0], spec.roles.critic
        program = trainer.program(critic, gpus or own, spec.training.global_batch_size)
        yield StepPhase("critic update", "update", trainer.update_s(program), "critic" if gpus else TRAINER)


def _weights(
    spec: RlSpec, actor: StepProgram, engines: Engines, trainer: Trainer, topology: Topology, replica: Replica
) -> Iterator[StepPhase]:
    """Weights on their way to the engines, and what leaves the GPUs and comes back where both share them."""
    step = actor.step
    if spec.engines.gather == "every_token":
        return
    same = spec.engines.gpus is None
    way: Way = "same_gpus" if same else spec.sync
    values = values_of(spec.training, trainer.setting.base_dir)
    time: SyncTime = sync_seconds(
        weights_of(step.model),
        (step, actor.mesh),
        engines,
        way,
        trainer.comm,
        element_bytes=replica.formats.weights.weight_bytes if same else step.precision.weight_bytes,
        host_s=values["host"],
        memory_bytes_per_s=step.accelerator.memory_bytes_per_s * values["hbm"],
    )
    yield StepPhase("weights to engines", "sync", time.total_s)
    if same and spec.offload:
        rate = host_bandwidth(topology)
        yield StepPhase("offload", "transfer", moved_of(spec, actor, replica).seconds(rate))


CONTROL_S = 1.0
"""Seconds of the controller between two phases: it gathers what ranks made, sorts it and hands it out (Ray), and
memory is cleared. In a step of 66.55 s without offload, sampling the buffer, data, and preparing two phases took 4.0 s
(NVIDIA-NeMo/RL#1052)."""


def _control(spec: RlSpec) -> Iterator[StepPhase]:
    """Of rollout, scoring, update and weights; a library that does all in one process has none."""
    if not spec.engines.of_a_library:
        yield StepPhase("controller", "control", 4.0 * CONTROL_S)


def moved_of(spec: RlSpec, actor: StepProgram, replica: Replica) -> Moved:
    """What a GPU moves to the host and back in one step where trainer and engines share it.

    The trainer's states leave before the rollout and come back after; so do its weights, after the engines have them.
    The engine's weights go while it sleeps (vLLM, `sleep(level=1)`). The reference is swapped in from the host and the
    actor back. States that are offloaded anyway stay there.
    """
    from commsim.generation.memory import replica_memory

    weights, states = held_bytes(actor.step)
    if actor.plan.offload is not None and actor.plan.offload.optimizer:
        states = 0.0
    swapped = weights if spec.reference and spec.roles.reference is None else 0.0
    engine = 0.0 if spec.engines.of_a_library else replica_memory(replica).weights_bytes
    return Moved(states + weights + swapped, states + weights + 2.0 * swapped, engine, engine)


def _memory(spec: RlSpec, actor: StepProgram, topology: Topology) -> StepMemory:
    t, step = spec.training, actor.step
    offload, tune = offload_of(t, topology), finetune_of(t, step)
    if tune is not None:
        return finetune_step_memory(step, tune, offload, t.stage_layers)
    return step_memory(step, t.framework, layers=t.stage_layers, offload=offload)


def _warnings(spec: RlSpec, actor: StepProgram, memory: StepMemory, rollout: RolloutRun) -> Iterator[str]:
    if actor.step.model.caveat:
        yield actor.step.model.caveat
    if not memory.fits:
        yield (
            f"an update of the actor needs {memory.peak / GIB:.1f} GiB of the {memory.capacity / GIB:.1f} GiB that a "
            "program can allocate"
        )
    if rollout.run.preemptions:
        yield (
            f"the cache of an engine holds {rollout.memory.most_tokens:,} tokens: {rollout.run.preemptions:,} times an "
            "answer was preempted and read again"
        )
