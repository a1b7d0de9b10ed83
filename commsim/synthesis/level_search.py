"""The schedule of a large machine by levels, and what it reaches: whole, or folded where a shift of nodes is no change.

Folded means: what the first nodes do is simulated, on links that stand for all that a shift maps onto each other. It is
what the whole takes where all pieces are of one length, as all nodes then do the same at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from commsim.collectives.dependencies import Dependencies, from_edges
from commsim.collectives.schedule import Schedule
from commsim.collectives.semantics import DIVIDED, PAIRWISE, RING_PASSES
from commsim.engine.program import Program, pointers
from commsim.errors import InfeasibleError
from commsim.synthesis.by_levels import (
    even_bytes,
    gather_rows,
    order_of,
    reduce_rows,
    ring_shares,
    schedule_of,
    shared_bytes,
    slice_lengths,
)
from commsim.synthesis.in_steps import run_in_steps
from commsim.synthesis.laying import Laid
from commsim.synthesis.levels import Levels, levels_of
from commsim.synthesis.limit import CollectiveLimit, limit_of
from commsim.synthesis.machine import machine_network
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.node_exchange import exchange_rows, exchange_schedule
from commsim.topology.graph import Topology
from commsim.topology.kinds import Int64

COLLECTIVES_BY_LEVELS = (*sorted(RING_PASSES), "all_reduce", *(PAIRWISE & DIVIDED))
"""What plans by levels are made for."""

MOST_ROWS = 16_000_000
"""Rows of a plan at most: some 4 GiB with all that a simulation needs."""
_HEADS = 2
"""Chains that each piece goes along at once: half as many hops as round a ring; more load links between leaves."""
_ENOUGH = 0.02
"""Share above the limit below which no plan of more pieces is tried."""
_PIECES = (1, 2, 4, 8)
"""Pieces of each block of an all_gather."""
_SLICES = (1, 2, 6, 12)
"""Slices of an all_reduce where all nodes are alike; where some are weak it takes short ones besides."""


@dataclass(frozen=True, eq=False)
class LevelPlan:
    """What a plan by levels takes: ``laid`` is the schedule with its ways, None where it is folded (``period`` nodes).

    ``rows`` are those that were simulated; ``pieces``: of each block, or slices of an all_reduce.
    """

    network: FlowNetwork
    limit: CollectiveLimit
    collective: str
    nbytes: int
    seconds: float
    rows: int
    pieces: int
    laid: Laid | None
    period: int | None

    @property
    def limit_s(self) -> float:
        """What no schedule beats."""
        return self.limit.seconds(self.nbytes)

    @property
    def ratio(self) -> float:
        """Reached over the limit."""
        return self.seconds / self.limit_s


def plan_by_levels(
    topology: Topology,
    collective: str,
    nbytes: int,
    *,
    budget_s: float = 300.0,
    fold: bool | None = None,
    track: Callable[[LevelPlan], None] | None = None,
) -> LevelPlan:
    """The best plan for all ranks of a machine that is found in some time; InfeasibleError where there is none.

    ``fold``: whether only what the first nodes do is simulated; None: where the whole has too many rows.
    """
    if collective not in COLLECTIVES_BY_LEVELS:
        raise InfeasibleError(f"{collective}: found no plan by levels, expected {', '.join(COLLECTIVES_BY_LEVELS)}")
    started = time.process_time()
    levels = levels_of(topology)
    known: tuple[FlowNetwork, CollectiveLimit] | None = None
    best: LevelPlan | None = None
    for pieces, rows in _choices(levels, collective):
        period = _period(levels) if fold or (fold is None and rows > MOST_ROWS) else None
        if period is None and (fold or rows > MOST_ROWS):
            break
        if period is not None and rows * period // levels.m > MOST_ROWS:
            break
        if known is None:  # large machines without a plan need not wait for it
            network = machine_network(topology)
            known = network, limit_of(network, collective, effort="flow", latency=False)
        one = _plan(levels, known, collective, nbytes, pieces, period)
        if best is None or one.seconds < best.seconds:
            best = one
            if track is not None:
                track(one)
        used = time.process_time() - started
        if best.ratio <= 1 + _ENOUGH or used * 3 > budget_s:
            break
    if best is None:
        raise InfeasibleError(
            f"{topology.name}: a plan of {collective} for {levels.m} nodes of {levels.G} ranks has more than "
            f"{MOST_ROWS} rows, and no shift of nodes maps the machine onto itself, by which it could be folded"
        )
    return best


def one_slice(topology: Topology, nbytes: int) -> Schedule:
    """The all_reduce of a plan in one slice: the ways of all others, which differ in when they go."""
    table, weights = reduce_rows(levels_of(topology), 1, heads=_HEADS)
    return schedule_of(table, "all_reduce", topology.world_size, shared_bytes(nbytes, weights))[0]


def _choices(levels: Levels, collective: str) -> Iterator[tuple[int, int]]:
    """(pieces, rows about) of plans, the shortest first."""
    m, G = levels.m, levels.G
    ring = m * m * G * G
    if collective == "all_to_all":
        yield 1, m * m * G * G * 2
    elif collective == "all_reduce":
        if levels.alike(levels.order.tolist()):
            yield from ((slices, 2 * ring * slices) for slices in _SLICES)
        else:
            sorts = len(ring_shares(levels))
            yield from ((slices, 2 * ring * len(slice_lengths(slices)) * sorts) for slices in _SLICES[2:])
    else:
        yield from ((pieces, ring * pieces) for pieces in _PIECES)


def _period(levels: Levels) -> int | None:
    """Nodes by which the machine can be shifted onto itself, with no node like no other."""
    ranks = levels.topology.period_ranks
    if ranks is None or (levels.order != np.arange(levels.m)).any():
        return None
    nodes = ranks // levels.G
    return nodes if nodes < levels.m and not levels.m % nodes else None


def _plan(
    levels: Levels,
    known: tuple[FlowNetwork, CollectiveLimit],
    collective: str,
    nbytes: int,
    pieces: int,
    period: int | None,
) -> LevelPlan:
    n, (network, limit) = levels.topology.world_size, known
    if collective == "all_to_all":
        rows = exchange_rows(levels, period)
        block = max(1, -(-nbytes // n))
        size = block * n
        moved = np.full(rows.src.size, block)
        held = np.flatnonzero(rows.before >= 0)
        pairs, ends, step = (rows.before[held], held), (rows.src, rows.dst, rows.rail), rows.step
        op = np.zeros_like(step)
    else:
        size = nbytes
        if collective == "all_reduce":
            table, weights = reduce_rows(levels, pieces, heads=_HEADS, period=period)
            lengths = shared_bytes(nbytes, weights)
        else:
            table = gather_rows(levels, pieces, backwards=collective == "reduce_scatter", heads=_HEADS, period=period)
            lengths = even_bytes(nbytes, n, pieces)
        moved, pairs, step, op = lengths[table.chunk], table.pairs, table.step, table.op
        ends = (table.src, table.dst, table.rail)
    place, ways = levels.ways(*ends)
    if period is not None:
        stands_for = _stands_for(levels.topology, period * levels.G, levels.m // period, ways)
        ways = [tuple(stands_for[list(way)].tolist()) for way in ways]
        seconds = _seconds(levels.topology, (moved, place), order_of(ends[:2], step, op, n), ways, pairs)
        return LevelPlan(network, limit, collective, size, seconds, step.size, pieces, None, period)
    if collective == "all_to_all":
        schedule, order = exchange_schedule(rows, levels, block)
    else:
        schedule, order = schedule_of(table, collective, n, lengths)
    seconds = _whole_seconds(levels.topology, schedule, place[order], ways)
    laid = Laid(schedule, place[order], _over_edges(network, ways))
    return LevelPlan(network, limit, collective, size, seconds, schedule.rows, pieces, laid, None)


def _over_edges(network: FlowNetwork, ways: list[tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Ways over links as ways over the edges that they are of."""
    edge = {link: e for e, links in enumerate(network.links) for link in links}
    return tuple(tuple(edge[link] for link in way) for way in ways)


