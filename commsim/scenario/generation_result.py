"""What a ``generation:`` item answers: what users wait for, what the machine gives, where the time of steps goes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from commsim.engine.timeline import Timeline
from commsim.generation.memory import ReplicaMemory
from commsim.generation.policy import Policy
from commsim.generation.replica import Replica
from commsim.generation.run_result import RunResult, Steps
from commsim.generation.scheduler import CacheRoom
from commsim.scenario.answer import Answer
from commsim.scenario.generation import GenerationSpec
from commsim.units import GIB

Float64 = npt.NDArray[np.float64]

CAUSES = ("products", "attention", "experts", "collectives", "dispatch", "elementwise", "sampling", "host")
"""Of a step's seconds, in the order of tables."""

POINTS, SHARES = 240, 101
"""Of a timeline and of a distribution as they are saved."""


@dataclass(frozen=True)
class LoadPoint:
    """A run at another load: clients of a closed loop, what they wait for, what a GPU gives."""

    clients: int
    ttft_s: float
    tpot_s: float
    tokens_per_s_per_gpu: float

    @staticmethod
    def of(clients: int, run: RunResult, gpus: int) -> LoadPoint:
        """Of a run on so many GPUs."""
        return LoadPoint(clients, run.ttft_s, run.tpot_s, run.output_tokens_per_s / gpus)

    @property
    def tokens_per_s_per_user(self) -> float:
        """Tokens a second that one client reads while its answer is made."""
        return 1.0 / self.tpot_s if self.tpot_s else 0.0


