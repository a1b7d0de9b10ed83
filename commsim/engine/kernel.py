"""The compiled event loops: plain arrays in, arrays out. Import this module lazily, since it imports numba.

Semantics: virtual cut-through with one unbounded first-in first-out queue per link. The head of a message
reaches a link at ``t``; the link takes it up at ``st = max(t, free)``, has sent its last byte at ``fin =
max(st + nbytes / bandwidth, tail)`` (``tail``: when the last byte arrives from the link before), and is free
again at ``fin``. The head is at the next link at ``st + latency``, the last byte at ``fin + latency``. So a
message that meets nobody takes the sum of the latencies plus nbytes over the smallest bandwidth.

Events at one time go in the order of (op, hop). Times that differ by no more than a share of ``TIE`` are one time: two
sums that are equal in real numbers differ in their last bits as floats, and then the order must not hang on the order
of additions, which merging links or scaling all times changes.

There are no bounds checks here: `commsim.engine.program.Program` checks indices and ranges when it is made.
All kernels stay in this one file, because numba's cache does not notice changed callees in other files.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import numpy.typing as npt

from commsim import __version__
from commsim.engine.compiling import announce

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]

HOP_BITS = 16
MAX_HOPS = 1 << HOP_BITS

TIE = 1e-11
"""Share by which two times may differ and still be one time.

Above what sums lose: each addition at most 1.1e-16, so 90,000 in a row; a ring of 4,096 ranks lost 3e-13. Below what
tells messages apart: in a run of 0.1 s it is 1 ps, less than a byte takes at 900 GB/s.
"""
BEFORE = 1.0 - TIE
"""What t is multiplied with for the latest time that is before t and not at one time with it."""


def _writable(folder: Path) -> bool:
    """Whether a file can be made in the folder, which is made if need be; asked by trying, as permissions mislead."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def cache_folder(package: Path, user_cache: Path) -> Path | None:
    """Where compiled code may be kept: beside the source, else a folder of the user keyed by version, else None."""
    beside = package / "__pycache__"
    if _writable(beside):
        return beside
    own = user_cache / "commsim" / f"{__version__}-numba-{numba.__version__}"
    return own if _writable(own) else None


def _user_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return Path(base) if base else Path(os.path.expanduser("~/.cache"))  # noqa: PTH111 - no error without a home


_HERE = Path(__file__).resolve().parent
_FOLDER = cache_folder(_HERE, _user_cache())
# numba chooses the folder when a function is decorated; set for this module only, so that other users of numba in the
# same process keep theirs. A choice of the user's (NUMBA_CACHE_DIR) stands.
_CACHE_DIR = numba.config.CACHE_DIR
if not _CACHE_DIR and _FOLDER is not None and _FOLDER.parent != _HERE:
    numba.config.CACHE_DIR = str(_FOLDER)
_jit = numba.njit(cache=bool(_CACHE_DIR) or _FOLDER is not None, nogil=True)
announce()


# An index that cannot be negative spares the test whether it counts from the end: the heap runs 1.4 times as fast.
_u = np.uintp


@_jit
def _first(t: float, key: int, other_t: float, other_key: int, before: float) -> bool:
    """Whether (t, key) comes before the other one: t is smaller, or the same and its key is smaller.

    ``before``: BEFORE if times that tie are the same, 1.0 if only equal ones are.
    """
    return (t < other_t * before) | ((t * before <= other_t) & (key < other_key))


@_jit
def _push(times: F64, keys: I64, n: int, t: float, key: int, before: float) -> None:
    """Add (t, key) to the binary heap that fills the first n places; the arrays have room."""
    i = n
    while i > 0:
        parent = (i - 1) >> 1
        if _first(times[_u(parent)], keys[_u(parent)], t, key, before):
            break
        times[_u(i)] = times[_u(parent)]
        keys[_u(i)] = keys[_u(parent)]
        i = parent
    times[_u(i)] = t
    keys[_u(i)] = key


@_jit
def _drop_top(times: F64, keys: I64, n: int, before: float) -> None:
    """Remove the smallest of the n entries of the heap; the caller has read it and counts n - 1 from here on."""
    last = n - 1
    i = 0
    child = 1
    # The hole goes to the bottom first and the last entry then rises from there: it belongs near the bottom, and
    # choosing the smaller child without a branch is what makes this quick.
    while child + 1 < last:
        right = child + 1
        child += _first(times[_u(right)], keys[_u(right)], times[_u(child)], keys[_u(child)], before)
        times[_u(i)] = times[_u(child)]
        keys[_u(i)] = keys[_u(child)]
        i = child
        child = 2 * i + 1
    if child < last:
        times[_u(i)] = times[_u(child)]
        keys[_u(i)] = keys[_u(child)]
        i = child
    _push(times, keys, i, times[_u(last)], keys[_u(last)], before)


