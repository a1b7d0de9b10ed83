"""A run: requests on replicas of one model, in one pool or with prefill and decode apart, as simpy processes.

What it is not: what a step takes comes from a step model, what one step holds from a `Scheduler`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from commsim.errors import InfeasibleError
from commsim.generation.policy import Policy
from commsim.generation.request import Hooks, Request
from commsim.generation.requests import Requests
from commsim.generation.run_result import RunResult, Steps
from commsim.generation.scheduler import CacheRoom, Scheduler
from commsim.generation.step_table import StepSeconds, StepTable


@dataclass(frozen=True, eq=False)
class EnginePool:
    """Replicas that are alike: their step model, cache and policy. A `StepTable` may be shared by several runs."""

    model: StepSeconds | StepTable
    room: CacheRoom
    policy: Policy = field(default_factory=Policy)
    replicas: int = 1

    def alone(self) -> EnginePool:
        """The first of its replicas."""
        return replace(self, replicas=1)

    @property
    def table(self) -> StepTable:
        """What steps take, by table."""
        return self.model if isinstance(self.model, StepTable) else StepTable(self.model)


Send = Callable[[Any, int, int, int], Generator[Any, Any, None]]
"""(environment, prefill replica, decode replica, tokens) -> what a process waits for until a cache has arrived."""


def simulate(
    model: StepSeconds | StepTable, room: CacheRoom, requests: Requests, policy: Policy | None = None, replicas: int = 1
) -> RunResult:
    """A run on one pool; InfeasibleError where a request does not fit the cache.

    >>> from commsim.generation.requests import drawn
    >>> run = simulate(lambda batch: 0.01, CacheRoom(10_000), drawn(100, 11, 8).closed(4))
    >>> run.count, round(run.tpot_s, 9), round(run.duration_s, 9)
    (8, 0.01, 0.22)
    """
    return simulate_pool(EnginePool(model, room, policy or Policy(), replicas), requests)


def simulate_pool(pool: EnginePool, requests: Requests) -> RunResult:
    """The same of a pool."""
    return _Run(requests, pool).result()


def simulate_split(prefill: EnginePool, decode: EnginePool, send: Send, requests: Requests) -> RunResult:
    """A run whose prompts are read by one pool, whose caches are sent, and whose answers another pool makes.

    The prefill pool makes the first token; its cache is held until the decode pool has it.
    """
    return _Run(requests, prefill, decode, send).result()


class _Run:
    """The processes of one run and what they write down."""

    def __init__(
        self, requests: Requests, pool: EnginePool, decode: EnginePool | None = None, send: Send | None = None
    ) -> None:
        import simpy

        _check_room(requests, [pool] if decode is None else [pool, decode])
        self.requests, self.env = requests, simpy.Environment()
        count = requests.count
        self.arrival, self.first, self.last = (np.full(count, np.nan) for _ in range(3))
        self.sent = np.zeros(count)  # seconds of the cache's way
        self._send, self._next, self._before_s = send, 0, pool.policy.before_s
        hooks = Hooks(self._first_token, self._end, None if decode is None else self._prefilled)
        self.tables = [pool.table]
        self.readers = self._engines(pool, self.tables[0], hooks)
        self.decoders: list[Scheduler] = []
        if decode is not None:
            self.tables.append(self.tables[0] if decode.model is pool.model else decode.table)
            fetching = Hooks(self._first_token, self._end, fetch=self._fetch)
            self.decoders = self._engines(decode, self.tables[1], fetching)
        self._prompts, self._answers = requests.prompt.tolist(), requests.answer.tolist()
        if requests.arrival_s is None:
            for _ in range(min(requests.concurrency, count)):
                self._submit()
        else:
            self.env.process(self._arrivals(requests.arrival_s.tolist()))
        self.env.run()

    def _engines(self, pool: EnginePool, table: StepTable, hooks: Hooks) -> list[Scheduler]:
        return [Scheduler(self.env, table, pool.room, pool.policy, hooks, i) for i in range(pool.replicas)]

    def _arrivals(self, times: Sequence[float]) -> Generator[Any, Any, None]:
        for at in times:
            if at > self.env.now:
                yield self.env.timeout(at - self.env.now)
            self._submit()

    def _submit(self) -> None:
        """Sends the next request; that of a closed loop is prepared while the one before it is answered, so that its
        client waits for that, but no place in a step is left empty."""
        number, self._next = self._next, self._next + 1
        beside = self.requests.arrival_s is None and number >= self.requests.concurrency
        self.arrival[number] = self.env.now - (self._before_s if beside else 0.0)
        if self._before_s > 0 and not beside:
            self.env.timeout(self._before_s).callbacks.append(lambda _: self._deal(number))
        else:
            self._deal(number)

    def _deal(self, number: int) -> None:
        """A request goes to the replica that has the fewest."""
        least_busy(self.readers).submit(Request(number, self._prompts[number], self._answers[number]))

    # -- what engines tell ---------------------------------

    def _first_token(self, job: Request) -> None:
        if np.isnan(self.first[job.number]):  # of one that was preempted it is made already
            self.first[job.number] = self.env.now

    def _end(self, job: Request) -> None:
        self.last[job.number] = self.env.now
        if self.requests.arrival_s is None and self._next < self.requests.count:
            self._submit()

    def _prefilled(self, engine: Scheduler, job: Request) -> None:
        least_busy(self.decoders).receive(Request(job.number, job.prompt, job.answer, home=(engine, job)))

    def _fetch(self, engine: Scheduler, job: Request) -> Any:
        return self.env.process(self._way(engine, job))

    def _way(self, engine: Scheduler, job: Request) -> Generator[Any, Any, None]:
        """Sends a cache, then frees it where it was."""
        assert job.home is not None
        assert self._send is not None
        origin, old = job.home
        start = self.env.now
        yield from self._send(self.env, origin.number, engine.number, job.prompt)
        self.sent[job.number] = self.env.now - start
        origin.release(old)

    def result(self) -> RunResult:
        """What came out."""
        pools = [self.readers, *([self.decoders] if self.decoders else [])]
        return RunResult(
            prompt=self.requests.prompt,
            answer=self.requests.answer,
            arrival_s=self.arrival,
            first_s=self.first,
            end_s=self.last,
            sent_s=self.sent,
            steps=tuple(Steps.of(engines, table.parts) for engines, table in zip(pools, self.tables, strict=True)),
            asked=sum(table.asked for table in dict.fromkeys(self.tables)),
        )


def least_busy(engines: Sequence[Scheduler]) -> Scheduler:
    """The first of those with the fewest requests."""
    return engines[0] if len(engines) == 1 else min(engines, key=lambda engine: engine.outstanding)


def _check_room(requests: Requests, pools: Sequence[EnginePool]) -> None:
    """InfeasibleError for a request that would never fit the cache of a pool."""
    for pool in pools:
        room, longest = pool.room, requests.longest
        if room.of(longest) > room.nbytes:
            left = room.nbytes - room.sequence_bytes
            most = f"{max(0, int(left / room.token_bytes)):,}" if room.token_bytes else "none"
            raise InfeasibleError(
                f"found a request of {longest:,} tokens, prompt and answer, expected at most {most}: as many as the "
                "cache of a replica holds beside the weights"
            )
