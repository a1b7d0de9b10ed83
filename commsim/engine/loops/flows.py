"""What the loops of fair sharing know of messages, connections and links, and what is under way on each."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from commsim.engine.loops.heap import Heap
    from commsim.engine.program import Float64, Int32, Int64

IDLE, RUNNING, STOPPING, STARTING = 0, 1, 2, 3
"""States of a connection."""

STAMP, FINISHED, FILLINGS, FILLED, CHANGED, ENDED = range(6)
"""Places in `FairRun.counts`: batches of events, finished messages, fillings and the flows in all of them; connections
changed in this batch, instances ended in this call."""

NOW, UNTIL = range(2)
"""Places in `FairRun.clock`."""


class FairOps(NamedTuple):
    """Messages, (M,): successors are ``succ_idx[succ_first:succ_last]`` plus ``shift``.

    ``instance`` (M,), or empty when all ops are one run: then ``shift`` is empty too. ``behind``: the next message in
    the queue of the connection, or -1.
    """

    nbytes: Int64
    connection: Int32
    delay: Float64
    succ_first: Int64
    succ_last: Int64
    succ_idx: Int32
    shift: Int64
    instance: Int32
    waiting: Int32
    ready: Float64
    start: Float64
    end: Float64
    behind: Int32


class FairLines(NamedTuple):
    """Connections, (C,), and the links that may bind on their ways; what is under way on each.

    Connection c has the slots ``slot_ptr[c]:slot_ptr[c + 1]``: links, and how many of its flows a link carries.
    ``cap`` is its largest rate, -1 for a connection without links; ``whole_cap`` the same in integers, rounded up.
    ``tree``: a tree of minima over the times when flows end.
    """

    slot_ptr: Int64
    slot_link: Int32
    slot_weight: Int64
    slot_place: Int64
    cap: Float64
    whole_cap: Int64
    latency: Float64
    state: Int64
    current: Int32
    head: Int32
    last: Int32
    rate: Float64
    rest: Float64
    since: Float64
    fixed_rate: Float64
    changed: Int32
    chosen: Int32
    chosen_at: Int64
    tree: Float64


class FairLinks(NamedTuple):
    """Links, (L,): ``whole_bandwidth`` in the integers of the caps. While caps add up to no more, a link cannot bind.

    ``level``: the rate of the quickest flows of a link that is full, infinite for others. The active flows of link l
    stand in ``list_flow`` (and their slots in ``list_slot``) from ``list_ptr[l]`` on. ``shares``: the heap of filling.
    """

    bandwidth: Float64
    whole_bandwidth: Int64
    list_ptr: Int64
    list_flow: Int32
    list_slot: Int64
    list_size: Int64
    queue: Int32
    queued_at: Int64
    touched: Int32
    touched_at: Int64
    binding: Int64
    demand: Int64
    load: Int64
    left: Float64
    unfixed: Int64
    level: Float64
    shares: Heap


class FairRun(NamedTuple):
    """``counts`` and ``clock``: see above; ``starts``: the heap of starts, with room for every op.

    Per instance: messages left, end so far; ``done`` receives those ended.
    """

    counts: Int64
    clock: Float64
    starts: Heap
    left: Int64
    end: Float64
    done: Int64
