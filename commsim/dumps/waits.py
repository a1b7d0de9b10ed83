"""Waiting told from transferring: who entered each collective last, how long the others waited, what it then took.

Starts and ends on one clock say it directly: a rank waits until the last one has entered. Clocks of several hosts are
put together by the ends of collectives that no rank leaves before all have entered. Durations alone say it too: all
leave such a collective together, so who was in it the shortest entered last.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from commsim.dumps.call import RankCall, is_together
from commsim.dumps.job import DumpedJob, Match
from commsim.units import nanoseconds, seconds_of_ns

LEAST_ENDS = 3
"""Collectives that two clocks must share before one is moved."""

RESOLUTION_S = 1e-6
"""Of the coarsest clock that is read, whole microseconds: who entered within it of another entered with it."""


@dataclass(frozen=True, eq=False)
class CallWait:
    """A collective as its ranks lived through it: seconds by rank, and the rank that entered last.

    ``transfer_s`` is what it took once all had entered; None where the dump has no ends. ``cost_s``: how much later
    the last rank was than the middle one (the lower of two).
    """

    match: Match
    waiting_s: Mapping[int, float]
    last: int
    """Of those in ``latest`` one, where there are any."""
    latest: tuple[int, ...]
    """Ranks that came last, later than the middle one by more than the clock's resolution; empty where none did."""
    transfer_s: float | None
    cost_s: float
    start_s: Mapping[int, float] = field(default_factory=dict)
    """From the first call of the job, on one clock; empty where only durations are known."""


@dataclass(frozen=True)
class HostClock:
    """How far the clock of a host is ahead of the first host's, in seconds, from so many ends."""

    host: str
    ahead_s: float
    spread_s: float
    ends: int


def waits_of(job: DumpedJob) -> tuple[list[CallWait], list[HostClock]]:
    """Every collective that two or more ranks have, and the clocks that were moved.

    Of hosts that asked GPUs for calls, durations say more than starts, where there are any.
    """
    clocks = _clocks(job)
    ahead = {rank: nanoseconds(clocks[host].ahead_s) for rank, host in job.hosts.items() if host in clocks}
    timed = not job.enqueued or not any(c.seconds is not None for m in job.matches for c in m.calls.values())
    waits = []
    for match in job.matches:
        wait = _by_starts(match, ahead, job) if timed else None
        if wait is None:
            wait = _by_durations(match)
        if wait is not None:
            waits.append(wait)
    return waits, list(clocks.values())


