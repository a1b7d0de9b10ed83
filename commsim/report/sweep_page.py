"""The page of a sweep: every path with its knees, then the rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commsim.report.fabric_answer import FABRIC, enough_lines
from commsim.report.page import Code, Page, Section, Text, picture, table
from commsim.report.sweep_plot import SHARE, curves, figure_of, knee_lines, numeric_paths, plot_sweep

MOST_ROWS = 2_000
MOST_ENOUGH = 8  # answers to how much fabric is enough
MOST_LINES = 3  # knees of one path among the first lines


def answer_lines(points: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """The answer in sentences: how much fabric is enough, and the first knees along every other path."""
    figure = figure_of(points)
    enough = enough_lines(points, figure)
    lines = enough[:MOST_ENOUGH]
    if len(enough) > MOST_ENOUGH:
        lines.append(f"And {len(enough) - MOST_ENOUGH:,} more such answers, one per combination of the other values.")
    for path in numeric_paths(points):
        if curves(points, path, figure) and not (enough and path in FABRIC):
            lines += knee_lines(points, path, figure)[:MOST_LINES]
    return tuple(lines) or (f"{len(points):,} points, {sum(len(p['rows']) for p in points):,} rows.",)


def sweep_page(points: Sequence[dict[str, Any]], name: str, base: str) -> Page:
    """The page of a sweep's points, as the journal holds them; `base` is the text of its file."""
    from commsim.planner.results import columns, flat_rows

    figure = figure_of(points)
    sections = []
    for path in numeric_paths(points):
        if not curves(points, path, figure):
            continue
        drawing = picture(plot_sweep(points, path, figure, name), f"{figure} along {path}.")
        sections.append(Section(f"Along {path}", (drawing, *map(Text, knee_lines(points, path, figure)))))
    rows = list(flat_rows(points))
    failed = [p for p in points if p["error"]]
    names = [n for n in columns(points) if any(r.get(n) not in (None, "") for r in rows)]
    note = f"the first {MOST_ROWS:,} of {len(rows):,} rows; rows.csv has all" if len(rows) > MOST_ROWS else ""
    sections.append(Section("Rows", (table(names, [[r.get(n) for n in names] for r in rows[:MOST_ROWS]], note),)))
    sections.append(Section("The sweep", (Code(base),)))
    return Page(
        title=name,
        question=f"What does each choice bring, and from where on is {100 * SHARE:.0f} % of the best reached?",
        answer=answer_lines(points),
        sections=tuple(sections),
        warnings=tuple(f"{len(failed):,} points failed, the first: {failed[0]['error']}" for _ in failed[:1]),
    )
