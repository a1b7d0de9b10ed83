"""Times of measured runs by the queue that `commsim run` uses: a closed loop of clients against the engine's scheduler.

What their benchmarks do that no column says is in `serving_recipes`.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace
from typing import Any

from commsim.generation.batch import Batch
from commsim.generation.collectives import NIC_BYTES_PER_S
from commsim.generation.memory import replica_memory
from commsim.generation.policy import policy_of
from commsim.generation.queue import EnginePool, Send, simulate_pool, simulate_split
from commsim.generation.replica import Replica
from commsim.generation.requests import Lengths, drawn
from commsim.generation.room import room_of
from commsim.generation.steady import ClosedLoop
from commsim.generation.step import StepModel
from commsim.generation.step_table import StepTable
from commsim.generation.terms import Kernels, kernels
from commsim.training.compute import Values
from study.serving_recipes import Recipe, recipe_of
from study.serving_rows import ENGINE_GPUS, READER_GPUS, Split


@dataclass(frozen=True)
class LoopTimes:
    """Mean seconds to the first token, and from one token to the next."""

    first_s: float
    each_s: float


DATA_PARALLEL_FROM = 16
"""Sequences on each GPU from which all GPUs of a pool that decode are one engine with attention data parallelism."""


class QueueTimes:
    """Times of loops by the queue; what steps of a replica take is asked once for all of its loops."""

    def __init__(self, values: Values, terms: Kernels | None = None) -> None:
        self._values, self._terms = values, terms or kernels()
        self._tables: dict[Replica, StepTable] = {}

    def of(self, replica: Replica, loop: ClosedLoop, split: Split | None = None) -> LoopTimes:
        """Of a replica under a load, or of replicas that decode beside others that read; InfeasibleError where a cache
        does not hold one request."""
        recipe = self._recipe(replica, loop)
        prompt, answer = (Lengths(round(tokens), recipe.range_ratio) for tokens in (loop.isl, loop.osl))
        requests = drawn(prompt, answer, recipe.requests).closed(loop.concurrency)
        if split is not None and split.gpus:
            replica, split = self._engines(replica, split, loop)
        decode = self._pool(replica, loop)
        if split is None:
            run = simulate_pool(decode, requests)
        else:
            prefill = replace(self._pool(split.reader, loop), replicas=split.readers)
            run = simulate_split(prefill, replace(decode, replicas=split.decoders), _send(replica), requests)
        return LoopTimes(run.ttft_s, run.tpot_s)

    def _engines(self, one: Replica, split: Split, loop: ClosedLoop) -> tuple[Replica, Split]:
        """The engines of a pool: as few GPUs read as keep pace with those that decode, which are one engine with
        attention data parallelism where each has many sequences, else engines of eight."""
        prompt_s = StepModel(split.reader, values=self._values, kernels=self._terms).seconds(
            Batch(0, 0.0, round(loop.isl), 1)
        )
        for reading in range(READER_GPUS, split.gpus - ENGINE_GPUS + 1, READER_GPUS):
            decoding = split.gpus - reading
            if decoding % ENGINE_GPUS:
                continue
            many = one.model.moe is not None and loop.concurrency / decoding >= DATA_PARALLEL_FROM
            engine = replace(one, tp=1, attention_dp=decoding, moe_tp=1, moe_ep=decoding) if many else one
            engines = 1 if many else decoding // ENGINE_GPUS
            cached, each = loop.isl + loop.osl / 2.0, max(loop.concurrency // engines, 1)
            step_s = StepModel(engine, values=self._values, kernels=self._terms).seconds(Batch(each, cached)).total_s
            chosen = engine, replace(split, readers=reading // READER_GPUS, decoders=engines, gpus=0)
            if reading / READER_GPUS / prompt_s.total_s >= loop.concurrency / (loop.osl * step_s):
                break
        return chosen

    def _pool(self, replica: Replica, loop: ClosedLoop) -> EnginePool:
        if replica not in self._tables:
            self._tables[replica] = StepTable(StepModel(replica, values=self._values, kernels=self._terms).seconds)
        room = room_of(replica, round(loop.isl + loop.osl))
        return EnginePool(self._tables[replica], room, self._recipe(replica, loop).policy)

    def _recipe(self, replica: Replica, loop: ClosedLoop) -> Recipe:
        own = replace(policy_of(replica), before_s=self._values[f"host.first.{replica.engine.framework}"])
        return recipe_of(replica, loop, own)


def _send(replica: Replica) -> Send:
    """A cache's way over NVLink, or a NIC of 400 Gb/s where it joins no two engines; nothing contends."""
    memory, gpu = replica_memory(replica), replica.gpu
    rate = gpu.nvlink_bytes_per_s if gpu.rack > 1 else NIC_BYTES_PER_S

    def send(env: Any, _origin: int, _target: int, tokens: int) -> Generator[Any, Any, None]:
        yield env.timeout(memory.sequence_bytes(tokens) / rate)

    return send
