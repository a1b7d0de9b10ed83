"""A picture as data: panels above one x axis, or spans in rows.

It knows no library. Two draw it: `static/charts.js` in a browser, with ECharts (docs/design.md), which a page holds
inline, and `chart_figure.py` on paper, with matplotlib.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from commsim.units import format_time

Scale = Literal["linear", "log", "category"]
Unit = Literal["", "bytes", "s", "%"]
Look = Literal["line", "dashed", "points", "bars", "steps"]

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("echarts.js", "chart_axes.js", "chart_panels.js", "chart_timeline.js", "charts.js")
"""What a page needs to draw charts, in this order."""

BAND = "shaded: band of the prediction"


@dataclass(frozen=True)
class Axis:
    """What an axis shows: bytes with their binary units, seconds with theirs, or plain numbers.

    `scale` is what it starts with; where `switch` is set, a button changes between logarithmic and linear. `base` is
    that of logarithmic ticks: 2 for what doubles.
    """

    label: str
    scale: Scale = "linear"
    unit: Unit = ""
    switch: bool = False
    categories: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None
    base: int = 10


@dataclass(frozen=True)
class Series:
    """Points of one thing; None in `y` is a gap. `low` and `high` shade a band; `notes` are added to the hover text.

    `labels` stand beside the points. With `named` the name stands at the end of the line as well. ``steps``: a y holds
    from its x to the next.
    """

    name: str
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    colour: str
    look: Look = "line"
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    notes: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    named: bool = False


@dataclass(frozen=True)
class Mark:
    """A place on the x axis with its name: where NCCL changes algorithm or protocol, say.

    With `to` it is a stretch, shaded in `colour`, from `x` to there.
    """

    x: float | str
    text: str
    to: float | None = None
    colour: str = ""


@dataclass(frozen=True)
class Shade:
    """A stretch of the y axis behind the series, named in the key where it has a name."""

    low: float
    high: float
    colour: str
    text: str = ""


@dataclass(frozen=True)
class Panel:
    """Series over one y axis; `height` is its share of the chart. `stacked`: bars stand on each other.

    `band` names in the key what a series' `low` and `high` shade.
    """

    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    height: float = 1.0
    shades: tuple[Shade, ...] = ()
    stacked: bool = False
    band: str = BAND


@dataclass(frozen=True)
class Span:
    """A stretch of time in a row of a timeline (rows count from 0, the first above).

    `low` and `high` are the part of the row that it fills, 0 at its lower edge.
    """

    row: int
    start: float
    end: float
    text: str
    colour: str
    note: str = ""
    low: float = 0.14
    high: float = 0.86


def apart(series: Series, wide: float, high: float, others: Sequence[Series] = ()) -> tuple[str, ...]:
    """The labels of points, but for those that would lie over another; a label is so many units wide and high.

    But for the first label none lies over a point of `others` either. A label stands right of its point, and left of it
    where it would leave the picture (`static/chart_panels.js`).
    """
    shown: list[tuple[float, float]] = []
    labels = list[str]()
    points = [(float(x), float(y or 0.0)) for other in others for x, y in zip(other.x, other.y, strict=True)]
    places = [at for at, _ in points] or [0.0]
    middle = (min(places) + max(places)) / 2
    for x, y, text in zip(series.x, series.y, series.labels, strict=True):
        at = (float(x), float(y or 0.0))
        free = all(abs(at[0] - a) > wide or abs(at[1] - b) > high for a, b in shown)
        side = 1.0 if at[0] < middle else -1.0
        beside = [a for a, b in points if 0 < side * (a - at[0]) < wide and abs(b - at[1]) < high]
        free = free and (not beside or not labels)
        labels.append(text if free else "")
        shown += [at] if free and text else []
    return tuple(labels)


@dataclass(frozen=True)
class Chart:
    """Panels that share the x axis, its crosshair and its zoom; or, with `rows`, a timeline of `spans`.

    `key` names the colours of spans; `note` stands below.
    """

    title: str
    x: Axis
    panels: tuple[Panel, ...] = ()
    rows: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    key: tuple[tuple[str, str], ...] = ()
    note: str = ""

    def to_dict(self) -> Mapping[str, Any]:
        """Plain values, as `static/charts.js` reads them."""
        return asdict(self)

    def to_json(self) -> str:
        """The chart as JSON that may stand in a script element: no ``<`` closes it.

        Spans are ``[row, start, end, kind]``: thousands have few kinds of text, colour, note and place in the row.
        """
        kinds = list(dict.fromkeys(map(_kind, self.spans)))
        place = {kind: i for i, kind in enumerate(kinds)}
        spans = [[span.row, span.start, span.end, place[_kind(span)]] for span in self.spans]
        plain = _rounded({**asdict(replace(self, spans=())), "spans": spans, "kinds": kinds})
        return json.dumps(plain, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


MOST_SPANS = 3_000
"""Boxes of a timeline that is drawn; a browser draws them in a moment."""

_THIN = 0.3
"""Part of a row up to which a bar is thin: transfers below the passes."""


def beginning(chart: Chart) -> Chart:
    """A timeline with at most so many boxes: without thin bars, then its beginning, as samples show no step.

    Its note says what is left out.
    """
    if len(chart.spans) <= MOST_SPANS:
        return chart
    passes = sorted((span for span in chart.spans if span.high - span.low > _THIN), key=lambda span: span.start)
    out = ["sends and the like are left out"] if len(passes) < len(chart.spans) else []
    x = chart.x
    if len(passes) > MOST_SPANS:
        end = passes[MOST_SPANS].start
        x = replace(x, high=end)
        out.insert(0, f"the first {format_time(end)} of {format_time(max(span.end for span in passes))}")
    note = "; ".join([*out, "commsim run --trace has all", *([chart.note] if chart.note else [])])
    return replace(chart, spans=tuple(passes[:MOST_SPANS]), note=note, x=x)


def _kind(span: Span) -> tuple[str, str, str, float, float]:
    return span.text, span.colour, span.note, span.low, span.high


def _rounded(value: Any) -> Any:
    """Floats with seven digits, which is more than is shown, in half the letters."""
    if isinstance(value, float):
        return float(f"{value:.7g}")
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, (list, tuple)) else value
