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


@_jit
def _push(times: F64, keys: I64, n: int, t: float, key: int) -> None:
    """Add (t, key) to the binary heap that fills the first n places; the arrays have room."""
    i = n
    while i > 0:
        parent = (i - 1) >> 1
        if times[parent] < t or (times[parent] == t and keys[parent] < key):
            break
        times[i] = times[parent]
        keys[i] = keys[parent]
        i = parent
    times[i] = t
    keys[i] = key


@_jit
def _drop_top(times: F64, keys: I64, n: int) -> None:
    """Remove the smallest of the n entries of the heap; the caller has read it and counts n - 1 from here on."""
    last = n - 1
    t = times[last]
    key = keys[last]
    i = 0
    child = 1
    while child < last:
        right = child + 1
        if right < last and (
            times[right] < times[child] or (times[right] == times[child] and keys[right] < keys[child])
        ):
            child = right
        if t < times[child] or (t == times[child] and key < keys[child]):
            break
        times[i] = times[child]
        keys[i] = keys[child]
        i = child
        child = 2 * i + 1
    times[i] = t
    keys[i] = key


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
        first = route_ptr[route[op]]
        hops = route_ptr[route[op] + 1] - first
        if hops == 0:
            start[op] = t
            end[op] = t
        while hop < hops:
            link = route_link[first + hop]
            st = max(t, free[link])
            fin = max(st + nbytes[op] * inv_bandwidth[link], end[op])
            if recording:
                hop_start[hop_ptr[op] + hop] = st
                if free[link] > t:
                    hop_before[hop_ptr[op] + hop] = holder[link]
                holder[link] = (op << HOP_BITS) | hop
            if hop == 0:
                start[op] = st
            free[link] = fin
            link_busy[link] += fin - st
            link_bytes[link] += nbytes[op]
            end[op] = fin + latency[link]  # the tail at the next link until the last hop, the end of the op there
            hop += 1
            if hop < hops:
                t = end[op] if store_and_forward else st + latency[link]
                key = (op << HOP_BITS) | hop
                if n > 0 and (times[0] < t or (times[0] == t and keys[0] < key)):
                    # Room is certain: this op's event has just left the heap.
                    _push(times, keys, n, t, key)
                    n += 1
                    break
                # Nothing comes before the next hop, so it is handled without a way through the heap.
        else:
            finished += 1
            done = end[op]
            for e in range(succ_ptr[op], succ_ptr[op + 1]):
                s = succ_idx[e]
                if done > ready[s]:
                    ready[s] = done
                    if recording:
                        cause[s] = op
                waiting[s] -= 1
                if waiting[s] == 0:
                    if n == room:
                        times = np.concatenate((times, np.empty(room, np.float64)))
                        keys = np.concatenate((keys, np.empty(room, np.int64)))
                        room *= 2
                    _push(times, keys, n, ready[s] + delay[s], np.int64(s) << HOP_BITS)
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
        first = route_ptr[route[op]]
        last = route_ptr[route[op] + 1]
        for h in range(first, last):
            link = route_link[h]
            if t < head[link]:
                return op
            head[link] = t
            st = max(t, free[link])
            fin = max(st + nbytes[op] * inv_bandwidth[link], tail)
            if h == first:
                start[op] = st
            free[link] = fin
            link_busy[link] += fin - st
            link_bytes[link] += nbytes[op]
            tail = fin + latency[link]
            done = tail
            t = tail if store_and_forward else st + latency[link]
        end[op] = done
        for e in range(succ_ptr[op], succ_ptr[op + 1]):
            s = succ_idx[e]
            if s <= op:
                return op
            ready[s] = max(ready[s], done)
    return rows


numba.config.CACHE_DIR = _BEFORE
