"""The scheduler of an engine as a simpy process: continuous batching, chunked prefill, preemption, equal steps at once.

What it is not: it knows no model and no machine, only seconds of steps (`StepTable`) and room in the cache.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from commsim.generation.batch import Batch
from commsim.generation.policy import Policy
from commsim.generation.request import Hooks, Log, Request
from commsim.generation.step_table import Float64, StepTable, between, steps_done

Process = Generator[Any, Any, None]


@dataclass(frozen=True)
class CacheRoom:
    """Bytes that a replica has for its cache, and what a token and, beside its tokens, a sequence take of it."""

    nbytes: float
    token_bytes: float = 1.0
    sequence_bytes: float = 0.0

    def of(self, tokens: float) -> float:
        """Bytes of a sequence of so many tokens."""
        return tokens * self.token_bytes + self.sequence_bytes


class Scheduler:
    """Takes requests and lets them go on together, step by step."""

    def __init__(
        self, env: Any, table: StepTable, room: CacheRoom, policy: Policy, hooks: Hooks, number: int = 0
    ) -> None:
        self.env, self.number, self.log = env, number, Log()
        self._table, self._room, self._policy, self._hooks = table, room, policy, hooks
        self._waiting: deque[Request] = deque()
        self._incoming: deque[Request] = deque()  # read elsewhere, without room here so far
        self._ready: list[Request] = []  # read elsewhere, their cache is here
        self._reading: list[Request] = []  # prompts that are partly read
        self._decoding: dict[Request, None] = {}
        self._ends: list[tuple[int, int, Request]] = []
        self._steps = 0  # decode steps so far
        self._unlooked = 0  # of them since it looked for new requests
        self._cached = 0.0  # tokens of decoding sequences
        self._used = 0.0  # bytes held in the cache
        self._loads = [0] * policy.ranks  # sequences of each rank
        self._decoders = [0] * policy.ranks  # those of them that decode
        self._rows = 0  # of a static batch
        self._joined = 0
        self._wake: Any = None
        self._idle = False
        env.process(self._run())

    @property
    def outstanding(self) -> int:
        """Requests that it has not ended."""
        return sum(self._loads) + len(self._waiting) + len(self._incoming)

    def submit(self, job: Request) -> None:
        """A request to read and decode."""
        self._waiting.append(job)
        first = self._policy.intake_steps == 1 and len(self._waiting) == 1
        if self._idle or (first and self._rank_for(job) is not None):
            self._rouse()

    def receive(self, job: Request) -> None:
        """A request that was read elsewhere: its cache is fetched as soon as there is room."""
        self._incoming.append(job)
        self._fetch_next()

    def release(self, job: Request) -> None:
        """The cache of a request that goes on elsewhere is free."""
        self._leave(job)
        if self._waiting:
            self._rouse()
        self._fetch_next()

    def _rouse(self) -> None:
        if self._wake is not None and not self._wake.triggered:
            self._wake.succeed()

    # -- the process ---------------------------------

    def _run(self) -> Process:
        while True:
            for job in self._ready:
                self._join(job)
            self._ready.clear()
            self._make_room()
            chunks = self._chunks()
            if chunks:
                yield from self._read_on(chunks)
            elif self._decoding:
                yield from self._decode_on()
            else:
                self._idle, self._wake = True, self.env.event()
                yield self._wake
                self._idle, self._wake = False, None

    def _read_on(self, chunks: list[tuple[Request, int]]) -> Process:
        """One step with chunks of prompts."""
        n = len(self._decoding) if self._policy.mixed else 0
        self._unlooked = self._policy.intake_steps
        start = self.env.now
        batch = self._batch(n, chunks)
        seconds = self._table.mixed(batch)
        yield self.env.timeout(float(seconds[0]))
        self._note(start, 1, n, batch.prompt_tokens, seconds)
        if n:
            self._advance(1)
        for job, take in chunks:
            job.done += take
            if job.done >= job.prompt:
                self._reading.remove(job)
                self._first_token(job)

    def _batch(self, n: int, chunks: list[tuple[Request, int]]) -> Batch:
        """What a step does; ranks of attention data parallelism wait for the one that reads most."""
        tokens = [0] * self._policy.ranks
        for job, take in chunks:
            tokens[job.rank] += take
        read, many = sum(tokens), len(chunks)
        before = sum(job.done for job, _ in chunks) / many
        cached = self._cached / len(self._decoding) if n else 0.0
        groups = read / max(tokens) if len(tokens) > 1 else 0.0
        return Batch(n, cached, read, many, before, groups)

    def _decode_on(self) -> Process:
        """As many decode steps as are alike: until one ends, the cache is full, or a request comes that can begin."""
        n = self._rows or len(self._decoding)
        mean = self._cached / len(self._decoding)
        steps = self._ends[0][0] - self._steps
        if not self._reserves:
            steps = min(steps, self._steps_that_fit)
        unlooked = self._policy.intake_steps - self._unlooked if self._policy.intake_steps > 1 else steps
        steps = max(1, min(steps, unlooked, math.ceil(between(mean)[1] - mean)))
        start = self.env.now
        if steps == 1:
            seconds = self._table.decode(n, mean)
            yield self.env.timeout(float(seconds[0]))
        else:
            first, last = (float(self._table.decode(n, mean + more)[0]) for more in (0, steps - 1))
            more = (last - first) / (steps - 1)
            self._wake = self.env.event()
            yield self.env.timeout(steps * (first + last) / 2) | self._wake
            woken = self._wake.triggered
            self._wake = None
            if woken:
                elapsed = self.env.now - start
                steps = min(steps, steps_done(first, more, elapsed))
                rest = steps * (first + (steps - 1) / 2 * more) - elapsed
                if rest > 0:
                    yield self.env.timeout(rest)
            seconds = steps * self._table.decode(n, mean + (steps - 1) / 2)
        self._unlooked += steps
        self._note(start, steps, n, 0, seconds)
        self._advance(steps)

    def _note(self, start: float, steps: int, n: int, prompt_tokens: int, seconds: Float64) -> None:
        waiting = len(self._waiting) + len(self._incoming)
        grown = self._used
        if n and not self._reserves:
            grown += steps * len(self._decoding) * self._room.token_bytes
        self.log.add((start, self.env.now, steps, n, prompt_tokens, waiting, self._used, grown), seconds)

    # -- what a step takes ---------------------------------

    def _chunks(self) -> list[tuple[Request, int]]:
        """The chunks of prompts of the next step, (request, tokens): those begun first, then those that wait."""
        policy = self._policy
        looks = not self._decoding or self._unlooked >= policy.intake_steps
        self._unlooked = 0 if looks else self._unlooked
        if not self._reading and not (self._waiting and looks):
            return []
        if policy.static:
            return self._static_batch()
        left = [policy.token_budget] * policy.ranks
        if policy.mixed:
            left = [tokens - n for tokens, n in zip(left, self._decoders, strict=True)]
        whole = list(left)
        chunks: list[tuple[Request, int]] = []

        def take(job: Request) -> None:
            tokens = job.prompt - job.done
            if left[job.rank] <= 0:
                tokens = 0
            elif policy.chunked:
                tokens = min(tokens, left[job.rank])
            elif tokens > left[job.rank] and left[job.rank] < whole[job.rank]:
                tokens = 0  # it goes with the next step, alone if it is longer than the budget
            if tokens > 0:
                left[job.rank] -= tokens
                chunks.append((job, tokens))

        for job in self._reading:
            take(job)
        while looks and self._waiting and max(left) > 0:
            rank = self._rank_for(self._waiting[0])
            if rank is None or left[rank] <= 0:
                break
            job = self._waiting[0]
            if not policy.chunked and left[rank] < min(job.prompt, whole[rank]):
                break
            self._admit(self._waiting.popleft(), rank)
            self._reading.append(job)
            take(job)
        return chunks

    def _static_batch(self) -> list[tuple[Request, int]]:
        """The next batch where none is under way: prompts are padded to the longest, rows kept to the last token."""
        if self._decoding:
            return []
        batch: list[Request] = []
        prompt = answer = 0
        while self._waiting and len(batch) < self._policy.most_sequences:
            job = self._waiting[0]
            wide, long = max(prompt, job.prompt), max(answer, job.answer)
            if batch and (len(batch) + 1) * self._room.of(wide + long) > self._room.nbytes:
                break
            prompt, answer = wide, long
            batch.append(self._waiting.popleft())
        for job in batch:
            job.prompt = prompt
            self._admit(job, 0)
        self._rows = len(batch)
        self._reading += batch
        return [(job, prompt) for job in batch]

    # -- room ---------------------------------

    @property
    def _reserves(self) -> bool:
        return self._policy.reserve_answer or self._policy.static

    def _needs(self, job: Request) -> float:
        return self._room.of(job.prompt + (job.answer if self._reserves else 0))

    @property
    def _steps_that_fit(self) -> int:
        """Decode steps for which the cache has room; at least one, which `_make_room` has seen to."""
        each = len(self._decoding) * self._room.token_bytes
        return max(1, int((self._room.nbytes - self._used) / each)) if each else 2**31

    def _rank_for(self, job: Request) -> int | None:
        """The rank with the fewest sequences, if it takes one more and the cache has room for it.

        Where answers are not reserved, room is left for a block more of every sequence: else it would be preempted
        at once.
        """
        rank = min(range(len(self._loads)), key=self._loads.__getitem__) if len(self._loads) > 1 else 0
        if self._loads[rank] >= self._policy.most_sequences:
            return None
        under_way = sum(self._loads)
        spare = 0 if self._reserves or not under_way else self._policy.block_tokens * (under_way + 1)
        needed = self._needs(job) + spare * self._room.token_bytes
        return rank if self._used + needed <= self._room.nbytes else None

    def _admit(self, job: Request, rank: int) -> None:
        job.rank, job.held, job.done = rank, self._needs(job), 0
        self._loads[rank] += 1
        self._used += job.held

    def _leave(self, job: Request) -> None:
        self._loads[job.rank] -= 1
        self._used -= job.held

    def _make_room(self) -> None:
        """Preempts those that came last until every decoding sequence can cache one more token."""
        if self._reserves:
            return
        while self._decoding and self._used + len(self._decoding) * self._room.token_bytes > self._room.nbytes:
            self.log.preemptions += 1
            if self._reading:
                job = self._reading.pop()
            else:
                job = next(reversed(self._decoding))
                del self._decoding[job]
                self._settle(job)
                job.answer = job.ends_at - self._steps
                job.prompt += 1 + self._steps - job.joined_at  # its first token and those since are read again
                job.ends_at = -1
            self._leave(job)
            job.done = 0
            self._waiting.appendleft(job)

    # -- what a step makes ---------------------------------

    def _first_token(self, job: Request) -> None:
        """The token that reading a prompt makes."""
        self.log.tokens += 1
        job.answer -= 1
        self._hooks.first(job)
        if job.answer == 0:
            self._end(job)
        elif self._hooks.prefilled is not None:
            self._hooks.prefilled(self, job)
        else:
            self._join(job)

    def _join(self, job: Request) -> None:
        job.joined_at, job.ends_at = self._steps, self._steps + job.answer
        self._decoding[job] = None
        self._decoders[job.rank] += 1
        self._cached += job.prompt
        self._joined += 1
        heapq.heappush(self._ends, (job.ends_at, self._joined, job))

    def _advance(self, steps: int) -> None:
        """All decoding sequences make so many tokens; those that are through end."""
        n = len(self._decoding)
        self._steps += steps
        self._cached += steps * n
        self.log.tokens += steps * n
        if not self._reserves:
            self._used += steps * n * self._room.token_bytes
        while self._ends and self._ends[0][0] <= self._steps:
            ends_at, _, job = heapq.heappop(self._ends)
            if job.ends_at == ends_at and job in self._decoding:
                del self._decoding[job]
                self._settle(job)
                self._end(job)

    def _settle(self, job: Request) -> None:
        """Counts what a sequence that stops decoding has cached."""
        made = self._steps - job.joined_at
        self._decoders[job.rank] -= 1
        self._cached -= job.prompt + made
        if not self._reserves:
            job.held += made * self._room.token_bytes

    def _end(self, job: Request) -> None:
        self._leave(job)
        self._hooks.end(job)
        self._fetch_next()

    # -- caches from elsewhere ---------------------------------

    def _fetch_next(self) -> None:
        """Starts to fetch the caches of requests that were read elsewhere, in their order, while there is room."""
        while self._incoming and (rank := self._rank_for(self._incoming[0])) is not None:
            job = self._incoming.popleft()
            self._admit(job, rank)
            assert self._hooks.fetch is not None
            fetched = self._hooks.fetch(self, job)
            fetched.callbacks.append(lambda _, job=job: self._fetched(job))

    def _fetched(self, job: Request) -> None:
        self._ready.append(job)
        self._rouse()
