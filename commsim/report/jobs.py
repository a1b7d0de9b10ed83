"""Jobs beside each other as text: the table on the screen, and CSV with units in its columns."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable

from commsim.report.tables import format_time_us
from commsim.scenario.jobs_result import JobRow, JobsItem
from commsim.units import format_bytes

_COLUMNS = ("job", "collective", "algorithm", "ranks", "size", "start", "alone", "together", "slowdown")
_UNITS = ("", "", "", "", "", "(us)", "(us)", "(us)", "")
_LEFT = frozenset({"job", "collective", "algorithm", "meets on"})


def jobs_table(item: JobsItem, heading: Iterable[str] = ()) -> str:
    """One row per job with its time alone and together; lines that start with ``#`` are no rows."""
    spread = item.repeats > 1
    columns = (*_COLUMNS, *(("p99",) if spread else ()), "meets on")
    units = (*_UNITS, *(("(us)",) if spread else ()), "")
    cells = [columns, units, *(_cells(row, spread) for row in item.rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [f"# {text}".rstrip() for text in heading]
    for number, line in enumerate(cells):
        text = "  ".join(
            f"{cell:<{width}}" if name in _LEFT else f"{cell:>{width}}"
            for name, cell, width in zip(columns, line, widths, strict=True)
        )
        lines.append((f"# {text}" if number < 2 else f"  {text}").rstrip())
    return "\n".join([*lines, "#"]) + "\n"


def _cells(row: JobRow, spread: bool) -> tuple[str, ...]:
    where = f"{row.meets_on}; {row.shared_links} links" if row.shared_links > 1 else row.meets_on or "no link"
    return (
        row.job,
        row.collective,
        row.algorithm,
        str(row.n_ranks),
        format_bytes(row.size_bytes),
        format_time_us(row.start_s),
        format_time_us(row.alone_s),
        format_time_us(row.together_s),
        f"{row.slowdown:.3f}",
        *((format_time_us(row.p99_s or 0.0),) if spread else ()),
        where,
    )


def jobs_csv(items: Iterable[JobsItem]) -> str:
    """The rows of several items as one CSV table."""
    stream = io.StringIO()
    records = [{"item": number} | row.record() for number, item in enumerate(items, 1) for row in item.rows]
    writer = csv.DictWriter(stream, list(records[0]) if records else ["item"], lineterminator="\n")
    writer.writeheader()
    writer.writerows({k: f"{v:.9g}" if isinstance(v, float) else v for k, v in record.items()} for record in records)
    return stream.getvalue()