@_jit
def run_heap(
    nbytes: I64,
    route: I32,
    delay: F64,
    succ_ptr: I64,
    succ_idx: I32,
    waiting: I32,
    first_ops: I64,
    route_ptr: I64,
    route_link: I32,
    inv_bandwidth: F64,
    latency: F64,
    store_and_forward: bool,
    ready: F64,
    start: F64,
    end: F64,
    link_bytes: I64,
    link_busy: F64,
    hop_ptr: I64,
    hop_start: F64,
    hop_before: I64,
    cause: I32,
    first_join: int,
) -> int:
    """Simulate with a heap of events; returns the number of finished ops (fewer than M: a cycle).

    ``waiting`` (M,) holds the in-degrees and is used up; ``first_ops`` are the ops that wait for none, in the order
    of (delay, number), so that they need not stand in the heap. ``ready``, ``start``, ``end`` (M,), ``link_bytes``
    and ``link_busy`` (L,) arrive as zeros. When ``hop_ptr`` (M+1,) is not empty, the run is recorded for the
    critical path: ``hop_start`` per op and hop; ``hop_before`` the event (op << 16 | hop) that kept the link
    busy, or -1; ``cause`` (M,) the predecessor that came last, or -1 (both arrive as -1). Ops from ``first_join``
    on are joins: they end when the last op before them does and never stand in the heap, so that ties are broken as
    if their edges led from each op before to each op after; no join follows another.
    """
    recording = hop_ptr.size > 0
    free = np.zeros(latency.size, np.float64)
    holder = np.full(latency.size if recording else 0, -1, np.int64)
    room = 1024
    times = np.empty(room, np.float64)
    keys = np.empty(room, np.int64)
    n = 0
    taken = 0
    next_first = delay[first_ops[0]] if first_ops.size > 0 else np.inf
    next_key = first_ops[0] << HOP_BITS if first_ops.size > 0 else np.int64(0)
    finished = 0
    while n > 0 or taken < first_ops.size:
        if n > 0 and _first(times[0], keys[0], next_first, next_key, BEFORE):
            t = times[0]
            key = keys[0]
            _drop_top(times, keys, n, BEFORE)
            n -= 1
        else:
            t = next_first
            key = next_key
            taken += 1
            if taken < first_ops.size:
                next_first = delay[_u(first_ops[_u(taken)])]
                next_key = first_ops[_u(taken)] << HOP_BITS
            else:
                next_first = np.inf
        op = key >> HOP_BITS
        hop = key & (MAX_HOPS - 1)
        first = route_ptr[_u(route[_u(op)])]
        hops = route_ptr[_u(route[_u(op)] + 1)] - first
        if hops == 0:
            start[_u(op)] = t
            end[_u(op)] = t
        while hop < hops:
            link = route_link[_u(first + hop)]
            st = max(t, free[_u(link)])
            fin = max(st + nbytes[_u(op)] * inv_bandwidth[_u(link)], end[_u(op)])
            if recording:
                hop_start[hop_ptr[_u(op)] + hop] = st
                if free[_u(link)] > t:
                    hop_before[hop_ptr[_u(op)] + hop] = holder[_u(link)]
                holder[_u(link)] = (op << HOP_BITS) | hop
            if hop == 0:
                start[_u(op)] = st
            free[_u(link)] = fin
            link_busy[_u(link)] += fin - st
            link_bytes[_u(link)] += nbytes[_u(op)]
            end[_u(op)] = (
                fin + latency[_u(link)]
            )  # the tail at the next link until the last hop, the end of the op there
            hop += 1
            if hop < hops:
                t = end[_u(op)] if store_and_forward else st + latency[_u(link)]
                key = (op << HOP_BITS) | hop
                if _first(next_first, next_key, t, key, BEFORE) or (
                    n > 0 and _first(times[0], keys[0], t, key, BEFORE)
                ):
                    if n == room:
                        times = np.concatenate((times, np.empty(room, np.float64)))
                        keys = np.concatenate((keys, np.empty(room, np.int64)))
                        room *= 2
                    _push(times, keys, n, t, key, BEFORE)
                    n += 1
                    break
                # Nothing comes before the next hop, so it is handled without a way through the heap.
        else:
            finished += 1
            done = end[_u(op)]
            for e in range(succ_ptr[_u(op)], succ_ptr[_u(op + 1)]):
                s = succ_idx[_u(e)]
                if done > ready[_u(s)]:
                    ready[_u(s)] = done
                    if recording:
                        cause[_u(s)] = op
                waiting[_u(s)] -= 1
                if waiting[_u(s)] > 0:
                    continue
                if s < first_join:
                    if n == room:
                        times = np.concatenate((times, np.empty(room, np.float64)))
                        keys = np.concatenate((keys, np.empty(room, np.int64)))
                        room *= 2
                    _push(times, keys, n, ready[_u(s)] + delay[_u(s)], np.int64(s) << HOP_BITS, BEFORE)
                    n += 1
                    continue
                finished += 1
                start[_u(s)] = ready[_u(s)]
                end[_u(s)] = ready[_u(s)]
                for j in range(succ_ptr[_u(s)], succ_ptr[_u(s + 1)]):
                    x = succ_idx[_u(j)]
                    if ready[_u(s)] > ready[_u(x)]:
                        ready[_u(x)] = ready[_u(s)]
                        if recording:
                            cause[_u(x)] = s
                    waiting[_u(x)] -= 1
                    if waiting[_u(x)] == 0:
                        if n == room:
                            times = np.concatenate((times, np.empty(room, np.float64)))
                            keys = np.concatenate((keys, np.empty(room, np.int64)))
                            room *= 2
                        _push(times, keys, n, ready[_u(x)] + delay[_u(x)], np.int64(x) << HOP_BITS, BEFORE)
                        n += 1
    return finished