@dataclass(frozen=True, eq=False)
class GenerationItem(Answer):
    """Requests that were answered. ``clients``: of a closed loop, 0 where requests come at their times.

    ``reader``: how a replica of the prefill pool is cut, ``readers`` how many there are.
    """

    kind: ClassVar[str] = "generations"

    name: str
    spec: GenerationSpec
    replica: Replica
    reader: Replica | None
    replicas: int
    readers: int
    gpus: int
    clients: int
    memory: ReplicaMemory
    room: CacheRoom
    policy: Policy
    run: RunResult
    loads: tuple[LoadPoint, ...] = ()

    @property
    def tokens_per_s_per_gpu(self) -> float:
        """Tokens of answers a second, per GPU of the machine."""
        return self.run.output_tokens_per_s / self.gpus

    @property
    def tokens_per_s_per_user(self) -> float:
        """Tokens a second that one client reads while its answer is made."""
        return 1.0 / self.run.tpot_s if self.run.tpot_s else 0.0

    @property
    def decode_steps(self) -> Steps:
        """What the engines did that decode."""
        return self.run.steps[-1]

    @property
    def cache_share(self) -> float:
        """Share of a replica's cache that was full at most."""
        return float(self.decode_steps.cached.max(initial=0.0) / self.room.nbytes) if self.room.nbytes else 0.0

    @property
    def causes(self) -> dict[str, float]:
        """By cause the seconds of steps of the mean engine that decodes."""
        steps = self.decode_steps
        return {cause: steps.parts_s.get(cause, 0.0) / steps.engines for cause in CAUSES}

    @property
    def idle_s(self) -> float:
        """Seconds of the run in which the mean engine that decodes had nothing to do."""
        return max(0.0, self.run.duration_s - self.decode_steps.busy_s / self.decode_steps.engines)

    @property
    def said(self) -> str:
        """The requests in words: ``640 requests of 1,024 tokens in, 1,024 out, 64 at a time``."""
        run, spec = self.run, self.spec
        mean_in, mean_out = float(run.prompt.mean()), float(run.answer.mean())
        about = "" if run.prompt.std() == run.answer.std() == 0 else "about "
        load = f"{self.clients:,} at a time" if self.clients else "as they come"
        if spec.rate is not None:
            load = f"{spec.rate:g} a second"
        return f"{run.count:,} requests of {about}{mean_in:,.0f} tokens in, {mean_out:,.0f} out, {load}"

    def records(self) -> list[dict[str, Any]]:
        """One row."""
        return [self.record()]

    def record(self) -> dict[str, Any]:
        """One row of plain values, units in the names."""
        run, replica, figures = self.run, self.replica, self.run.figures()
        row: dict[str, Any] = {
            "item": self.name,
            "model": replica.model.name,
            "framework": replica.engine.framework,
            "gpus": self.gpus,
            "replicas": self.replicas,
            "prefill_replicas": self.readers,
            **{name: getattr(replica, name) for name in ("tp", "pp", "attention_dp", "moe_tp", "moe_ep")},
            "clients": self.clients,
            "requests": run.count,
            "prompt_tokens": float(run.prompt.mean()),
            "answer_tokens": float(run.answer.mean()),
            "duration_s": run.duration_s,
        }
        for name in ("ttft", "tpot"):
            row |= {f"{name}{_suffix(key)}_ms": 1e3 * value for key, value in figures[name].items()}
        row |= {f"latency{_suffix(key)}_s": value for key, value in figures["latency"].items()}
        row |= {
            "tokens_per_s_per_gpu": self.tokens_per_s_per_gpu,
            "total_tokens_per_s_per_gpu": run.total_tokens_per_s / self.gpus,
            "tokens_per_s_per_user": self.tokens_per_s_per_user,
            "requests_per_s": run.requests_per_s,
            "mean_batch": self.decode_steps.mean_sequences,
            "cache_share": self.cache_share,
            "preemptions": run.preemptions,
            "sent_ms": 1e3 * float(run.sent_s.mean()),
            **{f"{cause}_s": seconds for cause, seconds in self.causes.items()},
            "idle_s": self.idle_s,
        }
        return row

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready values."""
        memory, run = self.memory, self.run
        quantiles = np.linspace(0.0, 1.0, SHARES)
        return {
            **self.record(),
            "said": self.said,
            "memory_GiB": {
                "weights": memory.weights_bytes / GIB,
                "cache": memory.cache_room_bytes / GIB,
                "engine": memory.room_bytes / GIB,
                "gpu": float(self.replica.gpu.memory_bytes) / GIB,
            },
            "cache_tokens": memory.most_tokens,
            "policy": asdict(self.policy),
            "quantiles": {
                name: np.quantile(values, quantiles).tolist() if values.size else []
                for name, values in (("ttft_s", run.ttft), ("tpot_s", run.tpot), ("latency_s", run.latency))
            },
            "timeline": self.timeline(),
            "loads": [{**asdict(point), "tokens_per_s_per_user": point.tokens_per_s_per_user} for point in self.loads],
        }

    def timeline(self) -> dict[str, list[float]]:
        """Means over equal spans of the run: the end of each, sequences that decode, requests that wait for a place,
        tokens of prompts read a second, and the share of the cache that is full."""
        decode, edges = self.decode_steps, np.linspace(0.0, max(self.run.duration_s, 1e-12), POINTS + 1)
        start = float(self.run.arrival_s.min())
        waiting, read = np.zeros(POINTS), np.zeros(POINTS)
        for pool in self.run.steps:
            waiting += _means(pool, pool.waiting, edges + start)
            read += _means(pool, pool.prompt_tokens / (pool.end_s - pool.start_s), edges + start)
        cached = _held(decode, (edges[1:] + edges[:-1]) / 2 + start) / (self.room.nbytes * decode.engines or 1.0)
        columns = {
            "end_s": edges[1:],
            "sequences": _means(decode, decode.sequences, edges + start),
            "waiting": waiting,
            "prompt_tokens_per_s": read,
            "cache_share": cached,
        }
        return {name: [float(f"{value:.6g}") for value in column] for name, column in columns.items()}


STEPS = ("prompts", "prompts and decode", "decode")
"""What a step does, as a trace names it."""


def trace_of(item: GenerationItem) -> tuple[Timeline, dict[int, tuple[Float64, Float64]]]:
    """The steps of all engines, in which equal ones that follow each other are one row, and (seconds, bytes) of the
    cache of each."""
    rows: list[tuple[float, float, int, int, int, int]] = []
    caches: dict[int, tuple[Float64, Float64]] = {}
    first = 0
    for pool in item.run.steps:
        kinds = np.where(pool.prompt_tokens == 0, 2, np.where(pool.sequences > 0, 1, 0))
        columns = (pool.start_s, pool.end_s, pool.engine + first, np.zeros_like(kinds), kinds, pool.cached.astype(int))
        rows += list(zip(*(column.tolist() for column in columns), strict=True))
        for engine in range(pool.engines):
            mine = pool.engine == engine
            caches[first + engine] = pool.end_s[mine], pool.cached[mine]
        first += pool.engines
    return Timeline.from_rows(rows, STEPS), caches


def _means(steps: Steps, values: npt.NDArray[Any], edges: Float64) -> Float64:
    """Of what engines have while they step the sum over engines, its mean over each span between edges, (spans,)."""
    at = np.concatenate([steps.start_s, steps.end_s])
    change = np.concatenate([values, -values]).astype(np.float64)
    order = np.argsort(at, kind="stable")
    at, level = at[order], np.cumsum(change[order])
    if not at.size:
        return np.zeros(edges.size - 1)
    whole = np.concatenate([[0.0], np.cumsum(level[:-1] * np.diff(at))])
    means: Float64 = np.maximum(np.diff(np.interp(edges, at, whole)) / np.diff(edges), 0.0)
    return means


def _held(steps: Steps, at: Float64) -> Float64:
    """Bytes in the caches of all engines at some times, (times,)."""
    total = np.zeros(at.size)
    for engine in range(steps.engines):
        mine = steps.engine == engine
        if mine.any():
            start, end = steps.start_s[mine], steps.end_s[mine]
            held = np.stack([steps.held[mine], steps.cached[mine]], axis=1).ravel()
            then = np.interp(at, np.stack([start, end], axis=1).ravel(), held)
            row = np.searchsorted(start, at, "right") - 1
            total += np.where((row >= 0) & (at <= end[row]), then, 0.0)  # idle, an engine holds nothing
    return total


def _suffix(key: str) -> str:
    return "" if key == "mean" else f"_{key}"
