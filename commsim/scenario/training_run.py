"""Runs a ``training:`` item: compute by the operator model, communication by the library's, the step by simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from commsim.errors import CommsimError
from commsim.nccl.plugins import for_groups
from commsim.nccl.predict import Options
from commsim.nccl.version import ASSUMED
from commsim.scenario.params import gloo_parameters, nccl_parameters
from commsim.scenario.predictors import refuse_unlike_networks, survived
from commsim.scenario.training import TrainingSpec, mesh_of_spec, step_of, values_of
from commsim.scenario.training_lost import idle_draws, lost_to_variation
from commsim.scenario.training_result import TrainingItem
from commsim.topology.presets import load_topology
from commsim.training import tasks
from commsim.training.advice import advice, finetune_advice
from commsim.training.comm_sms import held_sms, slowdown_of_gradients
from commsim.training.communicator_memory import communicators_of
from commsim.training.communicators import GlooGroups
from commsim.training.compute import memory_rate
from commsim.training.copies import beside_copies, copied_bytes
from commsim.training.dispatch import beyond_measured
from commsim.training.finetune import (
    FineTune,
    beside_base,
    fine_tune,
    finetune_step_memory,
    update_seconds,
)
from commsim.training.memory import Framework, step_memory
from commsim.training.model import model
from commsim.training.nccl_groups import NcclGroups
from commsim.training.offload import Offload, host_bandwidth
from commsim.training.parameters import calibrated_on
from commsim.training.spec import Step, StepPlan
from commsim.training.step_run import StepProgram, default_bucket_bytes, step_program
from commsim.training.step_time import exchange_of
from commsim.training.step_traffic import step_traffic
from commsim.training.traffic import server_bytes
from commsim.training.work import compute_time, optimizer_time
from commsim.units import GIB, GIGA, format_time

if TYPE_CHECKING:
    from pathlib import Path

    from commsim.engine.variation import Variation
    from commsim.scenario.predictors import Cache
    from commsim.scenario.setting import Setting
    from commsim.topology.graph import Topology
    from commsim.topology.spec import TopologySpec
    from commsim.training.communicator_memory import Communicators
    from commsim.training.communicators import GroupCalls
    from commsim.training.memory import StepMemory
    from commsim.training.simulate import StepRun


def run_training(
    scenario: Setting,
    topology: Topology,
    spec: TrainingSpec,
    latency: float = 1.0,
    comm: GroupCalls | None = None,
) -> tuple[TrainingItem, list[str]]:
    """(item, warnings) of one training step on the scenario's machine, its hops `latency` times as long.

    `comm` are fresh `comm_times` of the same library, machine and latency, where there are some.
    """
    comm = comm_times(scenario, topology, latency) if comm is None else comm
    program, run, memory, made = simulated(scenario, topology, spec, comm)
    step, plan, layers, pcie = program.step, program.plan, spec.stage_layers, _host_rate(topology)
    offload, tune = plan.offload, finetune_of(spec, step)
    if tune is not None:
        hints = tuple(finetune_advice(step, tune, offload, pcie, made.beside("megatron")))
    else:
        beside = made.beside(spec.framework)
        hints = tuple(advice(step, memory, spec.framework, layers=layers, offload=offload, pcie=pcie, beside=beside))
    warnings = list(comm.warnings)
    warnings += [step.model.caveat] if step.model.caveat else []
    on = calibrated_on(scenario.base_dir / spec.params) if spec.params is not None else ""
    if on not in ("", step.accelerator.generation):
        warnings.append(
            f"training.params: {spec.params} was calibrated with steps of GPUs of the generation {on}, "
            f"this one runs on {step.accelerator.name} ({step.accelerator.generation})"
        )
    if not memory.fits:
        fullest = memory.fullest
        warnings.append(
            f"stage {fullest.stage} needs {fullest.peak / GIB:.1f} GiB of the {memory.capacity / GIB:.1f} GiB of "
            f"{step.accelerator.name} that a program can allocate"
        )
    item = TrainingItem(
        name=scenario.name,
        step=step,
        schedule=spec.pipeline_schedule,
        step_s=run.step_s,
        causes=run.breakdown(),
        memory=memory,
        communicators=made,
        advice=hints,
        timeline=run.timeline,
        traffic=tuple(step_traffic(step, plan)),
        contended=bool(run.contended),
        task=_task(spec, step, run.step_s),
        gpu_hour_usd=spec.task.gpu_hour_usd if spec.task else None,
        own_parameters=spec.params is not None,
        notes=(
            *_without_effect(spec, step),
            *([text] if (text := idle_draws(scenario.library.name, scenario.variation)) else []),
            *_notes(step, plan, tune, _faulty(topology)),
            *_copies(step, plan, tune, spec.framework),
            *_cost_of_faults(scenario, topology, spec, run.step_s, latency),
            *_loss_by_windows(scenario, topology, spec, run.step_s, latency),
        ),
        lost=lost_to_variation(
            None if scenario.variation is None else scenario.variation.variation,
            -(-step.world_size // topology.ranks_per_node),
            program,
            run.step_s,
            lambda variation: training_program(
                scenario, topology, spec, comm_times(scenario, topology, latency, variation)
            ).run(),
        ),
    )
    return item, warnings


def simulated(
    scenario: Setting, topology: Topology, spec: TrainingSpec, comm: GroupCalls
) -> tuple[StepProgram, StepRun, StepMemory, Communicators]:
    """What a step runs, how long it takes and what it holds, without the rest of the answer."""
    program = training_program(scenario, topology, spec, comm)
    run, step, offload, layers = program.run(), program.step, program.plan.offload, spec.stage_layers
    made = communicators_of(comm, program.mesh, topology.gpu.sm, scenario.library.named_version)
    if tune := finetune_of(spec, step):
        memory = made.beside("megatron")(finetune_step_memory(step, tune, offload, layers))
    else:
        memory = made.beside(spec.framework)(step_memory(step, spec.framework, layers=layers, offload=offload))
    return program, run, memory, made


def _host_rate(topology: Topology) -> float | None:
    """`host_bandwidth`, or None on a machine without hosts."""
    try:
        return host_bandwidth(topology)
    except CommsimError:
        return None


def finetune_of(spec: TrainingSpec, step: Step) -> FineTune | None:
    """What is trained beside a frozen base; None where everything is."""
    return None if spec.finetune is None else fine_tune(step, **dict(spec.finetune))


def _copies(step: Step, plan: StepPlan, tune: FineTune | None, framework: Framework) -> Iterator[str]:
    if plan.offload is not None and plan.offload.activations:
        each = copied_bytes(step, plan, framework, tune)
        seconds = format_time(each / plan.pcie_bytes_per_s)
        yield f"{each / GIGA:.3f} GB of activations of every micro-batch go to the host and back, {seconds} each way"


_LOSES = 1.0005
"""How many times as long a step takes before windows are said to lose: less is not seen in what is printed."""

_IDLE: tuple[tuple[str, Callable[[Step], bool], str], ...] = (
    ("expert_dispatch", lambda s: s.model.moe is None, "the model has no experts"),
    ("expert_dispatch", lambda s: s.model.moe is not None and s.ep == 1, "no token goes to another GPU (ep = 1)"),
    ("overlap_ep", lambda s: s.ep == 1 and bool(s.overlap_ep), "no token goes to another GPU (ep = 1)"),
    (
        "overlap_ep",
        lambda s: s.ep > 1 and bool(s.pairs_passes),
        "the pipeline's schedule pairs passes whatever it says",
    ),
    ("imbalance", lambda s: s.model.moe is None, "the model has no experts"),
    ("capacity_factor", lambda s: s.model.moe is None, "the model has no experts"),
    ("context_parallel", lambda s: s.cp == 1, "cp = 1"),
    ("overlap_tp", lambda s: s.tp == 1, "tp = 1"),
    ("packed", lambda s: not s.flash_attention, "an attention that is not fused makes all scores"),
    ("overlap_param_gather", lambda s: s.zero_stage not in (1, 2), "only ZeRO-1 and 2 gather updated parameters"),
    ("overlap_pp", lambda s: s.pp == 1, "pp = 1"),
    ("comm_sms", lambda s: s.world_size == 1, "one GPU exchanges nothing"),
    ("pipeline_schedule", lambda s: s.pp == 1, "pp = 1"),
    ("shard_ranks", lambda s: s.zero_stage == 0, "nothing is sharded (zero_stage 0)"),
    ("zero_stage", lambda s: s.zero_stage > 0 and s.dp * s.cp == 1, "no rank has a copy (dp * cp = 1)"),
)
"""(field, where it has no effect, why)."""


def _without_effect(spec: TrainingSpec, step: Step) -> Iterator[str]:
    """Fields that the file sets and the step does not feel."""
    for name, idle, why in _IDLE:
        if name in spec.model_fields_set and idle(step):
            yield f"{name} has no effect: {why}"


def _notes(step: Step, plan: StepPlan, tune: FineTune | None, faulty: bool) -> Iterator[str]:
    if step.expert_dispatch != "nccl" and step.ep > 1 and faulty:
        yield f"{step.expert_dispatch} is timed on healthy links: topology.faults do not slow its exchanges"
    if step.ep > 1:
        exchange = exchange_of(step)
        beyond = beyond_measured(step.expert_dispatch, step.accelerator.generation, int(exchange.nodes))
        yield from (beyond,) if beyond else ()
    if plan.held_sms is not None and step.world_size > 1:
        longer = plan.values["slowdown"]
        if longer > 1.0:
            yield f"compute beside gradients takes {longer:.3g} times as long: their kernels hold SMs (comm_sms)"
        else:
            yield "compute beside gradients takes no longer: no SM is held beside it (comm_sms)"
    if plan.parameter_server:
        each = step.model.parameters() * step.precision.gradient_bytes
        received, sent = server_bytes(each, each, step.dp)
        yield f"the parameter server receives {received / GIGA:.3f} GB and sends {sent / GIGA:.3f} GB per step"
    if tune is not None:
        share = tune.trainable / step.model.parameters()
        yield f"{tune.trainable:,.0f} parameters are trained, {100 * share:.2g} % of the base's"


def _cost_of_faults(
    scenario: Setting, topology: Topology, spec: TrainingSpec, step_s: float, latency: float
) -> Iterator[str]:  # fmt: skip
    """What the machine's faults cost, where NCCL feels them: against the same step without them."""
    if scenario.library.name != "nccl" or not _faulty(topology):
        return
    sound = load_topology(scenario.topology.model_copy(update={"faults": None}), scenario.base_dir)
    without = training_program(scenario, sound, spec, comm_times(scenario, sound, latency)).run().step_s
    yield f"without topology.faults the step takes {without:.4g} s: with them {100 * (step_s / without - 1):+.1f} %"


