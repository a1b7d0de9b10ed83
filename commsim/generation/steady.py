"""Times of a closed loop in its steady state: so many requests at a time, each followed by the next.

A closed form of what the queue simulates. Every request makes `osl` tokens and before them has a prompt of `isl`; so a
step meets c / osl prompts on average, in steps that they share with the tokens of the other requests.
"""

from __future__ import annotations

from dataclasses import dataclass

from commsim.generation.batch import Batch
from commsim.generation.step import StepModel

CHUNK_TOKENS = 8192
"""Tokens of a step at most (vLLM, `max_num_batched_tokens` of servers; SGLang, `chunked_prefill_size`; TensorRT-LLM,
`max_num_tokens`)."""


@dataclass(frozen=True)
class ClosedLoop:
    """So many requests at a time, of prompts of `isl` tokens and answers of `osl`."""

    concurrency: int
    isl: float
    osl: float


@dataclass(frozen=True)
class LoopTimes:
    """Mean seconds to the first token and from one token to the next; `decode_s`: of a step without a prompt."""

    first_s: float
    each_s: float
    decode_s: float
    mixed_s: float


def steady_times(step: StepModel, loop: ClosedLoop, chunk_tokens: int = CHUNK_TOKENS) -> LoopTimes:
    """The times of a loop whose requests are spread evenly over their answers."""
    c, cached = loop.concurrency, loop.isl + loop.osl / 2.0
    decode_s = step.seconds(Batch(c, cached)).total_s
    room = max(chunk_tokens - c, 256)
    chunks = max(round(loop.isl / room + 0.499), 1)
    chunk = loop.isl / chunks
    groups = step.replica.attention_dp
    together = max(min(groups, c), 1)
    prompt = Batch(c, cached, round(chunk * together), together, (loop.isl - chunk) / 2.0)
    mixed_s = step.seconds(prompt).total_s
    extra = chunks * (mixed_s - decode_s) / together
    each_s = decode_s + (c - 1.0) / loop.osl * extra
    name = step.replica.engine.framework
    ahead = step.values["queue.ahead"] * (c - 1.0) * extra
    first_s = step.values[f"host.first.{name}"] + decode_s / 2.0 + chunks * mixed_s + ahead
    return LoopTimes(first_s, each_s, decode_s, mixed_s)
