"""A queue of requests, one step and one token at a time: the obvious version of `commsim.generation.queue`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from commsim.generation.batch import Batch
from commsim.generation.policy import Policy
from commsim.generation.requests import Requests


@dataclass(eq=False)
class Sequence:
    """A request: tokens read and made so far."""

    number: int
    prompt: int
    answer: int
    read: int = 0
    made: int = 0


def naive_run(
    model: Callable[[Batch], float], requests: Requests, policy: Policy
) -> tuple[list[float], list[float], list[float]]:
    """(arrival, first token, end) of each request, in seconds; the cache has room for all."""
    count, now = requests.count, 0.0
    arrival, first, end = ([0.0] * count for _ in range(3))
    if requests.arrival_s is None:
        coming, due = list(range(requests.concurrency, count)), list(range(min(requests.concurrency, count)))
    else:
        coming, due, arrival = [], list(range(count)), requests.arrival_s.tolist()
    here: list[Sequence] = []  # under way
    while due or here:
        budget = policy.token_budget
        decoding = [s for s in here if s.read == s.prompt]
        if policy.mixed:
            budget -= len(decoding)
        chunks: list[tuple[Sequence, int]] = []
        for one in here:
            if one.read < one.prompt and budget > 0:
                chunks.append((one, min(budget, one.prompt - one.read)))
                budget -= chunks[-1][1]
        while due and arrival[due[0]] <= now and budget > 0 and len(here) < policy.most_sequences:
            number = due.pop(0)
            here.append(Sequence(number, int(requests.prompt[number]), int(requests.answer[number])))
            chunks.append((here[-1], min(budget, here[-1].prompt)))
            budget -= chunks[-1][1]
        if chunks and not policy.mixed:
            decoding = []
        if not chunks and not decoding:
            now = arrival[due[0]]
            continue
        n = len(decoding)
        cached = sum(s.prompt + s.made - 1 for s in decoding) / n if n else 0.0
        before = sum(s.read for s, _ in chunks) / len(chunks) if chunks else 0.0
        now += model(Batch(n, cached, sum(take for _, take in chunks), len(chunks), before))
        for one in decoding:
            one.made += 1
        for one, take in chunks:
            one.read += take
            if one.read == one.prompt:
                one.made, first[one.number] = 1, now
        for one in [s for s in here if s.read == s.prompt and s.made == s.answer]:
            here.remove(one)
            end[one.number] = now
            if coming:
                due.append(coming.pop(0))
                arrival[due[-1]] = now
    return arrival, first, end
