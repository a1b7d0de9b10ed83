"""JSON that nccl-tests (`-J FILE`) and NCCL's inspector plugin (one object per line) write, as tables.

nccl-tests 2.19 writes one document: ``args``, ``nccl_version``, ``config``, ``devices`` (one per rank), and
``results``: rows with ``size``, ``count``, ``type``, ``redop``, ``root`` and two groups, ``out_of_place`` and
``in_place``, of ``time`` (us), ``alg_bw``, ``bus_bw`` (GB/s) and ``nwrong``. The inspector writes a line per call and
rank: ``header`` (``n_ranks``, ``rank``) and ``coll_perf`` (``coll``, ``coll_msg_size_bytes``, ``coll_exec_time_us``,
bandwidths). Its size is a rank's own for collectives whose array is n times that, which its bandwidth tells.
"""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from commsim.measure.assemble import error
from commsim.measure.gpu import version_of
from commsim.measure.records import collective_name
from commsim.measure.rows import NOTHING, Group, LogTable, TableRow, group_is_sound, size_is_sound
from commsim.nccl.version import format_version

_DOCUMENT_LIMIT = 64 * 2**20
_LINE_LIMIT = 1 << 20
_ROW_LIMIT = 500_000
_TYPES = {"f32": "float", "float32": "float"}


def read_json(stream: TextIO, path: Path) -> list[LogTable]:
    """The tables of a JSON file of either kind; LogFormatError with the line where it is neither."""
    first = stream.readline(_LINE_LIMIT)
    stream.seek(0)
    line = _object(first)
    if line is not None and ("coll_perf" in line or "p2p_perf" in line):
        return _inspector(stream, path)
    text = stream.read(_DOCUMENT_LIMIT + 1)
    if len(text) > _DOCUMENT_LIMIT:
        raise error(path, 1, "a JSON document of more than 64 MiB, expected the results of one test")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as fault:
        at = getattr(fault, "lineno", 1)
        raise error(path, at, f"no JSON: {fault}; expected what nccl-tests -J or NCCL's inspector writes") from None
    if not isinstance(document, dict) or not isinstance(document.get("results"), list):
        raise error(path, 1, "JSON without a list of results, expected what nccl-tests -J or NCCL's inspector writes")
    return [_nccl_tests(document, path)]


def _object(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _nccl_tests(document: dict[str, Any], path: Path) -> LogTable:
    table = LogTable(line=1, n_ranks=_ranks(document), ranks_from_lines=True)
    args = document.get("args")
    words = args if isinstance(args, list) else str(args or "").split()
    table.collective = next(
        (c for w in words[:4] if (c := collective_name(Path(str(w)).name.removesuffix("_mpi")))), None
    )
    if (code := _whole(document.get("nccl_version"))) is not None and code >= 10000:
        table.conditions["nccl_version"] = format_version(version_of(code))
    if isinstance(document.get("version"), str):
        table.conditions["nccl_tests_version"] = document["version"][:40]
    env = document.get("env")
    words_of_env = map(str, env[:256]) if isinstance(env, list) else ()
    if variables := sorted(word[:200] for word in words_of_env if word.startswith(("NCCL_", "RCCL_"))):
        table.conditions["env"] = " ".join(variables)
    results = enumerate(document["results"], start=1)
    rows = [_result(result, number) if isinstance(result, dict) else None for number, result in results]
    table.rows = [row for row in rows if row is not None]
    table.skipped_lines = len(rows) - len(table.rows)
    if not any(row.size > 0 for row in table.rows):
        raise error(path, 1, f"a table without rows: {table.skipped_lines} results cannot be read")
    return table


def _ranks(document: dict[str, Any]) -> int | None:
    devices = document.get("devices")
    if not isinstance(devices, list) or not devices:
        return None
    ranks = [r for d in devices if isinstance(d, dict) and (r := _whole(d.get("rank"))) is not None]
    return max(len(devices), max(ranks, default=0) + 1)


def _result(result: dict[str, Any], number: int) -> TableRow | None:
    size, count = _whole(result.get("size")), _whole(result.get("count"))
    dtype = str(result.get("type", ""))[:20]
    dtype = _TYPES.get(dtype, dtype)
    if size is None or not size_is_sound(size, count, dtype):
        return None
    groups = [_group(size, result.get(name)) for name in ("out_of_place", "in_place")]
    if groups[0] is None and groups[1] is None:
        return None
    redop, root = str(result.get("redop", ""))[:20], result.get("root")
    number_of_root = root if isinstance(root, int) and not isinstance(root, bool) else None
    return TableRow(number, size, count, dtype, redop, number_of_root, groups[0] or NOTHING, groups[1] or NOTHING)


def _group(size: int, value: Any) -> Group | None:
    if not isinstance(value, dict):
        return None
    time, algbw, busbw = (_number(value.get(name)) for name in ("time", "alg_bw", "bus_bw"))
    group = Group(time, algbw, busbw, value.get("nwrong") not in (None, "N/A", -1), _whole(value.get("nwrong")) or 0)
    return group if size == 0 or group_is_sound(size, group) else None


def _inspector(stream: TextIO, path: Path) -> list[LogTable]:
    tables: dict[tuple[str, int], LogTable] = {}
    skipped = total = 0
    for number, text in enumerate(iter(partial(stream.readline, _LINE_LIMIT), ""), start=1):
        if not text.strip():
            continue
        call = _call(_object(text), number)
        if call is None:
            skipped += 1
            continue
        collective, n_ranks, row = call
        table = tables.setdefault((collective, n_ranks), LogTable(number, collective=collective, n_ranks=n_ranks))
        table.conditions.setdefault("timing", "NCCL inspector, per call and rank")
        table.rows.append(row)
        total += 1
        if total > _ROW_LIMIT:
            raise error(path, number, f"more than {_ROW_LIMIT:,} calls; cut the file")
    if not tables:
        raise error(path, 1, f"no line of NCCL's inspector can be read ({skipped} skipped)")
    first, *others = tables.values()
    first.skipped_lines = skipped
    return [first, *others]


def _call(line: dict[str, Any] | None, number: int) -> tuple[str, int, TableRow] | None:
    perf, header = (line or {}).get("coll_perf"), (line or {}).get("header", line or {})
    if not isinstance(perf, dict) or not isinstance(header, dict):
        return None
    collective, n_ranks = collective_name(str(perf.get("coll", ""))), _whole(header.get("n_ranks"))
    size, time = _whole(perf.get("coll_msg_size_bytes")), _number(perf.get("coll_exec_time_us"))
    algbw, busbw = _number(perf.get("coll_algobw_gbs")), _number(perf.get("coll_busbw_gbs"))
    if collective is None or n_ranks is None or n_ranks < 1 or size is None or size <= 0 or not 0 < time < math.inf:
        return None
    for arrays in (1, n_ranks):
        group = Group(time, algbw, busbw)
        if group_is_sound(size * arrays, group) and size_is_sound(size * arrays, None, ""):
            return collective, n_ranks, TableRow(number, size * arrays, None, "", "", None, group, NOTHING)
    return None


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 18:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else None


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan
