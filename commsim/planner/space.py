"""The space of configurations of a training step: every way to cut a model over a machine, as blocks of columns.

A block fixes the outer axes and holds all combinations of the inner ones, so that a space of millions is walked in
arrays. Why a combination cannot run is a number in `REASONS`; the rules are those of `commsim.training.spec.Step`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.training.accelerator import Accelerator
from commsim.training.model import Model
from commsim.training.precision import Precision
from commsim.training.spec import Step

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
    "layers do not divide into the stages",
    "the schedule does not take so many stages, chunks or micro-batches",
    "the batch does not divide by micro-batch * dp",
    "the sequence does not divide by cp, or its tokens by tp",
    "experts do not divide by ep, or ranks by their group",
    "ZeRO-2 and 3 reduce gradients in every micro-batch: not with a pipeline",
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

    @cached_property
    def inner(self) -> tuple[str, ...]:
        """The innermost axes that together make one block."""
        names: list[str] = []
        count = 1
        for name in reversed(AXES):
            if names and count * len(self.axes[name]) > BLOCK:
                break
            names.append(name)
            count *= len(self.axes[name])
        return tuple(reversed(names))

    @cached_property
    def _pattern(self) -> dict[str, Int64]:
        """Positions on the inner axes of every combination of a block."""
        grids = np.meshgrid(*(np.arange(len(self.axes[n])) for n in self.inner), indexing="ij")
        return {name: grid.ravel() for name, grid in zip(self.inner, grids, strict=True)}

    def blocks(self) -> Iterator[Block]:
        """All blocks, in the order of `AXES`."""
        outer = [n for n in AXES if n not in self.inner]
        for places in itertools.product(*(range(len(self.axes[n])) for n in outer)):
            at = {n: np.array([i]) for n, i in zip(outer, places, strict=True)}
            yield Block(self, at | self._pattern)

    def step(self, places: dict[str, int]) -> Step:
        """The step of one combination that can run."""
        values = {name: self.axes[name][i] for name, i in places.items()}
        precision = self.precisions[values.pop("precision")]
        model = self.model
        if values["seq_len"] != model.seq_len and model.positions != "learned":
            model = replace(model, seq_len=values["seq_len"])
        dp = self.world_size // (values["tp"] * values["pp"] * values["cp"])
        expert_tp = self.expert_tp(values["tp"], values["cp"] * dp, values["ep"]) if model.moe else 1
        return Step(
            model, self.accelerator, precision, dp=dp, expert_tp=int(expert_tp), gpus_per_node=self.gpus_per_node,
            **values, **self.fixed,
        )  # fmt: skip

    def one_gpu(self, precision: str) -> Step:
        """The step of one sequence on one GPU: the machine and the formats, uncut."""
        return Step(
            self.model, self.accelerator, self.precisions[precision], seq_len=self.axes["seq_len"][0],
            micro_batch_size=1, global_batch_size=1, gpus_per_node=self.gpus_per_node, **self.fixed,
        )  # fmt: skip

    @staticmethod
    def expert_tp(tp: Any, rest: Any, ep: Any) -> Any:
        """`Mesh.expert_tp`: tp where ep then still divides the stage, else 1."""
        return np.where((ep == 1) | (rest % ep == 0), tp, 1)


@dataclass(frozen=True, eq=False)
class Block:
    """Combinations: positions on each axis, arrays of one element or of the block's length."""

    space: Space
    at: dict[str, Int64]

    @cached_property
    def length(self) -> int:
        """Number of combinations."""
        return max(len(a) for a in self.at.values())

    def number(self, name: str) -> Int64:
        """The values of an axis of whole numbers."""
        return np.asarray(self.space.axes[name], np.int64)[self.at[name]]

    def is_(self, name: str, value: str) -> npt.NDArray[np.bool_]:
        """Where an axis of names has a value."""
        return np.asarray([v == value for v in self.space.axes[name]])[self.at[name]]

    @cached_property
    def dp(self) -> Int64:
        """Copies of the model; 0 where the mesh is larger than the machine."""
        copies: Int64 = self.space.world_size // (self.number("tp") * self.number("pp") * self.number("cp"))
        return copies

    @cached_property
    def micro_batches(self) -> Int64:
        """Micro-batches of a pipeline."""
        found: Int64 = self.number("global_batch_size") // np.maximum(self.number("micro_batch_size") * self.dp, 1)
        return found

    @cached_property
    def expert_tp(self) -> Int64:
        """Ranks that share an expert."""
        if self.space.model.moe is None:
            return np.ones(1, np.int64)
        found: Int64 = Space.expert_tp(self.number("tp"), self.number("cp") * self.dp, self.number("ep"))
        return found

    def take(self, index: Int64) -> Block:
        """Some of the combinations."""
        return Block(self.space, {n: a[index] if len(a) > 1 else a for n, a in self.at.items()})

    def places(self, i: int) -> dict[str, int]:
        """Positions of one combination."""
        return {n: int(a[i] if len(a) > 1 else a[0]) for n, a in self.at.items()}

    def reasons(self) -> npt.NDArray[np.int8]:
        """For each combination 0, or the first of `REASONS` (but memory) why it cannot run, shape (length,)."""
        space, model = self.space, self.space.model
        tp, pp, cp, ep = (self.number(n) for n in ("tp", "pp", "cp", "ep"))
        v, zero, micro = (self.number(n) for n in ("virtual_stages", "zero_stage", "micro_batch_size"))
        seq, batch, sp = (self.number(n) for n in ("seq_len", "global_batch_size", "sequence_parallel"))
        dp, m, chunks = self.dp, self.micro_batches, pp * v
        interleaved, plain = self.is_("schedule", "interleaved_1f1b"), self.is_("schedule", "1f1b")
        dual = self.is_("schedule", "dualpipe")
        wrong_schedule = (
            ((v > 1) != interleaved)
            | ((pp == 1) & ~plain)
            | (interleaved & (m % pp != 0))
            | (dual & ((pp % 2 != 0) | (m % 2 != 0) | (m < 2 * pp)))
        )
        found = np.zeros(self.length, np.int8)
        rules: list[Any] = [
            (dp < 1) | (space.world_size % (tp * pp * cp) != 0),
            (tp > 1) & (model.heads % tp != 0),
            (chunks > model.layers) | ((model.layers % chunks != 0) & ((model.layers + 2) % chunks != 0)),
            wrong_schedule,
            (m < 1) | (batch % np.maximum(micro * dp, 1) != 0),
            (seq % cp != 0) | ((sp > 0) & ((micro * seq // cp) % tp != 0)),
            self._experts_misfit(tp, cp, ep, dp),
            (zero >= 2) & (pp > 1) & (not space.sharded_pipelines),
            ((sp > 0) & (tp == 1)) | ((zero > 0) & (dp * cp == 1)) | self._twin_recompute(),
        ]
        for reason, rule in reversed(list(enumerate(rules, start=1))):
            found[np.broadcast_to(rule, found.shape)] = reason
        return found

    def _twin_recompute(self) -> Any:
        """Fused attention keeps nothing that selective recomputation could drop."""
        fused = bool(self.space.fixed.get("flash_attention", True))
        return self.is_("recompute", "selective") & fused & ("none" in self.space.axes["recompute"])

    def _experts_misfit(self, tp: Int64, cp: Int64, ep: Int64, dp: Int64) -> Any:
        moe = self.space.model.moe
        if moe is None:
            return ep > 1
        return (moe.experts % ep != 0) | ((tp * cp * dp) % np.maximum(ep * self.expert_tp, 1) != 0)


def divisors(number: int, most: int) -> tuple[int, ...]:
    """The divisors of a number up to `most`."""
    return tuple(d for d in range(1, min(number, most) + 1) if number % d == 0)


def default_axes(
    model: Model, world_size: int, gpus_per_node: int, batches: tuple[int, ...], seq_lens: tuple[int, ...]
) -> dict[str, tuple[Any, ...]]:
    """What there is to choose: divisors up to the limits of the machine and the model.

    tp up to a node's GPUs; every number of stages and chunks into which the layers divide; cp and micro-batches in
    powers of two.
    """
    stages = sorted({d for n in (model.layers, model.layers + 2) for d in divisors(n, min(model.layers, world_size))})
    chunks = sorted({d for n in (model.layers, model.layers + 2) for d in divisors(n, model.layers // 2 or 1)})
    most_cp = max(1, min(world_size, max(seq_lens) // 512))
    return {
        "precision": (),
        "seq_len": seq_lens,
        "global_batch_size": batches,
        "schedule": ("1f1b", "interleaved_1f1b", "zb_h1", "gpipe", "dualpipe"),
        "pp": tuple(p for p in stages if world_size % p == 0),
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
