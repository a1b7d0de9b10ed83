"""Rows as columns of text under each other, and as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Container, Iterable, Sequence
from typing import Any


def aligned(rows: Sequence[Sequence[str]], left: Container[int] = range(1)) -> list[str]:
    """A line per row, two spaces between its cells; columns whose numbers are `left` flush left, the others right."""
    sides = [("<" if i in left else ">", max(map(len, column))) for i, column in enumerate(zip(*rows, strict=True))]
    return [
        "  ".join(f"{cell:{side}{width}}" for cell, (side, width) in zip(row, sides, strict=True)).rstrip()
        for row in rows
    ]


def csv_text(rows: Iterable[Iterable[Any]]) -> str:
    """CSV of rows, the first of them the header: floats with nine digits, nothing for None."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerows([f"{v:.9g}" if isinstance(v, float) else v for v in row] for row in rows)
    return stream.getvalue()


def records_csv(records: Sequence[dict[str, Any]]) -> str:
    """CSV of rows as plain values, which need not all have the same names."""
    names = list(dict.fromkeys(name for record in records for name in record)) or ["item"]
    return csv_text([names, *([record.get(name) for name in names] for record in records)])
