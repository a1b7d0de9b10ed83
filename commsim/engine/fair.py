"""Max-min fair sharing: all flows that cross a link share it, none gains by taking from one that has less.

What differs from FIFO links: two messages on one link go on side by side, each at its share. The messages of one
connection still follow each other, as they do in a channel: sharing a link with one's own next chunk would destroy
pipelining. A message holds all links of its route from its start to its finish and arrives the sum of latencies
later, so alone it takes as long as in the FIFO model. (Bertsekas & Gallager, Data Networks, 1992, section 6.5.2.)
"""

from __future__ import annotations

from functools import reduce

import numpy as np

from commsim.collectives.schedule import Schedule
from commsim.engine.loops.flows import FILLED, FILLINGS, FINISHED, FairLines, FairLinks, FairOps, FairRun
from commsim.engine.memory import RUN_BYTES_PER_ROW, require_memory
from commsim.engine.program import Float64, Int32, Int64, Program, bytes_of_links, dense_ids, places_along, pointers
from commsim.engine.simulate import Outcome, cycle_message
from commsim.errors import CommsimError, ScheduleError

QUANTUM = 1e-12
"""Events this close in relative time are handled together: equal times that differ in the last bits are one event."""


def connections(schedule: Schedule, program: Program | None = None) -> Int32:
    """The connection of each row, (rows,): as lowered, or one per (channel, source, destination).

    Where the rows of one take several routes in the `program`, as flowlets do, one for each of these.
    """
    conn = _connections(schedule)
    if program is None or not conn.size:
        return conn
    route = program.route[: conn.size].astype(np.int64)
    known = np.zeros(int(conn.max()) + 1, np.int64)
    known[conn] = route
    if (known[conn] == route).all():
        return conn
    count = program.route_ptr.size
    return dense_ids(conn * np.int64(count) + route, known.size * count)[1]


def _connections(schedule: Schedule) -> Int32:
    if schedule.connection is not None:
        return schedule.connection
    channels = int(schedule.channel.max(initial=0)) + 1
    pair = schedule.src.astype(np.int64) * schedule.endpoints + schedule.dst
    return dense_ids(pair * channels + schedule.channel, schedule.endpoints**2 * channels)[1]


def simulate_fair(
    program: Program, connection: Int32 | None = None, *, quantum: float = QUANTUM, weight: Int64 | None = None
) -> Outcome:
    """The Outcome of a program under max-min fair sharing with a FIFO queue per connection.

    ``connection`` (M,) numbers the queues, by default one per route; all ops of one have the same route. ``quantum``:
    events within this relative time count as one; 1e-3 makes irregular runs several times quicker and ends up to
    about as much early. ``weight`` aligns with ``route_link``: how many flows of a connection's kind each link carries
    (for folded programs). ``link_busy_s`` is bytes over bandwidth. A cycle is a ScheduleError.
    """
    if not 0 <= quantum < 1:
        raise ValueError(f"found a quantum of {quantum}, expected 0 or more and less than 1")
    from commsim.engine.loops.fair import run_fair
    from commsim.engine.loops.heap import Heap

    p = program
    require_memory(RUN_BYTES_PER_ROW * p.rows, p.rows)
    conn, route = routes_of_connections(p, connection)
    lines, links = idle(p.route_ptr, p.route_link, (p.link_bandwidth, p.link_latency), route, weight)
    ops = FairOps(
        nbytes=p.nbytes,
        connection=conn,
        delay=p.delay_s,
        succ_first=p.succ_ptr[:-1],
        succ_last=p.succ_ptr[1:],
        succ_idx=p.succ_idx,
        shift=np.zeros(0, np.int64),
        instance=np.zeros(0, np.int32),
        waiting=p.indeg.copy(),
        ready=np.zeros(p.rows),
        start=np.zeros(p.rows),
        end=np.zeros(p.rows),
        behind=np.full(p.rows, -1, np.int32),
    )
    # All that can start at once is in the heap at first; in the order of (time, op) a sorted list is a heap.
    first = np.flatnonzero(ops.waiting == 0)
    order = np.lexsort((first, p.delay_s[first]))
    starts = Heap(np.empty(p.rows), np.empty(p.rows, np.int64), np.array([first.size]))
    starts.times[: first.size], starts.keys[: first.size] = p.delay_s[first][order], first[order]
    run = FairRun(
        counts=np.zeros(6, np.int64),
        clock=np.zeros(2),
        starts=starts,
        left=np.zeros(0, np.int64),
        end=np.zeros(0),
        done=np.zeros(0, np.int64),
    )
    fault = run_fair(np.inf, quantum, ops, lines, links, run)
    if fault < 0:
        raise gave_up(fault)
    finished, fillings, filled = (int(run.counts[i]) for i in (FINISHED, FILLINGS, FILLED))
    if finished < p.rows:
        raise ScheduleError(cycle_message(p, np.flatnonzero(ops.waiting > 0), p.rows - finished))
    link_bytes = p.link_bytes() if weight is None else bytes_of_links(p, weight)
    return Outcome(
        p,
        ops.ready,
        ops.start,
        ops.end,
        link_bytes,
        link_bytes / p.link_bandwidth,
        level="fair",
        method=f"{fillings} recomputations of {filled / max(fillings, 1):.0f} flows",
        exact=quantum <= QUANTUM,
        contention="fair",
    )


