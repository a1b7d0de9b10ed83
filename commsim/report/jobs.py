"""Jobs beside each other: the table on the screen, CSV with units in its columns, the section of a page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from commsim.report.collectives import RAW_SCHEDULE
from commsim.report.page import Cell, Part, Section, table
from commsim.report.tables import format_time_us
from commsim.report.view import Shown, View
from commsim.scenario.jobs_result import JobRow, JobsItem
from commsim.units import format_bytes, format_time, microseconds

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


def jobs_answer(item: JobsItem) -> list[str]:
    """What each job loses to the others."""
    return [
        f"{row.job}: {row.collective} of {format_bytes(row.size_bytes)} on {row.n_ranks} ranks takes "
        f"{format_time(row.together_s)} beside the others and {format_time(row.alone_s)} alone, "
        f"{row.slowdown:.2f} times as long."
        for row in item.rows
    ]


def jobs_sections(item: JobsItem) -> list[Section]:
    """One row per job."""
    spread = item.repeats > 1
    columns = [
        "job", "collective", "algorithm", "ranks", "size", "start (us)", "alone (us)", "together (us)",
        *(["p99 (us)"] if spread else []), "slowdown", "meets on",
    ]  # fmt: skip
    rows = [
        (
            row.job, row.collective, row.algorithm, row.n_ranks, Cell(format_bytes(row.size_bytes), row.size_bytes),
            microseconds(row.start_s), microseconds(row.alone_s), microseconds(row.together_s),
            *([microseconds(row.p99_s or 0.0)] if spread else []), row.slowdown, row.meets_on or "no link",
        )
        for row in item.rows
    ]  # fmt: skip
    links = "FIFO links" if item.contention == "fifo" else "fair sharing"
    note = f"{links}; slowdown: time together over time alone."
    return [Section("Jobs beside each other", (table(columns, rows, note),))]


def jobs_words(item: JobsItem) -> list[str]:
    """What each job loses and where it meets the others."""
    lines = []
    for row in item.rows:
        where = f"it meets others on {row.meets_on}" if row.meets_on else "it shares no link"
        lost = format_time(row.together_s - row.alone_s)
        lines.append(
            f"{row.job}: {row.collective} of {format_bytes(row.size_bytes)} takes {format_time(row.together_s)}, "
            f"{lost} more than alone; {where} ({row.shared_links} links shared)."
        )
    return lines


def _heading(shown: Shown, item: JobsItem) -> str:
    flows = f" and {item.flows} background flow{'s' if item.flows != 1 else ''}" if item.flows else ""
    links = "FIFO links" if item.contention == "fifo" else "fair sharing"
    times = f", medians of {item.repeats} runs" if item.repeats > 1 else ""
    return (
        f"{len(item.rows)} job{'s' if len(item.rows) != 1 else ''}{flows} on {item.world_size} ranks "
        f"({shown.result.topology['name']}), {links}{times}; slowdown: time together over time alone"
    )


class JobsView(View[JobsItem]):
    """Jobs that share the network."""

    question: ClassVar[str] = "How much do these jobs slow each other?"

    def table(self, shown: Shown, answer: JobsItem) -> str:
        """A row for each job."""
        return jobs_table(answer, [shown.heading, _heading(shown, answer), ""])

    def csv(self, shown: Shown, answers: Sequence[JobsItem]) -> dict[str, str]:
        """The rows of all items."""
        return {"jobs.csv": jobs_csv(answers)}

    def sentences(self, shown: Shown, answers: Sequence[JobsItem]) -> list[str]:
        """A sentence for each job."""
        return [line for item in answers for line in jobs_answer(item)]

    def sections(self, shown: Shown, answers: Sequence[JobsItem]) -> list[Section]:
        """A table for each item."""
        return [section for item in answers for section in jobs_sections(item)]

    def sureness(self, shown: Shown, answers: Sequence[JobsItem]) -> list[Part]:
        """Links are ideal."""
        return [RAW_SCHEDULE]

    def words(self, answer: JobsItem) -> list[str]:
        """What each job loses, and where."""
        return jobs_words(answer)

    def read(self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None) -> list[JobsItem]:
        """All of each item."""
        name, ranks = str(document["name"]), int(document["topology"]["ranks"])
        return [_read(name, ranks, record) for record in records]


VIEW = JobsView()


def _read(name: str, ranks: int, record: dict[str, Any]) -> JobsItem:
    rows = tuple(
        JobRow(
            job=str(row["job"]),
            collective=str(row["collective"]),
            algorithm=str(row["algorithm"]),
            n_ranks=int(row["n_ranks"]),
            size_bytes=int(row["size_bytes"]),
            start_s=float(row["start_us"]) / 1e6,
            alone_s=float(row["alone_us"]) / 1e6,
            together_s=float(row["together_us"]) / 1e6,
            slowdown=float(row["slowdown"]),
            p99_s=None if row["p99_us"] is None else float(row["p99_us"]) / 1e6,
            shared_links=int(row["shared_links"]),
            meets_on=str(row["meets_on"]),
        )
        for row in record["rows"]
    )
    flows, repeats = int(record["background_flows"]), int(record["repeats"])
    return JobsItem(name, ranks, str(record["contention"]), rows, flows, repeats)
