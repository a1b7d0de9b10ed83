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
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import numpy as np

from commsim.errors import Fault, LogFormatError
from commsim.files import plain_cell
from commsim.measure.assemble import error
from commsim.measure.records import Curve, FloatArray, collective_name
from commsim.measure.rows import Group, LogTable, TableRow, name_hint

PLAIN_COLUMNS = ("time_us", "algbw_GBps", "busbw_GBps")
"""Of a table that knows one kind of buffers: they stand for those out of place."""
MEASURED_COLUMNS = ("size_bytes", *(f"{side}_{name}" for side in ("oop", "ip") for name in PLAIN_COLUMNS))
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
_ROW_LIMIT = 100_000
_MOST_RANKS = 10_000_000
_FAULT_LIMIT = 20  # rows: a screen
_MISSING = ("", "nan", "n/a", "na", "none", "null", "-")
"""What tables of other people hold where nothing was measured."""

_SMALLEST, _LARGEST = 1e-9, 1e15
"""What a time (us) or rate (GB/s) may be: a femtosecond to thirty years."""

_WHOLE = re.compile(r"^(\d+)\.0+$")
"""A whole number as a table of floats writes it."""


@dataclass(frozen=True)
class CsvRecord:
    """A row of a CSV table: its line and its fields by column; blank and missing ones are empty strings."""

    path: Path
    line: int
    header: list[str]
    fields: list[str]

    def __getitem__(self, name: str) -> str:
        """A field of a column that the header has."""
        at = self.header.index(name)
        return plain_cell(self.fields[at].strip()) if at < len(self.fields) else ""

    def get(self, name: str) -> str:
        """A field, empty where there is no such column."""
        return self[name] if name in self.header else ""

    def fault(self, name: str, expected: str) -> LogFormatError:
        """What was found in a field and what was expected; it is sought as if no field were in quotes."""
        before = self.fields[: self.header.index(name)]
        column = 1 + sum(len(field) + 1 for field in before)
        text = f"{name}: found {self[name][:40]!r}, expected {expected}"
        return LogFormatError([Fault(str(self.path), self.line, column, "", text)])

    def integer(self, name: str) -> int:
        """A whole number, not negative."""
        text = _WHOLE.sub(r"\1", self[name])
        if not (text.isascii() and text.isdigit() and len(text) <= 18):
            raise self.fault(name, "a whole number of at most 18 digits, not negative")
        return int(text)

    def number(self, name: str) -> float:
        """0 or a number from `_SMALLEST` to `_LARGEST`; NaN where the field is blank or there is no such column."""
        text = self.get(name)
        if text.lower() in _MISSING:
            return math.nan
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not (value == 0 or _SMALLEST <= value < _LARGEST):
            raise self.fault(name, f"0 or a number from {_SMALLEST:g} to {_LARGEST:g}")
        return value


def read_measured_csv(stream: TextIO, path: Path, separator: str = ",") -> list[LogTable]:
    """The table of one log in CSV form, with the index row of its slug where there is one.

    One for each number of ranks that a column ``n_ranks`` holds.
    """
    by_ranks: dict[int | None, LogTable] = {}
    faults, header = list[Fault](), set[str]()
    for record in csv_records(stream, path, separator):
        header.update(record.header)
        try:
            ranks = _ranks(record)
            by_ranks.setdefault(ranks, LogTable(line=1, n_ranks=ranks)).rows.append(table_row(record))
        except LogFormatError as error_in_row:
            faults += error_in_row.faults
        if len(faults) == _FAULT_LIMIT:
            faults.append(Fault(str(path), record.line, 1, "", "reading ended here: too many faults"))
            break
    if faults:
        raise LogFormatError(faults)
    tables = [table for table in by_ranks.values() if any(row.size > 0 for row in table.rows)]
    if not tables:
        raise error(path, 1, "a table without rows")
    index = index_row(path)
    for table in tables:
        _state(table, index, header, path)
    return tables


def _ranks(record: CsvRecord) -> int | None:
    """What a column ``n_ranks`` holds; None where it is blank or there is none."""
    if record.get("n_ranks").lower() in _MISSING:
        return None
    ranks = record.integer("n_ranks")
    if not 0 < ranks <= _MOST_RANKS:
        raise record.fault("n_ranks", f"a whole number from 1 to {_MOST_RANKS:,}")
    return ranks


