"""From a scenario to the run that real ranks do: the same collectives, sizes and types as the prediction."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

from commsim.errors import ScenarioError
from commsim.measure.run import Backend, Run, Runner, check_run
from commsim.measure.tasks import STEP_PRECISIONS, JobsTask, JobTask, Task, TrainingTask
from commsim.scenario.load import scenario_hash
from commsim.scenario.setting import build_topology
from commsim.scenario.training import TrainingSpec, model_of, precision_of
from commsim.scenario.workload.collective import CollectiveWork
from commsim.scenario.workload.jobs import JobsWork
from commsim.scenario.workload.training import TrainingWork

if TYPE_CHECKING:
    from commsim.scenario.schema import Scenario
    from commsim.topology.graph import Topology


@dataclass(frozen=True)
class RunOptions:
    """What the command line says about a run; None where it leaves it to the scenario."""

    backend: str = "auto"
    world_size: int | None = None
    iterations: int = 20
    warmup: int = 5
    repeats: int = 1
    check: bool = True
    schedule: str = ""
    ranks_per_gpu: int = 1
    capture_choices: bool = False
    runner: str = "auto"
    graph: int = 0
    register: str = "none"
    split: str = ""
    arrival_s: float = 300.0
    timeout_s: float | None = None


ANSWER_S = {"gloo": 15.0, "nccl": 600.0}
"""How long a rank waits for an answer: on gloo a call takes as long as its bytes; NCCL's watchdog counts from when a
call is queued, so that all calls of a row that stand in the queue must be through (torch's own limit is 600 s too)."""


_OWN_OPTIONS = {"backend", "world_size", "runner", "schedule", "timeout_s"}
"""Those that are no fields of the `Run` as they are."""


def run_of(scenario: Scenario, options: RunOptions) -> Run:
    """The run of one scenario; every fault is a CommsimError, before any rank is started."""
    if scenario.library.name == "custom_all_reduce":
        text = (
            "found custom_all_reduce, expected nccl, gloo or none for a measurement: torch calls no framework's kernels"
        )
        raise scenario.document.error(("library",), text)
    backend = backend_of(options.backend, scenario)
    world_size = options.world_size or build_topology(scenario).world_size
    items, schedule = list(enumerate(scenario.workload)), options.schedule
    calls = [(i, work) for i, work in items if not isinstance(work, TrainingWork | JobsWork)]
    run = Run(
        name=scenario.name,
        tasks=tuple(_task(scenario, i, work, schedule) for i, work in calls),
        jobs=tuple(_jobs(scenario, i, work, world_size) for i, work in items if isinstance(work, JobsWork)),
        late_s=_late(scenario, world_size),
        training=tuple(
            _training(scenario, i, work.training, world_size, backend)
            for i, work in items
            if isinstance(work, TrainingWork)
        ),
        backend=backend,
        world_size=world_size,
        runner=_runner(options.runner, backend),
        mode=scenario.mode,
        timeout_s=ANSWER_S[backend] if options.timeout_s is None else options.timeout_s,
        scenario_hash=scenario_hash(scenario),
        env=dict(scenario.library.env) if backend == "nccl" else {},
        expects=_expects(scenario) if backend == "nccl" else {},
        **{name: value for name, value in vars(options).items() if name not in _OWN_OPTIONS},
    )
    check_run(run)
    _check_schedules(run)
    return run


def _expects(scenario: Scenario) -> dict[str, object]:
    """What the prediction takes the machine for; a version only where the scenario names one."""
    topology = build_topology(scenario)
    expected: dict[str, object] = {"ranks": topology.world_size}
    if topology.gpu.sm:
        expected |= {"gpu": topology.gpu.model, "sm": topology.gpu.sm}
    if scenario.library.name == "nccl" and scenario.library.named_version:
        expected["nccl"] = scenario.library.version
    return expected


def _check_schedules(run: Run) -> None:
    """Every schedule that a run would carry out is proved first; a ScheduleError says what is wrong."""
    if not any(task.schedule for task in run.tasks):
        return
    from commsim.collectives.check import check
    from commsim.measure.schedule_steps import load_schedule

    for point in run.points():
        if point.task.schedule and point.repeat == 0:
            check(load_schedule(point.task, run.world_size, point.size))


def testbed_topology(scenario: Scenario, named: str, world_size: int | None) -> Topology:
    """The topology that ``--testbed`` names: ``scenario`` for the scenario's own, a preset, or a file.

    A preset or a file gets as many nodes as the ranks need.
    """
    from commsim.topology.presets import load_file, load_preset

    if named == "scenario":
        topology = build_topology(scenario)
        _check_faults(scenario, topology)
        return topology
    if scenario.topology.faults:
        text = f"found faults, which --testbed {named} does not have; expected --testbed scenario"
        raise scenario.document.error(("topology", "faults"), text)
    is_file = Path(named).suffix in (".yaml", ".yml") or "/" in named
    load = partial(load_file, Path(named)) if is_file else partial(load_preset, named)
    wanted = world_size or build_topology(scenario).world_size
    per_node = load().ranks_per_node
    if wanted % per_node:
        raise ScenarioError(f"found {wanted} ranks, expected a multiple of the {per_node} ranks of a node of {named}")
    return load(nodes=wanted // per_node)


def _check_faults(scenario: Scenario, topology: Topology) -> None:
    """A ScenarioError for faults of which a testbed would build nothing: latencies, and links inside a node."""
    for i, fault in enumerate(scenario.topology.faults or ()):
        if fault.latency_factor is not None:
            text = "found latency_factor, expected bandwidth_factor or failed: a testbed's latencies are the kernel's"
            raise scenario.document.error(("topology", "faults", i, "latency_factor"), text)
        ends = [int(topology.vertex_node[topology.vertex_name.index(name)]) for name in fault.link or ()]
        if ends and ends[0] == ends[1] >= 0:
            text = f"found a link inside node {ends[0]}, expected one of the network, which is all that is built"
            raise scenario.document.error(("topology", "faults", i, "link"), text)


def _late(scenario: Scenario, world_size: int) -> tuple[float, ...]:
    """How long each rank of a run sleeps before its calls, empty where none does; a ScenarioError for other variation.

    Only what a rank can do to itself is measured: it stops.
    """
    variation = scenario.variation
    if variation is None:
        return ()
    text = "found {}, expected stragglers with a delay alone: real ranks cannot be made slow by more than that"
    for key in ("jitter", "node_spread"):
        if getattr(variation, key) is not None:
            raise scenario.document.error(("variation", key), text.format(key))
    for i, straggler in enumerate(variation.stragglers):
        if straggler.factor is not None:
            raise scenario.document.error(("variation", "stragglers", i, "factor"), text.format("a factor"))
    for path, message in variation.place_faults(world_size):
        raise scenario.document.error(("variation", *path), message)
    late = scenario.late_s
    return tuple(late.get(rank, 0.0) for rank in range(world_size))


def _jobs(scenario: Scenario, i: int, work: JobsWork, world_size: int) -> JobsTask:
    """The jobs of an item, each a gloo collective among ranks that no other job has."""
    if scenario.library.name != "gloo":
        text = f"found jobs with library {scenario.library.name}, expected library gloo for a measurement"
        raise scenario.document.error(("workload", i, "jobs"), text)
    for path, text in work.rank_faults(world_size):
        raise scenario.document.error(("workload", i, *path), text)
    jobs, taken = [], dict[int, str]()
    for j, job in enumerate(work.jobs):
        ranks, name = job.ranks or tuple(range(world_size)), work.job_name(j)
        if list(ranks) != sorted(ranks):
            text = "found ranks out of order, expected rising numbers for a measurement: torch sorts those of a group"
            raise scenario.document.error(("workload", i, "jobs", j, "ranks"), text)
        for rank in ranks:
            if taken.setdefault(rank, name) != name:
                text = f"found rank {rank} in {taken[rank]} too, expected each rank in one job for a measurement"
                raise scenario.document.error(("workload", i, "jobs", j, "ranks"), text)
        jobs.append(JobTask(name, Task(job.collective, (job.size,), root=job.root or 0), ranks, job.start))
    return JobsTask(f"jobs of item {i + 1}", tuple(jobs))


def _task(scenario: Scenario, i: int, work: object, schedule: str) -> Task:
    if not isinstance(work, CollectiveWork):
        text = "found neither a collective, nor jobs, nor a training step, expected one of them for a measurement"
        raise scenario.document.error(("workload", i), text)
    if work.sizes is None:
        text = "found no key 'sizes', expected it for a measurement, such as '8 B .. 64 MiB x2'"
        raise scenario.document.error(("workload", i), text)
    named = schedule or (_own_schedule(work) if scenario.library.name == "none" else "")
    if named and (Path(named).suffix.lower() in (".xml", ".json")):
        named = str(Path(named).absolute())
    return Task(work.collective, work.sizes, work.dtype, work.redop, work.root or 0, named)


_SHAPE = ("layers", "hidden", "ffn_hidden", "heads", "kv_heads", "vocab", "gated_mlp")
"""Fields that a model and its `TrainingTask` have in common."""


def _training(scenario: Scenario, i: int, spec: TrainingSpec, world_size: int, backend: Backend) -> TrainingTask:
    """The item as steps of a dense model under one parallelism over all ranks."""

    def refuse(key: str, text: str) -> ScenarioError:
        return scenario.document.error(("workload", i, "training", key), text)

    m, model = spec.mesh, model_of(spec, scenario.base_dir)
    cut = {name: size for name, size in (("tp", m.tp), ("pp", m.pp), ("cp", m.cp), ("ep", m.ep)) if size > 1}
    if cut not in ({}, {"tp": world_size}, {"pp": world_size}):
        raise refuse("mesh", f"found {cut} on {world_size} ranks, expected all ranks in dp, in tp or in pp")
    if not cut and m.dp not in (None, world_size):
        raise refuse("mesh", f"found dp = {m.dp} on {world_size} ranks, expected {world_size}")
    if not cut and spec.zero_stage == 1:
        raise refuse("zero_stage", "found 1, expected 0 (DDP), 2 or 3 (FSDP) for a measurement")
    if model.moe is not None or model.mla is not None:
        raise refuse("model", f"{model.name} has experts or latent attention, expected a dense model for a measurement")
    scheme = next(iter(cut), {0: "ddp", 2: "zero2", 3: "zero3"}.get(spec.zero_stage, "ddp"))
    formats = precision_of(spec)
    if formats.name not in STEP_PRECISIONS:
        names = ", ".join(STEP_PRECISIONS)
        raise refuse("precision", f"found {formats.name}, expected one of {names} for a measurement")
    if formats.gradient != formats.weight and not cut:  # nothing of them is sent in tp and pp
        text = "found gradients in fp32, expected those of 16 bits: bytes_per_parameter 16, or framework ddp or fsdp2"
        raise refuse("precision", text)
    each = spec.micro_batch_size * (1 if cut else world_size)
    if spec.global_batch_size % each:
        raise refuse("global_batch_size", f"found {spec.global_batch_size}, expected a multiple of {each}")
    return TrainingTask(
        name=f"{Path(spec.model).stem} {scheme}",
        scheme=scheme,
        ranks=world_size,
        seq_len=spec.seq_len or model.seq_len,
        micro_batch_size=spec.micro_batch_size,
        micro_batches=spec.global_batch_size // each,
        bucket_bytes=int(spec.bucket_size or TrainingTask.bucket_bytes),
        over_gloo=backend == "gloo",
        precision=formats.name,
        **{name: getattr(model, name) for name in _SHAPE},
    )


def _own_schedule(work: CollectiveWork) -> str:
    """The schedule that `library: none` means: the one named, or the first of the collective."""
    from commsim.collectives.registry import names

    if work.algorithm == "auto":
        raise ScenarioError("found algorithm auto, expected a name for a measurement, or --schedule NAME")
    return work.algorithm or next(algorithm for _, algorithm in names(work.collective))


def backend_of(wanted: str, scenario: Scenario) -> Backend:
    """The backend that a name of the command line means for a scenario; ``auto``: nccl where there is a GPU."""
    if wanted == "auto":
        return "gloo" if scenario.library.name == "gloo" or not _has_gpu() else "nccl"
    if wanted in get_args(Backend):
        return cast("Backend", wanted)
    raise ScenarioError(f"found --backend {wanted!r}, expected nccl, gloo or auto")


def _runner(wanted: str, backend: Backend) -> Runner:
    if wanted == "auto":
        return "libnccl" if backend == "nccl" else "torch"
    if wanted in get_args(Runner):
        return cast("Runner", wanted)
    raise ScenarioError(f"found --runner {wanted!r}, expected libnccl, torch, nccl-tests or auto")


def _has_gpu() -> bool:
    from commsim.measure.launcher import require_torch

    require_torch()
    from commsim.measure.gpu import gpus

    return gpus().available()
