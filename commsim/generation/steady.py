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
class SteadyTimes:
    """Mean seconds from one token of a request to the next, and of steps without and with a prompt."""

    each_s: float
    decode_s: float
    mixed_s: float


def steady_times(step: StepModel, loop: ClosedLoop, chunk_tokens: int = CHUNK_TOKENS) -> SteadyTimes:
    """The times of a loop whose requests are spread evenly over their answers.

    >>> from commsim.generation.replica import Replica
    >>> from commsim.training.accelerator import accelerator
    >>> from commsim.training.model import model
    >>> step = StepModel(Replica(model("llama-3-8b"), accelerator("H100")))
    >>> alone, many = (steady_times(step, ClosedLoop(c, 1024, 256)) for c in (1, 64))
    >>> alone.each_s == alone.decode_s, many.each_s > many.decode_s
    (True, True)
    """
    c, cached = loop.concurrency, loop.isl + loop.osl / 2.0
    decode_s = step.seconds(Batch(c, cached)).total_s
    chunks = max(round(loop.isl / max(chunk_tokens - c, 256) + 0.499), 1)
    chunk = loop.isl / chunks
    together = max(min(step.replica.attention_dp, c), 1)  # a prompt in each group of attention
    prompt = Batch(c, cached, round(chunk * together), together, (loop.isl - chunk) / 2.0)
    mixed_s = step.seconds(prompt).total_s
    extra = chunks * (mixed_s - decode_s) / together
    return SteadyTimes(decode_s + (c - 1.0) / loop.osl * extra, decode_s, mixed_s)