def gave_up(fault: int) -> CommsimError:
    """What to raise when the loop of fair sharing returns a negative number."""
    return CommsimError(f"the fair-sharing loop gave up with code {fault}: this is a fault of commsim")


def routes_of_connections(p: Program, connection: Int32 | None) -> tuple[Int32, Int64]:
    """Connections (by default the routes) renumbered without gaps, (M,), and the route of each."""
    if not p.rows:
        return np.zeros(0, np.int32), np.zeros(0, np.int64)
    given = p.route if connection is None else connection
    _, conn = dense_ids(given.astype(np.int64), int(given.max()) + 1)
    route = np.zeros(int(conn.max()) + 1, np.int64)
    route[conn] = p.route
    if (route[conn] != p.route).any():
        raise ValueError("found ops of one connection on different routes")
    return conn, route


def idle(
    ptr: Int64,
    links: Int32,
    speeds: tuple[Float64, Float64],
    route: Int64,
    weight: Int64 | None = None,
    *,
    most: int = 0,
) -> tuple[FairLines, FairLinks]:
    """Connections on the routes ``route`` (connections,) of a table, and links, with nothing under way.

    ``speeds``: bandwidth and latency of each link. Links that can never bind stand on no connection's way, unless as
    many as ``most`` connections may still come.
    """
    from commsim.engine.loops.heap import Heap

    bandwidth, latency = speeds
    n, count = route.size, bandwidth.size
    length = np.diff(ptr)[route]
    at = places_along(ptr, route)
    link = links[at]
    weights = np.ones(link.size, np.int64) if weight is None else weight[at]
    of = np.repeat(np.arange(n), length)
    cap = _caps(bandwidth[link], length)
    # In integers, so that sums neither round nor drift; scaled so that they fit, and rounded to the safe side.
    total = max(float(np.sum(weights)), most) + 1.0
    scale = 2.0 ** np.floor(np.log2(2.0**61 / (total * float(bandwidth.max(initial=1.0)))))
    if not most and (bandwidth == np.floor(bandwidth)).all():
        scale = min(scale, 1.0)
    whole_cap = np.ceil(np.maximum(cap, 0.0) * scale).astype(np.int64)
    whole_bandwidth = np.floor(bandwidth * scale).astype(np.int64)
    demand = np.zeros(count, np.int64)
    np.add.at(demand, link, weights * whole_cap[of])
    kept = (demand > whole_bandwidth)[link] | (most > 0)
    slot_of, slot_link = of[kept], link[kept]
    leaves = 1 << max(n - 1, 1).bit_length()
    lines = FairLines(
        slot_ptr=pointers(np.bincount(slot_of, minlength=n)),
        slot_link=slot_link,
        slot_weight=weights[kept],
        slot_place=np.zeros(slot_link.size, np.int64),
        cap=cap,
        whole_cap=whole_cap,
        latency=np.bincount(of, latency[link], n).astype(np.float64),
        state=np.zeros(n, np.int64),
        current=np.full(n, -1, np.int32),
        head=np.full(n, -1, np.int32),
        last=np.full(n, -1, np.int32),
        rate=np.zeros(n),
        rest=np.zeros(n),
        since=np.zeros(n),
        fixed_rate=np.zeros(n),
        changed=np.zeros(n, np.int32),
        chosen=np.zeros(n, np.int32),
        chosen_at=np.zeros(n, np.int64),
        tree=np.full(2 * leaves, np.inf),
    )
    whole = ("queued_at", "touched_at", "binding", "demand", "load", "unfixed")
    return lines, FairLinks(
        bandwidth=bandwidth,
        whole_bandwidth=whole_bandwidth,
        list_ptr=pointers(np.bincount(slot_link, minlength=count)),
        list_flow=np.zeros(slot_link.size, np.int32),
        list_slot=np.zeros(slot_link.size, np.int64),
        list_size=np.zeros(count, np.int64),
        queue=np.zeros(count, np.int32),
        touched=np.zeros(count, np.int32),
        left=np.zeros(count),
        level=np.full(count, np.inf),
        shares=Heap(np.zeros(count + 1), np.zeros(count + 1, np.int64), np.zeros(1, np.int64)),
        **{name: np.zeros(count, np.int64) for name in whole},
    )


def _caps(bandwidth: Float64, length: Int64) -> Float64:
    """The smallest bandwidth of each route, of those of all hops, one route after the other; -1 where it has none."""
    hops = int(length[0]) if length.size else 0
    if hops and (length == hops).all():
        return reduce(np.minimum, bandwidth.reshape(-1, hops).T)
    cap = np.full(length.size, np.inf)
    np.minimum.at(cap, np.repeat(np.arange(length.size), length), bandwidth)
    cap[length == 0] = -1.0
    return cap