def _by_starts(match: Match, ahead: Mapping[int, int], job: DumpedJob) -> CallWait | None:
    calls = match.calls
    if len(calls) < 2 or any(call.start_ns is None for call in calls.values()):
        return None
    if not is_together(match.any.operation) and any(call.end_ns is None for call in calls.values()):
        return None  # its ranks may have left before the last one came
    starts = {rank: (call.start_ns or 0) - ahead.get(rank, 0) for rank, call in calls.items()}
    last = max(starts, key=lambda rank: (starts[rank], rank))
    ends = {rank: call.end_ns - ahead.get(rank, 0) for rank, call in calls.items() if call.end_ns is not None}
    waiting = {
        rank: seconds_of_ns(max(min(starts[last], ends.get(rank, starts[last])), start) - start)
        for rank, start in starts.items()
    }
    transfer = None
    if len(ends) == len(calls):
        transfer = seconds_of_ns(max(median(end - starts[last] for end in ends.values()), 0))
    order = sorted(starts.values())
    cost = seconds_of_ns(order[-1] - order[(len(order) - 1) // 2])
    since = {rank: seconds_of_ns(start - job.origin_ns) for rank, start in starts.items()}
    before = {rank: seconds_of_ns(starts[last] - start) for rank, start in starts.items()}
    return CallWait(match, waiting, last, _latest(before, cost), transfer, cost, since)


def _latest(before_s: Mapping[int, float], cost_s: float) -> tuple[int, ...]:
    """Who came last, of ranks that came so many seconds before the last one."""
    return tuple(r for r, seconds in before_s.items() if seconds <= RESOLUTION_S) if cost_s > RESOLUTION_S else ()


def _by_durations(match: Match) -> CallWait | None:
    durations = {rank: d for rank, call in match.calls.items() if (d := call.duration_s) is not None}
    if len(durations) < max(2, len(match.calls)) or not is_together(match.any.operation):
        return None
    last = min(durations, key=lambda rank: (durations[rank], rank))
    order = sorted(durations.values(), reverse=True)
    waiting = {rank: seconds - durations[last] for rank, seconds in durations.items()}
    cost = order[(len(order) - 1) // 2] - durations[last]
    return CallWait(match, waiting, last, _latest(waiting, cost), durations[last], cost)


def without_start(waits: Sequence[CallWait]) -> Sequence[CallWait]:
    """Those after the first collective, barriers before it apart: the start of the recording is in those.

    All where less than two would be left.
    """
    first = next((i for i, wait in enumerate(waits) if wait.match.any.operation != "barrier"), 0)
    return waits[first + 1 :] if len(waits) > first + 2 else waits


def _clocks(job: DumpedJob) -> dict[str, HostClock]:
    """How far each host's clock is ahead; empty where there is one host, or none is named."""
    hosts = job.hosts
    if len({host for host in hosts.values() if host}) < 2:
        return {}
    pairs: dict[tuple[str, str], list[float]] = defaultdict(list)
    for match in job.matches:
        if is_together(match.any.operation):
            ends = _ends_by_host(match.calls.values(), hosts)
            first = min(ends, default="")
            for host, end in ends.items():
                if host != first:
                    pairs[first, host].append(seconds_of_ns(end - ends[first]))
    return _joined({pair: ends for pair, ends in pairs.items() if len(ends) >= LEAST_ENDS})


def _ends_by_host(calls: Iterable[RankCall], hosts: Mapping[int, str]) -> dict[str, float]:
    by: dict[str, list[int]] = defaultdict(list)
    for call in calls:
        if call.end_ns is not None and hosts.get(call.rank):
            by[hosts[call.rank]].append(call.end_ns)
    return {host: median(ends) for host, ends in by.items()}


def _joined(pairs: Mapping[tuple[str, str], Sequence[float]]) -> dict[str, HostClock]:
    """All clocks against the first, along the pairs that share collectives."""
    beside: dict[str, list[tuple[str, float, float, int]]] = defaultdict(list)
    for (first, other), differences in pairs.items():
        ahead = median(differences)
        spread = median([abs(value - ahead) for value in differences])
        beside[first].append((other, ahead, spread, len(differences)))
        beside[other].append((first, -ahead, spread, len(differences)))
    clocks: dict[str, HostClock] = {}
    waiting = [min(beside)] if beside else []
    for host in waiting:
        clocks.setdefault(host, HostClock(host, 0.0, 0.0, 0))
        for other, ahead, spread, count in beside[host]:
            if other not in clocks:
                clocks[other] = HostClock(other, clocks[host].ahead_s + ahead, spread, count)
                waiting.append(other)
    return clocks


@dataclass(frozen=True)
class RankTime:
    """What one rank did in collectives: seconds of waiting and of transfer, how often it was last, at what cost.

    ``transfer_s``: None where it is known of none of them.
    """

    rank: int
    calls: int
    waiting_s: float
    transfer_s: float | None
    times_last: int
    cost_s: float


def rank_times(waits: Sequence[CallWait]) -> list[RankTime]:
    """Of every rank, in order."""
    calls, last = defaultdict[int, int](int), defaultdict[int, int](int)
    waiting, transfer, cost = (defaultdict[int, float](float) for _ in range(3))
    for wait in waits:
        for rank in wait.latest:
            last[rank] += 1
            cost[rank] += wait.cost_s
        for rank, seconds in wait.waiting_s.items():
            calls[rank] += 1
            waiting[rank] += seconds
            if wait.transfer_s is not None:
                transfer[rank] += wait.transfer_s
    return [RankTime(r, calls[r], waiting[r], transfer.get(r), last[r], cost[r]) for r in sorted(calls)]
