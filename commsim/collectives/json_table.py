"""Schedules as JSON: the columns of the table with a version, and the way back with every value checked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Buffer, Op, Schedule
from commsim.collectives.semantics import COLLECTIVES
from commsim.errors import ScheduleError

FORMAT: Final = "commsim schedule"
VERSION: Final = 1
MOST_BYTES: Final = 256 * 2**20
MOST_ENDPOINTS: Final = 2**20

_ROWS: Final = ("op", "src", "dst", "src_buffer", "src_chunk", "dst_buffer", "dst_chunk", "step", "channel")
_LOWERED: Final = ("wire_bytes", "connection")
_FORMER: Final = "alpha_kind"  # a column that files of commsim 0.1 may have; nothing ever read it
_NUMBERS: Final = ("world_size", "endpoints", "root", "scratch_chunks")
_MOST_FAULTS: Final = 20


def json_text(schedule: Schedule) -> str:
    """The schedule as JSON: one list per column, lowered columns only where there are any; ends with a newline."""
    s = schedule
    head: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "collective": s.collective,
        "algorithm": s.algorithm,
        **{name: int(getattr(s, name)) for name in _NUMBERS},
        "in_place": bool(s.in_place),
    }
    columns = {name: getattr(s, name).tolist() for name in (*_ROWS, *_LOWERED) if getattr(s, name) is not None}
    body = head | {"chunk_bytes": s.chunk_bytes.tolist(), "rows": columns, "after": s.after.tolist()}
    lines = [f"  {json.dumps(name)}: {json.dumps(value, separators=(',', ':'))}" for name, value in body.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def load_json(path: Path) -> Schedule:
    """The schedule of a JSON file; a ScheduleError names every fault found."""
    try:
        with path.open("rb") as stream:
            content = stream.read(MOST_BYTES + 1)
    except OSError as fault:
        raise ScheduleError(f"{path}: cannot be read: {fault.strerror or fault}") from None
    if len(content) > MOST_BYTES:
        raise ScheduleError(f"{path}: larger than {MOST_BYTES // 2**20} MiB")
    try:
        return parse_json(content.decode("utf-8-sig"), file=str(path))
    except UnicodeDecodeError as fault:
        raise ScheduleError(f"{path}: no UTF-8 at byte {fault.start}") from None


def parse_json(text: str, *, file: str = "<text>") -> Schedule:
    """The schedule of JSON text; a ScheduleError names every fault found.

    Values are held to the ranges of the table, so nothing later meets an index out of range; whether the
    result is right is for ``check`` to say.
    """
    try:
        table = json.loads(text, object_pairs_hook=_once, parse_constant=_no_constant)
    except json.JSONDecodeError as fault:
        raise ScheduleError(f"{file}:{fault.lineno}:{fault.colno}: no JSON: {fault.msg}") from None
    except (ValueError, RecursionError) as fault:
        raise ScheduleError(f"{file}: no JSON that could be a schedule: {str(fault)[:120]}") from None
    faults: list[str] = []
    fields = _fields(table, faults)
    if faults:
        shown = faults[:_MOST_FAULTS] + [f"... and {len(faults) - _MOST_FAULTS} more"] * (len(faults) > _MOST_FAULTS)
        raise ScheduleError("\n".join(f"{file}: {fault}" for fault in shown))
    try:
        return Schedule(**fields)
    except ScheduleError as fault:
        raise ScheduleError(f"{file}: {fault}") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    once = dict(pairs)
    if len(once) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice[:40]!r} stands twice in one object")
    return once


def _no_constant(name: str) -> Any:
    raise ValueError(f"found {name}, expected numbers only")


def _fields(table: Any, faults: list[str]) -> dict[str, Any]:
    """The arguments of Schedule; ``faults`` gets everything that makes no sense."""
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        faults.append(f'expected an object with "format": "{FORMAT}"')
        return {}
    if table.get("version") != VERSION:
        faults.append(f"version is {_short(table.get('version'))}, expected {VERSION}")
        return {}
    known = {"format", "version", "collective", "algorithm", *_NUMBERS, "in_place", "chunk_bytes", "rows", "after"}
    faults += [
        f"unknown key {name[:40]!r}, expected one of {', '.join(sorted(known))}" for name in table.keys() - known
    ]
    fields: dict[str, Any] = {}
    if table.get("collective") not in COLLECTIVES:
        faults.append(f"collective is {_short(table.get('collective'))}, expected one of {', '.join(COLLECTIVES)}")
    for name in ("collective", "algorithm"):
        fields[name] = table.get(name)
        if not isinstance(fields[name], str) or not 0 < len(fields[name]) <= 200:
            faults.append(f"{name} is {_short(fields[name])}, expected a name")
    if not isinstance(table.get("in_place"), bool):
        faults.append(f"in_place is {_short(table.get('in_place'))}, expected true or false")
    fields["in_place"] = table.get("in_place")
    for name in _NUMBERS:
        value = table.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 2**31 - 1:
            faults.append(f"{name} is {_short(value)}, expected a whole number")
            value = 1
        fields[name] = value
    if fields["endpoints"] > MOST_ENDPOINTS:
        faults.append(f"endpoints is {fields['endpoints']}, expected at most {MOST_ENDPOINTS}")
    fields["chunk_bytes"] = _numbers("chunk_bytes", table.get("chunk_bytes"), 2**62, faults)
    total = fields["chunk_bytes"].astype(np.float64).sum()
    if total > 2**62:
        faults.append("chunk_bytes add up to more than 4 EiB")
    columns = _columns(table.get("rows"), fields, faults)
    after = table.get("after", [])
    pairs = isinstance(after, list) and all(isinstance(edge, list) and len(edge) == 2 for edge in after)
    if not pairs:
        faults.append("after is no list of pairs of rows")
    flat = [row for edge in after for row in edge] if pairs and not faults else []
    edges = _numbers("after", flat, len(columns["op"]) - 1, faults)
    return fields | columns | {"after": edges.reshape(-1, 2)}


def _columns(given: Any, fields: Mapping[str, Any], faults: list[str]) -> dict[str, npt.NDArray[np.int64]]:
    empty = {name: np.zeros(0, np.int64) for name in _ROWS}
    if not isinstance(given, dict):
        faults.append("rows is no object of columns")
        return empty
    missing = [name for name in _ROWS if name not in given]
    unknown = sorted(given.keys() - {*_ROWS, *_LOWERED, _FORMER})
    faults += [f"rows has no column {name}" for name in missing]
    faults += [f"rows has the unknown column {name[:40]!r}" for name in unknown]
    if missing:
        return empty
    chunks = len(fields["chunk_bytes"])
    most = {"op": len(Op), "src": fields["endpoints"], "dst": fields["endpoints"]}
    most |= {f"{side}_buffer": len(Buffer) for side in ("src", "dst")}
    most |= {f"{side}_chunk": chunks for side in ("src", "dst")}
    most |= {"wire_bytes": 2**62}
    before = len(faults)
    columns = {
        name: _numbers(f"rows.{name}", values, most.get(name, 2**31) - 1, faults)
        for name, values in given.items()
        if name in _ROWS + _LOWERED
    }
    lengths = {name: len(values) for name, values in columns.items()}
    if len(faults) == before and len(set(lengths.values())) > 1:
        faults.append(f"columns differ in length: {', '.join(f'{name} {length}' for name, length in lengths.items())}")
    return columns if len(faults) == before else empty


def _numbers(name: str, given: Any, most: int, faults: list[str]) -> npt.NDArray[np.int64]:
    """A column of whole numbers from 0 to ``most``; an empty one, and a fault, if it is not."""
    if not isinstance(given, list):
        faults.append(f"{name} is {_short(given)}, expected a list of numbers")
    # bool is a subclass of int; a set of types is one pass in C.
    elif set(map(type, given)) - {int}:
        wrong = next(i for i, value in enumerate(given) if type(value) is not int)
        faults.append(f"{name}[{wrong}] is {_short(given[wrong])}, expected a whole number")
    elif given and (min(given) < 0 or max(given) > most):
        wrong = next(i for i, value in enumerate(given) if not 0 <= value <= most)
        faults.append(
            f"{name}[{wrong}] is {_short(given[wrong])}, expected {f'0..{most}' if most >= 0 else 'no number'}"
        )
    else:
        return np.array(given, np.int64)
    return np.zeros(0, np.int64)


def _short(value: Any) -> str:
    if isinstance(value, (list, dict)):
        return f"a {'list' if isinstance(value, list) else 'table'} of {len(value)}"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return "a number of more than 20 digits"
    text = json.dumps(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
