"""Max-min fair sharing, event by event: a flow is the head of one connection's queue."""

from __future__ import annotations

import numpy as np

from commsim.engine.loops.affected import choose, list_changed, lowest_rate, queue_binding
from commsim.engine.loops.compiled import compiled, inlined, u
from commsim.engine.loops.filling import fill
from commsim.engine.loops.flows import (
    CHANGED,
    ENDED,
    FILLED,
    FILLINGS,
    FINISHED,
    IDLE,
    NOW,
    RUNNING,
    STAMP,
    STARTING,
    STOPPING,
    UNTIL,
    FairLines,
    FairLinks,
    FairOps,
    FairRun,
)
from commsim.engine.loops.heap import BEFORE, drop_first, first_leaf, push, set_leaf
from commsim.engine.program import Int32

TIME_WENT_BACK = -1


@compiled
def start_fair(first: int, t: float, indeg: Int32, ops: FairOps, run: FairRun) -> None:
    """Put an instance of ops with these in-degrees at the places from ``first`` on, at time t."""
    for i in range(indeg.size):
        ops.waiting[first + i] = indeg[i]
        ops.ready[first + i] = t
        ops.behind[first + i] = -1
        if indeg[i] == 0:
            push(run.starts, t, first + i, 1.0)


@inlined
def _begin(ops: FairOps, lines: FairLines, flow: int, op: int, at: float) -> None:
    """A message is the flow of its connection from now on."""
    lines.current[u(flow)] = op
    lines.rest[u(flow)] = ops.nbytes[u(op)]
    lines.since[u(flow)] = at
    ops.start[u(op)] = at


@inlined
def _mark_changed(lines: FairLines, run: FairRun, flow: int, state: int) -> None:
    lines.state[u(flow)] = state
    lines.changed[u(run.counts[CHANGED])] = flow
    run.counts[CHANGED] += 1


@inlined
def _unmark_changed(lines: FairLines, run: FairRun, flow: int) -> None:
    for i in range(run.counts[CHANGED]):
        if lines.changed[u(i)] == flow:
            run.counts[CHANGED] -= 1
            lines.changed[u(i)] = lines.changed[u(run.counts[CHANGED])]
            break