def _loss_by_windows(
    scenario: Setting, topology: Topology, spec: TrainingSpec, step_s: float, latency: float
) -> Iterator[str]:  # fmt: skip
    """Where registered windows make the step longer: against the same step without them."""
    library = scenario.library
    if library.name != "nccl" or library.registered != "window":
        return
    plain = scenario.model_copy(update={"library": library.model_copy(update={"registered": "none"})})
    without = training_program(plain, topology, spec, comm_times(plain, topology, latency)).run().step_s
    if step_s > _LOSES * without:
        yield (
            f"without library.registered: window the step takes {without:.4g} s: with it "
            f"{100 * (step_s / without - 1):+.1f} %"
        )


def _faulty(topology: Topology) -> bool:
    return topology.link_share is not None or topology.node_gdr is not None


def training_program(scenario: Setting, topology: Topology, spec: TrainingSpec, comm: GroupCalls) -> StepProgram:
    """What a ``training:`` item runs on the scenario's machine."""
    step = step_of(spec, topology, scenario.base_dir)
    values = values_of(spec, scenario.base_dir)
    offload, tune = offload_of(spec, topology), finetune_of(spec, step)
    plan = StepPlan(
        layers=spec.stage_layers,
        capacity_factor=spec.capacity_factor,
        bucket_bytes=spec.bucket_size,
        trainable=tune.trainable / step.tp if tune is not None else 0.0,
        adapters=tune.calls if tune is not None else (),
        parameter_server=spec.gradients == "parameter_server",
        values=values if spec.slowdown is None else {**values, "slowdown": spec.slowdown},
        stragglers=spec.stragglers or None,
        contention=spec.contention,
        offload=offload,
        pcie_bytes_per_s=host_bandwidth(topology) if offload else 25e9,
    )
    if spec.comm_sms is not None:
        plan = replace(plan, held_sms=held_sms(spec.comm_sms, comm))
        longer = slowdown_of_gradients(step, mesh_of_spec(spec, topology), plan, _bucket(spec, step))
        plan = replace(plan, values={**plan.values, "slowdown": longer})
    compute, update_s = compute_time(step, values), optimizer_time(step, values)
    if tune is not None:
        compute = beside_base(compute, step, tune, values)
        update_s = update_seconds(step, tune, float(memory_rate(step, values)), spec.stage_layers)
    if offload is not None and offload.activations:
        compute = beside_copies(compute, step, plan, copied_bytes(step, plan, spec.framework, tune))
    return step_program(
        step,
        compute,
        comm,
        optimizer_s=update_s,
        calls=comm,
        topology=topology,
        mesh=mesh_of_spec(spec, topology),
        plan=plan,
    )


