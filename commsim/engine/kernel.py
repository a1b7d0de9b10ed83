"""The compiled event loops: plain arrays in, arrays out. Import this module lazily, since it imports numba.

Semantics: virtual cut-through with one unbounded first-in first-out queue per link. The head of a message
reaches a link at ``t``; the link takes it up at ``st = max(t, free)``, has sent its last byte at ``fin =
max(st + nbytes / bandwidth, tail)`` (``tail``: when the last byte arrives from the link before), and is free
again at ``fin``. The head is at the next link at ``st + latency``, the last byte at ``fin + latency``. So a
message that meets nobody takes the sum of the latencies plus nbytes over the smallest bandwidth. Events at
one time go in the order of (op, hop), which makes every run the same.

There are no bounds checks here: `commsim.engine.program.Program` checks indices and ranges when it is made.
All kernels stay in this one file, because numba's cache does not notice changed callees in other files.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numba
import numpy as np
import numpy.typing as npt

from commsim import __version__

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]
I32 = npt.NDArray[np.int32]

HOP_BITS = 4
MAX_HOPS = 1 << HOP_BITS


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
_BEFORE = numba.config.CACHE_DIR
if not _BEFORE and _FOLDER is not None and _FOLDER.parent != _HERE:
    numba.config.CACHE_DIR = str(_FOLDER)
_jit = numba.njit(cache=bool(_BEFORE) or _FOLDER is not None, nogil=True)


# An index that cannot be negative spares the test whether it counts from the end: the heap runs 1.4 times as fast.
_u = np.uintp


@_jit
def _push(times: F64, keys: I64, n: int, t: float, key: int) -> None:
    """Add (t, key) to the binary heap that fills the first n places; the arrays have room."""
    i = n
    while i > 0:
        parent = (i - 1) >> 1
        if times[_u(parent)] < t or (times[_u(parent)] == t and keys[_u(parent)] < key):
            break
        times[_u(i)] = times[_u(parent)]
        keys[_u(i)] = keys[_u(parent)]
        i = parent
    times[_u(i)] = t
    keys[_u(i)] = key


@_jit
def _drop_top(times: F64, keys: I64, n: int) -> None:
    """Remove the smallest of the n entries of the heap; the caller has read it and counts n - 1 from here on."""
    last = n - 1
    i = 0
    child = 1
    # The hole goes to the bottom first and the last entry then rises from there: it belongs near the bottom, and
    # choosing the smaller child without a branch is what makes this quick.
    while child + 1 < last:
        right = child + 1
        child += (times[_u(right)] < times[_u(child)]) | (
            (times[_u(right)] == times[_u(child)]) & (keys[_u(right)] < keys[_u(child)])
        )
        times[_u(i)] = times[_u(child)]
        keys[_u(i)] = keys[_u(child)]
        i = child
        child = 2 * i + 1
    if child < last:
        times[_u(i)] = times[_u(child)]
        keys[_u(i)] = keys[_u(child)]
        i = child
    _push(times, keys, i, times[_u(last)], keys[_u(last)])


@_jit
def run_heap(
    nbytes: I64,
    route: I32,
    delay: F64,
    succ_ptr: I64,
    succ_idx: I32,
    waiting: I32,
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
) -> int:
    """Simulate with a heap of events; returns the number of finished ops (fewer than M: a cycle).

    ``waiting`` (M,) holds the in-degrees and is used up. ``ready``, ``start``, ``end`` (M,), ``link_bytes``
    and ``link_busy`` (L,) arrive as zeros. When ``hop_ptr`` (M+1,) is not empty, the run is recorded for the
    critical path: ``hop_start`` per op and hop; ``hop_before`` the event (op << 4 | hop) that kept the link
    busy, or -1; ``cause`` (M,) the predecessor that came last, or -1 (both arrive as -1).
    """
    recording = hop_ptr.size > 0
    rows = nbytes.size
    free = np.zeros(latency.size, np.float64)
    holder = np.full(latency.size if recording else 0, -1, np.int64)
    room = 1024
    times = np.empty(room, np.float64)
    keys = np.empty(room, np.int64)
    n = 0
    for op in range(rows):
        if waiting[op] == 0:
            if n == room:
                times = np.concatenate((times, np.empty(room, np.float64)))
                keys = np.concatenate((keys, np.empty(room, np.int64)))
                room *= 2
            _push(times, keys, n, delay[op], op << HOP_BITS)
            n += 1
    finished = 0
    while n > 0:
        t = times[0]
        key = keys[0]
        _drop_top(times, keys, n)
        n -= 1
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
                if n > 0 and (times[0] < t or (times[0] == t and keys[0] < key)):
                    # Room is certain: this op's event has just left the heap.
                    _push(times, keys, n, t, key)
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
                if waiting[_u(s)] == 0:
                    if n == room:
                        times = np.concatenate((times, np.empty(room, np.float64)))
                        keys = np.concatenate((keys, np.empty(room, np.int64)))
                        room *= 2
                    _push(times, keys, n, ready[_u(s)] + delay[_u(s)], np.int64(s) << HOP_BITS)
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
            if t < head[_u(link)]:
                return op
            head[_u(link)] = t
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


numba.config.CACHE_DIR = _BEFORE
