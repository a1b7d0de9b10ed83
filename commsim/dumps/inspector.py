"""NCCL's inspector plugin: one JSON object per line, of one call on one rank.

Format: plugins/profiler/inspector/README.md and inspector_json.cc of NCCL 2.30.7 (v4.0). Without
NCCL_INSPECTOR_DUMP_VERBOSE=1 it says how long a call took and not when it began. Ranks are those of the communicator.
"""

from __future__ import annotations

import json
from collections import Counter
from functools import partial
from pathlib import Path
from sys import intern
from typing import Any, TextIO

from commsim.dumps.call import MOST_CALLS, CallGroup, Dump, RankCall, fault, positive, text_of, whole
from commsim.measure.records import collective_name

KIND = "NCCL inspector"
_MOST_LINE = 1 << 20
_MOST_LINES = 4_000_000
_MOST_RANKS = 1 << 20
_OF_ALL = 0.05
"""How near the stated bandwidth must be to that of the array of all ranks; the next is n times away."""


def read_inspector(stream: TextIO, path: Path) -> Dump:
    """The calls of a file; lines that cannot be read are counted."""
    calls: list[RankCall] = []
    sizes: dict[str, int] = {}
    hosts: Counter[str] = Counter()
    skipped = messages = 0
    for number, text in enumerate(iter(partial(stream.readline, _MOST_LINE), ""), start=1):
        line = _object(text)
        if line is not None and "p2p_perf" in line:
            messages += 1
        elif line is not None and (call := _call(line)) is not None:
            calls.append(call[0])
            sizes[call[0].group] = max(call[1], sizes.get(call[0].group, 0))
            hosts[_host(line)] += 1
        else:
            skipped += bool(text.strip())
        if len(calls) > MOST_CALLS or number > _MOST_LINES:
            raise fault(path, f"found more than {MOST_CALLS:,} calls; cut the file", number)
    if not calls:
        raise fault(path, f"found no call that can be read ({skipped} lines skipped)", 1)
    listed = sum(sizes.values()) <= _MOST_RANKS  # of a hostile file they are not written out
    groups = [CallGroup(name, "", tuple(range(size)) if listed else None) for name, size in sizes.items()]
    notes = [f"{skipped} lines cannot be read"] if skipped else []
    if len(groups) > 1:
        notes.append("ranks are those of each communicator: the same number may be another process in another one")
    ranks = tuple(sorted({call.rank for call in calls}))
    host = next(iter(hosts)) if len(hosts) == 1 else ""
    return Dump(path, KIND, calls, groups, ranks=ranks, host=host, notes=tuple(notes), messages=messages)


def _host(line: dict[str, Any]) -> str:
    metadata = line.get("metadata")
    return text_of(metadata.get("hostname")) if isinstance(metadata, dict) else ""


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _call(line: dict[str, Any]) -> tuple[RankCall, int] | None:
    """The call and the ranks of its communicator."""
    header, perf = line.get("header"), line.get("coll_perf")
    if not isinstance(header, dict) or not isinstance(perf, dict):
        return None
    rank, n_ranks = whole(header.get("rank"), _MOST_RANKS), whole(header.get("n_ranks"), _MOST_RANKS)
    sequence, size = whole(perf.get("coll_sn")), whole(perf.get("coll_msg_size_bytes"))
    time_us = positive(perf.get("coll_exec_time_us"))
    operation = collective_name(text_of(perf.get("coll"), 40))
    if rank is None or not n_ranks or rank >= n_ranks or sequence is None or size is None:
        return None
    if operation is None or not time_us:
        return None
    algbw = positive(perf.get("coll_algobw_gbs"))
    whole_array = algbw is not None and abs(algbw * time_us * 1e3 - size * n_ranks) <= _OF_ALL * size * n_ranks
    start_ns, end_ns = _kernel_times(perf.get("event_trace_ts"))
    call = RankCall(
        rank=rank,
        group=intern(text_of(header.get("id"), 40)),
        sequence=sequence,
        operation=operation,
        nbytes=size * n_ranks if whole_array else size,
        start_ns=start_ns,
        end_ns=end_ns,
        seconds=time_us / 1e6,
    )
    return call, n_ranks


def _kernel_times(trace: Any) -> tuple[int | None, int | None]:
    """First start and last stop of the call's channels, from microseconds; None where the line is not verbose."""
    events = trace.get("kernel_events") if isinstance(trace, dict) else None
    if not isinstance(events, list):
        return None, None
    spans = [
        (start, stop)
        for event in events[:1024]
        if isinstance(event, dict)
        and (start := whole(event.get("kernel_start_ts"), 1 << 52))
        and (stop := whole(event.get("kernel_stop_ts"), 1 << 52))
        and stop >= start
    ]
    if not spans:
        return None, None
    return 1000 * min(start for start, _ in spans), 1000 * max(stop for _, stop in spans)
