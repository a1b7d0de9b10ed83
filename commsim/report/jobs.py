"""Jobs beside each other: the table on the screen, CSV with units in its columns, the section of a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from commsim.report.collectives import RAW_SCHEDULE
from commsim.report.page import Part, Section, Text, size_cell, table
from commsim.report.saved import of_record
from commsim.report.tables import aligned, folded, format_time_us, records_csv, width
from commsim.report.view import Shown, View
from commsim.scenario.jobs_result import JobRow, JobsItem
from commsim.units import format_bytes, format_time, microseconds

_LEFT = ("job", "collective", "algorithm", "meets on")


def _cells(row: JobRow, spread: bool) -> tuple[str, ...]:
    """A row for the terminal; `spread`: with the 99th percentile."""
    where = f"{row.meets_on}; {row.shared_links} links" if row.shared_links > 1 else row.meets_on or "no link"
    times = [format_time_us(seconds) for seconds in (row.start_s, row.alone_s, row.together_s)]
    p99 = [format_time_us(row.p99_s or 0.0)] if spread else []
    size = format_bytes(row.size_bytes)
    return (row.job, row.collective, row.algorithm, str(row.n_ranks), size, *times, f"{row.slowdown:.3f}", *p99, where)


def _section(item: JobsItem) -> Section:
    """One row per job."""
    spread = item.repeats > 1
    columns = [
        "job", "collective", "algorithm", "ranks", "size", "start (us)", "alone (us)", "together (us)",
        *(["p99 (us)"] if spread else []), "slowdown", "meets on",
    ]  # fmt: skip
    rows = [
        (
            row.job, row.collective, row.algorithm, row.n_ranks, size_cell(row.size_bytes),
            microseconds(row.start_s), microseconds(row.alone_s), microseconds(row.together_s),
            *([microseconds(row.p99_s or 0.0)] if spread else []), row.slowdown, row.meets_on or "no link",
        )
        for row in item.rows
    ]  # fmt: skip
    note = f"{_sharing(item)}; slowdown: time together over time alone."
    return Section("Jobs beside each other", (table(columns, rows, note),))


_NO_LIMIT = 10_000


def _sharing(item: JobsItem) -> str:
    return "FIFO links" if item.contention == "fifo" else "fair sharing"


def _heading(shown: Shown, item: JobsItem) -> str:
    flows = f" and {item.flows} background flow{'s' if item.flows != 1 else ''}" if item.flows else ""
    times = f", medians of {item.repeats} runs" if item.repeats > 1 else ""
    return (
        f"{len(item.rows)} job{'s' if len(item.rows) != 1 else ''}{flows} on {item.world_size} ranks "
        f"({shown.result.topology['name']}), {_sharing(item)}{times}; slowdown: time together over time alone"
    )


class JobsView(View[JobsItem]):
    """Jobs that share the network."""

    question: ClassVar[str] = "How much do these jobs slow each other?"

    def table(self, shown: Shown, answer: JobsItem) -> str:
        """A row for each job with its time alone and together; lines that start with ``#`` are no rows."""
        p99 = answer.repeats > 1
        columns = ["job", "collective", "algorithm", "ranks", "size", "start", "alone", "together", "slowdown"]
        columns += [*(["p99"] if p99 else []), "meets on"]
        units = ["(us)" if name in ("start", "alone", "together", "p99") else "" for name in columns]
        left = [i for i, name in enumerate(columns) if name in _LEFT]
        cells = [columns, units, *(_cells(row, p99) for row in answer.rows)]
        below: list[str] = []
        if len(max(aligned(cells, left, _NO_LIMIT), key=len)) + 2 > width():
            below = [f"# {line[0]} meets on {line[-1]}" for line in cells[2:]]
            cells = [line[:-1] for line in cells]
        header, of_units, *rows = aligned(cells, left, _NO_LIMIT)
        heading = folded([f"# {shown.heading}", f"# {_heading(shown, answer)}"])
        lines = [*heading, "#", f"# {header}", f"# {of_units}".rstrip(), *(f"  {row}" for row in rows)]
        return "\n".join([*lines, *folded(below), "#"]) + "\n"

    def csv(self, shown: Shown, answers: Sequence[JobsItem]) -> dict[str, str]:
        rows = [{"item": number} | row.record() for number, item in enumerate(answers, 1) for row in item.rows]
        return {"jobs.csv": records_csv(rows)}

    def sentences(self, shown: Shown, answers: Sequence[JobsItem]) -> list[str]:
        return [
            f"{row.job}: {row.collective} of {format_bytes(row.size_bytes)} on {row.n_ranks} ranks takes "
            f"{format_time(row.together_s)} beside the others and {format_time(row.alone_s)} alone, "
            f"{row.slowdown:.2f} times as long."
            for item in answers
            for row in item.rows
        ]

    def sections(self, shown: Shown, answers: Sequence[JobsItem]) -> list[Section]:
        return [_section(item) for item in answers]

    def sureness(self, shown: Shown, answers: Sequence[JobsItem]) -> list[Part]:
        return [Text(RAW_SCHEDULE)]

    def words(self, answer: JobsItem) -> list[str]:
        lines = []
        for row in answer.rows:
            where = f"it meets others on {row.meets_on}" if row.meets_on else "it shares no link"
            lost = row.together_s - row.alone_s
            # Less than a millionth is the rounding of one time taken in two ways.
            more = f"{format_time(lost)} more than alone" if lost > 1e-6 * row.alone_s else "as long as alone"
            lines.append(
                f"{row.job}: {row.collective} of {format_bytes(row.size_bytes)} takes {format_time(row.together_s)}, "
                f"{more}; {where} ({row.shared_links} links shared)."
            )
        return lines

    def read(self, records: list[dict[str, Any]], document: dict[str, Any], folder: Path | None) -> list[JobsItem]:
        name, ranks = str(document["name"]), int(document["topology"]["ranks"])
        return [
            JobsItem(
                name,
                ranks,
                str(record["contention"]),
                tuple(of_record(JobRow, row) for row in record["rows"]),
                int(record["background_flows"]),
                int(record["repeats"]),
            )
            for record in records
        ]


VIEW = JobsView()