def _stands_for(topology: Topology, shift: int, images: int, ways: list[tuple[int, ...]]) -> Int64:
    """The first of the links that a shift maps onto each other, (L,); of those on ways there must be `images` each."""
    image = topology.link_image(shift).astype(np.int64)
    first, jump = np.minimum(np.arange(image.size), image), image
    for _ in range(images.bit_length()):
        first, jump = np.minimum(first, first[jump]), jump[jump]
    used = np.unique(np.array([link for way in ways for link in way], np.int64))
    counts = np.bincount(first)
    if (counts[first[used]] != images).any():
        raise InfeasibleError(f"{topology.name}: some link lies where a shift by {shift} ranks leaves it")
    return first


def _seconds(
    topology: Topology,
    rows: tuple[Int64, Int64],
    order: Int64,
    ways: list[tuple[int, ...]],
    pairs: tuple[Int64, Int64],
) -> float:
    """When the last of some rows ends: their bytes and ways, their order, and who waits for whom."""
    nbytes, place = rows
    number = np.empty(order.size, np.int64)
    number[order] = np.arange(order.size)
    return _run(topology, nbytes[order], place[order], ways, from_edges(order.size, number[pairs[0]], number[pairs[1]]))


def _whole_seconds(topology: Topology, schedule: Schedule, place: Int64, ways: list[tuple[int, ...]]) -> float:
    return _run(topology, schedule.payload_bytes(), place, ways, schedule.dependencies())


def _run(topology: Topology, nbytes: Int64, place: Int64, ways: list[tuple[int, ...]], after: Dependencies) -> float:
    program = Program(
        nbytes=nbytes,
        route=place.astype(np.int32),
        delay_s=np.zeros(nbytes.size),
        succ_ptr=after[0],
        succ_idx=after[1],
        route_ptr=pointers([len(way) for way in ways]),
        route_link=np.array([link for way in ways for link in way], np.int32),
        link_bandwidth=topology.link_bandwidth,
        link_latency=topology.link_latency,
    )
    return float(run_in_steps(program)[1].max(initial=0.0))
