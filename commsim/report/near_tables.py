"""The single changes of a layout as text and JSON."""

from __future__ import annotations

from typing import Any

from commsim.planner.near import Near
from commsim.planner.ties import favours, spread, tied
from commsim.report.plan_tables import between, headline
from commsim.report.tables import aligned
from commsim.units import GIB


def near_lines(near: Near) -> list[str]:
    """The layout in sentences, then a row for every single change, and which of them is more than an error."""
    start = near.start
    margin = 100 * (spread(start).margin - 1)
    rows = [("change", "step s", "of 8 in 10", "time", "GiB", "in its favour")]
    sure = []
    for change in near.changes:
        c = change.configuration
        low, high = spread(c).band_s(c.seconds)
        ratio = _ratio(near, c)
        word = f"{100 * (ratio - 1):+.1f} %{' tie' if tied(c, start) else ''}"
        name = f"{change.axis} {change.before} -> {change.value}"
        if ratio < 1 and not tied(c, start):
            sure.append(name)
        own = ", ".join(favours(c, start))
        rows.append((name, f"{c.seconds:.3f}", between(low, high), word, f"{c.memory.peak / GIB:.1f}", own))
    told = f"{len(sure)} of {len(near.changes)} single changes gain more than {margin:.0f} %, the error of a difference"
    return [
        *headline(start),
        "",
        *aligned(rows, [0, 2, 5], spare=[2, 1]),
        "",
        f"{told}: {'; '.join(sure)}." if sure else f"{told}: keep what runs, or take what else speaks for a tie.",
    ]


def near_document(near: Near, name: str) -> dict[str, Any]:
    """The same as plain values."""
    return {
        "schema_version": 1,
        "name": name,
        "answer": headline(near.start),
        "layout": near.start.mesh() | {"step_s": near.start.seconds, "memory_GiB": near.start.memory.peak / GIB},
        "changes": [
            {
                "axis": change.axis,
                "before": change.before,
                "value": change.value,
                "step_s": change.configuration.seconds,
                "slower_percent": 100 * (_ratio(near, change.configuration) - 1),
                "tie": tied(change.configuration, near.start),
                "favours": favours(change.configuration, near.start),
                "memory_GiB": change.configuration.memory.peak / GIB,
            }
            for change in near.changes
        ],
    }


def _ratio(near: Near, other: Any) -> float:
    start = near.start
    return float(other.seconds / other.ranked.tokens * start.ranked.tokens / start.seconds)