def _bucket(spec: TrainingSpec, step: Step) -> float:
    return float(spec.bucket_size or default_bucket_bytes(step))


def kept_times(cache: Cache, scenario: Setting, topology: Topology, latency: float = 1.0) -> GroupCalls:
    """Fresh `comm_times`; of one topology object, if it comes from the cache."""
    key = topology, scenario.library.model_dump_json(), scenario.params, str(scenario.base_dir), latency
    return cache.groups(key, lambda: comm_times(scenario, topology, latency))


def comm_times(
    scenario: Setting, topology: Topology, latency: float = 1.0, variation: Variation | None = None
) -> GroupCalls:
    """The calls of groups of the scenario's machine, as its library runs them, its hops `latency` times as long.

    Those of NCCL with the jitter of a `variation`, if there is one.
    """
    library = scenario.library
    if library.name == "gloo":
        parts = parts_of(scenario.topology, scenario.base_dir, topology)
        parameters = gloo_parameters(scenario)[0].scaled(latency)
        calls: GroupCalls = GlooGroups(topology, parts, parameters, one_host=library.one_host)
        if _faulty(topology):
            calls.warnings.append(
                "topology.faults have no effect here: gloo's collectives are timed by the shape of their groups on a "
                "healthy machine; a collective or jobs of the same groups say what a fault costs"
            )
        return calls
    if library.name == "synthesized":
        from commsim.scenario.perfect import PerfectGroups

        return PerfectGroups(topology, latency)
    refuse_unlike_networks(scenario, topology)
    version = library.named_version
    env, text = for_groups(topology, version or ASSUMED, library.env)
    own, _ = nccl_parameters(scenario, topology)
    # Gradients and activations are summed: a sum of bfloat16 chooses as that of float32, which Options has.
    options = Options(version=version, env=env, mode="single", registered=library.registered)
    if variation is None:
        calls = NcclGroups(topology, options, own, latency)
    else:
        from commsim.training.noisy_groups import NoisyGroups

        calls = NoisyGroups(topology, options, own, latency, variation)
    calls.warnings += [text] if text else []
    calls.warnings += survived(scenario)
    return calls


