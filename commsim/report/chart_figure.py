"""Draws a chart (`chart.py`) with matplotlib, for files and for pages without scripts."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from commsim.report import style
from commsim.report.chart import Axis, Chart, Mark, Panel, Series, Span
from commsim.report.end_names import EndName, set_apart, write_end_names
from commsim.units import format_bytes, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_ABOVE = 2.0
"""Times that a bound (a dashed line) may make an axis as long as the rest does."""

_TWO_COLUMNS = 42  # characters of a name up to which two columns of the legend fit beside each other
_MANY_SPANS = 1500  # from which on spans are one picture: thousands of boxes are megabytes of SVG
_LABEL = 30  # characters of a name of an axis beside a panel of height 1
_NOTE = 12  # characters of an inch of a note
_LETTER = 0.085  # inches of a letter in a span, in the mean


def draw(*charts: Chart, provenance: str = "", width: float = 8.4, title: str = "") -> Figure:
    """The charts side by side as one Figure of so many inches, below a `title` of all if there is one.

    Those of several have equally many panels.
    """
    first = charts[0]
    if first.rows:
        return _timeline(first, provenance, width)
    names = list(dict.fromkeys(name for chart in charts for name in key_of(chart)))
    columns = _columns(names, width)
    ends: list[tuple[Axes, list[EndName]]] = []
    ratios = [panel.height for panel in first.panels]
    height = 1.35 + 2.75 * sum(ratios) + 0.21 * math.ceil(len(names) / columns)
    height += 0.2 * any(chart.note for chart in charts)
    grid: dict[str, Any] = {"nrows": len(ratios), "ncols": len(charts), "squeeze": False, "height_ratios": ratios}
    with style.drawing(width, height, provenance, sharex="col", **grid) as (figure, axes):
        handles: dict[str, Any] = {}
        for column, chart in zip(axes.T, charts, strict=True):
            for panel, one in zip(chart.panels, column, strict=True):
                _panel(one, chart, panel)
                ends.append((one, write_end_names(one, [s for s in panel.series if s.named])))
                for handle, label in zip(*one.get_legend_handles_labels(), strict=True):
                    handles.setdefault(label, handle)
            _x_axis(column[-1], chart)
            _note(column[-1], chart.note, width / len(charts))
            column[0].set_title(chart.title, pad=10 + 11 * _mark_rows(chart, chart.panels[0]))
        if title:
            figure.suptitle(title, x=0.01, ha="left", fontsize=12, fontweight="bold")
        if len(names) > 1 or (names and first.panels[0].series[0].look != "bars"):
            place: dict[str, Any] = {"loc": "outside lower left", "columnspacing": 2.5, "borderaxespad": 0.4}
            figure.legend([handles[n] for n in names if n in handles], [n for n in names if n in handles],
                          ncols=columns, **place)  # fmt: skip
    if any(names for _, names in ends):
        set_apart(figure, ends)
    return figure


def key_of(chart: Chart) -> list[str]:
    """The names in the key of a chart, each once, but for lines that have theirs at their end wherever they are."""
    names = [series.name for panel in chart.panels for series in panel.series]
    keyed = {series.name for panel in chart.panels for series in panel.series if not series.named}
    names = [name for name in names if name in keyed]
    bands = [panel.band for panel in chart.panels if any(series.low for series in panel.series)]
    shades = [shade.text for panel in chart.panels for shade in panel.shades if shade.text]
    return list(dict.fromkeys([*names, *bands, *shades]))


def _columns(names: Sequence[str], width: float) -> int:
    """As few columns as the rows of the key need, so that its columns are alike."""
    longest = max(map(len, names), default=1)
    most = max(1, min(len(names), int(width / 8.4 * 2 * _TWO_COLUMNS / (longest + 6))))
    rows = math.ceil(len(names) / most)
    return math.ceil(len(names) / max(1, rows)) or 1


def _panel(axes: Axes, chart: Chart, panel: Panel) -> None:
    for shade in panel.shades:
        axes.axhspan(shade.low, shade.high, color=shade.colour, linewidth=0, zorder=0.5, label=shade.text or None)
    drawn: list[Series] = []
    points, ends, banded = 0, dict.fromkeys(chart.x.categories, 0.0), ""
    places = sorted(at for s in panel.series for at in s.x if not isinstance(at, str))
    for series in panel.series:
        x, y = _known(series, series.y)
        if series.low:
            lower, upper = _known(series, series.low), _known(series, series.high)
            name, banded = ("_repeated" if banded else panel.band), panel.band
            axes.fill_between(lower[0], lower[1], upper[1], color=series.colour, alpha=0.17, linewidth=0, label=name)
        if series.look == "bars":
            bottoms = [ends.get(str(at), 0.0) for at in x] if panel.stacked else [0.0] * len(x)
            axes.bar(
                x, y, bottom=bottoms, color=series.colour, label=series.name, width=0.72, edgecolor="white", lw=0.6
            )
            ends.update({str(at): low + high for at, low, high in zip(x, bottoms, y, strict=True)})
            for at, text in zip(series.x, series.labels, strict=False):
                place, centre = (at, ends[str(at)]), {"ha": "center", "va": "bottom", "fontsize": 8}
                axes.annotate(text, place, (0, 2), textcoords="offset points", **centre)  # type: ignore[arg-type]
            continue
        look = _look(series, points, len(x))
        if series.look == "line" and any(_covers(series, below, panel) for below in drawn):
            look |= {"linestyle": (0, (4, 4)), "marker": ""}
        drawn += [series] if series.look == "line" else []
        axes.plot(x, y, label=series.name, color=series.colour, **look)
        points += series.look == "points"
        for at, value, text in zip(series.x, series.y, series.labels, strict=False):
            if text and value is not None:
                _beside(axes, (at, value), text, places)
    low, high = reach(panel)
    axes.set_yscale("log" if panel.y.scale == "log" else "linear")
    axes.set_ylim(low, high)
    axes.set_ylabel(textwrap.fill(panel.y.label, max(12, int(_LABEL * panel.height))))
    _labels(axes.yaxis, panel.y)
    if panel.series[0].look == "bars":
        axes.grid(visible=False, axis="x")
    _marks(axes, chart, panel)


def _beside(axes: Axes, place: tuple[Any, float], text: str, places: Sequence[float]) -> None:
    """A text beside a point, on the side where there is room."""
    left = len(text) > 6 and place[0] > places[0] + 0.45 * (places[-1] - places[0])
    plate = {"boxstyle": "round,pad=0.1", "facecolor": "white", "edgecolor": "none", "alpha": 0.8}
    look: dict[str, Any] = {"fontsize": 8, "color": style.INK, "va": "center", "zorder": 5, "bbox": plate}
    look["ha"] = "right" if left else "left"
    axes.annotate(text, place, (-7 if left else 7, 0), textcoords="offset points", **look)


def _known(series: Series, values: Sequence[float | None]) -> tuple[list[Any], list[float]]:
    """The places with a value, and the values."""
    pairs = [(x, y) for x, y in zip(series.x, values, strict=True) if y is not None]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _look(series: Series, points: int, count: int) -> dict[str, Any]:
    if series.look == "points":
        marker = style.MEASURED_MARKERS[points % len(style.MEASURED_MARKERS)]
        hollow: dict[str, Any] = {"markerfacecolor": "white", "markeredgewidth": 1.5, "markersize": 6.0}
        return {"linestyle": "none", "marker": marker, "zorder": 4, **hollow}
    if series.look == "dashed":
        return {"linewidth": 1.2, "linestyle": (0, (5, 3)), "zorder": 2}
    if series.look == "steps":
        return {"drawstyle": "steps-post", "linewidth": 1.5, "zorder": 3}
    return {"marker": "." if count <= 80 else "", "markersize": 5, "zorder": 3}


_SAME = 0.012
"""Share of a panel's height within which a line lies on another."""