@_jit
def run_in_order(
    nbytes: I64,
    route: I32,
    delay: F64,
    succ_ptr: I64,
    succ_idx: I32,
    route_ptr: I64,
    route_link: I32,
    inv_bandwidth: F64,
    latency: F64,
    store_and_forward: bool,
    ready: F64,
    start: F64,
    end: F64,
    link_bytes: I64,
    link_busy: F64,
) -> int:
    """Simulate in the order of op numbers, checking that every link sees its messages in that order.

    Returns M when the order held on every link and every successor has a larger number than its op: then all
    results are those of `run_heap`, bit for bit. Otherwise returns the op where it broke; the results are to
    be thrown away.
    """
    rows = nbytes.size
    free = np.zeros(latency.size, np.float64)
    head = np.zeros(latency.size, np.float64)
    for op in range(rows):
        t = ready[op] + delay[op]
        tail = 0.0
        start[op] = t
        done = t
        first = route_ptr[_u(route[op])]
        last = route_ptr[_u(route[op] + 1)]
        for h in range(first, last):
            link = route_link[_u(h)]
            if t < head[_u(link)] * BEFORE:
                return op
            head[_u(link)] = max(head[_u(link)], t)
            st = max(t, free[_u(link)])
            fin = max(st + nbytes[op] * inv_bandwidth[_u(link)], tail)
            if h == first:
                start[op] = st
            free[_u(link)] = fin
            link_busy[_u(link)] += fin - st
            link_bytes[_u(link)] += nbytes[op]
            tail = fin + latency[_u(link)]
            done = tail
            t = tail if store_and_forward else st + latency[_u(link)]
        end[op] = done
        for e in range(succ_ptr[op], succ_ptr[_u(op + 1)]):
            s = succ_idx[_u(e)]
            if s <= op:
                return op
            ready[_u(s)] = max(ready[_u(s)], done)
    return rows


@_jit
def run_alone(cost: F64, succ_ptr: I64, succ_idx: I32, waiting: I32, ready: F64) -> float:
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
        op = queue[_u(taken)]
        taken += 1
        done = ready[_u(op)] + cost[_u(op)]
        last = max(last, done)
        for e in range(succ_ptr[_u(op)], succ_ptr[_u(op + 1)]):
            s = succ_idx[_u(e)]
            ready[_u(s)] = max(ready[_u(s)], done)
            waiting[_u(s)] -= 1
            if waiting[_u(s)] == 0:
                queue[_u(n)] = s
                n += 1
    return last


@_jit
def run_family(
    steps: I64,
    nbytes: I64,
    to: I32,
    route: I32,
    lanes: int,
    route_ptr: I64,
    route_link: I32,
    inv_bandwidth: F64,
    latency: F64,
    arrived: F64,
    link_busy: F64,
) -> int:
    """`run_in_order` for a family in phases, whose rows are never built; returns the number of steps done in order.

    ``steps`` and ``nbytes`` (phases,), ``to`` and ``route`` (phases, senders). ``arrived`` (lanes, senders) comes as
    zeros and holds at the end when each sender's last message arrived. Fewer steps than there are: the order of
    numbers did not hold on a link, and the results are to be thrown away.
    """
    senders = to.shape[1]
    free = np.zeros(latency.size, np.float64)
    head = np.zeros(latency.size, np.float64)
    incoming = np.zeros_like(arrived)
    done = 0
    for phase in range(steps.size):
        size = nbytes[phase]
        for _ in range(steps[phase]):
            for lane in range(lanes):
                for sender in range(senders):
                    t = arrived[lane, sender]
                    tail = 0.0
                    way = route[phase, sender]
                    for h in range(route_ptr[_u(way)], route_ptr[_u(way + 1)]):
                        link = route_link[_u(h)]
                        if t < head[_u(link)] * BEFORE:
                            return done
                        head[_u(link)] = max(head[_u(link)], t)
                        st = max(t, free[_u(link)])
                        fin = max(st + size * inv_bandwidth[_u(link)], tail)
                        free[_u(link)] = fin
                        link_busy[_u(link)] += fin - st
                        tail = fin + latency[_u(link)]
                        t = st + latency[_u(link)]
                    incoming[lane, _u(to[phase, sender])] = max(tail, t)
            arrived[:] = incoming
            done += 1
    return done