def _state(table: LogTable, index: dict[str, str], header: set[str], path: Path) -> None:
    """Puts into a table what its index row and its name say of it."""
    if index:
        table.collective = collective_name(index.get("collective", ""))
        table.n_ranks = _integer_or_none(index.get("n_ranks", "")) or table.n_ranks
        table.conditions = _conditions(index)
    if table.collective is None and not {"redop", "root", "count"} & header and (named := name_hint(path.stem)):
        table.collective = named
        table.notes.append("collective deduced from the name of the file")
    table.has_redop = any(row.redop for row in table.rows)
    table.has_root = any(row.root is not None for row in table.rows)


def _conditions(index: dict[str, str]) -> dict[str, str]:
    """What the source of a log states of its conditions; not what the index assumes."""
    known = {k: v for k in _CONDITIONS if (v := index.get(k, "").strip())}
    if "n_nodes" not in known and index.get("nodes", "").strip():
        known = {"n_nodes": index["nodes"].strip()} | known
    for column in index.get("assumed", "").split():
        known.pop(column, None)
    return known


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
    by_curve: dict[tuple[str, str, str], list[CsvRecord]] = {}
    for record in csv_records(stream, path):
        key = record["curve"], record["collective"], record["n_ranks"]
        by_curve.setdefault(key, []).append(record)
    if not by_curve:
        raise error(path, 1, "a table without rows")
    return [_predicted(records) for records in by_curve.values()]


def _predicted(records: list[CsvRecord]) -> Curve:
    first = records[0]
    path, line = first.path, first.line
    collective = collective_name(first["collective"])
    n_ranks = _integer_or_none(first["n_ranks"])
    if collective is None or n_ranks is None:
        raise error(path, line, f"found {first['collective']!r} on {first['n_ranks']!r} ranks, expected a collective")
    records = sorted(records, key=lambda record: record.integer("size_bytes"))
    size = np.array([record.integer("size_bytes") for record in records], np.int64)
    time_s = _column(records, "time_us")
    if np.any(np.diff(size) == 0) or np.any(size <= 0) or not np.all(time_s > 0):
        fault = f"curve {first['curve']!r} repeats a size, or has a size or time that is not above zero"
        raise error(path, line, fault)
    bands = {name: _column(records, f"{name}_us") for name in ("low", "high", "lower_bound")}
    known = {name: None if np.any(np.isnan(values)) else values for name, values in bands.items()}
    root = _integer_or_none(first.get("root"))
    return Curve(
        name=first["curve"],
        collective=collective,
        n_ranks=n_ranks,
        kind="predicted",
        size_bytes=size,
        time_s=time_s,
        dtype=first.get("dtype"),
        redop="" if first.get("redop") == "none" else first.get("redop"),
        root=None if root is None or root < 0 else root,
        source=str(path),
        low_s=known["low"],
        high_s=known["high"],
        lower_bound_s=known["lower_bound"],
    )


def _column(records: list[CsvRecord], name: str) -> FloatArray:
    return np.array([record.number(name) * 1e-6 for record in records], np.float64)


def table_row(record: CsvRecord) -> TableRow:
    """The row of a table whose columns are `MEASURED_COLUMNS` and, where they are known, more."""
    return TableRow(
        record.line,
        record.integer("size_bytes"),
        _integer_or_none(record.get("count")),
        record.get("dtype"),
        record.get("redop"),
        _integer_or_none(record.get("root")),
        _group(record, "oop"),
        _group(record, "ip"),
    )


def _group(record: CsvRecord, side: str) -> Group:
    names = [f"{side}_{name}" for name in PLAIN_COLUMNS]
    if side == "oop":
        names = [name if name in record.header else plain for name, plain in zip(names, PLAIN_COLUMNS, strict=True)]
    time, algbw, busbw = map(record.number, names)
    wrong = record.get(f"{side}_wrong")
    return Group(time, algbw, busbw, wrong != "N/A" if wrong else None, int(wrong) if wrong.isdigit() else 0)


def csv_records(stream: TextIO, path: Path, separator: str = ",") -> Iterator[CsvRecord]:
    """The rows below the header."""
    reader = csv.reader(stream, delimiter=separator)
    lines = filter(None, reader)
    try:
        header = [name.strip() for name in next(lines, [])]
        for count, fields in enumerate(lines, start=1):
            if count > _ROW_LIMIT:
                raise error(path, reader.line_num, f"more than {_ROW_LIMIT:,} rows; expected the table of one log")
            if len(fields) > len(header):
                raise error(path, reader.line_num, f"more fields than the {len(header)} columns of the header")
            yield CsvRecord(path, reader.line_num, header, fields)
    except csv.Error as fault:
        raise error(path, max(1, reader.line_num), f"no CSV table: {fault}") from None


def _integer_or_none(text: str) -> int | None:
    digits = text.strip().removeprefix("-")
    return int(text) if digits.isascii() and digits.isdigit() and len(digits) <= 18 else None
