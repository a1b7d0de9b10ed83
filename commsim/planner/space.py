"""The space of configurations of a training step: every way to cut a model over a machine, in blocks.

A block fixes the outer axes and holds all combinations of the inner ones as a table of steps, so that a space of
millions is walked in arrays. Why a combination cannot run is a number in `REASONS`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.training.accelerator import Accelerator
from commsim.training.columns import Columns, Number, where
from commsim.training.mesh import default_expert_tp, divisors
from commsim.training.model import Model
from commsim.training.pipeline_schedules import v_shaped, wrong_counts
from commsim.training.precision import Precision
from commsim.training.spec import Step, broken

Int64 = npt.NDArray[np.int64]

BLOCK = 20_000
"""Combinations of a block, about: its columns stay in the processor's cache."""

AXES = (
    "precision", "seq_len", "global_batch_size", "schedule", "pp", "virtual_stages", "recompute", "zero_stage", "ep",
    "micro_batch_size", "cp", "tp", "sequence_parallel",
)  # fmt: skip
"""Every axis, outermost first; dp is what is left of the machine."""

REASONS = (
    "fits",
    "tp * pp * cp does not divide the ranks",
    "heads do not divide by tp",
    "more stages than layers, or layers do not divide into chunks",
    "the schedule does not take so many stages, chunks or micro-batches",
    "the batch does not divide by micro-batch * dp",
    "the sequence does not divide by cp, or its tokens by tp",
    "experts do not divide by ep, ranks not by their group, or its kernels reach no other rack",
    "ZeRO-2 and 3 in a pipeline: 2 takes as long as 1, 3 gathers and reduces in every micro-batch",
    "the same as a simpler choice: nothing to cut or to recompute",
    "memory",
)


@dataclass(frozen=True, eq=False)
class Space:
    """A model, a machine, and the values that each of `AXES` may take."""

    model: Model
    accelerator: Accelerator
    world_size: int
    gpus_per_node: int
    nic_bytes_per_s: float
    precisions: dict[str, Precision]
    axes: dict[str, tuple[Any, ...]]
    fixed: dict[str, Any]  # fields of `Step` that are the same for all
    sharded_pipelines: bool = False  # ZeRO-2 and 3 under a pipeline (FSDP2)

    @property
    def size(self) -> int:
        """Combinations, those that cannot run included."""
        return math.prod(len(values) for values in self.axes.values())

    def blocks(self) -> Iterator[Block]:
        """All blocks, in the order of `AXES`."""
        inner: list[str] = []
        count = 1
        for name in reversed(AXES[1:]):  # each block has one precision
            if inner and count * len(self.axes[name]) > BLOCK:
                break
            inner.insert(0, name)
            count *= len(self.axes[name])
        outer = [name for name in AXES if name not in inner]
        grids = np.meshgrid(*(np.arange(len(self.axes[n])) for n in inner), indexing="ij")
        pattern = {name: grid.ravel() for name, grid in zip(inner, grids, strict=True)}
        for places in itertools.product(*(range(len(self.axes[n])) for n in outer)):
            at = {n: np.array([i]) for n, i in zip(outer, places, strict=True)}
            yield Block(self, at | pattern)

    def step(self, places: dict[str, int]) -> Step:
        """The step of one combination that can run."""
        values = {name: self.axes[name][i] for name, i in places.items()}
        model = self.model
        if values["seq_len"] != model.seq_len and model.positions != "learned":
            model = replace(model, seq_len=values["seq_len"])
        return self.step_of(values.pop("precision"), values, model)

    def step_of(self, precision: str, values: dict[str, Any], model: Model | None = None) -> Step:
        """The step, or the table of steps, of values of all axes: dp is what they leave of the machine."""
        tp, cp = values["tp"], values["cp"]
        left = self.world_size // (tp * values["pp"] * cp)
        dp = where(left < 1, 1, left)
        expert_tp = default_expert_tp(tp, cp * dp, values["ep"]) if self.model.moe else 1
        return Step(
            model or self.model, self.accelerator, self.precisions[precision], dp=dp, expert_tp=expert_tp,
            gpus_per_node=self.gpus_per_node, nic_bytes_per_s=self.nic_bytes_per_s, **values, **self.fixed,
        )  # fmt: skip