_INF = np.inf
IDLE, RUNNING, STOPPING, STARTING = 0, 1, 2, 3
TIME_WENT_BACK, FILLING_STUCK = -1, -2


@_jit
def _set_leaf(tree: F64, leaves: int, leaf: int, value: float) -> None:
    """Set one leaf of a tree of minima: node i has the children 2i and 2i + 1, leaf j is node leaves + j."""
    i = leaves + leaf
    tree[_u(i)] = value
    while i > 1:
        i >>= 1
        smallest = min(tree[_u(2 * i)], tree[_u(2 * i + 1)])
        if tree[_u(i)] == smallest:
            break
        tree[_u(i)] = smallest


@_jit
def _first_leaf(tree: F64, leaves: int) -> int:
    """The lowest leaf that holds the smallest value."""
    i = 1
    while i < leaves:
        i *= 2
        if tree[_u(i)] > tree[_u(i + 1)]:
            i += 1
    return i - leaves


@_jit
def _freeze(
    flow: int,
    rate: float,
    slot_ptr: I64,
    slot_link: I32,
    slot_weight: I64,
    fixed_rate: F64,
    left: F64,
    unfixed: I64,
) -> None:
    """Give a flow its rate and take that from its links."""
    fixed_rate[_u(flow)] = rate
    for k in range(slot_ptr[_u(flow)], slot_ptr[_u(flow + 1)]):
        link = slot_link[_u(k)]
        left[_u(link)] = max(0.0, left[_u(link)] - rate * slot_weight[_u(k)])
        unfixed[_u(link)] -= slot_weight[_u(k)]


@_jit
def _fill(
    flows: I32,
    n_flows: int,
    links: I32,
    n_links: int,
    slot_ptr: I64,
    slot_link: I32,
    slot_weight: I64,
    cap: F64,
    bandwidth: F64,
    binding: I64,
    list_ptr: I64,
    list_flow: I32,
    list_size: I64,
    fixed_rate: F64,
    left: F64,
    unfixed: I64,
    link_level: F64,
    times: F64,
    keys: I64,
) -> int:
    """Progressive filling: the max-min fair rate of each of these flows, into ``fixed_rate``.

    ``left`` and ``unfixed`` hold what other flows of these links leave, and the number of those to be filled.
    ``link_level`` receives the rate at which each link is full, infinite for one that is not.

    The link with the smallest share of what is left per flow is filled first (a heap; a share found to have grown is
    put back, since shares never shrink). Flows whose cap is below that share are fixed at the cap before.
    """
    n = 0
    for i in range(n_links):
        link = links[_u(i)]
        link_level[_u(link)] = _INF
        if binding[_u(link)] and unfixed[_u(link)] > 0:
            _push(times, keys, n, left[_u(link)] / unfixed[_u(link)], np.int64(link), 1.0)
            n += 1
    smallest_cap = _INF
    for i in range(n_flows):
        fixed_rate[_u(flows[_u(i)])] = -1.0
        smallest_cap = min(smallest_cap, cap[_u(flows[_u(i)])])
    todo = n_flows
    level = 0.0
    guard = 8 * (n_flows + n_links) + 64
    while todo > 0 and n > 0:
        guard -= 1
        if guard < 0:
            return FILLING_STUCK
        share = times[0]
        link = keys[0]
        if unfixed[_u(link)] <= 0:
            if left[_u(link)] <= 1e-12 * bandwidth[_u(link)]:
                link_level[_u(link)] = level
            _drop_top(times, keys, n, 1.0)
            n -= 1
            continue
        now = max(level, left[_u(link)] / unfixed[_u(link)])
        if now > share * (1.0 + 1e-12):
            _drop_top(times, keys, n, 1.0)
            _push(times, keys, n - 1, now, link, 1.0)
            continue
        if smallest_cap <= now:
            lowest = smallest_cap
            smallest_cap = _INF
            for i in range(n_flows):
                flow = flows[_u(i)]
                if fixed_rate[_u(flow)] < 0.0:
                    if cap[_u(flow)] <= lowest:
                        _freeze(flow, lowest, slot_ptr, slot_link, slot_weight, fixed_rate, left, unfixed)
                        todo -= 1
                    else:
                        smallest_cap = min(smallest_cap, cap[_u(flow)])
            guard += 1
            continue
        level = now
        link_level[_u(link)] = level
        _drop_top(times, keys, n, 1.0)
        n -= 1
        first = list_ptr[_u(link)]
        for i in range(first, first + list_size[_u(link)]):
            flow = list_flow[_u(i)]
            if fixed_rate[_u(flow)] < 0.0:
                _freeze(flow, level, slot_ptr, slot_link, slot_weight, fixed_rate, left, unfixed)
                todo -= 1
    if todo > 0:
        for i in range(n_flows):
            flow = flows[_u(i)]
            if fixed_rate[_u(flow)] < 0.0:
                fixed_rate[_u(flow)] = cap[_u(flow)]
    return 0


