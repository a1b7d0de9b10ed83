"""FIFO links without a heap: messages in the order of their numbers, or with none in the way of another."""

from __future__ import annotations

import numpy as np

from commsim.engine.loops.compiled import compiled, u
from commsim.engine.loops.heap import BEFORE
from commsim.engine.loops.links import LinkState, Ops, Times, carry
from commsim.engine.merging import Routes
from commsim.engine.program import Float64, Int32, Int64


@compiled
def run_in_order(ops: Ops, routes: Routes, links: LinkState, times: Times, store_and_forward: bool) -> int:
    """Simulate in the order of op numbers, checking that every link sees its messages in that order.

    Returns M when the order held on every link and every successor has a larger number than its op: then all
    results are those of `run_heap`, bit for bit. Otherwise returns the op where it broke; the results are to
    be thrown away.
    """
    rows = ops.nbytes.size
    head = np.zeros(links.free.size)
    for op in range(rows):
        t = times.ready[op] + ops.delay[op]
        tail = 0.0
        times.start[op] = t
        done = t
        way = routes.ptr[u(ops.route[op])]
        for h in range(way, routes.ptr[u(ops.route[op] + 1)]):
            link = routes.link[u(h)]
            if t < head[u(link)] * BEFORE:
                return op
            head[u(link)] = max(head[u(link)], t)
            start, sent = carry(routes, links, link, ops.nbytes[op], t, tail)
            if h == way:
                times.start[op] = start
            tail = sent + routes.latency[u(link)]
            done = tail
            t = tail if store_and_forward else start + routes.latency[u(link)]
        times.end[op] = done
        for e in range(ops.succ_ptr[op], ops.succ_ptr[u(op + 1)]):
            s = ops.succ_idx[u(e)]
            if s <= op:
                return op
            times.ready[u(s)] = max(times.ready[u(s)], done)
    return rows


@compiled
def run_family(
    steps: Int64, nbytes: Int64, to: Int32, route: Int32, routes: Routes, links: LinkState, arrived: Float64
) -> int:
    """`run_in_order` for a family in phases, whose rows are never built; returns the number of steps done in order.

    ``steps`` and ``nbytes`` (phases,), ``to`` and ``route`` (phases, senders). ``arrived`` (lanes, senders) comes as
    zeros and holds at the end when each sender's last message arrived. Fewer steps than there are: the order of
    numbers did not hold on a link, and the results are to be thrown away.
    """
    lanes, senders = arrived.shape
    head = np.zeros(links.free.size)
    incoming = np.zeros_like(arrived)
    done = 0
    for phase in range(steps.size):
        for _ in range(steps[phase]):
            for lane in range(lanes):
                for sender in range(senders):
                    t = arrived[lane, sender]
                    tail = 0.0
                    way = route[phase, sender]
                    for h in range(routes.ptr[u(way)], routes.ptr[u(way + 1)]):
                        link = routes.link[u(h)]
                        if t < head[u(link)] * BEFORE:
                            return done
                        head[u(link)] = max(head[u(link)], t)
                        start, sent = carry(routes, links, link, nbytes[phase], t, tail)
                        tail = sent + routes.latency[u(link)]
                        t = start + routes.latency[u(link)]
                    incoming[lane, u(to[phase, sender])] = max(tail, t)
            arrived[:] = incoming
            done += 1
    return done


@compiled
def run_alone(cost: Float64, succ_ptr: Int64, succ_idx: Int32, waiting: Int32, ready: Float64) -> float:
    """When the last op ends if op i takes ``cost[i]`` and no op is ever in the way of another.

    ``waiting`` (M,) holds the in-degrees and is used up; ``ready`` (M,) arrives as zeros.
    """
    rows = cost.size
    queue = np.empty(rows, np.int32)
    n = 0
    for op in range(rows):
        if waiting[op] == 0:
            queue[n] = op
            n += 1
    taken = 0
    last = 0.0
    while taken < n:
        op = queue[u(taken)]
        taken += 1
        done = ready[u(op)] + cost[u(op)]
        last = max(last, done)
        for e in range(succ_ptr[u(op)], succ_ptr[u(op + 1)]):
            s = succ_idx[u(e)]
            ready[u(s)] = max(ready[u(s)], done)
            waiting[u(s)] -= 1
            if waiting[u(s)] == 0:
                queue[u(n)] = s
                n += 1
    return last
