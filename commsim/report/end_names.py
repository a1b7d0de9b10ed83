"""Names of lines at their ends: in order, apart from each other, each joined to its line where it had to move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.report import style
from commsim.report.chart import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation

_SIZE = 8.0  # points of a letter's height
_LINE = 10.5  # points from one name to the next
_NEAR, _FAR = 6.0, 17.0  # points from the end of a line to its name, without and with a leader
_MOVED = 1.5  # points from which on a leader shows where a name belongs

EndName = tuple["Annotation", float, float]
"""A name, and the end of its line in values of the axes."""


def write_end_names(axes: Axes, named: Sequence[Series]) -> list[EndName]:
    """The name of each line beside its end, which takes its room there; `set_apart` moves them when all is laid out."""
    made: list[EndName] = []
    for series in named:
        ends = [(x, y) for x, y in zip(series.x, series.y, strict=True) if y is not None]
        if not ends or isinstance(ends[-1][0], str):
            continue
        (x, y), colour = ends[-1], style.ink_like(series.colour)
        look: dict[str, Any] = {"fontsize": _SIZE, "color": colour, "va": "center", "annotation_clip": False}
        # Matplotlib clips a leader to its axes unless told otherwise; one of no width is none.
        arrow = {"arrowstyle": "-", "color": series.colour, "linewidth": 0.0, "shrinkA": 1.0, "shrinkB": 3.0,
                 "relpos": (0.0, 0.5)}  # fmt: skip
        name = axes.annotate(
            series.name, (x, y), (_FAR, 0.0), textcoords="offset points", arrowprops=arrow, zorder=5, **look
        )
        made.append((name, float(x), float(y)))
    return made


def set_apart(figure: Figure, panels: Sequence[tuple[Axes, Sequence[EndName]]]) -> None:
    """Moves the names of each panel apart where they would overlap, inside its height; the figure is laid out first."""
    figure.draw_without_rendering()
    points = 72.0 / figure.dpi
    for axes, names in panels:
        low, high = (points * float(edge) for edge in (axes.bbox.y0, axes.bbox.y1))
        low += _SIZE / 2  # else the axis would cross the lowest
        for end in sorted({x for _, x, _ in names}):
            column = [name for name in names if name[1] == end]
            at = [points * float(axes.transData.transform((x, y))[1]) for _, x, y in column]
            moves = spread(at, _LINE, low, high) - np.array(at)
            led = bool(np.any(np.abs(moves) > _MOVED))
            for (name, _, _), move in zip(column, moves, strict=True):
                name.set_position((_FAR if led else _NEAR, float(move)))
                if abs(move) > _MOVED and name.arrow_patch is not None:
                    name.arrow_patch.set_linewidth(0.7)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The places nearest to these (least squares), in the same order, `gap` apart and from `low` to `high`.

    Equal ones are in their given order. Where not all have room, the gap is less.
    """
    from scipy.optimize import isotonic_regression

    order = np.argsort(np.asarray(places), kind="stable")
    gap = min(gap, (high - low) / max(1, len(order) - 1))
    steps = gap * np.arange(len(order))
    free = isotonic_regression(np.asarray(places, dtype=float)[order] - steps).x
    moved = np.empty(len(order))
    moved[order] = np.clip(free, low, high - steps[-1]) + steps
    return moved
