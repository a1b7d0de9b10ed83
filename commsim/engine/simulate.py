"""Simulate a Program event by event: first-in first-out links, virtual cut-through (see `commsim.engine.loops`)."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from commsim.engine.critical import CriticalPath, Record, critical_path
from commsim.engine.memory import RUN_BYTES_PER_ROW, require_memory
from commsim.engine.merging import Routes
from commsim.engine.program import Float64, Int64, Program
from commsim.errors import InfeasibleError, ScheduleError


@dataclass(frozen=True, eq=False)
class Outcome:
    """What became of a Program: times per op in s, (M,), and bytes and busy time per link, (L,).

    ``ready_s``: all predecessors have ended. ``start_s``: the first link takes the op up (after its delay and
    the queue). ``end_s``: the last byte has arrived. ``link_busy_s``: how long each link was held, which is
    more than bytes over bandwidth where a slower link before it feeds it. ``level`` names the evaluator
    ("event", "closed_form", ...), ``method`` how it got there ("in_order": one pass in op order that proved itself
    right, "heap", "formula"); all of them agree. ``exact`` says whether the times are those of the engine's
    semantics, not an approximation; ``contention`` which semantics: "fifo" links or "fair" sharing.
    """

    program: Program = field(repr=False)
    ready_s: Float64
    start_s: Float64
    end_s: Float64
    link_bytes: Int64
    link_busy_s: Float64
    level: str = "event"
    method: str = "heap"
    exact: bool = True
    contention: str = "fifo"
    store_and_forward: bool = False
    part: str = ""

    @property
    def link(self) -> Int64:
        """The numbers of the links that the columns are of: all."""
        return np.arange(self.link_bytes.size)

    @property
    def makespan_s(self) -> float:
        """When the last op ends; 0 for an empty program."""
        return float(self.end_s.max(initial=0.0))

    @property
    def messages(self) -> int:
        """Number of messages simulated."""
        return self.program.rows

    def critical_path(self) -> CriticalPath:
        """The chain of delays, latencies and transfers that ends at the makespan without a gap, from time 0.

        Each link of the chain is what the next waited for: a predecessor, or a busy link. Simulates again, to record.
        """
        if self.contention != "fifo":
            raise InfeasibleError("under fair sharing nothing waits for one other message: there is no critical path")
        # The times of the second run, which may differ in the last bits from those of another level.
        recorded, record = _run(self.program, Routes.of(self.program), self.store_and_forward, record=True)
        return critical_path(self.program, recorded.end_s, record, self.store_and_forward)


def simulate(
    program: Program,
    *,
    store_and_forward: bool = False,
    in_order: bool = True,
    merge: bool = False,
    routes: Routes | None = None,
) -> Outcome:
    """The Outcome of a program that starts at time 0 on idle links.

    ``store_and_forward``: a link sends a message on only when all of it has arrived. ``in_order=False`` skips the
    attempt to do without a heap; the result is the same. ``merge`` leaves out hops that cannot queue (see `merging`):
    quicker, and equal but for the last bits of sums; ``routes`` are the program's merged ones where they are known. A
    cycle is a ScheduleError that names rows on it; a run that would take more than half of the machine's memory is an
    InfeasibleError before it starts.
    """
    require_memory(RUN_BYTES_PER_ROW * program.rows, program.rows)
    in_order = in_order and not program.joins
    messages = program.nbytes[: program.rows - program.joins]
    shortest_s = float(messages.min(initial=2**62)) / float(program.link_bandwidth.max(initial=1e-300))
    if merge and not store_and_forward and shortest_s:
        from commsim.engine.loops.heap import TIE

        outcome, _ = _run(program, Routes.merged(program) if routes is None else routes, in_order=in_order)
        # Two messages that leave a link one after the other must not come to the next one at one time: there the one of
        # smaller number would overtake, and where links are merged it cannot.
        if shortest_s > 2 * TIE * outcome.makespan_s:
            return outcome
    return _run(program, Routes.of(program), store_and_forward, in_order=in_order)[0]


def _run(
    p: Program, routes: Routes, store_and_forward: bool = False, *, in_order: bool = False, record: bool = False
) -> tuple[Outcome, Record]:
    """In the order of numbers where that is asked for and holds on every link, else by a heap, which may record."""
    from commsim.engine.loops.events import run_heap
    from commsim.engine.loops.in_order import run_in_order
    from commsim.engine.loops.links import LinkState, Ops, Times

    def blank() -> tuple[LinkState, Times]:
        of_links = LinkState(np.zeros(p.links), np.zeros(p.links, np.int64), np.zeros(p.links))
        return of_links, Times(*(np.zeros(p.rows) for _ in range(3)))

    ops = Ops(p.nbytes, p.route, p.delay_s, p.succ_ptr, p.succ_idx)
    links, times = blank()
    method, kept = "in_order", Record.empty(p) if record else Record.none()
    if not in_order or run_in_order(ops, routes, links, times, store_and_forward) < p.rows:
        method = "heap"
        links, times = blank()
        waiting = p.indeg.copy()
        options = (p.rows - p.joins, store_and_forward)
        finished = run_heap(ops, routes, links, times, waiting, _first_ops(p), kept, options)
        if finished < p.rows:
            raise ScheduleError(cycle_message(p, np.flatnonzero(waiting > 0), p.rows - finished))
    nbytes, busy = links.nbytes[routes.stands_for], links.busy[routes.stands_for]
    return Outcome(p, *times, nbytes, busy, method=method, store_and_forward=store_and_forward), kept


def _first_ops(p: Program) -> Int64:
    """The ops that wait for none, in the order of (delay, number); delays that tie count as one."""
    from commsim.engine.loops.heap import BEFORE

    first = np.flatnonzero(p.indeg == 0)
    delay = p.delay_s[first]
    if (delay[1:] == delay[:-1]).all():
        return first
    order = np.argsort(delay, kind="stable")
    later = delay[order][:-1] < delay[order][1:] * BEFORE
    return first[order[np.lexsort((order, np.append(0, np.cumsum(later))))]]


def cycle_message(p: Program, stuck: Int64, count: int) -> str:
    """Names the rows of one cycle among the ops that never became ready."""
    # Walking from any stuck op to a stuck predecessor, again and again, must come back to an op seen before.
    is_stuck = np.zeros(p.rows, bool)
    is_stuck[stuck] = True
    before = np.full(p.rows, -1, np.int64)
    src = np.repeat(np.arange(p.rows), np.diff(p.succ_ptr))
    before[p.succ_idx[is_stuck[src]]] = src[is_stuck[src]]
    seen: dict[int, int] = {}
    op = int(stuck[0])
    while op not in seen:
        seen[op] = len(seen)
        op = int(before[op])
    cycle = [op, *(row for row, place in reversed(seen.items()) if place > seen[op]), op]
    shown = " -> ".join(map(str, cycle if len(cycle) <= 9 else [*cycle[:8], "...", op]))
    return (
        f"rows wait for each other in a cycle: {shown} (each row starts after the one before it); "
        f"{count} of {p.rows} rows never start"
    )