def offload_of(spec: TrainingSpec, topology: Topology) -> Offload | None:
    """What leaves the GPU, with one GPU's share of the node's rates."""
    offload = spec.offload
    if offload is None:
        return None
    each = topology.ranks_per_node
    nvme = (offload.nvme_bandwidth or 0.0) / each
    rate = offload.host_memory_bandwidth / each
    return Offload(offload.optimizer, offload.parameters, rate, nvme, offload.activations)


def parts_of(spec: TopologySpec, base_dir: Path, topology: Topology) -> Callable[[int, int], Topology]:
    """The machine of a group: so many nodes of `topology`, which `spec` builds, and GPUs of each with their NICs."""

    def part(nodes: int, per_node: int) -> Topology:
        knobs: dict[str, object] = {"nodes": nodes, "faults": None}
        if per_node < topology.ranks_per_node:
            knobs["gpus_per_node"] = per_node
            share = topology.nics_per_node * per_node / topology.ranks_per_node
            if nodes > 1 and share:
                knobs["nics_per_node"] = max(1, int(share))
                if share < 1:  # groups take turns at a NIC
                    knobs["nic_bandwidth"] = share * topology.nic_bandwidth
        return load_topology(spec.model_copy(update=knobs), base_dir)

    return part


def _task(spec: TrainingSpec, step: Step, step_s: float) -> tasks.TaskCost | None:
    task = spec.task
    if task is None:
        return None
    gpu, gpus = step.accelerator, step.world_size
    if task.kind in ("pretrain", "sft", "reward_model"):
        tokens = task.tokens or (task.steps or 0) * step.tokens
        return tasks.supervised(task.kind, float(tokens), step.tokens, step_s, gpus)
    rollout = tasks.Rollout(step.global_batch_size, task.prompt_len, task.answer_len, task.generation_tp)
    steps = float(task.steps or task.tokens / rollout.tokens)
    actor = tasks.Learner(step.model, step_s)
    if task.kind == "rl_verifiable":
        return tasks.verifiable_rewards(steps, actor, gpu, gpus, rollout)
    critic = model(task.critic) if task.critic else step.model
    update_s = step_s * critic.parameters() / step.model.parameters()
    return tasks.ppo(steps, actor, tasks.Learner(critic, update_s), gpu, gpus, rollout)
