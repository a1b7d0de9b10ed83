"""What a run was: when every request came, began to answer and ended, and what the engines did meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from commsim.generation.scheduler import Scheduler

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]

QUANTILES = (0.5, 0.9, 0.99)


@dataclass(frozen=True, eq=False)
class Steps:
    """What the engines of a pool did: a row for each run of equal steps, arrays (rows,), ordered by start.

    ``sequences`` decoded in each step, ``prompt_tokens`` were read, ``waiting`` requests had no place; ``held`` and
    ``cached``: bytes in the cache at the start and the end. ``parts_s``: seconds by part, all engines together.
    """

    engine: Int64
    start_s: Float64
    end_s: Float64
    steps: Int64
    sequences: Int64
    prompt_tokens: Int64
    waiting: Int64
    held: Float64
    cached: Float64
    parts_s: dict[str, float]
    engines: int
    tokens: int
    preemptions: int

    @staticmethod
    def of(engines: Sequence[Scheduler], parts: Sequence[str]) -> Steps:
        """From the logs of engines."""
        rows = [(e.number, *row) for e in engines for row in e.log.rows]
        columns = list(np.array(rows, np.float64).reshape(len(rows), 9).T)
        order = np.argsort(columns[1], kind="stable")
        columns = [column[order] for column in columns]
        whole = [column.astype(np.int64) for column in (columns[0], *columns[3:7])]
        sums = [e.log.parts for e in engines if e.log.parts is not None]
        total = np.sum(sums, axis=0) if sums else np.zeros(1 + len(parts))
        return Steps(
            whole[0], columns[1], columns[2], whole[1], whole[2], whole[3], whole[4], columns[7], columns[8],
            parts_s=dict(zip(parts, total[1:].tolist(), strict=True)),
            engines=len(engines),
            tokens=sum(e.log.tokens for e in engines),
            preemptions=sum(e.log.preemptions for e in engines),
        )  # fmt: skip

    @property
    def busy_s(self) -> float:
        """Seconds in steps, all engines together."""
        return float((self.end_s - self.start_s).sum())

    @property
    def mean_sequences(self) -> float:
        """Sequences that decode in the mean decode step."""
        steps = np.where(self.sequences > 0, self.steps, 0)
        return float((self.sequences * steps).sum() / max(1, steps.sum()))


@dataclass(frozen=True, eq=False)
class RunResult:
    """A run: arrays are (requests,), in the order in which they were sent; ``steps`` one for each pool.

    ``sent_s``: seconds in which a cache was on its way to another pool. ``asked``: how often the step model was.
    """

    prompt: Int64
    answer: Int64
    arrival_s: Float64
    first_s: Float64
    end_s: Float64
    sent_s: Float64
    steps: tuple[Steps, ...]
    asked: int = 0

    @property
    def count(self) -> int:
        """Requests."""
        return int(self.prompt.size)

    @property
    def duration_s(self) -> float:
        """From the first request to the last token."""
        return float(self.end_s.max() - self.arrival_s.min())

    @property
    def ttft(self) -> Float64:
        """Of each request the seconds to its first token, those in the queue among them."""
        return self.first_s - self.arrival_s

    @property
    def tpot(self) -> Float64:
        """Of each request of two tokens or more the seconds per token after the first, (those,)."""
        several = self.answer > 1
        return (self.end_s - self.first_s)[several] / (self.answer[several] - 1)

    @property
    def latency(self) -> Float64:
        """Of each request the seconds from when it is sent to its last token."""
        return self.end_s - self.arrival_s

    @property
    def ttft_s(self) -> float:
        """Mean time to first token."""
        return float(self.ttft.mean())

    @property
    def tpot_s(self) -> float:
        """Mean time per output token, as benchmarks count it; 0 where all answers are one token."""
        return float(self.tpot.mean()) if self.tpot.size else 0.0

    @property
    def output_tokens_per_s(self) -> float:
        """Tokens of answers per second of the run."""
        return float(self.answer.sum()) / self.duration_s

    @property
    def total_tokens_per_s(self) -> float:
        """The same with those of prompts."""
        return float(self.answer.sum() + self.prompt.sum()) / self.duration_s

    @property
    def requests_per_s(self) -> float:
        """Requests per second of the run."""
        return self.count / self.duration_s

    @property
    def preemptions(self) -> int:
        """How often a request lost its cache and was read again."""
        return sum(pool.preemptions for pool in self.steps)

    def figures(self) -> dict[str, dict[str, float]]:
        """Mean, quantiles and maximum of what users wait for, in seconds."""
        named = {"ttft": self.ttft, "tpot": self.tpot, "latency": self.latency}
        return {name: summary(values) for name, values in named.items()}


def summary(values: npt.NDArray[Any]) -> dict[str, float]:
    """``mean``, ``p50``, ``p90``, ``p99``, ``max``; zeros of nothing."""
    if not values.size:
        return dict.fromkeys(("mean", "p50", "p90", "p99", "max"), 0.0)
    quantiles = {f"p{100 * q:g}": float(np.quantile(values, q)) for q in QUANTILES}
    return {"mean": float(values.mean()), **quantiles, "max": float(values.max())}
