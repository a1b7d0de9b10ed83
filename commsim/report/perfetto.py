"""A Timeline as a Chrome trace (JSON), which ui.perfetto.dev and chrome://tracing open.

Processes are ranks (or switches), threads are channels; a move that overlaps the one before on its channel, since the
next chunk leaves while the last is still on its way, goes to a further thread of that channel.
"""

from __future__ import annotations

import json
from heapq import heappush, heapreplace
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.units import GIB

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from commsim.engine.timeline import Timeline

MOST_EVENTS = 100_000
"""Viewers stay quick up to about this many events; beyond, whole ranks are left out."""


def chrome_trace(
    timeline: Timeline,
    title: str,
    *,
    world_size: int | None = None,
    most: int = MOST_EVENTS,
    kind: str = "rank",
    streams: Sequence[str] = (),
    counters: Mapping[int, tuple[Any, Any]] | None = None,
) -> str:
    """The trace as JSON text; times in microseconds.

    Above ``most`` moves only as many ranks are shown, evenly spread, as fit; a note says so, in ``otherData`` and as
    the name of the first event. ``world_size``: endpoints from there on are called switches. ``kind``: what an
    endpoint is called; ``streams``: names of its threads; ``counters``: an endpoint's memory, seconds and
    bytes.
    """
    endpoints = np.unique(timeline.endpoint)
    shown, note = _sampled(timeline, endpoints, most)
    rows = np.flatnonzero(np.isin(timeline.endpoint, shown)) if note else np.arange(timeline.rows)
    rows = rows[:most]
    events: list[dict[str, Any]] = []
    if note:
        events.append({"name": note, "ph": "I", "s": "g", "ts": 0, "pid": int(shown[0]), "tid": 0})
    for endpoint in shown.tolist():
        what = kind if world_size is None or endpoint < world_size else "switch"
        events.append({"name": "process_name", "ph": "M", "pid": endpoint, "args": {"name": f"{what} {endpoint}"}})
        for stream, name in enumerate(streams):
            events.append(
                {"name": "thread_name", "ph": "M", "pid": endpoint, "tid": 100 * stream, "args": {"name": name}}
            )
        events.append({"name": "process_sort_index", "ph": "M", "pid": endpoint, "args": {"sort_index": endpoint}})
    for endpoint, (times, held) in (counters or {}).items():
        events += [
            {"name": "memory", "ph": "C", "ts": 1e6 * t, "pid": endpoint, "args": {"GiB": value / GIB}}
            for t, value in zip(times.tolist(), held.tolist(), strict=True)
        ]
    events += _moves(timeline, rows)
    other = {"title": title, "moves": timeline.rows, "moves_shown": int(rows.size)} | ({"note": note} if note else {})
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": other}, allow_nan=False) + "\n"


def _sampled(timeline: Timeline, endpoints: Any, most: int) -> tuple[Any, str]:
    if timeline.rows <= most:
        return endpoints, ""
    count = max(1, int(endpoints.size * most / timeline.rows))
    shown = (
        endpoints[np.linspace(0, endpoints.size - 1, count).round().astype(np.int64)] if count > 1 else endpoints[:1]
    )
    return shown, (
        f"sample: {shown.size} of {endpoints.size} ranks, at most {most:,} of {timeline.rows:,} moves; "
        "the times are those of the full run"
    )


def _moves(timeline: Timeline, rows: Any) -> list[dict[str, Any]]:
    """One complete event per move, on the first thread of its channel that is free."""
    order = rows[np.argsort(timeline.start_s[rows], kind="stable")]
    lanes: dict[tuple[int, int], list[tuple[float, int]]] = {}
    events = []
    columns = (
        timeline.start_s,
        timeline.end_s,
        timeline.endpoint,
        timeline.stream,
        timeline.name_code,
        timeline.nbytes,
    )
    for row, start, end, endpoint, stream, code, nbytes in zip(
        order.tolist(), *(column[order].tolist() for column in columns), strict=True
    ):
        free = lanes.setdefault((endpoint, stream), [])
        if free and free[0][0] <= start:
            lane = free[0][1]
            heapreplace(free, (end, lane))
        else:
            lane = len(free)
            heappush(free, (end, lane))
        events.append(
            {
                "name": timeline.names[code],
                "ph": "X",
                "ts": 1e6 * start,
                "dur": 1e6 * (end - start),
                "pid": endpoint,
                "tid": stream * 100 + lane,
                "args": {"row": row, "nbytes": nbytes, "channel": stream},
            }
        )
    return events