@inlined
def _sent_first(ops: FairOps, lines: FairLines, run: FairRun) -> tuple[int, float]:
    """The flow that ends first has sent all, the next of its queue begins; the message, and when it arrives."""
    flow = first_leaf(lines.tree)
    at = lines.tree[u(lines.tree.size // 2 + flow)]
    op = lines.current[u(flow)]
    following = lines.head[u(flow)]
    if following >= 0:
        lines.head[u(flow)] = ops.behind[u(following)]
        _begin(ops, lines, flow, following, at)
        set_leaf(lines.tree, flow, at + ops.nbytes[u(following)] / lines.rate[u(flow)])
    else:
        lines.current[u(flow)] = following
        set_leaf(lines.tree, flow, np.inf)
        _mark_changed(lines, run, flow, STOPPING)
    return op, at + lines.latency[u(flow)]


@inlined
def _enqueue(ops: FairOps, lines: FairLines, run: FairRun, op: int, at: float) -> None:
    """A message is ready: it begins on an idle connection, else it waits."""
    flow = ops.connection[u(op)]
    if lines.state[u(flow)] == IDLE:
        _begin(ops, lines, flow, op, at)
        _mark_changed(lines, run, flow, STARTING)
    elif lines.state[u(flow)] == STOPPING:
        # Stopped and going on within one batch is no change: no rate need be computed again.
        _begin(ops, lines, flow, op, at)
        lines.state[u(flow)] = RUNNING
        set_leaf(lines.tree, flow, at + ops.nbytes[u(op)] / lines.rate[u(flow)])
        _unmark_changed(lines, run, flow)
    else:
        if lines.head[u(flow)] < 0:
            lines.head[u(flow)] = op
        else:
            ops.behind[u(lines.last[u(flow)])] = op
        lines.last[u(flow)] = op


@inlined
def _finish(ops: FairOps, run: FairRun, op: int, end: float) -> None:
    """A message has arrived: its successors may be ready, its instance at its end."""
    single = ops.instance.size == 0
    run.counts[FINISHED] += 1
    ops.end[u(op)] = end
    shift = 0 if single else ops.shift[u(op)]
    for e in range(ops.succ_first[u(op)], ops.succ_last[u(op)]):
        s = ops.succ_idx[u(e)] + shift
        ops.ready[u(s)] = max(ops.ready[u(s)], end)
        ops.waiting[u(s)] -= 1
        if ops.waiting[u(s)] == 0:
            push(run.starts, ops.ready[u(s)] + ops.delay[u(s)], np.int64(s), 1.0)
    if not single:
        instance = ops.instance[u(op)]
        run.end[u(instance)] = max(run.end[u(instance)], end)
        run.left[u(instance)] -= 1
        if run.left[u(instance)] == 0:
            run.done[u(run.counts[ENDED])] = instance
            run.counts[ENDED] += 1
            run.clock[UNTIL] = min(run.clock[UNTIL], run.end[u(instance)])


@inlined
def _handle_batch(ops: FairOps, lines: FairLines, run: FairRun, limit: float) -> None:
    """Handle all ends and starts up to ``limit``, with the rates as they are."""
    run.counts[CHANGED] = 0
    while True:
        if lines.tree[1] <= limit:
            op, end = _sent_first(ops, lines, run)
            _finish(ops, run, op, end)
        elif run.starts.size[0] > 0 and run.starts.times[0] <= limit:
            at, begun = run.starts.times[0], run.starts.keys[0]
            drop_first(run.starts, 1.0)
            if lines.cap[u(ops.connection[u(begun)])] < 0.0:
                ops.start[u(begun)] = at
                _finish(ops, run, begun, at)
            else:
                _enqueue(ops, lines, run, begun, at)
        else:
            break


@inlined
def _set_rates(lines: FairLines, run: FairRun, chosen: int) -> None:
    """Give the flows chosen, and those that start without meeting a link that binds, their rates from now on."""
    now = run.clock[NOW]
    for i in range(run.counts[CHANGED]):
        flow = lines.changed[u(i)]
        if lines.state[u(flow)] == RUNNING and lines.chosen_at[u(flow)] != run.counts[STAMP]:
            lines.chosen_at[u(flow)] = run.counts[STAMP]
            lines.chosen[u(chosen)] = flow
            chosen += 1
    leaves = lines.tree.size // 2
    levels = 1
    while (1 << levels) < leaves:
        levels += 1
    rebuild = chosen * levels > leaves
    for i in range(chosen):
        flow = lines.chosen[u(i)]
        if lines.fixed_rate[u(flow)] != lines.rate[u(flow)]:
            passed = now - lines.since[u(flow)]
            if passed > 0.0:
                lines.rest[u(flow)] = max(0.0, lines.rest[u(flow)] - lines.rate[u(flow)] * passed)
                lines.since[u(flow)] = now
            lines.rate[u(flow)] = lines.fixed_rate[u(flow)]
            at = lines.since[u(flow)] + lines.rest[u(flow)] / lines.rate[u(flow)]
            if rebuild:
                lines.tree[u(leaves + flow)] = at
            else:
                set_leaf(lines.tree, flow, at)
    if rebuild:
        for i in range(leaves - 1, 0, -1):
            lines.tree[u(i)] = min(lines.tree[u(2 * i)], lines.tree[u(2 * i + 1)])


@inlined
def _share(lines: FairLines, links: FairLinks, run: FairRun) -> int:
    """Share the links anew among the flows that the changed connections affect; 0, or a negative fault."""
    count = run.counts
    queued = queue_binding(links, count, list_changed(lines, links, count))
    chosen, queued = choose(lines, links, count[STAMP], queued, lowest_rate(lines, links, count, queued))
    if chosen > 0:
        count[FILLINGS] += 1
        count[FILLED] += chosen
        fault: int = fill(lines, links, chosen, queued)
        if fault < 0:
            return fault
    else:
        for i in range(queued):
            links.level[u(links.queue[u(i)])] = np.inf
    _set_rates(lines, run, chosen)
    return 0


@compiled
def run_fair(until: float, quantum: float, ops: FairOps, lines: FairLines, links: FairLinks, run: FairRun) -> int:
    """Simulate with max-min fair sharing before ``until``; returns how many instances ended, or a negative fault.

    Like `advance_fifo` it goes no further than the first end of an instance met. All that is under way is kept in
    the arrays, so the next call goes on from there.
    """
    clock, count, starts = run.clock, run.counts, run.starts
    clock[UNTIL] = until
    count[ENDED] = 0
    while starts.size[0] > 0 or lines.tree[1] < np.inf:
        top = lines.tree[1]
        if starts.size[0] > 0:
            top = min(top, starts.times[0])
        if top >= clock[UNTIL] * BEFORE:
            break
        if top < clock[NOW] * (1.0 - 1e-9):
            return TIME_WENT_BACK
        clock[NOW] = max(clock[NOW], top)
        count[STAMP] += 1
        _handle_batch(ops, lines, run, top * (1.0 + quantum))
        fault: int = _share(lines, links, run)
        if fault < 0:
            return fault
    ended: int = count[ENDED]
    return ended
