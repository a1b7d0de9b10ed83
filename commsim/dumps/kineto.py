"""Traces of torch.profiler (Kineto) in Chrome's format, plain or gzipped: NCCL's kernels, or gloo's calls.

NCCL's kernels carry what torch knew of the call (torch/csrc/distributed/c10d/ParamCommsUtils.hpp; older versions have
it at the event ``record_param_comms`` of the same External id). gloo's calls are annotations ``gloo:all_reduce`` that
name neither group nor sequence. Format of events: Google, Trace Event Format; ts and dur in microseconds.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from sys import intern
from typing import Any, TextIO

from commsim.dumps.call import (
    MOST_CALLS,
    MOST_GROUPS,
    CallGroup,
    Dump,
    RankCall,
    dtype_of,
    fault,
    library_of,
    operation_of,
    positive,
    text_of,
    whole,
)
from commsim.dumps.flight_recorder import listed_ranks
from commsim.dumps.json_items import JsonItems
from commsim.dumps.rank_name import rank_of

KIND = "Kineto trace"
_BACKENDS = ("gloo:", "nccl:", "mpi:", "ucc:", "xccl:", "hccl:")
_MESSAGES = ("send", "recv")
_MOST_US = 1e15


@dataclass(frozen=True, slots=True)
class _About:
    """What torch says of a call beside its event."""

    operation: str
    group: str
    dtype: str
    nbytes: int
    sequence: int | None
    library: str = ""


@dataclass(frozen=True, slots=True)
class _Event:
    """One kernel, one annotation, or one call that torch made, and when."""

    start_ns: int
    end_ns: int
    external: int | None
    about: _About | None


@dataclass
class _Events:
    """What of a trace speaks of collectives."""

    kernels: list[_Event] = field(default_factory=list)
    spans: list[_Event] = field(default_factory=list)
    asked: list[_Event] = field(default_factory=list)
    entered: list[_Event] = field(default_factory=list)
    groups: dict[str, CallGroup] = field(default_factory=dict)

    def take(self, event: dict[str, Any]) -> None:
        """Keep what an event says if it is one of those."""
        name, category = event.get("name"), event.get("cat")
        if not isinstance(name, str) or event.get("ph") != "X":
            return
        if category == "kernel" and name.startswith(("ncclDevKernel", "ncclKernel")):
            self._keep(self.kernels, event, self._about)
        elif name == "record_param_comms":
            self._keep(self.asked, event, self._about)
        elif name.startswith("c10d::") and category == "cpu_op":
            self._keep(self.entered, event, lambda args: _of_annotation(name, {}))
        elif name.startswith(_BACKENDS) and category == "user_annotation":
            self._keep(self.spans, event, lambda args: _of_annotation(name, args))

    def _keep(
        self, kept: list[_Event], event: dict[str, Any], about: Callable[[dict[str, Any]], _About | None]
    ) -> None:
        span = _span(event)
        if span is not None:
            args = event.get("args")
            args = args if isinstance(args, dict) else {}
            kept.append(_Event(*span, whole(args.get("External id")), about(args)))

    def _about(self, args: dict[str, Any]) -> _About | None:
        if "Collective name" not in args:
            return None
        group = intern(text_of(args.get("Process Group Name")))
        if group not in self.groups:
            ranks = listed_ranks(args.get("Process Group Ranks"))
            self.groups[group] = CallGroup(group, text_of(args.get("Process Group Description")), ranks or None)
        dtype, width = dtype_of(args.get("dtype", ""))
        elements = max(whole(args.get(key), 1 << 55) or 0 for key in ("In msg nelems", "Out msg nelems"))
        operation = intern(operation_of(text_of(args["Collective name"], 100)))
        return _About(operation, group, intern(dtype), width * elements, whole(args.get("Seq")))


def read_kineto(stream: TextIO, path: Path, *, bare: bool = False) -> Dump:
    """The calls of one rank's trace; ``bare``: the document is the list of events itself."""
    items, events = JsonItems(stream, "" if bare else "traceEvents", path), _Events()
    for event in items:
        events.take(event)
        if len(events.kernels) + len(events.spans) + len(events.asked) + len(events.entered) > MOST_CALLS:
            raise fault(path, f"found more than {MOST_CALLS:,} events of collectives; record fewer steps")
    rest = items.rest
    about = rest.get("distributedInfo")
    about = about if isinstance(about, dict) else {}
    rank = whole(about.get("rank"), 1 << 20)
    rank = rank_of(path) if rank is None else rank
    if rank is None:
        raise fault(path, "found no rank in distributedInfo and none in the file's name, expected one of them")
    groups = _groups(about)
    source = events.kernels or events.asked
    if source:
        groups |= {name: group for name, group in events.groups.items() if name not in groups}
        kept = _named(events)
    else:
        source, kept = events.spans, _entered(events)
    calls = _calls(
        kept, rank, whole(rest.get("baseTimeNanoseconds")) or 0, ended=not events.asked or bool(events.kernels)
    )
    messages = sum(event.about is not None and _is_message(event.about) for event in kept)
    nameless = len(source) - len(calls) - messages
    if not calls:
        text = "no kernel of NCCL that says what it is, no record_param_comms, no annotation such as gloo:all_reduce"
        raise fault(path, f"found no collective: {text}")
    notes = (f"{nameless} kernels of NCCL say nothing of their call and are left out",) if nameless else ()
    return Dump(
        path,
        KIND,
        calls,
        tuple(groups.values()),
        ranks=(rank,),
        host=text_of(rest.get("host_name")),
        notes=notes,
        named_groups=source is not events.spans,
        starts="enqueued" if source is events.asked else "entered",
        messages=messages,
    )


