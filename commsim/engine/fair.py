"""Max-min fair sharing: all flows that cross a link share it, none gains by taking from one that has less.

What differs from FIFO links: two messages on one link go on side by side, each at its share. The messages of one
connection still follow each other, as they do in a channel: sharing a link with one's own next chunk would destroy
pipelining. A message holds all links of its route from its start to its finish and arrives the sum of latencies
later, so alone it takes as long as in the FIFO model. (Bertsekas & Gallager, Data Networks, 1992, section 6.5.2.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commsim.engine.memory import RUN_BYTES_PER_ROW, require_memory
from commsim.engine.program import Int32, Int64, Program, dense_ids
from commsim.engine.simulate import Outcome, cycle_message
from commsim.errors import CommsimError, ScheduleError

if TYPE_CHECKING:
    from commsim.collectives.schedule import Schedule

QUANTUM = 1e-12
"""Events this close in relative time are handled together: equal times that differ in the last bits are one event."""


def connections(schedule: Schedule) -> Int32:
    """The connection of each row, (rows,): as lowered, or one per (channel, source, destination)."""
    if schedule.connection is not None:
        return schedule.connection
    channels = int(schedule.channel.max(initial=0)) + 1
    pair = schedule.src.astype(np.int64) * schedule.endpoints + schedule.dst
    return dense_ids(pair * channels + schedule.channel, schedule.endpoints**2 * channels)[1]


def simulate_fair(
    program: Program,
    connection: Int32 | None = None,
    *,
    quantum: float = QUANTUM,
    weight: Int64 | None = None,
    limit_bytes: int | None = None,
) -> Outcome:
    """The Outcome of a program under max-min fair sharing with a FIFO queue per connection.

    ``connection`` (M,) numbers the queues, by default one per route; all ops of one have the same route. ``quantum``:
    events within this relative time count as one; 1e-3 makes irregular runs several times quicker and ends up to
    about as much early. ``weight`` aligns with ``route_link``: how many flows of a connection's kind each link carries
    (for folded programs). ``link_busy_s`` is bytes over bandwidth. A cycle is a ScheduleError.
    """
    if not 0 <= quantum < 1:
        raise ValueError(f"found a quantum of {quantum}, expected 0 or more and less than 1")
    from commsim.engine import kernel

    p = program
    require_memory(RUN_BYTES_PER_ROW * p.rows, p.rows, limit_bytes=limit_bytes)
    conn, route = _routes_of(p, p.route if connection is None else connection)
    links = _Slots.of(p, route, weight)
    ready, start, end = (np.zeros(p.rows) for _ in range(3))
    waiting, counts = p.indeg.copy(), np.zeros(2, np.int64)
    finished = kernel.run_fair(
        p.nbytes,
        conn,
        p.delay_s,
        p.succ_ptr,
        p.succ_idx,
        waiting,
        links.ptr,
        links.link,
        links.weight,
        links.list_ptr,
        np.zeros(links.link.size, np.int64),
        links.cap,
        links.whole_cap,
        links.latency,
        p.link_bandwidth,
        links.whole_bandwidth,
        quantum,
        ready,
        start,
        end,
        counts,
    )
    if finished < 0:
        raise CommsimError(f"the fair-sharing kernel gave up with code {finished}: this is a fault of commsim")
    if finished < p.rows:
        raise ScheduleError(cycle_message(p, np.flatnonzero(waiting > 0), p.rows - finished))
    link_bytes = p.link_bytes() if weight is None else _weighted_bytes(p, weight)
    return Outcome(
        p,
        ready,
        start,
        end,
        link_bytes,
        link_bytes / p.link_bandwidth,
        level="fair",
        method=f"{counts[0]} recomputations of {counts[1] / max(counts[0], 1):.0f} flows",
        exact=quantum <= QUANTUM,
        contention="fair",
    )


def _routes_of(p: Program, connection: Int32) -> tuple[Int32, Int64]:
    """Connections renumbered without gaps, (M,), and the route of each."""
    if not p.rows:
        return np.zeros(0, np.int32), np.zeros(0, np.int64)
    _, conn = dense_ids(connection.astype(np.int64), int(connection.max()) + 1)
    route = np.zeros(int(conn.max()) + 1, np.int64)
    route[conn] = p.route
    if (route[conn] != p.route).any():
        raise ValueError("found ops of one connection on different routes")
    return conn, route


def _weighted_bytes(p: Program, weight: Int64) -> Int64:
    per_route = np.zeros(p.route_ptr.size - 1, np.int64)
    np.add.at(per_route, p.route, p.nbytes)
    total = np.zeros(p.links, np.int64)
    np.add.at(total, p.route_link, np.repeat(per_route, np.diff(p.route_ptr)) * weight)
    return total


class _Slots:
    """What the kernel wants to know of each connection's way; links that can never bind are left out."""

    def __init__(self) -> None:
        self.ptr = self.weight = self.list_ptr = self.whole_cap = self.whole_bandwidth = np.zeros(0, np.int64)
        self.link = np.zeros(0, np.int32)
        self.cap = self.latency = np.zeros(0)

    @staticmethod
    def of(p: Program, route: Int64, weight: Int64 | None) -> _Slots:
        """``route`` (connections,)."""
        own, length = _Slots(), np.diff(p.route_ptr)[route]
        at = np.repeat(p.route_ptr[route], length) + _places(length)
        link = p.route_link[at]
        weights = np.ones(link.size, np.int64) if weight is None else weight[at]
        of = np.repeat(np.arange(route.size), length)
        own.cap = np.full(route.size, np.inf)
        np.minimum.at(own.cap, of, p.link_bandwidth[link])
        own.latency = np.bincount(of, p.link_latency[link], route.size).astype(np.float64)
        own.cap[length == 0] = -1.0
        # In integers, so that sums neither round nor drift; scaled so that they fit, and rounded to the safe side.
        total = float(np.sum(weights)) + 1.0
        scale = 2.0 ** np.floor(np.log2(2.0**61 / (total * float(p.link_bandwidth.max(initial=1.0)))))
        scale = min(scale, 1.0) if (p.link_bandwidth == np.floor(p.link_bandwidth)).all() else scale
        own.whole_cap = np.ceil(np.maximum(own.cap, 0.0) * scale).astype(np.int64)
        own.whole_bandwidth = np.floor(p.link_bandwidth * scale).astype(np.int64)
        demand = np.zeros(p.links, np.int64)
        np.add.at(demand, link, weights * own.whole_cap[of])
        kept = (demand > own.whole_bandwidth)[link]
        own.link, own.weight = link[kept], weights[kept]
        own.ptr = np.concatenate([[0], np.cumsum(np.bincount(of[kept], minlength=route.size))]).astype(np.int64)
        own.list_ptr = np.concatenate([[0], np.cumsum(np.bincount(own.link, minlength=p.links))]).astype(np.int64)
        return own


def _places(length: Int64) -> Int64:
    return np.arange(int(length.sum())) - np.repeat(np.cumsum(length) - length, length)
