"""Several jobs on one network at once: what each takes beside the others, and what it takes alone.

Jobs share links and nothing else: ranks of two jobs may be the same, and then their messages meet on the GPU's links
and not in its cores. Each job is simulated once alone, with its own start, and once with all others and the background;
its slowdown is the ratio of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from commsim.collectives.schedule import Schedule, relabel
from commsim.engine.evaluate import Contention
from commsim.engine.fair import QUANTUM, connections, simulate_fair
from commsim.engine.memory import estimate_bytes, require_memory
from commsim.engine.program import Float64, Int32, Int64, Program, build_program, pointers
from commsim.engine.simulate import Outcome, simulate
from commsim.engine.variation import Variation, more_connections
from commsim.errors import InfeasibleError
from commsim.topology.graph import Topology

Column = TypeVar("Column", Int64, Int32)

PIECE_BYTES = 64 << 10
"""With FIFO links a background flow is cut into pieces of this size: a message of 1 GiB would hold a link for all."""

WINDOW = 8
"""Pieces of a flow without a rate that are under way at once, as NCCL's slots between two ranks."""

_MOST_PIECES = 1 << 17
_MOST_SPANS = 12


@dataclass(frozen=True, eq=False)
class Job:
    """A collective of its own on some ranks: rank r of the schedule is ``ranks[r]`` of the topology."""

    name: str
    schedule: Schedule
    ranks: Int64
    start_s: float = 0.0


@dataclass(frozen=True)
class BackgroundFlow:
    """Background traffic from one rank to another: ``nbytes`` once, or ``rate`` bytes/s until all jobs have ended."""

    src: int
    dst: int
    nbytes: int | None = None
    rate: float | None = None
    start_s: float = 0.0


@dataclass(frozen=True)
class Meeting:
    """Links that a job shares: how many, and the one that all who cross it keep busy longest (-1 if there is none)."""

    links: int
    link: int


@dataclass(frozen=True, eq=False)
class JobTimes:
    """What became of the jobs in one run: seconds from each job's start to its end, (jobs,), and where they met."""

    alone_s: Float64
    together_s: Float64
    meetings: tuple[Meeting, ...]
    messages: int

    @property
    def slowdown(self) -> Float64:
        """Together over alone, (jobs,); 1 for a job that has nothing to send."""
        return np.divide(self.together_s, self.alone_s, out=np.ones_like(self.alone_s), where=self.alone_s > 0)


@dataclass(frozen=True, eq=False)
class JobProgram:
    """One job or flow as a program on the topology's links, with its connections; links of its own follow those."""

    program: Program
    connection: Int32
    start_s: float

    @classmethod
    def from_start(cls, program: Program, connection: Int32, start_s: float) -> JobProgram:
        """A program as it is from a start on: who waits for nobody waits for that."""
        delay = program.delay_s + np.where(program.indeg == 0, start_s, 0.0)
        return cls(replace(program, delay_s=delay), connection, start_s)


def run_together(
    jobs: Sequence[Job],
    flows: Sequence[BackgroundFlow],
    topology: Topology,
    contention: Contention = "fifo",
    *,
    variation: Variation | None = None,
    run: int = 0,
    quantum: float = QUANTUM,
) -> JobTimes:
    """All jobs and flows in one simulation, and every job in one of its own.

    ``run`` numbers the draws of the ``variation``, which concerns the jobs and is the same alone and together. A FIFO
    link serves whole messages in turn, fair sharing all that cross a link. InfeasibleError when the background leaves
    so little room that the jobs do not end.
    """
    parts = [job_program(job, topology, variation, (run, i)) for i, job in enumerate(jobs)]
    return run_programs(parts, flows, topology, contention, quantum)


def run_programs(
    parts: Sequence[JobProgram],
    flows: Sequence[BackgroundFlow],
    topology: Topology,
    contention: Contention = "fifo",
    quantum: float = QUANTUM,
) -> JobTimes:
    """`run_together` for jobs that are programs already, whatever library made them."""
    rows = sum(part.program.rows for part in parts)
    require_memory(estimate_bytes(rows), rows)  # each was small enough alone; side by side they stand there once more
    starts = np.array([part.start_s for part in parts])
    alone = np.array([_ends(_simulated([part], contention, quantum), [part])[0] for part in parts]) - starts
    paced = [flow for flow in flows if flow.rate is not None]
    fixed = [_flow_part(flow, topology, contention, flow.nbytes or 0) for flow in flows if flow.rate is None]
    horizon = 2.0 * float((alone + starts).max(initial=0.0))
    for _ in range(_MOST_SPANS):
        rest = [
            _flow_part(flow, topology, contention, int((flow.rate or 0.0) * (horizon - flow.start_s)))
            for flow in paced
            if flow.start_s < horizon
        ]
        everyone = [*parts, *fixed, *rest]
        outcome = _simulated(everyone, contention, quantum)
        ends = _ends(outcome, parts)
        if not paced or ends.max(initial=0.0) <= horizon:
            break
        horizon = 2.0 * max(horizon, float(ends.max()))
    else:
        raise InfeasibleError(
            "the background flows leave the jobs so little room that they do not end: lower the rates or move the flows"
        )
    return JobTimes(alone, ends - starts, tuple(_meetings(everyone, len(parts))), outcome.messages)