class FairOps(NamedTuple):
    """What the fair kernel knows of ops, (M,): successors are ``succ_idx[succ_first:succ_last]`` plus ``shift``.

    ``instance`` (M,), or empty when all ops are one run: then ``shift`` is empty too.
    """

    nbytes: I64
    connection: I32
    delay: F64
    succ_first: I64
    succ_last: I64
    succ_idx: I32
    shift: I64
    instance: I32
    waiting: I32
    ready: F64
    start: F64
    end: F64
    behind: I32


class FairLines(NamedTuple):
    """Connections (C,) and the links that may bind on their ways; what is under way on each.

    Connection c has the slots ``slot_ptr[c]:slot_ptr[c + 1]``: links, and how many of its flows a link carries.
    ``cap`` is its largest rate, -1 for a connection without links; ``whole_cap`` the same in integers, rounded up.
    ``tree``: a tree of minima over the times when flows end.
    """

    slot_ptr: I64
    slot_link: I32
    slot_weight: I64
    slot_place: I64
    cap: F64
    whole_cap: I64
    latency: F64
    state: I64
    current: I32
    head: I32
    last: I32
    rate: F64
    rest: F64
    since: F64
    fixed_rate: F64
    changed: I32
    chosen: I32
    chosen_at: I64
    tree: F64


class FairLinks(NamedTuple):
    """Links (L,): ``whole_bandwidth`` in the integers of the caps. While caps add up to no more, a link cannot bind.

    ``level``: the rate of the quickest flows of a link that is full, infinite for others.
    The active flows of link l stand in ``list_flow`` (and their slots in ``list_slot``) from ``list_ptr[l]`` on.
    """

    bandwidth: F64
    whole_bandwidth: I64
    list_ptr: I64
    list_flow: I32
    list_slot: I64
    list_size: I64
    queue: I32
    queued_at: I64
    touched: I32
    touched_at: I64
    binding: I64
    demand: I64
    load: I64
    left: F64
    unfixed: I64
    level: F64
    times: F64
    keys: I64


class FairRun(NamedTuple):
    """``sizes``: events waiting, stamp, finished ops, recomputations, flows in them; ``clock``: [now].

    ``times`` and ``keys``: the heap of starts. Per instance: messages left, end so far; ``done`` receives those ended.
    """

    sizes: I64
    clock: F64
    times: F64
    keys: I64
    left: I64
    end: F64
    done: I64


