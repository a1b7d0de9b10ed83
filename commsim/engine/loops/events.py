"""FIFO links by a heap of events: the general loop."""

from __future__ import annotations

import numpy as np

from commsim.engine.critical import Record
from commsim.engine.loops.compiled import compiled, inlined, u
from commsim.engine.loops.heap import BEFORE, Heap, drop_first, first, push
from commsim.engine.loops.links import LinkState, Ops, Times, carry
from commsim.engine.merging import Routes
from commsim.engine.program import HOP_BITS, MAX_HOPS, Int32, Int64


@inlined
def _first_op(ops: Ops, first_ops: Int64, taken: int) -> tuple[float, int]:
    """Time and key of the next op that waits for none; infinitely late if all are taken."""
    if taken < first_ops.size:
        op = first_ops[u(taken)]
        return ops.delay[u(op)], op << HOP_BITS
    return np.inf, 0


@inlined
def _arrive(times: Times, waiting: Int32, record: Record, op: int, successor: int) -> bool:
    """Tell an op that one before it has ended; whether it was the last one."""
    done = times.end[u(op)]
    if done > times.ready[u(successor)]:
        times.ready[u(successor)] = done
        if record.hop_ptr.size > 0:
            record.cause[u(successor)] = op
    waiting[u(successor)] -= 1
    last: bool = waiting[u(successor)] == 0
    return last


@inlined
def _release(ops: Ops, times: Times, waiting: Int32, record: Record, heap: Heap, first_join: int, op: int) -> int:
    """Tell all successors of an op that it has ended; returns how many joins end with it."""
    joins = 0
    for e in range(ops.succ_ptr[u(op)], ops.succ_ptr[u(op + 1)]):
        s = ops.succ_idx[u(e)]
        if not _arrive(times, waiting, record, op, s):
            continue
        if s < first_join:
            push(heap, times.ready[u(s)] + ops.delay[u(s)], np.int64(s) << HOP_BITS, BEFORE)
            continue
        joins += 1
        times.start[u(s)] = times.ready[u(s)]
        times.end[u(s)] = times.ready[u(s)]
        for j in range(ops.succ_ptr[u(s)], ops.succ_ptr[u(s + 1)]):
            x = ops.succ_idx[u(j)]
            if _arrive(times, waiting, record, s, x):
                push(heap, times.ready[u(x)] + ops.delay[u(x)], np.int64(x) << HOP_BITS, BEFORE)
    return joins


@compiled
def run_heap(
    ops: Ops,
    routes: Routes,
    links: LinkState,
    times: Times,
    waiting: Int32,
    first_ops: Int64,
    record: Record,
    options: tuple[int, bool],
) -> int:
    """Simulate with a heap of events; returns the number of finished ops (fewer than M: a cycle).

    ``waiting`` (M,) holds the in-degrees and is used up; ``first_ops`` are the ops that wait for none, in the order
    of (delay, number), so that they need not stand in the heap. A `Record` that is not empty is filled in.
    ``options``: the first join, and whether a link sends a message on only when all of it is there. Ops from the first
    join on end when the last op before them does and never stand in the heap, so that ties are broken as if their edges
    led from each op before to each op after; no join follows another.
    """
    first_join, store_and_forward = options
    recording = record.hop_ptr.size > 0
    holder = np.full(links.free.size if recording else 0, -1, np.int64)
    # An op stands in the heap at most once; memory that is never written takes no room.
    heap = Heap(np.empty(ops.nbytes.size), np.empty(ops.nbytes.size, np.int64), np.zeros(1, np.int64))
    taken = 0
    finished = 0
    next_first, next_key = _first_op(ops, first_ops, taken)
    while heap.size[0] > 0 or taken < first_ops.size:
        if heap.size[0] > 0 and first(heap.times[0], heap.keys[0], next_first, next_key, BEFORE):
            t, key = heap.times[0], heap.keys[0]
            drop_first(heap, BEFORE)
        else:
            t, key = next_first, next_key
            taken += 1
            next_first, next_key = _first_op(ops, first_ops, taken)
        op = key >> HOP_BITS
        hop = key & (MAX_HOPS - 1)
        way = routes.ptr[u(ops.route[u(op)])]
        hops = routes.ptr[u(ops.route[u(op)] + 1)] - way
        if hops == 0:
            times.start[u(op)] = t
            times.end[u(op)] = t
        while hop < hops:
            link = routes.link[u(way + hop)]
            if recording:
                if links.free[u(link)] > t:
                    record.hop_before[record.hop_ptr[u(op)] + hop] = holder[u(link)]
                holder[u(link)] = (op << HOP_BITS) | hop
            start, sent = carry(routes, links, link, ops.nbytes[u(op)], t, times.end[u(op)])
            if recording:
                record.hop_start_s[record.hop_ptr[u(op)] + hop] = start
            if hop == 0:
                times.start[u(op)] = start
            times.end[u(op)] = sent + routes.latency[u(link)]
            hop += 1
            if hop < hops:
                t = times.end[u(op)] if store_and_forward else start + routes.latency[u(link)]
                key = (op << HOP_BITS) | hop
                if first(next_first, next_key, t, key, BEFORE) or (
                    heap.size[0] > 0 and first(heap.times[0], heap.keys[0], t, key, BEFORE)
                ):
                    push(heap, t, key, BEFORE)
                    break
                # Nothing comes before the next hop, so it is handled without a way through the heap.
        else:
            finished += 1 + _release(ops, times, waiting, record, heap, first_join, op)
    return finished
