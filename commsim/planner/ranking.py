"""Ranking a whole space by the closed forms of the step: memory and seconds of what can run, the best of it kept."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields

import numpy as np
import numpy.typing as npt

from commsim.planner.space import REASONS, Block, Space, joined
from commsim.training.compute import Values
from commsim.training.memory import Framework, peak_bytes
from commsim.training.step_time import StepTime, step_time

Float64 = npt.NDArray[np.float64]

MEMORY_BINS = 8
"""The best are kept for each eighth of a GPU's memory, so that the Pareto front has leaner ones too."""

BATCH = 4096
"""Configurations whose closed forms are evaluated at once: their arrays stay in the processor's cache."""


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
    """What was walked: counts by `REASONS`, the best that fit, quickest first, and the leanest that does not fit."""

    counts: Counter[str] = field(default_factory=Counter)
    best: list[Ranked] = field(default_factory=list)
    leanest: Ranked | None = None

    @property
    def walked(self) -> int:
        """Configurations looked at."""
        return sum(self.counts.values())

    def instead(self, tried: list[Ranked]) -> Ranked | None:
        """The quickest that is not among those tried, of which the last does not fit beside its communicators: it is
        counted anew. None where all were tried."""
        self.counts[REASONS[0]] -= 1
        self.counts[REASONS[-1]] += 1
        return next((ranked for ranked in self.best if ranked not in tried), None)


@dataclass(frozen=True, eq=False)
class Evaluated:
    """The closed forms of combinations that can run; all arrays are of the block's length."""

    block: Block
    memory_bytes: Float64
    seconds: Float64
    tokens: npt.NDArray[np.int64]
    parts: dict[str, Float64]

    def ranked(self, i: int) -> Ranked:
        """One of them."""
        parts = {name: float(column[i]) for name, column in self.parts.items()}
        return Ranked(
            self.block.places(i), float(self.seconds[i]), int(self.tokens[i]), float(self.memory_bytes[i]), parts
        )


def evaluated(block: Block, framework: Framework, values: Values) -> Evaluated:
    """Memory, seconds and tokens of combinations that can run."""
    step, n = block.step, block.length
    with np.errstate(divide="ignore", invalid="ignore"):
        time = step_time(step, values)
    parts = {f.name: np.broadcast_to(getattr(time, f.name), n) for f in fields(StepTime)}
    peak, seconds, tokens = (np.broadcast_to(x, n) for x in (peak_bytes(step, framework), time.total, step.tokens))
    return Evaluated(block, peak, seconds, tokens, parts)


def valid_batches(space: Space, ranking: Ranking) -> Iterator[Block]:
    """What can run, as blocks of about `BATCH`; what cannot is counted by its reason."""
    waiting: list[Block] = []
    for block in itertools.chain.from_iterable(_valid(block, ranking) for block in space.blocks()):
        if waiting and (waiting[0].precision != block.precision or sum(b.length for b in waiting) >= BATCH):
            yield joined(waiting)
            waiting = []
        waiting.append(block)
    if waiting:
        yield joined(waiting)


def _valid(block: Block, ranking: Ranking) -> list[Block]:
    reasons = block.reasons()
    for reason, count in enumerate(np.bincount(reasons)):
        if reason and count:
            ranking.counts[REASONS[reason]] += int(count)
    valid = np.flatnonzero(reasons == 0)
    return [block.take(valid[i : i + BATCH]) for i in range(0, len(valid), BATCH)]


def rank_space(
    space: Space,
    framework: Framework,
    values: Values,
    *,
    keep: int = 64,
    progress: Callable[[int], None] | None = None,
    ranking: Ranking | None = None,
) -> Ranking:
    """Walk the whole space; `ranking` fills as it goes, so that an interrupt leaves the best so far."""
    ranking = ranking if ranking is not None else Ranking()
    capacity = space.accelerator.room_bytes
    slowest: dict[int, float] = {}
    for block in valid_batches(space, ranking):
        batch = evaluated(block, framework, values)
        fits = batch.memory_bytes <= capacity
        ranking.counts[REASONS[-1]] += int((~fits).sum())
        ranking.counts[REASONS[0]] += int(fits.sum())
        _keep(batch, fits, capacity, keep, ranking, slowest)
        if not fits.any() and len(fits):
            lean = batch.ranked(int(np.argmin(batch.memory_bytes)))
            if ranking.leanest is None or lean.memory_bytes < ranking.leanest.memory_bytes:
                ranking.leanest = lean
        if progress is not None:
            progress(ranking.walked)
    ranking.best.sort(key=lambda r: r.seconds_per_token)
    return ranking


def _keep(
    batch: Evaluated,
    fits: npt.NDArray[np.bool_],
    capacity: float,
    keep: int,
    ranking: Ranking,
    slowest: dict[int, float],
) -> None:
    """Adds the best of a batch to those of each bin of memory; `slowest`: seconds per token of a full bin's last."""
    each = batch.seconds / batch.tokens
    bins = np.minimum((batch.memory_bytes / capacity * MEMORY_BINS).astype(np.int64), MEMORY_BINS - 1)
    for number in np.unique(bins[fits]).tolist():
        mine = np.flatnonzero(fits & (bins == number) & (each < slowest.get(number, np.inf)))
        if not len(mine):
            continue
        if len(mine) > keep:
            mine = mine[np.argpartition(each[mine], keep)[:keep]]
        held = [r for r in ranking.best if _bin(r.memory_bytes, capacity) == number]
        others = [r for r in ranking.best if _bin(r.memory_bytes, capacity) != number]
        held = sorted([*held, *(batch.ranked(i) for i in mine.tolist())], key=lambda r: r.seconds_per_token)[:keep]
        if len(held) == keep:
            slowest[number] = held[-1].seconds_per_token
        ranking.best = others + held


def _bin(nbytes: float, capacity: float) -> int:
    return min(int(nbytes / capacity * MEMORY_BINS), MEMORY_BINS - 1)
