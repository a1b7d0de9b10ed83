"""What a run on real ranks shall do: plain values that a launcher hands to every rank as JSON."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

import commsim
from commsim.collectives.semantics import PAIRWISE, WHOLE
from commsim.errors import MeasurementError
from commsim.measure.splits import group_of
from commsim.measure.tasks import JobsTask, JobTask, Task, TrainingTask

ARRIVAL_S = 300.0
"""For how long ranks wait for each other to come: a cold cluster loads its libraries from a shared disk."""

Backend = Literal["gloo", "nccl"]
Runner = Literal["torch", "libnccl", "nccl-tests"]
REGISTRATIONS = ("none", "buffer", "window")
_BLOCK_BYTES = 16  # to a multiple of which nccl-tests rounds blocks down (src/all_gather.cu and others, 2.19.6)

_NOT_IN_TORCH = frozenset({"uint32", "uint64"})  # neither backend maps them, torch 2.13.0
_NOT_IN_GLOO = frozenset({"float8_e4m3", "float8_e5m2"})  # "Invalid scalar type", torch 2.13.0
_NO_AVERAGE_IN_GLOO = frozenset({"int8", "uint8", "int32", "int64"})  # divides as float, cannot cast back, torch 2.13.0

Key = tuple[str, str, str, int, int, int, str]
"""Collective, type, operation, root, size, number of the repeat, and algorithm of a row."""

IN_PLACE_ONLY = WHOLE - PAIRWISE
"""torch.distributed has no call for these that leaves the input alone."""


@dataclass(frozen=True)
class Repeat:
    """One row to measure: a task at a size, the how-many-th repeat."""

    task: Task
    size: int
    repeat: int

    @property
    def key(self) -> Key:
        """What identifies the row in a file."""
        t = self.task
        root = t.root if t.rooted else -1
        return t.collective, t.dtype, t.redop if t.reduces else "none", root, self.size, self.repeat, t.algorithm

    def columns(self, run: Run) -> dict[str, Any]:
        """What a table of the run says of the row beside what is measured."""
        names = ("collective", "dtype", "redop", "root", "size_bytes", "repeat", "algorithm")
        # nccl-tests counts the elements of one block where the array has a block per rank.
        count = self.size // (self.task.item_bytes * (run.group_size if self.task.in_blocks else 1))
        more = {"n_ranks": run.group_size, "count": count, "iterations": run.iterations}
        return dict(zip(names, self.key, strict=True)) | more


@dataclass(frozen=True)
class Run:
    """Everything that decides what a run measures, and how.

    `mode` is ``back_to_back`` (as nccl-tests) or ``single`` (a barrier before every call). `runner` is what calls the
    collectives: torch.distributed, or libnccl itself, which alone knows launches of CUDA graphs (`graph` of them, 0 for
    none), registered buffers and split communicators. `arrival_s` is how long ranks wait for each other to come,
    `timeout_s` how long for an answer then. `env` are the variables of the scenario's library, `expects` what the
    scenario takes the machine for. `capture`: the fingerprint of the run whose choices this pass captures, untimed;
    empty for a run that measures. `capture_graphs`: whether it asks NCCL for its graphs as a file as well. `late_s`:
    how long each rank sleeps before every call of a collective, by its clock a part of it; empty where none does.
    """

    name: str
    tasks: tuple[Task, ...]
    backend: Backend
    world_size: int
    runner: Runner = "torch"
    graph: int = 0
    register: str = "none"
    split: str = ""
    training: tuple[TrainingTask, ...] = ()
    jobs: tuple[JobsTask, ...] = ()
    late_s: tuple[float, ...] = ()
    iterations: int = 20
    warmup: int = 5
    repeats: int = 1
    check: bool = True
    mode: str = "back_to_back"
    arrival_s: float = ARRIVAL_S
    timeout_s: float = 15.0
    ranks_per_gpu: int = 1
    capture_choices: bool = False
    scenario_hash: str = ""
    network: str = "loopback"
    out: str = ""
    env: dict[str, str] = field(default_factory=dict)
    expects: dict[str, Any] = field(default_factory=dict)
    capture: str = ""
    capture_graphs: bool = True
    conditions: dict[str, Any] = field(default_factory=dict)
    seconds: float | None = None  # no row is begun that would end after them; None: all are measured

    def points(self) -> Iterator[Repeat]:
        """The rows in the order in which they are measured; sizes below one element per block are left out."""
        for repeat in range(self.repeats):
            for task in self.tasks:
                sizes = dict.fromkeys(self.actual_size(task, size) for size in task.sizes)
                yield from (Repeat(task, size, repeat) for size in sizes if size)

    def late_of(self, rank: int) -> float:
        """Seconds that a rank sleeps before each of its calls."""
        return self.late_s[rank] if self.late_s else 0.0

    @property
    def group_size(self) -> int:
        """Ranks per communicator: all of them, but for a split."""
        return len(group_of(self.split, self.world_size, 0))

    def through_libnccl(self, task: Task) -> bool:
        """Whether the collective of a task is called in libnccl itself; a schedule of ours needs torch's sends."""
        return self.runner == "libnccl" and not task.schedule

    def as_nccl_tests(self, task: Task) -> bool:
        """Whether sizes, places and times of a task are those of nccl-tests."""
        return self.runner != "torch" and not task.schedule

    def places(self, task: Task) -> tuple[str, ...]:
        """``oop`` and ``ip``, as far as the runner has the collective of a task out of place and in place."""
        in_torch = not self.as_nccl_tests(task)
        if in_torch and task.collective in IN_PLACE_ONLY:
            return ("ip",)
        one = task.collective in PAIRWISE or (in_torch and task.schedule)
        return ("oop",) if one else ("oop", "ip")

    def actual_size(self, task: Task, size: int) -> int:
        """The size of the row that stands for a size of a task, 0 where there is none.

        The largest of whole elements, and of equal blocks where there is one per rank; nccl-tests aligns blocks.
        """
        if not task.in_blocks:
            return size // task.item_bytes * task.item_bytes
        block = size // self.group_size
        if self.runner == "nccl-tests" and block < _BLOCK_BYTES:
            return 0  # which it rounds down to nothing
        aligned = self.as_nccl_tests(task) and block >= _BLOCK_BYTES
        unit = max(task.item_bytes, _BLOCK_BYTES if aligned else 1)
        return block // unit * unit * self.group_size

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits that change with anything asked for that changes the meaning of a row.

        What the machine adds to it, such as versions and GPUs, is in `run_folder.SAME`.
        """
        fields = dataclasses.asdict(self)
        for name in ("out", "arrival_s", "timeout_s", "repeats", "capture_choices", "conditions", "seconds"):
            del fields[name]
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:12]

    def capturing(self) -> Run:
        """The pass before this run in which NCCL logs what it chooses: every row once, nothing timed."""
        return dataclasses.replace(
            self,
            training=(),
            jobs=(),
            iterations=1,
            warmup=0,
            repeats=1,
            check=False,
            capture_choices=False,
            capture=self.fingerprint(),
        )

    def description(self) -> dict[str, Any]:
        """What ``run.json`` says of the run before anything is known of the machine."""
        names = (
            "name",
            "scenario_hash",
            "backend",
            "world_size",
            "network",
            "runner",
            "iterations",
            "warmup",
            "repeats",
        )
        own = {name: getattr(self, name) for name in names} | {"fingerprint": self.fingerprint()}
        return own | {"commsim": commsim.__version__, "started": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")}

    def to_json(self) -> str:
        """The run as one line of JSON."""
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @staticmethod
    def from_json(text: str) -> Run:
        """The run that `to_json` wrote."""
        fields = json.loads(text)
        tasks = tuple(map(_task_from, fields.pop("tasks")))
        training = tuple(TrainingTask(**t) for t in fields.pop("training"))
        jobs = tuple(
            JobsTask(
                item["name"],
                tuple(
                    JobTask(job["name"], _task_from(job["task"]), tuple(job["ranks"]), job["start_s"])
                    for job in item["jobs"]
                ),
            )
            for item in fields.pop("jobs")
        )
        late_s = tuple(fields.pop("late_s"))
        return Run(tasks=tasks, training=training, jobs=jobs, late_s=late_s, **fields)


def _task_from(fields: dict[str, Any]) -> Task:
    return Task(**(fields | {"sizes": tuple(fields["sizes"])}))


def _faults_of_options(run: Run) -> Iterator[str]:
    """What the command line asks for that would have no effect, or that NCCL does not have."""
    through = any(run.through_libnccl(task) for task in run.tasks)
    theirs = run.runner == "nccl-tests"
    for option, given, known in (
        ("--graph", run.graph, through or theirs),
        ("--register", run.register != "none", through or theirs),
        ("--split", run.split, through),
    ):
        if given and not known:
            yield f"{option} has no effect: no collective of this run is called in libnccl (--runner libnccl)"
    if theirs:
        asked = {
            "training steps": run.training,
            "schedules of ours": any(task.schedule for task in run.tasks),
            "mode single": run.mode == "single",
            "--ranks-per-gpu": run.ranks_per_gpu > 1,
            "--capture-choices": run.capture_choices,
        }
        yield from (f"nccl-tests has no {name}; take --runner libnccl or torch" for name, on in asked.items() if on)
    if run.runner != "torch" and run.backend != "nccl":
        yield f"--runner {run.runner} is of NCCL, and this run is over {run.backend}"
    if run.register not in REGISTRATIONS:
        yield f"found --register {run.register!r}, expected {', '.join(REGISTRATIONS)}"
    if run.split and (run.training or any(not run.through_libnccl(task) for task in run.tasks)):
        yield "--split is of collectives called in libnccl, and this run has others or training steps"
    if run.graph and run.mode == "single":
        yield "--graph has no effect with mode single, which waits for every call"


def _faults_of_jobs(run: Run) -> Iterator[str]:
    """What of jobs beside each other cannot be measured."""
    if run.jobs and run.backend != "gloo":
        yield f"jobs beside each other are measured over gloo, and this run is over {run.backend}"
    for item in run.jobs:
        for job in item.jobs:
            if not job.size:
                least = job.task.item_bytes * len(job.ranks)
                yield f"{job.name}: found {job.task.sizes[0]} B, expected an element per block, {least} B"
            if wrong := [rank for rank in job.ranks if rank >= run.world_size]:
                yield f"{job.name}: found rank {wrong[0]}, expected one of the {run.world_size} ranks of the run"


def check_run(run: Run) -> None:
    """Return if the backend can do all tasks; else a MeasurementError names every one that it cannot do."""
    faults, ranks = list(_faults_of_options(run)), run.group_size
    for task in run.tasks:
        label = f"{task.collective} of {task.dtype}"
        if task.rooted and not 0 <= task.root < ranks:
            faults.append(f"{task.collective}: root {task.root} is not one of the ranks 0..{ranks - 1}")
        if not any(run.actual_size(task, size) for size in task.sizes):
            least = task.item_bytes * (ranks if task.in_blocks else 1)
            faults.append(f"{label}: no size is as large as one element per block, {least} B on {ranks} ranks")
        if task.dtype in _NOT_IN_TORCH and not run.as_nccl_tests(task):
            faults.append(f"{label}: the collectives of torch have no {task.dtype}")
        if run.backend == "gloo" and task.dtype in _NOT_IN_GLOO:
            faults.append(f"{label}: gloo in torch has no {task.dtype}")
        if run.backend == "gloo" and task.redop == "avg" and task.reduces and task.dtype in _NO_AVERAGE_IN_GLOO:
            faults.append(f"{label}: gloo in torch has no average of whole numbers")
    if run.backend == "gloo" and (run.ranks_per_gpu > 1 or run.capture_choices):
        faults.append("--ranks-per-gpu and --capture-choices are of NCCL, and this run is over gloo")
    faults += [f"{task.name}: {fault}" for task in run.training for fault in task.faults()]
    faults += _faults_of_jobs(run)
    if any(run.late_s) and (run.runner != "torch" or run.training):
        faults.append("ranks that stop before their calls are measured with --runner torch, without training steps")
    if not faults and not run.training and not run.jobs and next(run.points(), None) is None:
        faults.append("there is nothing to measure")
    if faults:
        raise MeasurementError("\n".join(faults))
