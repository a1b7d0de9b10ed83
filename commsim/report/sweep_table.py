"""The points of a sweep as a short table: the values of its paths, and the figure that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor, log10
from typing import Any

from commsim.document.labels import short_label, value_label
from commsim.report.sweep_plot import FIGURES, named
from commsim.report.tables import aligned, format_time_us

MOST_LINES = 24
"""Lines of the table, which fit a screen; what is left out is counted."""


def points_table(points: Sequence[dict[str, Any]], figure: str) -> list[str]:
    """A line per row, where these fit a screen, else per point: its values, and the figure of its largest size."""
    paths = list(dict.fromkeys(name for point in points for name in point["values"]))
    every = [(point, row) for point in points for row in point["rows"] or [{}]]
    shown = every if len(every) <= MOST_LINES else [(point, (point["rows"] or [{}])[-1]) for point in points]
    sizes = [named("size_bytes", row["size_bytes"]) if row.get("size_bytes") is not None else "" for _, row in shown]
    names = [str(row.get("collective") or row.get("model") or "") for _, row in shown]
    label = FIGURES.get(figure, (figure, True))[0]
    columns = [
        [short_label(path, paths), *(value_label(path, point["values"].get(path, "-")) for point, _ in shown)]
        for path in paths
    ]
    columns += [[head, *cells] for head, cells in (("of", names), ("size", sizes)) if any(cells)]
    if figure == "busbw_GBps":  # the time as well, which is what one waits for
        columns.append(["time (us)", *(_cell("time_us", row, point) for point, row in shown)])
    columns.append([label, *(_cell(figure, row, point) for point, row in shown)])
    lines = aligned(list(zip(*(column[: MOST_LINES + 1] for column in columns), strict=True)), ())
    more, sized = len(shown) - MOST_LINES, len(every) - len(shown)
    if more > 0:
        return [*lines, f"... and {more:,} more points: rows.csv has all"]
    return [*lines, f"... each point's last row; rows.csv has {sized:,} more"] if sized else lines


def _cell(name: str, row: dict[str, Any], point: dict[str, Any]) -> str:
    """A figure as `commsim run` prints it: times and GB/s as nccl-tests has them, others in four digits."""
    value = row.get(name)
    if point["error"] or value is None:
        return "failed" if point["error"] else "-"
    if name == "time_us":
        return format_time_us(value * 1e-6)
    if name.endswith("_GBps"):
        return f"{value:.2f}"
    return f"{value:.{max(0, 3 - floor(log10(abs(value)))) if value else 0}f}"