@_jit
def run_fair(until: float, quantum: float, ops: FairOps, lines: FairLines, links: FairLinks, run: FairRun) -> int:
    """Simulate with max-min fair sharing before ``until``; returns how many instances ended, or a negative fault.

    A flow is the head of one connection's queue. Like `advance_fifo` it goes no further than the first end of an
    instance found. All that is under way is kept in the arrays, so the next call goes on from there.
    """
    nbytes, connection, delay = ops.nbytes, ops.connection, ops.delay
    succ_first, succ_last, succ_idx = ops.succ_first, ops.succ_last, ops.succ_idx
    waiting, ready, start, end, behind = ops.waiting, ops.ready, ops.start, ops.end, ops.behind
    slot_ptr, slot_link, slot_weight, list_place = lines.slot_ptr, lines.slot_link, lines.slot_weight, lines.slot_place
    cap, whole_cap, path_latency = lines.cap, lines.whole_cap, lines.latency
    state, current, head, last = lines.state, lines.current, lines.head, lines.last
    rate, rest, since, fixed_rate = lines.rate, lines.rest, lines.since, lines.fixed_rate
    changed, chosen, chosen_at, tree = lines.changed, lines.chosen, lines.chosen_at, lines.tree
    bandwidth, whole_bandwidth = links.bandwidth, links.whole_bandwidth
    list_ptr, list_flow, list_slot, list_size = links.list_ptr, links.list_flow, links.list_slot, links.list_size
    queue, queued_at, touched, touched_at = links.queue, links.queued_at, links.touched, links.touched_at
    binding, demand, load = links.binding, links.demand, links.load
    left, unfixed, link_level, fill_times, fill_keys = links.left, links.unfixed, links.level, links.times, links.keys
    times, keys = run.times, run.keys
    room = times.size
    single = ops.instance.size == 0
    leaves = tree.size // 2
    levels = 1
    while (1 << levels) < leaves:
        levels += 1
    n = run.sizes[0]
    ended = 0
    finished = run.sizes[2]
    stamp = run.sizes[1]
    now = run.clock[0]
    while n > 0 or tree[1] < _INF:
        top = tree[1]
        if n > 0:
            top = min(top, times[0])
        if top >= until * BEFORE:
            break
        if top < now * (1.0 - 1e-9):
            return TIME_WENT_BACK
        now = max(now, top)
        limit = top * (1.0 + quantum)
        n_changed = 0
        stamp += 1
        while True:
            done_op = -1
            done = 0.0
            if tree[1] <= limit:
                flow = _first_leaf(tree, leaves)
                at = tree[_u(leaves + flow)]
                done_op = current[_u(flow)]
                done = at + path_latency[_u(flow)]
                following = head[_u(flow)]
                current[_u(flow)] = following
                if following >= 0:
                    head[_u(flow)] = behind[_u(following)]
                    start[_u(following)] = at
                    rest[_u(flow)] = nbytes[_u(following)]
                    since[_u(flow)] = at
                    _set_leaf(tree, leaves, flow, at + nbytes[_u(following)] / rate[_u(flow)])
                else:
                    _set_leaf(tree, leaves, flow, _INF)
                    state[_u(flow)] = STOPPING
                    changed[_u(n_changed)] = flow
                    n_changed += 1
            elif n > 0 and times[0] <= limit:
                at = times[0]
                op = keys[0]
                _drop_top(times, keys, n, 1.0)
                n -= 1
                flow = connection[_u(op)]
                if cap[_u(flow)] < 0.0:
                    start[_u(op)] = at
                    done_op = op
                    done = at
                elif state[_u(flow)] == IDLE or state[_u(flow)] == STOPPING:
                    current[_u(flow)] = op
                    rest[_u(flow)] = nbytes[_u(op)]
                    since[_u(flow)] = at
                    start[_u(op)] = at
                    if state[_u(flow)] == IDLE:
                        state[_u(flow)] = STARTING
                        changed[_u(n_changed)] = flow
                        n_changed += 1
                    else:
                        # Stopped and going on within one batch is no change: no rate need be found again.
                        state[_u(flow)] = RUNNING
                        _set_leaf(tree, leaves, flow, at + nbytes[_u(op)] / rate[_u(flow)])
                        for i in range(n_changed):
                            if changed[_u(i)] == flow:
                                n_changed -= 1
                                changed[_u(i)] = changed[_u(n_changed)]
                                break
                else:
                    if head[_u(flow)] < 0:
                        head[_u(flow)] = op
                    else:
                        behind[_u(last[_u(flow)])] = op
                    last[_u(flow)] = op
            else:
                break
            if done_op >= 0:
                finished += 1
                end[_u(done_op)] = done
                shift = 0 if single else ops.shift[_u(done_op)]
                for e in range(succ_first[_u(done_op)], succ_last[_u(done_op)]):
                    s = succ_idx[_u(e)] + shift
                    ready[_u(s)] = max(ready[_u(s)], done)
                    waiting[_u(s)] -= 1
                    if waiting[_u(s)] == 0:
                        if n == room:
                            times = np.concatenate((times, np.empty(room)))
                            keys = np.concatenate((keys, np.empty(room, np.int64)))
                            room *= 2
                        _push(times, keys, n, ready[_u(s)] + delay[_u(s)], np.int64(s), 1.0)
                        n += 1
                if not single:
                    which = ops.instance[_u(done_op)]
                    run.end[_u(which)] = max(run.end[_u(which)], done)
                    run.left[_u(which)] -= 1
                    if run.left[_u(which)] == 0:
                        run.done[_u(ended)] = which
                        ended += 1
                        until = min(until, run.end[_u(which)])
        n_touched = 0
        for i in range(n_changed):
            flow = changed[_u(i)]
            starts = state[_u(flow)] == STARTING
            for k in range(slot_ptr[_u(flow)], slot_ptr[_u(flow + 1)]):
                link = slot_link[_u(k)]
                if touched_at[_u(link)] != stamp:
                    touched_at[_u(link)] = stamp
                    touched[_u(n_touched)] = link
                    n_touched += 1
                more = slot_weight[_u(k)]
                first = list_ptr[_u(link)]
                if starts:
                    place = first + list_size[_u(link)]
                    list_size[_u(link)] += 1
                    list_flow[_u(place)] = flow
                    list_slot[_u(place)] = k
                    list_place[_u(k)] = place
                else:
                    more = -more
                    list_size[_u(link)] -= 1
                    place = list_place[_u(k)]
                    moved = first + list_size[_u(link)]
                    list_flow[_u(place)] = list_flow[_u(moved)]
                    list_slot[_u(place)] = list_slot[_u(moved)]
                    list_place[_u(list_slot[_u(place)])] = place
                load[_u(link)] += more
                demand[_u(link)] += more * whole_cap[_u(flow)]
            if starts:
                state[_u(flow)] = RUNNING
                rate[_u(flow)] = 0.0
                fixed_rate[_u(flow)] = cap[_u(flow)]
            else:
                state[_u(flow)] = IDLE
        # Links that bind now or did so before begin the search for all flows whose rates may change.
        n_queue = 0
        for i in range(n_touched):
            link = touched[_u(i)]
            before = binding[_u(link)]
            binding[_u(link)] = np.int64(demand[_u(link)] > whole_bandwidth[_u(link)])
            if before or binding[_u(link)]:
                queued_at[_u(link)] = stamp
                queue[_u(n_queue)] = link
                n_queue += 1
        # Filling goes as it did before up to the lowest rate at which something differs, so slower flows keep theirs.
        # A link with more flows is not full before its bandwidth over their number; where flows have stopped, only
        # those can be quicker that are not held by their cap or by another full link on which none is quicker.
        lowest = _INF
        starts_only = True
        for i in range(n_changed):
            flow = changed[_u(i)]
            if state[_u(flow)] != RUNNING:
                starts_only = False
            else:
                for k in range(slot_ptr[_u(flow)], slot_ptr[_u(flow + 1)]):
                    link = slot_link[_u(k)]
                    if binding[_u(link)]:
                        lowest = min(lowest, bandwidth[_u(link)] / load[_u(link)])
        for i in range(0 if starts_only else n_queue):
            link = queue[_u(i)]
            first = list_ptr[_u(link)]
            for m in range(first, first + list_size[_u(link)]):
                flow = list_flow[_u(m)]
                own = rate[_u(flow)]
                if own < lowest and own > 0.0 and own < cap[_u(flow)]:
                    held = False
                    for k in range(slot_ptr[_u(flow)], slot_ptr[_u(flow + 1)]):
                        other = slot_link[_u(k)]
                        if (
                            touched_at[_u(other)] != stamp
                            and binding[_u(other)]
                            and own >= link_level[_u(other)] * (1.0 - 1e-12)
                        ):
                            held = True
                            break
                    if not held:
                        lowest = own
        lowest *= 1.0 - 1e-9
        n_chosen = 0
        i = 0
        while i < n_queue:
            link = queue[_u(i)]
            first = list_ptr[_u(link)]
            left[_u(link)] = bandwidth[_u(link)]
            unfixed[_u(link)] = load[_u(link)]
            for k in range(first, first + list_size[_u(link)]):
                flow = list_flow[_u(k)]
                if 0.0 < rate[_u(flow)] < lowest:
                    more = slot_weight[_u(list_slot[_u(k)])]
                    left[_u(link)] = max(0.0, left[_u(link)] - rate[_u(flow)] * more)
                    unfixed[_u(link)] -= more
                elif chosen_at[_u(flow)] != stamp:
                    chosen_at[_u(flow)] = stamp
                    chosen[_u(n_chosen)] = flow
                    n_chosen += 1
                    for j in range(slot_ptr[_u(flow)], slot_ptr[_u(flow + 1)]):
                        other = slot_link[_u(j)]
                        if binding[_u(other)] and queued_at[_u(other)] != stamp:
                            queued_at[_u(other)] = stamp
                            queue[_u(n_queue)] = other
                            n_queue += 1
            i += 1
        if n_queue > 0 and n_chosen == 0:
            for i in range(n_queue):
                link_level[_u(queue[_u(i)])] = _INF
        if n_chosen > 0:
            run.sizes[3] += 1
            run.sizes[4] += n_chosen
            fault: int = _fill(
                chosen,
                n_chosen,
                queue,
                n_queue,
                slot_ptr,
                slot_link,
                slot_weight,
                cap,
                bandwidth,
                binding,
                list_ptr,
                list_flow,
                list_size,
                fixed_rate,
                left,
                unfixed,
                link_level,
                fill_times,
                fill_keys,
            )
            if fault < 0:
                return fault
        # Flows that start without meeting a link that binds go at their cap.
        for i in range(n_changed):
            flow = changed[_u(i)]
            if state[_u(flow)] == RUNNING and chosen_at[_u(flow)] != stamp:
                chosen_at[_u(flow)] = stamp
                chosen[_u(n_chosen)] = flow
                n_chosen += 1
        rebuild = n_chosen * levels > leaves
        for i in range(n_chosen):
            flow = chosen[_u(i)]
            if fixed_rate[_u(flow)] != rate[_u(flow)]:
                passed = now - since[_u(flow)]
                if passed > 0.0:
                    rest[_u(flow)] = max(0.0, rest[_u(flow)] - rate[_u(flow)] * passed)
                    since[_u(flow)] = now
                rate[_u(flow)] = fixed_rate[_u(flow)]
                at = since[_u(flow)] + rest[_u(flow)] / rate[_u(flow)]
                if rebuild:
                    tree[_u(leaves + flow)] = at
                else:
                    _set_leaf(tree, leaves, flow, at)
        if rebuild:
            for i in range(leaves - 1, 0, -1):
                tree[_u(i)] = min(tree[_u(2 * i)], tree[_u(2 * i + 1)])
    run.sizes[0] = n
    run.sizes[1] = stamp
    run.sizes[2] = finished
    run.clock[0] = now
    return ended