@dataclass(frozen=True, eq=False)
class Block:
    """Combinations of one precision: positions on each axis, arrays of one element or of the block's length."""

    space: Space
    at: dict[str, Int64]

    @cached_property
    def length(self) -> int:
        """Number of combinations."""
        return max(len(a) for a in self.at.values())

    @property
    def precision(self) -> str:
        """The precision of all."""
        return str(self.space.axes["precision"][int(self.at["precision"][0])])

    @cached_property
    def step(self) -> Step:
        """The combinations as a table of steps; one whose mesh is larger than the machine is among them."""
        values = {n: _column(self.space.axes[n], at) for n, at in self.at.items() if n != "precision"}
        return self.space.step_of(self.precision, values)

    def take(self, index: Int64) -> Block:
        """Some of the combinations."""
        return Block(self.space, {n: a[index] if len(a) > 1 else a for n, a in self.at.items()})

    def places(self, i: int) -> dict[str, int]:
        """Positions of one combination."""
        return {n: int(a[i] if len(a) > 1 else a[0]) for n, a in self.at.items()}

    def reasons(self) -> npt.NDArray[np.int8]:
        """For each combination 0, or the first of `REASONS` (but memory) why it cannot run, shape (length,)."""
        step, layers = self.step, self.space.model.layers
        chunks = step.pp * step.virtual_stages
        # Frameworks cut into chunks of a stage only evenly, or with embedding and output as a layer each.
        odd = (layers % chunks != 0) & ((layers + 2) % chunks != 0)
        uncut = (chunks > layers) | (odd & (step.virtual_stages > 1))
        no_use = (step.sequence_parallel & (step.tp == 1)) | ((step.zero_stage > 0) & (step.dp * step.cp == 1))
        rules: list[Number] = [
            step.world_size != self.space.world_size,
            broken(step, "tp"),
            uncut,
            _wrong_schedule(step),
            broken(step, "global_batch_size"),
            broken(step, "seq_len", "sequence_parallel"),
            broken(step, "ep", "expert_tp", "expert_dispatch"),
            (step.zero_stage >= 2) & (step.pp > 1) & (not self.space.sharded_pipelines),
            no_use | self._twin_recompute(),
        ]
        first = np.zeros(self.length, np.int8)
        for reason, rule in reversed(list(enumerate(rules, start=1))):
            first[np.broadcast_to(rule, first.shape)] = reason
        return first

    def _twin_recompute(self) -> Number:
        """Fused attention keeps nothing that selective recomputation of its core could drop."""
        core = self.step.recompute_modules == ("core_attn",)
        fused = self.step.flash_attention and core and "none" in self.space.axes["recompute"]
        return (self.step.recompute == "selective") & fused


def joined(blocks: Sequence[Block]) -> Block:
    """The combinations of blocks of one precision as one block."""
    first = blocks[0]
    if len(blocks) == 1:
        return first
    return Block(first.space, {n: np.concatenate([np.broadcast_to(b.at[n], b.length) for b in blocks]) for n in AXES})


def _column(values: tuple[Any, ...], at: Int64) -> Number:
    return Columns(values, at) if isinstance(values[0], str) else np.asarray(values)[at]


def _wrong_schedule(step: Step) -> Number:
    """Chunks are for the interleaved schedule and two for one in a V, and a single stage has one schedule."""
    chunked = (step.virtual_stages > 1) != ((step.schedule == "interleaved_1f1b") | v_shaped(step.schedule))
    chunked = chunked | broken(step, "virtual_stages")
    pipelined = (step.pp == 1) & (step.schedule != "1f1b")
    return chunked | pipelined | wrong_counts(step.schedule, step.pp, step.num_microbatches)


def default_axes(
    model: Model, world_size: int, gpus_per_node: int, batches: tuple[int, ...], seq_lens: tuple[int, ...]
) -> dict[str, tuple[Any, ...]]:
    """What there is to choose: divisors up to the limits of the machine and the model.

    tp up to a node's GPUs; every number of stages that the machine has groups for, each with whole layers; chunks into
    which the layers divide; cp and micro-batches in powers of two.
    """
    chunks = sorted({d for n in (model.layers, model.layers + 2) for d in divisors(n, model.layers // 2 or 1)})
    most_cp = max(1, min(world_size, max(seq_lens) // 512))
    return {
        "precision": (),
        "seq_len": seq_lens,
        "global_batch_size": batches,
        "schedule": ("1f1b", "interleaved_1f1b", "zb_h1", "zb_v", "gpipe", "dualpipe", "dualpipe_v"),
        "pp": divisors(world_size, min(model.layers, world_size)),
        "virtual_stages": tuple(chunks),
        "recompute": ("none", "selective", "full"),
        "zero_stage": (0, 1, 2, 3),
        "ep": divisors(model.moe.experts, world_size) if model.moe else (1,),
        "micro_batch_size": _powers(max(batches), 16),
        "cp": _powers(most_cp, 64),
        "tp": divisors(math.gcd(gpus_per_node, world_size), gpus_per_node),
        "sequence_parallel": (False, True),
    }


def _powers(most: int, limit: int) -> tuple[int, ...]:
    return tuple(2**k for k in range(limit.bit_length()) if 2**k <= max(1, most))
