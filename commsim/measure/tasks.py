"""What ranks are given to measure: collectives, jobs beside each other, steps of a small transformer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from commsim.collectives.semantics import ITEM_BYTES, REDUCING, ROOTED, collective


@dataclass(frozen=True)
class Task:
    """One collective over message sizes in bytes (the *size* column of nccl-tests).

    `schedule` replaces the library's collective by one of our schedules: an algorithm of the registry, or a file.
    """

    collective: str
    sizes: tuple[int, ...]
    dtype: str = "float32"
    redop: str = "sum"
    root: int = 0
    schedule: str = ""

    @property
    def algorithm(self) -> str:
        """The name of the schedule; empty where the library chooses."""
        return Path(self.schedule).stem if self.schedule.endswith((".xml", ".json")) else self.schedule

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]

    @property
    def reduces(self) -> bool:
        """Whether the collective adds numbers up."""
        return self.collective in REDUCING

    @property
    def rooted(self) -> bool:
        """Whether the collective has a root."""
        return self.collective in ROOTED

    @property
    def in_blocks(self) -> bool:
        """Whether the array has a block per rank."""
        return collective(self.collective).blocks == 1


@dataclass(frozen=True)
class JobTask:
    """A collective of one size among some ranks; rank i of it is the i-th of `ranks`, and begins `start_s` late."""

    name: str
    task: Task
    ranks: tuple[int, ...]
    start_s: float = 0.0

    @property
    def size(self) -> int:
        """The size in bytes that is measured, of whole elements and blocks; 0 where there is none."""
        unit = self.task.item_bytes * (len(self.ranks) if self.task.in_blocks else 1)
        return self.task.sizes[0] // unit * unit


@dataclass(frozen=True)
class JobsTask:
    """Jobs that are timed one by one and then all at once; no rank has two."""

    name: str
    jobs: tuple[JobTask, ...]

    def of_rank(self, rank: int) -> JobTask | None:
        """The job of a rank, None where it has none."""
        return next((job for job in self.jobs if rank in job.ranks), None)


SCHEMES = ("ddp", "zero2", "zero3", "tp", "pp")

STEP_PRECISIONS = ("fp32", "tf32", "bf16-fp32", "pure-bf16")
"""Those of `commsim.training.precision` that a step is measured in; ``bf16-fp32`` keeps a master copy in float32."""


@dataclass(frozen=True)
class TrainingTask:
    """Steps of a dense transformer under one parallelism over all ranks; sizes as in `Model`.

    `precision`: one of `STEP_PRECISIONS`.
    """

    name: str
    scheme: str
    ranks: int
    layers: int
    hidden: int
    ffn_hidden: int
    heads: int
    kv_heads: int
    vocab: int
    seq_len: int
    gated_mlp: bool = False
    micro_batch_size: int = 1
    micro_batches: int = 1
    bucket_bytes: int = 25 << 20  # torch's own default for DDP
    over_gloo: bool = True
    precision: str = "fp32"

    @property
    def width(self) -> int:
        """Bytes of a weight, a gradient and an activation as they are computed with and sent."""
        return 4 if self.precision in ("fp32", "tf32") else 2

    @property
    def splits_data(self) -> bool:
        """Whether every rank has data of its own."""
        return self.scheme in ("ddp", "zero2", "zero3")

    def faults(self) -> Iterator[str]:
        """What cannot be built, if anything."""
        if self.scheme not in SCHEMES:
            yield f"found {self.scheme}, expected one of {', '.join(SCHEMES)}"
        if self.precision not in STEP_PRECISIONS:
            yield f"found precision {self.precision}, expected one of {', '.join(STEP_PRECISIONS)}"
        if self.hidden % self.heads or self.heads % self.kv_heads:
            yield f"found hidden {self.hidden}, heads {self.heads}, kv_heads {self.kv_heads}, expected whole heads"
        if self.scheme == "tp" and (self.kv_heads % self.ranks or self.ffn_hidden % self.ranks):
            yield f"tp = {self.ranks} does not divide kv_heads {self.kv_heads} and ffn_hidden {self.ffn_hidden}"
        if self.scheme == "pp" and self.layers % self.ranks:
            yield f"pp = {self.ranks} does not divide {self.layers} layers"
