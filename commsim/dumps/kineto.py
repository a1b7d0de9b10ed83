"""Traces of torch.profiler (Kineto) in Chrome's format, plain or gzipped: NCCL's kernels, or gloo's calls.

NCCL's kernels carry what torch knew of the call (torch/csrc/distributed/c10d/ParamCommsUtils.hpp; older versions have
it at the event ``record_param_comms`` of the same External id). gloo's calls are annotations ``gloo:all_reduce`` that
name neither group nor sequence. Format of events: Google, Trace Event Format; ts and dur in microseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from commsim.dumps.call import MOST_CALLS, Call, Dump, Group, dtype_of, fault, operation_of, positive, whole
from commsim.dumps.flight_recorder import listed_ranks
from commsim.dumps.json_items import JsonItems
from commsim.dumps.rank_name import rank_of

KIND = "Kineto trace"
_BACKENDS = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "hccl:")
_MESSAGES = ("send", "recv")
_MOST_US = 1e15


@dataclass
class _Events:
    """What of a trace speaks of collectives."""

    kernels: list[dict[str, Any]] = field(default_factory=list)
    spans: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)

    def take(self, event: dict[str, Any]) -> None:
        """Keep an event if it is one of those."""
        name, category = event.get("name"), event.get("cat")
        if not isinstance(name, str) or event.get("ph") != "X" or _span(event) is None:
            return
        if category == "kernel" and name.startswith(("ncclDevKernel", "ncclKernel")):
            self.kernels.append(event)
        elif name == "record_param_comms":
            self.asked.append(event)
        elif name.startswith(_BACKENDS) and category == "user_annotation":
            self.spans.append(event)


def read_kineto(stream: TextIO, path: Path, *, bare: bool = False) -> Dump:
    """The calls of one rank's trace; ``bare``: the document is the list of events itself."""
    items, events = JsonItems(stream, "" if bare else "traceEvents", path), _Events()
    for event in items:
        events.take(event)
        if len(events.kernels) + len(events.spans) + len(events.asked) > MOST_CALLS:
            raise fault(path, f"found more than {MOST_CALLS:,} events of collectives; record fewer steps")
    rest = items.rest
    about = rest.get("distributedInfo")
    about = about if isinstance(about, dict) else {}
    rank = whole(about.get("rank"), 1 << 20)
    rank = rank_of(path) if rank is None else rank
    if rank is None:
        raise fault(path, "found no rank in distributedInfo and none in the file's name, expected one of them")
    base_ns, groups = whole(rest.get("baseTimeNanoseconds")) or 0, _groups(about)
    host = str(rest.get("host_name", ""))[:80]
    if events.kernels or events.asked:
        return _of_nccl(events, rank, base_ns, groups, host, path)
    calls = _of_annotations(events.spans, rank, base_ns)
    if not calls:
        raise fault(path, "found no collective: no kernel of NCCL, no record_param_comms, no annotation such as gloo:all_reduce")
    messages = len(events.spans) - len(calls)
    groups = [g for g in groups if g.ranks is not None]
    return Dump(path, KIND, calls, groups, (), (rank,), host, named_groups=False, messages=messages)


def _groups(about: dict[str, Any]) -> list[Group]:
    config = about.get("pg_config")
    return [
        Group(str(one.get("pg_name", ""))[:80], str(one.get("pg_desc", ""))[:80], ranks)
        for one in (config[:100_000] if isinstance(config, list) else ())
        if isinstance(one, dict) and (ranks := listed_ranks(one.get("ranks")))
    ]


def _of_nccl(
    events: _Events, rank: int, base_ns: int, groups: list[Group], host: str, path: Path
) -> Dump:
    about = {key: e["args"] for e in events.asked if (key := _external(e)) is not None}
    source = events.kernels or events.asked
    known = {group.name for group in groups}
    counts: Counter[str] = Counter()
    calls, messages, nameless = [], 0, 0
    for event in sorted(source, key=lambda e: float(e["ts"])):
        args = _args(event)
        if "Collective name" not in args:
            args = about.get(_external(event), {})
        if "Collective name" not in args:
            nameless += 1
            continue
        operation = operation_of(str(args["Collective name"]))
        if operation in _MESSAGES:
            messages += 1
            continue
        name = str(args.get("Process Group Name", ""))[:80]
        if name not in known:
            known.add(name)
            ranks = listed_ranks(args.get("Process Group Ranks"))
            groups.append(Group(name, str(args.get("Process Group Description", ""))[:80], ranks or None))
        counts[name] += 1
        calls.append(_call(event, args, rank, name, counts[name], base_ns, kernel=bool(events.kernels)))
    notes = [f"{nameless} kernels of NCCL say nothing of their call and are left out"] if nameless else []
    if not calls:
        raise fault(path, f"found {nameless} kernels of NCCL and {messages} messages, no collective that says what it is")
    return Dump(
        path, KIND, calls, groups, (), (rank,), host, tuple(notes),
        starts="entered" if events.kernels else "enqueued", messages=messages,
    )  # fmt: skip


def _call(
    event: dict[str, Any], args: dict[str, Any], rank: int, group: str, count: int, base_ns: int, *, kernel: bool
) -> Call:
    dtype, width = dtype_of(args.get("dtype", ""))
    elements = [whole(args.get(key), 1 << 55) or 0 for key in ("In msg nelems", "Out msg nelems")]
    start, end = _times(event, base_ns)
    sequence = whole(args.get("Seq"))
    return Call(
        rank=rank,
        group=group,
        sequence=count if sequence is None else sequence,
        operation=operation_of(str(args["Collective name"])),
        nbytes=width * max(elements),
        dtype=dtype,
        start_ns=start,
        end_ns=end if kernel else None,
        state="completed" if kernel else "ended",
    )


def _of_annotations(spans: Iterable[dict[str, Any]], rank: int, base_ns: int) -> list[Call]:
    """gloo's calls in their order; they are on threads of their own, so the order is that of time."""
    calls = []
    for event in sorted(spans, key=lambda e: float(e["ts"])):
        operation = operation_of(event["name"])
        if operation.split(" ")[0] in _MESSAGES:
            continue
        start, end = _times(event, base_ns)
        dims, types = _args(event).get("Input Dims"), _args(event).get("Input type")
        dtype, width = dtype_of(types[0]) if isinstance(types, list) and types else ("", 0)
        nbytes = width * _elements(dims)
        calls.append(Call(rank, "", len(calls) + 1, operation, nbytes, dtype, start, end))
    return calls


def _elements(dims: Any) -> int:
    """Elements of the first input, 0 where the trace was made without record_shapes."""
    first = dims[0] if isinstance(dims, list) and dims else None
    if not isinstance(first, list) or not first or len(first) > 16:
        return 0
    count = 1
    for dim in first:
        count = min(count * (whole(dim, 1 << 48) or 0), 1 << 55)
    return count


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def _external(event: dict[str, Any]) -> int | None:
    return whole(_args(event).get("External id"))


def _span(event: dict[str, Any]) -> tuple[float, float] | None:
    ts, dur = event.get("ts"), event.get("dur")
    for value in (ts, dur):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST_US:
            return None
    return (float(ts), float(dur)) if positive(float(dur) / 1e6) is not None else None  # type: ignore[arg-type]


def _times(event: dict[str, Any], base_ns: int) -> tuple[int, int]:
    start = base_ns + round(float(event["ts"]) * 1e3)
    return start, start + round(float(event["dur"]) * 1e3)
