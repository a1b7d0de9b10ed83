"""Links that serve in the order of steps: of the messages that wait for one, the one of the earliest step goes first.

As in the event engine a message cuts through, and holds a link until its last byte has left it. There links are FIFO:
what came first goes first, and a piece that is passed on waits behind all that its rank has to send of its own, so that
links further on fall idle. A schedule says in which order its rows should go, and here they do.

The last link of a way begins a message from slower ones when it can send it at its own rate without a gap: it ends as
early as it would with the gaps, in which the link sends others. Packets interleave so on real links (C2C behind a NIC).
"""

from __future__ import annotations

import numpy as np

from commsim.engine.loops.compiled import compiled
from commsim.engine.program import Program
from commsim.errors import ScheduleError
from commsim.topology.kinds import Float64, Int32, Int64

_HOPS = 64
"""Links of a way at most; the last number stands for the end of a message."""


@compiled
def _push(times: Float64, keys: Int64, size: int, t: float, key: int) -> None:
    i = size
    while i > 0:
        up = (i - 1) >> 1
        if times[up] < t or (times[up] == t and keys[up] <= key):
            break
        times[i], keys[i] = times[up], keys[up]
        i = up
    times[i], keys[i] = t, key


@compiled
def _drop(times: Float64, keys: Int64, size: int) -> None:
    """Removes the first of ``size`` entries."""
    last = size - 1
    t, key = times[last], keys[last]
    i, child = 0, 1
    while child < last:
        other = child + 1
        if other < last and (
            times[other] < times[child] or (times[other] == times[child] and keys[other] < keys[child])
        ):
            child = other
        if t < times[child] or (t == times[child] and key <= keys[child]):
            break
        times[i], keys[i] = times[child], keys[child]
        i = child
        child = 2 * i + 1
    times[i], keys[i] = t, key


@compiled
def _run(
    nbytes: Int64,
    route: Int32,
    ways: tuple[Int64, Int32],
    successors: tuple[Int64, Int32],
    indeg: Int32,
    links: tuple[Float64, Float64],
) -> tuple[Float64, Float64, int]:
    """(start, end) of every row in s, and how many have ended; rows are numbered in the order of their steps."""
    way_ptr, way_link = ways
    succ_ptr, succ_idx = successors
    slow, latency = links
    rows = nbytes.size
    start, end, tail = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    left = indeg.copy()
    busy = np.zeros(slow.size, np.bool_)
    room = np.zeros(slow.size + 1, np.int64)  # of the queue of each link: all that ever passes it
    for i in range(rows):
        for k in range(way_ptr[route[i]], way_ptr[route[i] + 1]):
            room[way_link[k] + 1] += 1
    for k in range(slow.size):
        room[k + 1] += room[k]
    order, queue = np.zeros(room[-1]), np.zeros(room[-1], np.int64)
    waiting = np.zeros(slow.size, np.int64)
    # Events: a head that comes to a link, the end of a message, both as row and hop, and -1 - link: it falls free.
    times, keys = np.zeros(2 * rows + slow.size + 8), np.zeros(2 * rows + slow.size + 8, np.int64)
    events, done_rows = 0, 0
    for i in range(rows):
        if left[i] == 0:
            _push(times, keys, events, 0.0, i * _HOPS)
            events += 1
    while events:
        now, code = times[0], keys[0]
        _drop(times, keys, events)
        events -= 1
        if code < 0:
            link = -1 - code
            busy[link] = False
            if waiting[link] == 0:
                continue
            at, size = room[link], waiting[link]
            code = queue[at]
            _drop(order[at : at + size], queue[at : at + size], size)
            waiting[link] -= 1
        i, hop = code // _HOPS, code % _HOPS
        begin, stop = way_ptr[route[i]], way_ptr[route[i] + 1]
        if hop == _HOPS - 1 or begin == stop:
            end[i] = now
            done_rows += 1
            for e in range(succ_ptr[i], succ_ptr[i + 1]):
                s = succ_idx[e]
                left[s] -= 1
                if left[s] == 0:  # the last one before it ends now
                    _push(times, keys, events, now, np.int64(s) * _HOPS)
                    events += 1
            continue
        link = way_link[begin + hop]
        if busy[link]:
            _push(order[room[link] :], queue[room[link] :], waiting[link], float(i), code)
            waiting[link] += 1
            continue
        if hop == 0:
            start[i] = now
        done = max(now + nbytes[i] * slow[link], tail[i])
        tail[i] = done + latency[link]
        busy[link] = True
        _push(times, keys, events, done, np.int64(-1 - link))
        if begin + hop + 1 < stop:
            comes = now + latency[link]
            if begin + hop + 2 == stop:  # into the last link once no gap is left
                comes = max(comes, tail[i] - nbytes[i] * slow[way_link[begin + hop + 1]])
            _push(times, keys, events + 1, comes, code + 1)
        else:
            _push(times, keys, events + 1, tail[i], np.int64(i) * _HOPS + _HOPS - 1)
        events += 2
    return start, end, done_rows


def run_in_steps(program: Program) -> tuple[Float64, Float64]:
    """Seconds at which every row starts and ends, (rows,), if links serve rows in the order of their numbers."""
    p = program
    hops = np.diff(p.route_ptr)
    if hops.size and hops.max() >= _HOPS - 1:
        raise ScheduleError(f"found a way of {hops.max()} links, expected at most {_HOPS - 2}")
    links = (1.0 / p.link_bandwidth, p.link_latency)
    start, end, done = _run(p.nbytes, p.route, (p.route_ptr, p.route_link), (p.succ_ptr, p.succ_idx), p.indeg, links)
    if done < p.rows:
        raise ScheduleError(f"rows wait for each other: {p.rows - done} of {p.rows} never start")
    return start, end
