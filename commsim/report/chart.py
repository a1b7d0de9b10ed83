"""An interactive picture as data: panels above one x axis, or spans in rows. `static/charts.js` draws it in a browser.

It knows no library: `static/charts.js` turns it into options of ECharts (docs/design.md), which a page holds inline.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Scale = Literal["linear", "log", "category"]
Unit = Literal["", "bytes", "s", "%"]
Look = Literal["line", "dashed", "points", "bars"]

STATIC = Path(__file__).parent / "static"
SCRIPTS = ("echarts.js", "charts.js")
"""What a page needs to draw charts, in this order."""


@dataclass(frozen=True)
class Axis:
    """What an axis shows: bytes with their binary units, seconds with theirs, or plain numbers.

    `scale` is what it starts with; where `switch` is set, a button changes between logarithmic and linear.
    """

    label: str
    scale: Scale = "linear"
    unit: Unit = ""
    switch: bool = False
    categories: tuple[str, ...] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of one thing; None in `y` is a gap. `low` and `high` shade a band; `notes` are added to the hover text."""

    name: str
    x: tuple[float | str, ...]
    y: tuple[float | None, ...]
    colour: str
    look: Look = "line"
    low: tuple[float | None, ...] = ()
    high: tuple[float | None, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mark:
    """A place on the x axis with its name: where NCCL changes algorithm or protocol, say."""

    x: float | str
    text: str


@dataclass(frozen=True)
class Panel:
    """Series over one y axis; `height` is its share of the chart."""

    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    height: float = 1.0


@dataclass(frozen=True)
class Span:
    """A stretch of time in a row of a timeline (rows count from 0, the first above)."""

    row: int
    start: float
    end: float
    text: str
    colour: str
    note: str = ""


@dataclass(frozen=True)
class Chart:
    """Panels that share the x axis, its crosshair and its zoom; or, with `rows`, a timeline of `spans`.

    `key` names the colours of spans.
    """

    title: str
    x: Axis
    panels: tuple[Panel, ...] = ()
    rows: tuple[str, ...] = ()
    spans: tuple[Span, ...] = ()
    key: tuple[tuple[str, str], ...] = ()

    def to_dict(self) -> Mapping[str, Any]:
        """Plain values, as `static/charts.js` reads them."""
        return asdict(self)

    def to_json(self) -> str:
        """The chart as JSON that may stand in a script element: no ``<`` closes it."""
        return json.dumps(self.to_dict(), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