def job_program(job: Job, topology: Topology, variation: Variation | None, draw: tuple[int, ...]) -> JobProgram:
    schedule = relabel(job.schedule, job.ranks, world_size=topology.world_size)
    program = build_program(schedule, topology)
    conn = connections(schedule, program)
    if variation is not None:
        program, first = variation.of(program, schedule.src, schedule.dst, topology, variation.generator(*draw))
        conn = more_connections(conn, first)
    return JobProgram.from_start(program, conn, job.start_s)


def _flow_part(flow: BackgroundFlow, topology: Topology, contention: Contention, nbytes: int) -> JobProgram:
    """One message under fair sharing, over a link of the flow's rate; pieces with FIFO links, sent at that rate."""
    table = topology.routes([flow.src], [flow.dst])
    bandwidth, latency, way = topology.link_bandwidth, topology.link_latency, table.link
    sizes, delay, after = np.array([nbytes]), np.array([flow.start_s]), np.zeros(0, np.int64)
    if contention == "fair":
        if flow.rate is not None:
            way = np.append(way, bandwidth.size).astype(np.int32)
            bandwidth, latency = np.append(bandwidth, flow.rate), np.append(latency, 0.0)
    else:
        piece = max(PIECE_BYTES, -(-nbytes // _MOST_PIECES))
        count = max(1, -(-nbytes // piece))
        sizes = np.full(count, piece)
        sizes[-1] = nbytes - piece * (count - 1)
        if flow.rate is not None:
            delay = flow.start_s + np.arange(count) * (piece / flow.rate)
        else:
            delay = np.where(np.arange(count) < WINDOW, flow.start_s, 0.0)
            after = np.arange(WINDOW, count)
    rows = sizes.size
    program = Program(
        nbytes=sizes,
        route=np.zeros(rows, np.int32),
        delay_s=delay,
        succ_ptr=np.minimum(np.arange(rows + 1), after.size),
        succ_idx=after.astype(np.int32),
        route_ptr=np.array([0, way.size], np.int64),
        route_link=way,
        link_bandwidth=bandwidth,
        link_latency=latency,
    )
    return JobProgram(program, np.zeros(rows, np.int32), flow.start_s)


def _simulated(parts: Sequence[JobProgram], contention: Contention, quantum: float) -> Outcome:
    program, conn = _side_by_side(parts)
    if contention == "fifo":
        return simulate(program)  # hops are not merged, so that a job that meets nobody takes the same to the last bit
    return simulate_fair(program, conn, quantum=quantum)


def _side_by_side(parts: Sequence[JobProgram]) -> tuple[Program, Int32]:
    """One program of all parts, whose ops do not wait for each other, on the same links; and its connections."""
    if len(parts) == 1:
        return parts[0].program, parts[0].connection
    programs = [part.program for part in parts]
    shared = min(p.links for p in programs)
    rows = pointers([p.rows for p in programs])
    edges = pointers([p.succ_idx.size for p in programs])
    routes = pointers([p.route_ptr.size - 1 for p in programs])
    slots = pointers([p.route_link.size for p in programs])
    own = pointers([p.links - shared for p in programs])
    program = Program(
        nbytes=np.concatenate([p.nbytes for p in programs]),
        route=_shifted([p.route for p in programs], routes),
        delay_s=np.concatenate([p.delay_s for p in programs]),
        succ_ptr=np.append(_shifted([p.succ_ptr[:-1] for p in programs], edges), edges[-1]),
        succ_idx=_shifted([p.succ_idx for p in programs], rows),
        route_ptr=np.append(_shifted([p.route_ptr[:-1] for p in programs], slots), slots[-1]),
        route_link=_shifted([p.route_link for p in programs], own, shared),
        link_bandwidth=np.concatenate(
            [programs[0].link_bandwidth[:shared], *(p.link_bandwidth[shared:] for p in programs)]
        ),
        link_latency=np.concatenate([programs[0].link_latency[:shared], *(p.link_latency[shared:] for p in programs)]),
    )
    lines = pointers([int(part.connection.max(initial=-1)) + 1 for part in parts])
    return program, _shifted([part.connection for part in parts], lines)


def _shifted(columns: Sequence[Column], by: Int64, least: int = 0) -> Column:
    """One column of several, each raised where it is at least ``least``."""
    pairs = zip(columns, by[:-1], strict=True)
    raised = [np.where(column < least, column, column + more) for column, more in pairs]
    return np.concatenate(raised).astype(columns[0].dtype)


def _ends(outcome: Outcome, parts: Sequence[JobProgram]) -> Float64:
    """When each of the first parts of a program ended, (parts,); one without ops as it started."""
    ends, first = [], 0
    for part in parts:
        ends.append(float(outcome.end_s[first : first + part.program.rows].max(initial=part.start_s)))
        first += part.program.rows
    return np.array(ends)


def _meetings(parts: Sequence[JobProgram], jobs: int) -> list[Meeting]:
    """Where each of the first ``jobs`` parts meets others."""
    shared = min(part.program.links for part in parts)
    busy = np.zeros(shared)
    used = np.zeros((len(parts), shared), bool)
    for i, part in enumerate(parts):
        nbytes = part.program.link_bytes()[:shared]
        used[i] = nbytes > 0
        busy += nbytes / part.program.link_bandwidth[:shared]
    crowded = used.sum(axis=0) > 1
    meetings = []
    for i in range(jobs):
        links = np.flatnonzero(used[i] & crowded)
        meetings.append(Meeting(links.size, int(links[np.argmax(busy[links])]) if links.size else -1))
    return meetings
