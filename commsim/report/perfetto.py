"""A Timeline as a Chrome trace (JSON), which ui.perfetto.dev and chrome://tracing open.

Processes are ranks (or switches), threads are channels; a move that overlaps the one before on its channel, since the
next chunk leaves while the last is still on its way, goes to a further thread of that channel.
"""

from __future__ import annotations

import json
from heapq import heappush, heapreplace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from commsim.units import GIB

if TYPE_CHECKING:
    from commsim.engine.timeline import Timeline
    from commsim.scenario.work import Traced

MOST_EVENTS = 100_000
"""Viewers stay quick up to about this many events; beyond, whole ranks are left out."""


def chrome_trace(traced: Traced, most: int = MOST_EVENTS) -> str:
    """The trace as JSON text; times in microseconds.

    Above ``most`` moves only as many ranks are shown, evenly spread, as fit; a note says so, in ``otherData`` and as
    the name of the first event.
    """
    timeline = traced.timeline
    shown, note = _sampled(timeline, most)
    rows = np.flatnonzero(np.isin(timeline.endpoint, shown))[:most]
    events: list[dict[str, Any]] = []
    if note:
        events.append({"name": note, "ph": "I", "s": "g", "ts": 0, "pid": int(shown[0]), "tid": 0})
    for endpoint in shown.tolist():
        kind = traced.kind if traced.world_size is None or endpoint < traced.world_size else "switch"
        about = {"ph": "M", "pid": endpoint}
        events.append({"name": "process_name", **about, "args": {"name": f"{kind} {endpoint}"}})
        events += [
            {"name": "thread_name", **about, "tid": 100 * stream, "args": {"name": name}}
            for stream, name in enumerate(traced.streams)
        ]
        events.append({"name": "process_sort_index", **about, "args": {"sort_index": endpoint}})
    for endpoint, (times, held) in traced.counters.items():
        events += [
            {"name": "memory", "ph": "C", "ts": 1e6 * t, "pid": endpoint, "args": {"GiB": value / GIB}}
            for t, value in zip(times.tolist(), held.tolist(), strict=True)
        ]
    events += _moves(timeline, rows)
    other = {"title": traced.title, "moves": timeline.rows, "moves_shown": int(rows.size)}
    other |= {"note": note} if note else {}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}, allow_nan=False) + "\n"


def _sampled(timeline: Timeline, most: int) -> tuple[npt.NDArray[np.int32], str]:
    """The endpoints that are shown, and a note where those are not all."""
    endpoints = np.unique(timeline.endpoint)
    if timeline.rows <= most:
        return endpoints, ""
    count = max(1, int(endpoints.size * most / timeline.rows))
    shown = endpoints[np.linspace(0, endpoints.size - 1, count).round().astype(np.int64)]
    return shown, (
        f"sample: {shown.size} of {endpoints.size} ranks, at most {most:,} of {timeline.rows:,} moves; "
        "the times are those of the full run"
    )


def _moves(t: Timeline, rows: npt.NDArray[np.int64]) -> list[dict[str, Any]]:
    """One complete event per move, on the first thread of its channel that is free."""
    order = rows[np.argsort(t.start_s[rows], kind="stable")]
    lanes: dict[tuple[int, int], list[tuple[float, int]]] = {}
    events = []
    columns = (column[order].tolist() for column in (t.start_s, t.end_s, t.endpoint, t.stream, t.name_code, t.nbytes))
    for row, start, end, endpoint, stream, code, nbytes in zip(order.tolist(), *columns, strict=True):
        free = lanes.setdefault((endpoint, stream), [])
        if free and free[0][0] <= start:
            lane = free[0][1]
            heapreplace(free, (end, lane))
        else:
            lane = len(free)
            heappush(free, (end, lane))
        span = {"ph": "X", "ts": 1e6 * start, "dur": 1e6 * (end - start), "pid": endpoint, "tid": stream * 100 + lane}
        args = {"row": row, "nbytes": nbytes, "channel": stream}
        events.append({"name": t.names[code], **span, "args": args})
    return events
