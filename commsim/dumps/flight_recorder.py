"""PyTorch's flight recorder: the last calls of each rank, as its JSON or as its pickle.

Keys and their meaning: torch/csrc/distributed/c10d/FlightRecorder.hpp and FlightRecorderDetail.hpp, version 2.10
of the dump (torch 2.13); other 2.x are read as the same. The rank is in the file's name alone. gloo records when a call
was asked for and that it is over, not when; NCCL with timing on records how long it took.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any, TextIO

from commsim.dumps.call import (
    MOST_CALLS,
    MOST_GROUPS,
    CallGroup,
    Dump,
    RankCall,
    State,
    dtype_of,
    fault,
    library_of,
    operation_of,
    positive,
    text_of,
    whole,
)
from commsim.dumps.json_items import JsonItems
from commsim.dumps.messages import MOST_OPEN, OpenMessage, open_message
from commsim.dumps.plain_pickle import MOST_BYTES, PickleFaultError, load_plain
from commsim.dumps.rank_name import rank_of

KIND = "flight recorder"
_MESSAGES = ("send", "recv")
_MOST_TENSORS = 100_000
_MOST_RANKS = 1 << 17


def read_flight_json(stream: TextIO, path: Path) -> Dump:
    """The dump of a JSON file."""
    items = JsonItems(stream, "entries", path)
    rank = _rank(path)
    held = _held(items, rank, path)
    return _dump(path, rank, held, items.rest)


def read_flight_pickle(data: bytes, path: Path) -> Dump:
    """The dump of a pickle, of which nothing is executed."""
    if len(data) > MOST_BYTES:
        raise fault(path, f"found a pickle of more than {MOST_BYTES >> 20} MiB")
    try:
        document = load_plain(data)
    except PickleFaultError as error:
        raise fault(path, f"{error}; expected a dump of PyTorch's flight recorder, which is plain data") from None
    if not isinstance(document, dict) or not isinstance(document.get("entries"), list):
        raise fault(path, "found a pickle without a list of entries, expected a dump of PyTorch's flight recorder")
    rank = _rank(path)
    held = _held((e for e in document["entries"] if isinstance(e, dict)), rank, path)
    return _dump(path, rank, held, document)


def _rank(path: Path) -> int:
    rank = rank_of(path)
    if rank is None:
        raise fault(
            path, "found no rank in the file's name, expected one such as nccl_trace_rank_3; dumps do not hold it"
        )
    return rank


@dataclass
class _Held:
    """What the entries hold."""

    calls: list[RankCall] = field(default_factory=list)
    open_messages: list[OpenMessage] = field(default_factory=list)
    messages: int = 0


def _dump(path: Path, rank: int, held: _Held, document: dict[Any, Any]) -> Dump:
    version = text_of(document.get("version"), 20)
    notes = [] if version.startswith("2.") else [f"version {version!r} of the dump, expected 2.x: read as those"]
    return Dump(
        path,
        KIND,
        held.calls,
        _groups(document),
        ranks=(rank,),
        notes=tuple(notes),
        starts="enqueued",
        messages=held.messages,
        open_messages=tuple(held.open_messages),
    )


def _groups(document: dict[Any, Any]) -> list[CallGroup]:
    config = document.get("pg_config")
    groups = []
    for name, about in list(config.items())[:MOST_GROUPS] if isinstance(config, dict) else ():
        if isinstance(about, dict) and (ranks := listed_ranks(about.get("ranks"))):
            groups.append(CallGroup(text_of(name), text_of(about.get("desc")), ranks))
    return groups


def listed_ranks(value: Any) -> tuple[int, ...]:
    """Ranks of a list, or of the text of one; empty where it is none or was cut short."""
    if isinstance(value, str):
        if re.fullmatch(r"\[[0-9, ]*\]", value) is None:
            return ()
        value = [int(word) for word in re.findall(r"[0-9]{1,9}", value)]
    if not isinstance(value, (list, tuple)) or not all(whole(rank, _MOST_RANKS) is not None for rank in value):
        return ()
    return tuple(sorted({int(rank) for rank in value}))


def _held(entries: Iterable[dict[Any, Any]], rank: int, path: Path) -> _Held:
    held, broken = _Held(), 0
    for entry in entries:
        name = text_of(entry.get("profiling_name"), 100)
        if entry.get("is_p2p") is True or operation_of(name).split(" ")[0] in _MESSAGES:
            held.messages += 1
            if len(held.open_messages) < MOST_OPEN and (message := _open(entry, name, rank)) is not None:
                held.open_messages.append(message)
        elif (call := _call(entry, name, rank)) is not None:
            held.calls.append(call)
        else:
            broken += 1
        if len(held.calls) > MOST_CALLS:
            raise fault(path, f"found more than {MOST_CALLS:,} calls; cut the file")
    if broken and broken >= len(held.calls):
        raise fault(
            path, f"found {broken} entries without group, sequence or name, expected those of a flight recorder"
        )
    return held


def _open(entry: dict[Any, Any], name: str, rank: int) -> OpenMessage | None:
    """The message of an entry if it did not end."""
    group = entry.get("process_group")
    if _state(entry) in ("completed", "ended") or not isinstance(group, (list, tuple)) or not group:
        return None
    return open_message(rank, intern(text_of(group[0])), operation_of(name), _place(entry.get("frames")))


def _call(entry: dict[Any, Any], name: str, rank: int) -> RankCall | None:
    sequence, group = whole(entry.get("collective_seq_id")), entry.get("process_group")
    if sequence is None or not isinstance(group, (list, tuple)) or not group or not name:
        return None
    dtypes = entry.get("input_dtypes") or entry.get("output_dtypes")
    dtype, width = dtype_of(dtypes[0]) if isinstance(dtypes, (list, tuple)) and dtypes else ("", 0)
    created, milliseconds = whole(entry.get("time_created_ns")), positive(entry.get("duration_ms"))
    return RankCall(
        rank=rank,
        group=intern(text_of(group[0])),
        sequence=sequence,
        operation=operation_of(name),
        nbytes=width * max(_elements(entry.get("input_sizes")), _elements(entry.get("output_sizes"))),
        dtype=dtype,
        start_ns=created or None,
        seconds=None if milliseconds is None else milliseconds / 1e3,
        state=_state(entry),
        place=_place(entry.get("frames")),
        library=library_of(name),
    )


def _state(entry: dict[Any, Any]) -> State:
    state = entry.get("state")
    if state == "completed":
        return "completed"
    if entry.get("retired") is True:
        return "ended"
    return "started" if state == "started" else "scheduled"


def _elements(sizes: Any) -> int:
    """Elements of all tensors together."""
    total = 0
    for dims in sizes[:_MOST_TENSORS] if isinstance(sizes, (list, tuple)) else ():
        if not isinstance(dims, (list, tuple)) or len(dims) > 64:
            return 0
        count = 1
        for dim in dims:
            size = whole(dim, 1 << 48)
            if size is None:
                return 0
            count = min(count * size, 1 << 62)
        total += count
    return min(total, 1 << 58)


def _place(frames: Any) -> str:
    """The innermost frame that is not of torch itself."""
    for frame in frames[:200] if isinstance(frames, (list, tuple)) else ():
        file = text_of(frame.get("filename"), 4096) if isinstance(frame, dict) else ""
        if file and "/torch/" not in file and not file.startswith("<"):
            return intern(f"{Path(file[-200:]).name}:{whole(frame.get('line')) or 0}")
    return ""
