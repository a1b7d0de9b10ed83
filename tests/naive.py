"""Obvious versions of what the package does quickly, to compare with.

`simulate` is the engine's semantics as simpy processes: one per message, one Resource per link. `simulate_exactly` is
the same in fractions, with the rule for events at one time.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from fractions import Fraction
from heapq import heappush
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import simpy

from commsim.engine.program import Program


@dataclass
class Times:
    """When each op was ready and ended, (M,), and the bytes that each link carried, (L,)."""

    ready_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
    link_bytes: list[int]


def _at(env: Any, time_s: float) -> Any:
    """An event at an absolute time; ``env.timeout(time_s - env.now)`` would round."""
    event = simpy.Event(env)
    event._ok, event._value = True, None
    heappush(env._queue, (time_s, simpy.events.NORMAL, next(env._eid), event))
    return event


def simulate(program: Program, *, store_and_forward: bool = False) -> Times:
    """FIFO links, virtual cut-through (or store and forward)."""
    p, env = program, simpy.Environment()
    links = [simpy.Resource(env) for _ in range(p.links)]
    ended = [env.event() for _ in range(p.rows)]
    times = Times(np.zeros(p.rows), np.zeros(p.rows), [0] * p.links)
    before: list[list[int]] = [[] for _ in range(p.rows)]
    for op, (first, last) in enumerate(pairwise(p.succ_ptr)):
        for s in p.succ_idx[first:last]:
            before[s].append(op)

    def release(link: int, request: Any, time_s: float) -> Generator[Any, Any, None]:
        yield _at(env, time_s)
        links[link].release(request)

    def message(op: int) -> Generator[Any, Any, None]:
        for b in before[op]:
            yield ended[b]
        times.ready_s[op] = env.now
        yield _at(env, env.now + p.delay_s[op])
        tail = 0.0
        r = p.route[op]
        for link in p.route_link[p.route_ptr[r] : p.route_ptr[r + 1]]:
            request = links[link].request()
            yield request
            sent = max(env.now + p.nbytes[op] * (1.0 / p.link_bandwidth[link]), tail)
            env.process(release(link, request, sent))
            times.link_bytes[link] += int(p.nbytes[op])
            tail = sent + p.link_latency[link]
            yield _at(env, tail if store_and_forward else env.now + p.link_latency[link])
        if tail:
            yield _at(env, tail)
        times.end_s[op] = env.now
        ended[op].succeed()

    for op in range(p.rows):
        env.process(message(op))
    env.run()
    return times


def simulate_exactly(
    program: Program, seconds_per_byte: list[Fraction], latency_s: list[Fraction], delay_s: list[Fraction]
) -> list[Fraction]:
    """When each op ends, (M,), in fractions, so that equal times are equal: of those the smallest (op, hop) is first.

    The program gives bytes, routes and order; its times in floats are not looked at.
    """
    p = program
    free, tail = [Fraction(0)] * p.links, [Fraction(0)] * p.rows
    ready, waiting = [Fraction(0)] * p.rows, p.indeg.tolist()
    events = [(delay_s[op], op, 0) for op in range(p.rows) if not waiting[op]]
    while events:
        t, op, hop = min(events)
        events.remove((t, op, hop))
        route = p.route_link[p.route_ptr[p.route[op]] : p.route_ptr[p.route[op] + 1]].tolist()
        if hop < len(route):
            link = route[hop]
            start = max(t, free[link])
            free[link] = max(start + int(p.nbytes[op]) * seconds_per_byte[link], tail[op])
            tail[op] = free[link] + latency_s[link]
            if hop + 1 < len(route):
                events.append((start + latency_s[link], op, hop + 1))
                continue
        else:
            tail[op] = t
        for s in p.succ_idx[p.succ_ptr[op] : p.succ_ptr[op + 1]].tolist():
            ready[s], waiting[s] = max(ready[s], tail[op]), waiting[s] - 1
            if not waiting[s]:
                events.append((ready[s] + delay_s[s], s, 0))
    return tail
