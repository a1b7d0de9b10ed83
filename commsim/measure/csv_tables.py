"""Measured and predicted curves in CSV form, with units in the column names.

Two tables: the one of ``validation/measured/`` (one file per log; what the file does not say stands in the
row of the same slug of the sibling ``INDEX_*.csv``), and ``result.csv`` of a run folder, which names its
own curves.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import numpy as np

from commsim.errors import Fault, LogFormatError
from commsim.measure.assemble import error
from commsim.measure.records import Curve, FloatArray, collective_name
from commsim.measure.rows import Group, Row, Table

MEASURED_COLUMNS = (
    "size_bytes",
    "oop_time_us",
    "oop_algbw_GBps",
    "oop_busbw_GBps",
    "ip_time_us",
    "ip_algbw_GBps",
    "ip_busbw_GBps",
)
RESULT_COLUMNS = (
    "curve",
    "collective",
    "n_ranks",
    "size_bytes",
    "count",
    "dtype",
    "redop",
    "root",
    "time_us",
    "algbw_GBps",
    "busbw_GBps",
    "low_us",
    "high_us",
    "lower_bound_us",
    "algorithm",
    "protocol",
    "channels",
    "bottleneck",
)
_CONDITIONS = (
    "n_nodes",
    "gpus_per_node",
    "gpu_model",
    "intra_link",
    "inter_link",
    "nccl_version",
    "env",
    "nccl_tests_version",
    "healthy",
    "source_url",
    "date",
    "launch",
    "busbw_only",
    "in_place_only",
    "old_convention",
)
_ROW_LIMIT = 500_000
_FAULT_LIMIT = 20  # rows: a screen
_MISSING = ("", "nan", "n/a", "na", "none", "null", "-")
"""What tables of other people hold where nothing was measured."""

_WHOLE = re.compile(r"^(\d+)\.0+$")
"""A whole number as a table of floats writes it."""


def read_measured_csv(stream: TextIO, path: Path) -> list[Table]:
    """The table of one log in CSV form, with the index row of its slug where there is one."""
    table, faults = Table(line=1), list[Fault]()
    for line, record in _records(stream, path):
        try:
            table.rows.append(_row(record, line, path))
        except LogFormatError as found:
            faults += found.faults
        if len(faults) == _FAULT_LIMIT:
            faults.append(Fault(str(path), line, 1, "", "reading ended here: too many faults"))
            break
    if faults:
        raise LogFormatError(faults)
    if not any(row.size > 0 for row in table.rows):
        raise error(path, 1, "a table without rows")
    index = index_row(path)
    if index:
        table.collective = collective_name(index.get("collective", ""))
        table.n_ranks = _integer_or_none(index.get("n_ranks", ""))
        table.conditions = {k: v for k in _CONDITIONS if (v := index.get(k, "").strip())}
    table.has_redop = any(row.redop for row in table.rows)
    table.has_root = any(row.root is not None for row in table.rows)
    return [table]


def index_row(path: Path) -> dict[str, str]:
    """The row of this slug in the ``INDEX_*.csv`` files beside `path`; empty where there is none."""
    for index in sorted(path.parent.glob("INDEX_*.csv")):
        try:
            with index.open(encoding="utf-8", newline="") as stream:
                for record in csv.DictReader(stream):
                    if record.get("slug") == path.stem:
                        return {k: v or "" for k, v in record.items() if isinstance(k, str) and isinstance(v, str)}
        except (OSError, UnicodeDecodeError, csv.Error) as fault:
            raise error(index, 1, f"the index beside {path.name} cannot be read: {fault}") from None
    return {}


def read_result_csv(stream: TextIO, path: Path) -> list[Curve]:
    """The curves of a ``result.csv``, as `report.tables.result_csv` writes it."""
    by_curve: dict[tuple[str, str, str], list[tuple[int, dict[str, str]]]] = {}
    for line, record in _records(stream, path):
        key = record["curve"], record["collective"], record["n_ranks"]
        by_curve.setdefault(key, []).append((line, record))
    if not by_curve:
        raise error(path, 1, "a table without rows")
    return [_predicted(records, path) for records in by_curve.values()]


def _predicted(records: list[tuple[int, dict[str, str]]], path: Path) -> Curve:
    line, first = records[0]
    collective = collective_name(first["collective"])
    n_ranks = _integer_or_none(first["n_ranks"])
    if collective is None or n_ranks is None:
        raise error(path, line, f"found {first['collective']!r} on {first['n_ranks']!r} ranks, expected a collective")
    records = sorted(records, key=lambda item: _integer(item[1], "size_bytes", item[0], path))
    size = np.array([_integer(r, "size_bytes", n, path) for n, r in records], np.int64)
    time_s = _column(records, "time_us", path)
    if np.any(np.diff(size) == 0) or np.any(size <= 0) or not np.all(time_s > 0):
        raise error(
            path,
            line,
            f"curve {first['curve']!r} repeats a size, or has a size or time that is not above zero",
        )
    optional = {
        name: _column(records, f"{name.removesuffix('_s')}_us", path) for name in ("low_s", "high_s", "lower_bound_s")
    }
    known = {name: None if np.any(np.isnan(values)) else values for name, values in optional.items()}
    root = _integer_or_none(first["root"])
    return Curve(
        name=first["curve"],
        collective=collective,
        n_ranks=n_ranks,
        kind="predicted",
        size_bytes=size,
        time_s=time_s,
        dtype=first["dtype"],
        redop="" if first["redop"] == "none" else first["redop"],
        root=None if root is None or root < 0 else root,
        source=str(path),
        low_s=known["low_s"],
        high_s=known["high_s"],
        lower_bound_s=known["lower_bound_s"],
    )


def _column(records: list[tuple[int, dict[str, str]]], name: str, path: Path) -> FloatArray:
    return np.array([_number(record, name, line, path) * 1e-6 for line, record in records], np.float64)


def _row(record: dict[str, str], line: int, path: Path) -> Row:
    size = _integer(record, "size_bytes", line, path)
    groups = [
        Group(
            _number(record, f"{side}_time_us", line, path),
            _number(record, f"{side}_algbw_GBps", line, path),
            _number(record, f"{side}_busbw_GBps", line, path),
        )
        for side in ("oop", "ip")
    ]
    return Row(
        line,
        size,
        _integer_or_none(record.get("count", "")),
        record.get("dtype", ""),
        record.get("redop", ""),
        _integer_or_none(record.get("root", "")),
        *groups,
    )


def _records(stream: TextIO, path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and fields of each row; blank and missing fields are empty strings."""
    reader = csv.DictReader(stream, restval="")
    try:
        for count, record in enumerate(reader):
            if count >= _ROW_LIMIT:
                raise error(path, reader.line_num, f"more than {_ROW_LIMIT} rows; expected the table of one log")
            if None in record:
                raise error(
                    path,
                    reader.line_num,
                    f"more fields than the {len(reader.fieldnames or ())} columns of the header",
                )
            yield reader.line_num, {k: v.strip() for k, v in record.items()}
    except csv.Error as fault:
        raise error(path, max(1, reader.line_num), f"no CSV table: {fault}") from None


def _integer(record: dict[str, str], name: str, line: int, path: Path) -> int:
    text = _WHOLE.sub(r"\1", record[name])
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise error(path, line, f"{name}: found {text[:40]!r}, expected a whole number")
    return int(text)


def _integer_or_none(text: str) -> int | None:
    digits = text.strip().removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None


def _number(record: dict[str, str], name: str, line: int, path: Path) -> float:
    text = record.get(name, "")
    if text.lower() in _MISSING:
        return math.nan
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e15:
        raise error(path, line, f"{name}: found {text[:40]!r}, expected a number that is not negative")
    return value
