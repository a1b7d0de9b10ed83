"""Ranking a whole space by the closed form of the step: seconds of every configuration, the best ones kept."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.planner.memory import MemoryColumns
from commsim.planner.space import REASONS, Block, Space
from commsim.training.columns import Columns, columns, links_of
from commsim.training.compute import Passes, StepCompute, Values, step_compute
from commsim.training.memory import Framework
from commsim.training.step_time import StepTime, step_time

Float64 = npt.NDArray[np.float64]

_COMPUTE = ("precision", "seq_len", "ep", "micro_batch_size", "cp", "tp", "sequence_parallel")
"""Axes on which the compute of a layer depends."""

MEMORY_BINS = 8
"""The best are kept for each eighth of a GPU's memory, so that the Pareto front has leaner ones too."""


@dataclass(frozen=True)
class Ranked:
    """A configuration by the closed form: seconds of a step, tokens of it, bytes of the fullest GPU."""

    places: dict[str, int]
    seconds: float
    tokens: int
    memory_bytes: float
    parts: dict[str, float]

    @property
    def seconds_per_token(self) -> float:
        """What is ranked: steps of different batches compare by their tokens."""
        return self.seconds / self.tokens


@dataclass
class Ranking:
    """What was walked: counts by `REASONS`, and the best that fit, quickest first."""

    counts: Counter[str] = field(default_factory=Counter)
    best: list[Ranked] = field(default_factory=list)

    @property
    def walked(self) -> int:
        """Configurations looked at."""
        return sum(self.counts.values())

    @property
    def feasible(self) -> int:
        """Those that can run."""
        return self.counts[REASONS[0]]


class Ranker:
    """The closed forms of a space, with what depends on few axes computed once."""

    def __init__(self, space: Space, framework: Framework, values: Values) -> None:
        self.space, self.values = space, values
        self.memory = MemoryColumns(space, framework)
        links = links_of(space.accelerator, space.nic_bytes_per_s, space.gpus_per_node)
        self._bases = [columns([space.one_gpu(p)], [links]) for p in space.axes["precision"]]
        self._sizes = (*(len(space.axes[n]) for n in _COMPUTE), 2)  # experts uncut, or cut by tp
        self._compute = self._tabulate()

    def _tabulate(self) -> StepCompute:
        """The compute of every combination of `_COMPUTE`, precision outermost."""
        parts = []
        for precision in range(len(self.space.axes["precision"])):
            places = [np.array([precision]), *map(np.arange, self._sizes[1:])]
            *grids, whole = (g.ravel() for g in np.meshgrid(*places, indexing="ij"))
            at = dict.fromkeys(self.space.axes, np.array([0])) | dict(zip(_COMPUTE, grids, strict=True))
            c = self._columns(Block(self.space, at))
            with np.errstate(all="ignore"):
                parts.append(step_compute(replace(c, expert_tp=np.where(whole, c.tp, 1.0)), self.values))
        return _join(parts)

    def _columns(self, block: Block) -> Columns:
        """Columns of a block: arrays of one element where all are alike."""
        base = self._base(block)
        number = block.number
        dp = np.maximum(block.dp, 1)
        varying: dict[str, Any] = {
            "tokens": number("micro_batch_size") * number("seq_len") // number("cp"),
            "seq": number("seq_len"),
            "micro_batch": number("micro_batch_size"),
            "m": block.micro_batches,
            "tp": number("tp"),
            "pp": number("pp"),
            "cp": number("cp"),
            "dp": dp,
            "ep": number("ep"),
            "expert_tp": block.expert_tp,
            "v": number("virtual_stages"),
            "shards": dp * number("cp"),
            "sp": number("sequence_parallel"),
            "zero": number("zero_stage"),
            "full": block.is_("recompute", "full"),
            "selective": block.is_("recompute", "selective"),
            "layerwise": block.is_("recompute", "layerwise"),
        }
        return replace(base, **{n: np.asarray(a, np.float64) for n, a in varying.items()})  # type: ignore[arg-type]

    def _base(self, block: Block) -> Columns:
        at = block.at["precision"]
        if len(at) == 1:
            return self._bases[int(at[0])]
        names = [f.name for f in fields(Columns)]
        return Columns(**{n: np.concatenate([getattr(b, n) for b in self._bases])[at] for n in names})

    def _gathered(self, block: Block) -> StepCompute:
        cut = (block.expert_tp == block.number("tp")).astype(np.int64)
        index = np.asarray(np.ravel_multi_index([*(block.at[n] for n in _COMPUTE), cut], self._sizes))

        def some(passes: Passes) -> Passes:
            return Passes(**{f.name: getattr(passes, f.name)[index] for f in fields(Passes)})

        return StepCompute(some(self._compute.dense), some(self._compute.moe), some(self._compute.head))

    def times(self, block: Block) -> StepTime:
        """Seconds by part of combinations that can run."""
        c, work = self._columns(block), self._gathered(block)
        found = step_time(c, self.values, work)
        dual = block.is_("schedule", "dualpipe")
        hidden = np.where(dual, found.ep * (1.0 - self._beside_passes(c)), 0.0)
        # Half of the micro-batches see the loss on one end of the pipeline, half on the other.
        elsewhere = np.where(dual, 0.5 * c.m * (work.head.forward + work.head.backward), 0.0)
        bubble = found.bubble - (c.pp - 1.0) / c.v * hidden / c.m
        return replace(
            found,
            compute=found.compute - self.values["scale"] * elsewhere,
            ep=found.ep - hidden,
            bubble=self._bubble(block, c, work, bubble),
        )

    def _beside_passes(self, c: Columns) -> Float64:
        """The share of experts' exchanges in the open that stays there when they run beside another micro-batch's pass
        (DualPipe): the first layer's, and what they slow that pass by; see `commsim.training.work.overlap`."""
        v = self.values
        share = (1.0 - 1.0 / v["slowdown"]) + c.pp / c.layers
        return np.asarray(np.minimum(share / v["exposed_ep"], 1.0))

    def _bubble(self, block: Block, c: Columns, work: StepCompute, plain: Float64) -> Float64:
        """The bubble of schedules that put weight gradients into it; F, B and W are a stage's passes.

        1F1B, GPipe: (p - 1)(F + B), B with its weight gradients; interleaved: 1/v of it. ZB-H1: (p - 1)(F + B - 2 W)
        (Qi et al. 2023, table 2). DualPipe: (p/2 - 1)(F + B - 2 W), where a stage sends what its forward made before
        the backward that it is paired with ends; merged into one pass F&B they would leave (p/2 - 1)(F&B + B - 3 W)
        (DeepSeek-AI 2024, table 2).
        """
        zero, dual = block.is_("schedule", "zb_h1"), block.is_("schedule", "dualpipe")
        if not (zero.any() or dual.any()):
            return plain
        dense, moe = c.dense_layers / c.pp, c.moe_layers / c.pp
        weight = dense * work.dense.weight + moe * work.moe.weight
        mid = plain / np.maximum(c.pp - 1.0, 1.0) * c.v
        h1 = (c.pp - 1.0) * np.maximum(mid - 2.0 * weight, 0.0)
        both = np.maximum(c.pp / 2.0 - 1.0, 0.0) * np.maximum(mid - 2.0 * weight, 0.0)
        return np.where(zero, h1, np.where(dual, both, plain))

    def rank(
        self, keep: int = 64, progress: Callable[[int], None] | None = None, ranking: Ranking | None = None
    ) -> Ranking:
        """Walk the whole space; `ranking` fills as it goes, so that an interrupt leaves the best so far."""
        ranking = ranking if ranking is not None else Ranking()
        capacity = float(self.space.accelerator.memory_bytes)
        worst: dict[int, float] = {}
        for block in self.space.blocks():
            reasons = block.reasons()
            valid = block.take(np.flatnonzero(reasons == 0))
            if (reasons == 0).any():
                peak = self.memory.peak(valid)
                fits = peak <= capacity
                ranking.counts[REASONS[-1]] += int((~fits).sum())
                if fits.any():
                    index = np.flatnonzero(fits)
                    self._keep(valid.take(index), peak[index], capacity, keep, ranking, worst)
                ranking.counts[REASONS[0]] += int(fits.sum())
            for reason, count in enumerate(np.bincount(reasons, minlength=len(REASONS))):
                if reason and count:
                    ranking.counts[REASONS[reason]] += int(count)
            if progress is not None:
                progress(ranking.walked)
        ranking.best.sort(key=lambda r: r.seconds_per_token)
        return ranking

    def _keep(
        self, block: Block, peak: Float64, capacity: float, keep: int, ranking: Ranking, worst: dict[int, float]
    ) -> None:
        times = self.times(block)
        total = times.total * np.ones(block.length)
        tokens = block.number("global_batch_size") * block.number("seq_len") * np.ones(block.length, np.int64)
        each = total / tokens
        bins = np.minimum((peak / capacity * MEMORY_BINS).astype(np.int64), MEMORY_BINS - 1)
        for b in np.unique(bins):
            mine = np.flatnonzero((bins == b) & (each < worst.get(int(b), np.inf)))
            if not len(mine):
                continue
            if len(mine) > keep:
                mine = mine[np.argpartition(each[mine], keep)[:keep]]
            for i in map(int, mine):
                parts = {f.name: float(_at(getattr(times, f.name), i)) for f in fields(StepTime)}
                ranking.best.append(Ranked(block.places(i), float(total[i]), int(tokens[i]), float(peak[i]), parts))
            held = sorted(
                (r for r in ranking.best if _bin(r.memory_bytes, capacity) == b), key=lambda r: r.seconds_per_token
            )
            if len(held) > keep:
                worst[int(b)] = held[keep - 1].seconds_per_token
                out = {id(r) for r in held[keep:]}
                ranking.best = [r for r in ranking.best if id(r) not in out]


def _bin(nbytes: float, capacity: float) -> int:
    return min(int(nbytes / capacity * MEMORY_BINS), MEMORY_BINS - 1)


def _at(column: Float64, i: int) -> float:
    return float(column[i] if len(column) > 1 else column[0])


def _join(parts: list[StepCompute]) -> StepCompute:
    def one(name: str) -> Passes:
        whole = [getattr(p, name) for p in parts]
        length = max(len(getattr(w, f.name)) for w in whole for f in fields(Passes))
        return Passes(
            **{
                f.name: np.concatenate([np.broadcast_to(getattr(w, f.name), length) for w in whole])
                for f in fields(Passes)
            }
        )

    return StepCompute(one("dense"), one("moe"), one("head"))
