"""The points of a sweep as a short table: the values of its paths, and the figure that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commsim.report.sweep_plot import FIGURES, named
from commsim.report.tables import aligned

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
    columns = [[_short(path, paths), *(str(point["values"].get(path, "")) for point, _ in shown)] for path in paths]
    columns += [[head, *cells] for head, cells in (("of", names), ("size", sizes)) if any(cells)]
    if figure == "busbw_GBps":  # the time as well, which is what one waits for
        columns.append(["time (us)", *(_cell(row.get("time_us"), point) for point, row in shown)])
    columns.append([label, *(_cell(row.get(figure), point) for point, row in shown)])
    lines = aligned(list(zip(*(column[: MOST_LINES + 1] for column in columns), strict=True)), ())
    more, sized = len(shown) - MOST_LINES, len(every) - len(shown)
    if more > 0:
        return [*lines, f"... and {more:,} more points: rows.csv has all"]
    return [*lines, f"... each point's last row; rows.csv has {sized:,} more"] if sized else lines


def _short(path: str, paths: Sequence[str]) -> str:
    """The last part of a path, where no other ends so."""
    last = path.rpartition(".")[2]
    return last if sum(one.rpartition(".")[2] == last for one in paths) == 1 else path


def _cell(value: Any, point: dict[str, Any]) -> str:
    return "failed" if point["error"] else "-" if value is None else f"{value:.4g}"
