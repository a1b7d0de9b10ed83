"""Published memory figures beside the predicted ones, by source: a table of memory, and the steps that print it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from commsim.accuracy.cells import read_table
from study.memory_rows import MemoryRow, memory_row
from study.training import figures
from study.training_rows import PublishedRow

_NEEDED = ("id", "model", "value", "unit", "kind")


def read_memory(path: Path) -> list[MemoryRow]:
    """The rows of a table of memory figures; LogFormatError where it is not one."""
    return [_predicted(cells) for cells in read_table(path, _NEEDED)]


def memory_of_steps(rows: Sequence[PublishedRow]) -> list[MemoryRow]:
    """The rows of a table of steps that print their peak memory."""
    return [_predicted(row.cells) for row in rows if row.cells.get("peak_mem_GiB")]


def _predicted(cells: Mapping[str, str]) -> MemoryRow:
    try:
        return memory_row(cells)
    except ValueError as exc:  # a cell that should be a number
        blank = MemoryRow(cells["id"], cells["id"].rsplit("-", 1)[0], False, None, None)
        return replace(blank, reason=f"a column is not a number: {exc}")


def memory_document(rows: Sequence[MemoryRow]) -> dict[str, Any]:
    """``per_row`` in bytes (percent for shares) and ``per_source``; values that a paper computes stand apart."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        if row.error is not None:
            groups.setdefault(f"{row.source}{' (analytic)' if row.analytic else ''}", []).append(100 * row.error)
    return {
        "per_row": [
            {
                "id": row.id,
                "source": row.source,
                "analytic": row.analytic,
                "measured": row.measured,
                "predicted": row.predicted,
                "error_pct": None if row.error is None else round(100 * row.error, 2),
                "reason": row.reason,
            }
            for row in rows
        ],
        "per_source": {name: figures(np.array(errors)) for name, errors in sorted(groups.items())},
    }