def _covers(series: Series, below: Series, panel: Panel) -> bool:
    """Whether a line lies wholly on one that is drawn already, which would not be seen under it."""
    mine, other = (dict(zip(s.x, s.y, strict=True)) for s in (series, below))
    pairs = [(y, other.get(x)) for x, y in mine.items()]
    both = [(a, b) for a, b in pairs if a is not None and b is not None]
    low, high = reach(panel)
    if len(both) < max(2, len(other) - 1) or high <= low:
        return False
    if panel.y.scale == "log" and low > 0:
        return all(a > 0 < b and abs(math.log(a / b)) <= _SAME * math.log(high / low) for a, b in both)
    return all(abs(a - b) <= _SAME * (high - low) for a, b in both)


def reach(panel: Panel) -> tuple[float, float]:
    """What the y axis of a panel shows: all series with their bands; of bounds what makes it twice as long at most."""
    bounds = [y for s in panel.series if s.look == "dashed" for y in s.y if y is not None]
    inner = [y for s in panel.series if s.look != "dashed" for y in (*s.y, *s.low, *s.high) if y is not None]
    if panel.stacked:
        totals: dict[Any, float] = {}
        for series in panel.series:
            for x, y in zip(series.x, series.y, strict=True):
                totals[x] = totals.get(x, 0.0) + (y or 0.0) * (series.look == "bars")
        inner += totals.values()
    inner = inner or bounds or [1.0]
    if panel.y.scale == "log":
        inner, bounds = ([y for y in values if y > 0] or [1.0] for values in (inner, bounds or inner))
        low = min(*inner, max(min(bounds), min(inner) / MOST_ABOVE**4)) / 1.15
        high = max(*inner, min(max(bounds), max(inner) * MOST_ABOVE)) * 1.15
    else:
        low = min(0.0, *inner, *bounds)
        high = 1.06 * max(*inner, min(max(bounds, default=0.0), MOST_ABOVE * max(inner))) or 1.0
    return (low if panel.y.low is None else panel.y.low), (high if panel.y.high is None else panel.y.high)


