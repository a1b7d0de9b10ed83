"""A bar per rank of replayed traces: what it spends the time on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from commsim.report import style
from commsim.units import format_time

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.scenario.chakra_result import TraceItem

MOST_RANKS = 48
"""Bars that can be told apart; of more ranks as many are shown, evenly spread."""

_PARTS = (
    ("compute", "computes", "#0072B2"),
    ("exposed", "transfers, nothing computed", "#D55E00"),
    ("other", "host and memory", "#E69F00"),
    ("idle", "waits for other ranks", "#D9D9D9"),
)


def plot_ranks(item: TraceItem, provenance: str = "") -> Figure:
    """Stacked bars over the time of the whole, one per rank."""

    count = len(item.ranks)
    shown = [item.ranks[i] for i in np.unique(np.linspace(0, count - 1, min(count, MOST_RANKS)).round().astype(int))]
    scale, unit = (1.0, "s") if item.seconds >= 1 else (1e3, "ms") if item.seconds >= 1e-3 else (1e6, "us")
    with style.drawing(10.0, 1.9 + 0.24 * len(shown), provenance) as (figure, axes):
        left = np.zeros(len(shown))
        for part, words, colour in _PARTS:
            width = np.array([getattr(row, part) for row in shown]) * scale
            if width.any():
                axes.barh(range(len(shown)), width, left=left, height=0.8, color=colour, label=words)
            left += width
        step = -(-len(shown) // 16)
        axes.set_yticks(range(0, len(shown), step), [f"rank {row.rank}" for row in shown[::step]])
        axes.invert_yaxis()
        axes.set_xlim(0, max(item.seconds * scale, 1e-9))
        axes.set_xlabel(f"time ({unit})")
        more = f", {len(shown)} of {count} ranks" if len(shown) < count else ""
        axes.set_title(f"{item.name}: {format_time(item.seconds)}{more}")
        axes.grid(visible=False, axis="y")
        figure.legend(loc="outside lower left", ncols=len(_PARTS), borderaxespad=0.4)
    return figure
