"""Exports of Nsight Systems (``nsys export --type sqlite``): the kernels of NCCL on each GPU.

Tables: NVIDIA, Nsight Systems, SQLite Export Schema Reference (CUPTI_ACTIVITY_KIND_KERNEL, StringIds). A kernel's name
tells collective, type, algorithm and protocol (ncclDevKernel_AllReduce_Sum_f32_RING_LL, NCCL's src/device/generate.py).
Sizes and communicators are not in these tables.
"""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from commsim.dumps.call import MOST_CALLS, Dump, RankCall, fault, text_of, whole
from commsim.dumps.rank_name import rank_of
from commsim.measure.records import collective_name

KIND = "nsys export"
_NAME = re.compile(r"nccl(?:Dev)?Kernel_([A-Za-z]{1,20}?)(?:_[A-Za-z]{2,12})?_([a-z0-9]{2,8})_(?:[A-Z0-9_]+)|"
                   r"nccl(?:Dev)?Kernel_(AllGather|Broadcast|SendRecv|AlltoAll)_[A-Z0-9_]+")  # fmt: skip
_DTYPES = {"f32": "float32", "f16": "float16", "bf16": "bfloat16", "f64": "float64", "u8": "uint8", "i8": "int8",
           "i32": "int32", "u32": "uint32", "i64": "int64", "u64": "uint64"}  # fmt: skip
_MOST_BYTES = 16 << 30
_MOST_STEPS = 2_000
"""Of a million virtual instructions each: what a query on a crafted file may take, some seconds."""
_QUERY = """
SELECT k.start, k."end", k.deviceId, substr(s.value, 1, 200)
FROM CUPTI_ACTIVITY_KIND_KERNEL AS k JOIN StringIds AS s ON s.id = k.shortName
WHERE s.value LIKE 'nccl%Kernel%' AND typeof(s.value) = 'text' AND typeof(k.start) = 'integer'
AND typeof(k."end") = 'integer' AND typeof(k.deviceId) = 'integer'
ORDER BY k.start LIMIT ?
"""
_TABLES = "SELECT sql FROM sqlite_master WHERE name IN ('CUPTI_ACTIVITY_KIND_KERNEL', 'StringIds')"


def read_nsys(path: Path) -> Dump:
    """The calls of an export, opened read-only; one rank for each GPU of it."""
    if path.stat().st_size > _MOST_BYTES:
        raise fault(path, f"found more than {_MOST_BYTES >> 30} GiB")
    try:
        with closing(_opened(path)) as base:
            rows = base.execute(_QUERY, (MOST_CALLS + 1,)).fetchall()
            host = _host(base)
    except sqlite3.Error as error:
        text = f"cannot be read as an export of nsys: {str(error)[:120]}; expected its tables of kernels and StringIds"
        raise fault(path, text) from None
    if len(rows) > MOST_CALLS:
        raise fault(path, f"found more than {MOST_CALLS:,} kernels of NCCL; cut the recording")
    return _dump(path, rows, host)


def _opened(path: Path) -> sqlite3.Connection:
    base = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro&immutable=1", uri=True)
    steps = 0

    def watch() -> int:
        nonlocal steps
        steps += 1
        return int(steps > _MOST_STEPS)  # which ends the query

    base.set_progress_handler(watch, 1_000_000)
    base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 64 << 20)
    base.execute("PRAGMA trusted_schema = OFF")
    base.execute("PRAGMA cell_size_check = ON")
    base.execute("PRAGMA cache_size = -65536")
    base.text_factory = lambda data: data[:300].decode("utf-8", "replace")
    for (sql,) in base.execute(_TABLES):
        if not str(sql).upper().startswith("CREATE TABLE"):
            raise fault(path, f"found {str(sql)[:60]!r}, expected tables as nsys writes them")
    return base


def _host(base: sqlite3.Connection) -> str:
    try:
        row = base.execute("SELECT value FROM TARGET_INFO_SYSTEM_ENV WHERE name = 'Hostname' LIMIT 1").fetchone()
    except sqlite3.Error:
        return ""
    return text_of(row[0]) if row else ""


def _dump(path: Path, rows: list[tuple[Any, ...]], host: str) -> Dump:
    devices = sorted({row[2] for row in rows if whole(row[2], 1 << 16) is not None})
    named = rank_of(path)
    if named is not None and len(devices) > 1:
        named = None
    ranks = {device: int(device) if named is None else named for device in devices}
    counts: Counter[int] = Counter()
    calls, messages, broken = [], 0, 0
    for start, end, device, name in rows:
        call = _call(start, end, name)
        if device not in ranks or call is None:
            broken += 1
        elif call[0] == "send_recv":
            messages += 1
        else:
            rank = ranks[device]
            counts[rank] += 1
            calls.append(RankCall(rank, "", counts[rank], call[0], 0, call[1], int(start), int(end)))
    if not calls:
        raise fault(path, "found no kernel of NCCL, expected a recording with CUDA traced (nsys profile -t cuda)")
    notes = [f"{broken} kernels of NCCL have no sound time or name"] if broken else []
    if named is None:
        notes.append("ranks are the numbers of GPUs, since no rank is in the file's name")
    return Dump(
        path, KIND, calls, ranks=tuple(sorted(set(ranks.values()))), host=host, notes=tuple(notes), named_groups=False,
        messages=messages,
    )  # fmt: skip


def _call(start: object, end: object, name: object) -> tuple[str, str] | None:
    """(operation, type) of a kernel with sound times."""
    first, last = whole(start), whole(end)
    parts = _NAME.match(str(name))
    if first is None or last is None or last < first or parts is None:
        return None
    operation = collective_name(parts[1] or parts[3])
    return None if operation is None else (operation, _DTYPES.get(parts[2] or "", ""))
