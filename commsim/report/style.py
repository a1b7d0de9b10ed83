"""One look for every figure: colours, markers, line widths, ticks in powers of two."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe & Ito's palette, distinguishable with every common colour vision (jfly.uni-koeln.de/color, 2008).
# Predictions and measurements take colours in order, each from its own list: neither changes with the other.
PREDICTED_COLOURS = ("#0072B2", "#CC79A7", "#56B4E9")
MEASURED_COLOURS = ("#D55E00", "#009E73", "#E69F00", "#8C510A", "#555555", "#000000")
MEASURED_MARKERS = ("o", "s", "^", "D", "v", "P")
INK = "#222222"
MUTED = "#6B6B6B"
GRID = "#E3E3E3"
BOUND = "#8A8A8A"

RC: dict[str, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10.0,
    "axes.titlesize": 12.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10.0,
    "axes.labelsize": 10.0,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#9A9A9A",
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.8,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelsize": 9.0,
    "ytick.labelsize": 9.0,
    "xtick.major.size": 3.0,
    "ytick.major.size": 3.0,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 9.0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "savefig.dpi": 150,
    "svg.hashsalt": "commsim",  # the same figure is the same file
}


@contextmanager
def drawing(width: float, height: float, provenance: str = "", **subplots: Any) -> Iterator[tuple[Figure, Any]]:
    """A figure of so many inches with its axes (`subplots` as of `Figure.subplots`), signed when it is done."""
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    from commsim.report.figure import ShownFigure

    with mpl.rc_context(cast("Any", RC)):
        figure = ShownFigure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure, figure.subplots(**subplots)
        _fold(figure, width)
        if provenance:
            figure.text(0.992, 0.006, provenance, ha="right", va="bottom", fontsize=7.5, color=MUTED)


_TITLE, _LABEL = 8.3, 11.0
"""Characters of an inch of a title, and of a legend's label."""


def _fold(figure: Figure, width: float) -> None:
    """Titles and labels that are wider than the figure as several lines: names hold all that was changed."""
    for axes in figure.axes:
        for place in ("left", "center"):
            title = axes.get_title(loc=place)
            if len(title) > _TITLE * width and "\n" not in title:
                axes.set_title(textwrap.fill(title, int(_TITLE * width)), loc=place)
    for legend in figure.legends:
        for text in legend.get_texts():
            if len(text.get_text()) > _LABEL * width:
                text.set_text(textwrap.fill(text.get_text(), int(_LABEL * width)))


def size_ticks(low: float, high: float, at_most: int = 12) -> list[int]:
    """Powers of two in [low, high], evenly spaced in the exponent and few enough to label."""
    first, last = max(0, int(low).bit_length() - 1), max(1, int(high)).bit_length() - 1
    if 2**first < low:
        first += 1
    span = max(1, last - first)
    step = next(s for s in (1, 2, 3, 4, 5, 6, 8, 10, 12, 64) if span // s < at_most)
    return [2**e for e in range(first, last + 1, step)]


def size_axis(axes: Axes, low: float, high: float) -> None:
    """Make x a log axis of message sizes with KiB, MiB and GiB labels."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    from commsim.units import format_bytes

    axes.set_xscale("log", base=2)
    axes.set_xlim(low / 2**0.5, high * 2**0.5)
    axes.xaxis.set_major_locator(FixedLocator(size_ticks(low, high)))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_bytes(value)))


def colours(palette: Sequence[str], count: int) -> list[str]:
    """`count` colours that differ: those of a palette, and behind them darker and lighter shades of its colours."""
    from matplotlib.colors import to_hex, to_rgb

    shades = []
    for i in range(count):
        turn, place = divmod(i, len(palette))
        shade = (0.0, -0.35, 0.4, -0.6, 0.6)[min(turn, 4)]
        end = 1.0 if shade > 0 else 0.0
        red, green, blue = (c + (end - c) * abs(shade) for c in to_rgb(palette[place]))
        shades.append(to_hex((red, green, blue)))
    return shades