@_jit
def start_fifo(
    first: int, rows: int, t: float, indeg: I32, waiting: I32, ready: F64, tail: F64, times: F64, keys: I64, sizes: I64
) -> float:
    """Put an instance of ``rows`` ops at the places from ``first`` on, at time t; returns when the next event is.

    ``sizes``: [events in the heap]; the heap has room for one event per place.
    """
    n = sizes[0]
    for i in range(rows):
        waiting[first + i] = indeg[i]
        ready[first + i] = t
        tail[first + i] = 0.0
        if indeg[i] == 0:
            _push(times, keys, n, t, (first + i) << HOP_BITS, BEFORE)
            n += 1
    sizes[0] = n
    following: float = times[0]
    return following


@_jit
def advance_fifo(
    until: float,
    place_instance: I32,
    instance_first: I64,
    instance_table: I64,
    instance_left: I64,
    instance_end: F64,
    nbytes: I64,
    route: I32,
    succ_ptr: I64,
    succ_idx: I32,
    route_ptr: I64,
    route_link: I32,
    inv_bandwidth: F64,
    latency: F64,
    waiting: I32,
    ready: F64,
    tail: F64,
    free: F64,
    link_bytes: I64,
    link_busy: F64,
    times: F64,
    keys: I64,
    sizes: I64,
    done: I64,
) -> int:
    """Handle events before ``until``, or before the first end of an instance found; returns how many ended.

    An op stands at a place; place p belongs to instance ``place_instance[p]``, whose places begin at
    ``instance_first`` and whose ops are the rows from ``instance_table`` on of ``nbytes``, ``route`` and ``succ_ptr``
    (with ``succ_idx`` relative to the instance). ``done`` receives the instances, ``instance_end`` when they ended.
    What follows from an end thus comes before any later event: nothing need be rolled back.
    """
    n = sizes[0]
    ended = 0
    while n > 0 and times[0] < until * BEFORE:
        t = times[0]
        key = keys[0]
        _drop_top(times, keys, n, BEFORE)
        n -= 1
        place = key >> HOP_BITS
        hop = key & (MAX_HOPS - 1)
        instance = place_instance[_u(place)]
        base = instance_first[_u(instance)]
        row = instance_table[_u(instance)] + place - base
        first = route_ptr[_u(route[_u(row)])]
        hops = route_ptr[_u(route[_u(row)] + 1)] - first
        if hops == 0:
            tail[_u(place)] = t
        while hop < hops:
            link = route_link[_u(first + hop)]
            st = max(t, free[_u(link)])
            fin = max(st + nbytes[_u(row)] * inv_bandwidth[_u(link)], tail[_u(place)])
            free[_u(link)] = fin
            link_busy[_u(link)] += fin - st
            link_bytes[_u(link)] += nbytes[_u(row)]
            tail[_u(place)] = fin + latency[_u(link)]
            hop += 1
            if hop < hops:
                t = st + latency[_u(link)]
                key = (place << HOP_BITS) | hop
                if t >= until * BEFORE or (n > 0 and _first(times[0], keys[0], t, key, BEFORE)):
                    _push(times, keys, n, t, key, BEFORE)
                    n += 1
                    break
        else:
            end = tail[_u(place)]
            for e in range(succ_ptr[_u(row)], succ_ptr[_u(row + 1)]):
                s = base + succ_idx[_u(e)]
                ready[_u(s)] = max(ready[_u(s)], end)
                waiting[_u(s)] -= 1
                if waiting[_u(s)] == 0:
                    _push(times, keys, n, ready[_u(s)], np.int64(s) << HOP_BITS, BEFORE)
                    n += 1
            instance_end[_u(instance)] = max(instance_end[_u(instance)], end)
            instance_left[_u(instance)] -= 1
            if instance_left[_u(instance)] == 0:
                done[_u(ended)] = instance
                ended += 1
                until = min(until, instance_end[_u(instance)])
    sizes[0] = n
    return ended


@_jit
def start_fair(first: int, rows: int, t: float, indeg: I32, ops: FairOps, run: FairRun) -> None:
    """Put an instance of ``rows`` ops at the places from ``first`` on, at time t; the heap has room for them."""
    n = run.sizes[0]
    for i in range(rows):
        ops.waiting[first + i] = indeg[i]
        ops.ready[first + i] = t
        ops.behind[first + i] = -1
        if indeg[i] == 0:
            _push(run.times, run.keys, n, t, first + i, 1.0)
            n += 1
    run.sizes[0] = n


numba.config.CACHE_DIR = _CACHE_DIR