def _groups(about: dict[str, Any]) -> dict[str, CallGroup]:
    config = about.get("pg_config")
    return {
        name: CallGroup(name, text_of(one.get("pg_desc")), ranks)
        for one in (config[:MOST_GROUPS] if isinstance(config, list) else ())
        if isinstance(one, dict) and (ranks := listed_ranks(one.get("ranks")))
        for name in [text_of(one.get("pg_name"))]
    }


def _named(events: _Events) -> list[_Event]:
    """The kernels with what torch says of them at the event of the same External id; without kernels, those events."""
    if not events.kernels:
        return events.asked
    about = {event.external: event.about for event in events.asked if event.external is not None}
    return [
        event if event.about is not None else replace(event, about=about.get(event.external or -1))
        for event in events.kernels
    ]


def _entered(events: _Events) -> list[_Event]:
    """gloo's calls from when the program made them (``c10d::allreduce_``), where there is one for each: a thread of
    gloo takes them up later, on a busy host much later."""
    made: dict[str, list[_Event]] = defaultdict(list)
    spans: dict[str, list[_Event]] = defaultdict(list)
    for row, kept in ((events.entered, made), (events.spans, spans)):
        for event in sorted(row, key=lambda e: e.start_ns):
            if event.about is not None:
                kept[event.about.operation].append(event)
    moved = []
    for operation, calls in spans.items():
        starts = made[operation] if len(made[operation]) == len(calls) else calls
        moved += [replace(c, start_ns=min(s.start_ns, c.start_ns)) for c, s in zip(calls, starts, strict=True)]
    return moved


def _is_message(about: _About) -> bool:
    return about.operation.split(" ")[0] in _MESSAGES


def _calls(events: Iterable[_Event], rank: int, base_ns: int, *, ended: bool) -> list[RankCall]:
    """The collectives in the order of their starts; those without a sequence are counted in their group."""
    counts: Counter[str] = Counter()
    calls = []
    for event in sorted(events, key=lambda e: e.start_ns):
        about = event.about
        if about is None or _is_message(about):
            continue
        counts[about.group] += 1
        calls.append(
            RankCall(
                rank=rank,
                group=about.group,
                sequence=counts[about.group] if about.sequence is None else about.sequence,
                operation=about.operation,
                nbytes=about.nbytes,
                dtype=about.dtype,
                start_ns=base_ns + event.start_ns,
                end_ns=base_ns + event.end_ns if ended else None,
                state="completed" if ended else "ended",
                library=about.library,
            )
        )
    return calls


def _of_annotation(name: str, args: dict[str, Any]) -> _About:
    """What an annotation of gloo says; its size only where the trace was made with record_shapes."""
    dims, types = args.get("Input Dims"), args.get("Input type")
    dtype, width = dtype_of(types[0]) if isinstance(types, list) and types else ("", 0)
    library = library_of(name) if name.startswith(_BACKENDS) else ""
    return _About(intern(operation_of(name)), "", intern(dtype), width * _elements(dims), None, library)


def _elements(dims: Any) -> int:
    """Elements of all inputs together; 0 where one is no list of sizes."""
    total = 0
    for sizes in dims if isinstance(dims, list) else ():
        if not isinstance(sizes, list) or not sizes or len(sizes) > 16:
            return 0
        count = 1
        for size in sizes:
            count = min(count * (whole(size, 1 << 48) or 0), 1 << 55)
        total = min(total + count, 1 << 55)
    return total


def _span(event: dict[str, Any]) -> tuple[int, int] | None:
    """Nanoseconds of start and end, from microseconds; None where they make no sense."""
    ts, dur = event.get("ts"), event.get("dur")
    for value in (ts, dur):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST_US:
            return None
    if positive(dur / 1e6) is None:  # type: ignore[operator]
        return None
    start = round(ts * 1e3)  # type: ignore[operator]
    return start, start + round(dur * 1e3)  # type: ignore[operator]
