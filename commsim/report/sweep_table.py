"""The points of a sweep as a short table: the values of its paths, and the figure that it is about."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from commsim.report.sweep_plot import FIGURES, named
from commsim.report.tables import aligned

MOST_POINTS = 20
"""Lines of the table; what is left out is counted."""


def points_table(points: Sequence[dict[str, Any]], figure: str) -> list[str]:
    """A line per point: its values, and the figure of its last row, which is its largest size."""
    paths = list(dict.fromkeys(name for point in points for name in point["values"]))
    last = [point["rows"][-1] if point["rows"] else {} for point in points]
    sizes = [named("size_bytes", row["size_bytes"]) if row.get("size_bytes") is not None else "" for row in last]
    names = [str(row.get("collective") or row.get("model") or "") for row in last]
    label = FIGURES.get(figure, (figure, True))[0]
    columns = [[_short(path, paths), *(str(point["values"].get(path, "")) for point in points)] for path in paths]
    columns += [[head, *cells] for head, cells in (("of", names), ("size", sizes)) if any(cells)]
    if figure == "busbw_GBps":  # the time as well, which is what one waits for
        times = (_cell(row.get("time_us"), point) for row, point in zip(last, points, strict=True))
        columns.append(["time (us)", *times])
    columns.append([label, *(_cell(row.get(figure), point) for row, point in zip(last, points, strict=True))])
    lines = aligned(list(zip(*(column[: MOST_POINTS + 1] for column in columns), strict=True)), ())
    more = len(points) - MOST_POINTS
    return lines + ([f"... and {more:,} more points: rows.csv has all"] if more > 0 else [])


def _short(path: str, paths: Sequence[str]) -> str:
    """The last part of a path, where no other ends so."""
    last = path.rpartition(".")[2]
    return last if sum(one.rpartition(".")[2] == last for one in paths) == 1 else path


def _cell(value: Any, point: dict[str, Any]) -> str:
    return "failed" if point["error"] else "-" if value is None else f"{value:.4g}"
