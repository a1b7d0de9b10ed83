"""The rows of a finished sweep, sorted by point: as CSV or Parquet, the same bytes however the sweep ran."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from commsim.errors import CommsimError
from commsim.files import safe_cell
from commsim.planner.journal import read_journal


def merged(journals: Iterable[Path]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The common header of journals of one sweep and its points by number; raises CommsimError if any is missing."""
    first: dict[str, Any] | None = None
    points: dict[int, dict[str, Any]] = {}
    for path in journals:
        header, records = read_journal(path)
        if first is None:
            first = header
        elif header["identity"] != first["identity"]:
            raise CommsimError(f"{path}: it belongs to another sweep than the other journals")
        for record in records:
            points.setdefault(record["number"], record)
    if first is None:
        raise CommsimError("found no journal, expected at least one")
    missing = [n for n in range(first["points"]) if n not in points]
    if missing:
        shown = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
        raise CommsimError(
            f"found {len(points):,} of {first['points']:,} points, missing {shown}; run the sweep again to go on"
        )
    return first, [points[n] for n in sorted(points)]


def flat_rows(points: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """One row per predicted row: ``point``, the values of the paths, the figures, ``error``."""
    for point in points:
        values = {name: _plain(value) for name, value in point["values"].items()}
        for row in point["rows"] or [{}]:
            yield {"point": point["number"], **values, **row, "error": point["error"]}


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, (list, dict)) else value


def columns(points: Iterable[dict[str, Any]]) -> list[str]:
    """Every column that a row has, ``error`` last."""
    return [*dict.fromkeys(name for row in flat_rows(points) for name in row if name != "error"), "error"]


def as_csv(points: list[dict[str, Any]]) -> str:
    """The rows as CSV text, units in the column names, empty where there is no value."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns(points), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: safe_cell(cell) for name, cell in row.items()} for row in flat_rows(points))
    return text.getvalue()


def as_parquet(points: list[dict[str, Any]]) -> bytes:
    """The rows as a Parquet file; a column whose values are of several kinds is text."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise CommsimError("Parquet needs pyarrow: pip install 'commsim[parquet]'") from None
    rows = list(flat_rows(points))
    table = {}
    for name in columns(points):
        values = [row.get(name) for row in rows]
        kinds = {type(v) for v in values if v is not None}
        mixed = len(kinds) > 1 and kinds != {int, float}
        table[name] = [v if v is None or not mixed else str(v) for v in values]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(table), sink)
    return bytes(sink.getvalue().to_pybytes())