def _format(axis: Axis) -> Callable[[float], str]:
    if axis.unit == "bytes":
        return format_bytes
    if axis.unit == "s":
        return lambda value: format_time(value) if value else "0 s"
    return lambda value: "0" if abs(value) < 1e-12 else f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:,.6g}"


def _labels(one: Any, axis: Axis) -> None:
    """The numbers on an axis of matplotlib, few of them where it is logarithmic."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    if axis.scale == "category":
        return
    if axis.scale == "log":
        low, high = sorted(one.get_view_interval())
        decades = math.log10(high / low) if low > 0 else 1.0
        few = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0, 3.0) if decades < 3.5 else (1.0,)
        one.set_major_locator(LogLocator(10, few))
        one.set_minor_formatter(NullFormatter())
    words = _format(axis)
    one.set_major_formatter(FuncFormatter(lambda value, _: words(value)))


def _note(axes: Axes, note: str, width: float) -> None:
    """A note below the label of the x axis, in lines that fit the width in inches."""
    if note:
        place: dict[str, Any] = {"xycoords": ("axes fraction", axes.xaxis.label), "textcoords": "offset points"}
        text = textwrap.fill(note, int(_NOTE * width))
        axes.annotate(text, (0, 0), (0, -5), va="top", ha="left", fontsize=9, annotation_clip=False, **place)


def _x_axis(axes: Axes, chart: Chart) -> None:
    x = chart.x
    axes.set_xlabel(chart.x.label)
    places = sorted({at for p in chart.panels for s in p.series for at in s.x if not isinstance(at, str)})
    if x.scale == "category":
        every = max(1, -(-len(x.categories) // 16))
        axes.set_xticks(range(0, len(x.categories), every), x.categories[::every])
    elif x.scale == "log" and x.unit == "bytes" and places:
        style.size_axis(axes, places[0] if x.low is None else x.low, places[-1] if x.high is None else x.high)
    elif x.scale == "log" and x.base == 2 and places:
        axes.set_xscale("log", base=2)
        axes.minorticks_off()
        ticks = places[:: max(1, math.ceil(len(places) / 10))]
        axes.set_xticks(ticks, [_format(x)(at) for at in ticks])
    else:
        axes.set_xscale("log" if x.scale == "log" else "linear")
        if x.scale == "log" and places and places[-1] < 1.01 * places[0]:
            axes.set_xlim(places[0] / 2, places[-1] * 2)  # all at one place
        _limits(axes, x)
        _labels(axes.xaxis, x)
    _limits(axes, x)


def _limits(axes: Axes, x: Axis) -> None:
    if x.low is not None:
        axes.set_xlim(left=x.low)
    if x.high is not None:
        axes.set_xlim(right=x.high)


def _mark_rows(chart: Chart, panel: Panel) -> int:
    """Rows that the names of marks take above a panel."""
    return max((row for row, _, _ in _placed(chart, panel)), default=-1) + 1


def _placed(chart: Chart, panel: Panel) -> Iterable[tuple[int, bool, Mark]]:
    """Marks with the row of their name, so that names do not run into each other, and whether it stands to their left.

    The row is -1 where there is no room.
    """
    marks = [mark for mark in panel.marks if mark.text and isinstance(mark.x, (int, float))]
    places = [at for p in chart.panels for s in p.series for at in s.x if not isinstance(at, str)]
    if not marks or not places:
        return []
    log = math.log if chart.x.scale == "log" else float
    low, long = log(min(places)), (log(max(places)) - log(min(places))) or 1.0
    ends, placed = [-1.0, -1.0], []
    for mark in marks:
        at, wide = (log(float(mark.x)) - low) / long, 0.0115 * len(mark.text) + 0.01
        left = at + wide > 1.08  # no room to its right: it ends at the mark
        row = next((k for k in (0, 1) if ends[k] <= at - left * wide), -1)
        if row >= 0:
            ends[row] = at + (not left) * wide
        placed.append((row, left, mark))
    return placed


def _marks(axes: Axes, chart: Chart, panel: Panel) -> None:
    for mark in panel.marks:
        if mark.to is None:
            axes.axvline(mark.x, color=style.BOUND, linewidth=1.0, linestyle=":", zorder=1)  # type: ignore[arg-type]
        else:
            colour = mark.colour or style.BOUND
            axes.axvspan(mark.x, mark.to, color=colour, alpha=0.09, linewidth=0, zorder=0.4)  # type: ignore[arg-type]
    look: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7.5, "color": style.MUTED, "va": "bottom"}
    for row, left, mark in _placed(chart, panel):
        if row >= 0:
            look["ha"] = "right" if left else "left"
            axes.annotate(mark.text, (mark.x, 1.0), (0, 2 + 10 * row), xycoords=axes.get_xaxis_transform(), **look)


def _timeline(chart: Chart, provenance: str, width: float) -> Figure:
    from matplotlib.patches import Patch

    count = len(chart.rows)
    columns = _columns([name for name, _ in chart.key], width)
    height = 1.45 + min(0.42, 12 / count) * count + 0.22 * math.ceil(len(chart.key) / columns) + 0.2 * bool(chart.note)
    with style.drawing(width, height, provenance) as (figure, axes):
        end = chart.x.high if chart.x.high is not None else max(span.end for span in chart.spans)
        few = len(chart.spans) < _MANY_SPANS
        look: dict[str, Any] = {"edgecolor": "white" if few else "none", "linewidth": 0.5 if few else 0.0}
        kind = lambda s: (s.row, s.colour, s.low, s.high)  # noqa: E731
        for (row, colour, low, high), same in groupby(sorted(chart.spans, key=kind), kind):
            bars = [(s.start, s.end - s.start) for s in same]
            axes.broken_barh(bars, (row + 0.5 - high, high - low), facecolors=colour, rasterized=not few, **look)
        if few:
            _texts(axes, chart.spans, end, 0.8 * width)
        axes.set_yticks(range(count), chart.rows)
        axes.set(xlim=(chart.x.low or 0.0, end), ylim=(count - 0.5, -0.5), xlabel=chart.x.label)
        _labels(axes.xaxis, chart.x)
        _note(axes, chart.note, width)
        axes.grid(visible=False)
        axes.set_title(chart.title)
        handles = [Patch(color=colour, label=name) for name, colour in chart.key]
        figure.legend(handles=handles, loc="outside lower left", ncols=columns, columnspacing=1.2, borderaxespad=0.4)
    return figure


def _texts(axes: Axes, spans: Sequence[Span], end: float, inches: float) -> None:
    """The texts of spans that have room for them."""
    for span in spans:
        if (
            span.text
            and (span.end - span.start) / end * inches > _LETTER * len(span.text)
            and span.high - span.low > 0.3
        ):
            middle = ((span.start + span.end) / 2, span.row + 0.5 - (span.high + span.low) / 2)
            look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8, "color": style.ink_on(span.colour)}
            axes.text(*middle, span.text, **look)
