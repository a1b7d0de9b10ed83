"""A report as one HTML file: answer first, tables that sort, charts and drawings, nothing loaded from anywhere.

The page is data (titles, texts, tables, charts, pictures); `html` writes it. Everything that comes from files is
escaped; the page forbids itself any request, so it can be mailed and opened anywhere. Without scripts a chart is a
still picture.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import commsim
from commsim.report.chart import SCRIPTS, STATIC, Chart, beginning
from commsim.units import GIGA, format_bytes

if TYPE_CHECKING:
    from jinja2 import Template
    from matplotlib.figure import Figure

TEMPLATE = Path(__file__).parent / "page.html.j2"

_REM_PER_INCH = 60 / 8.4  # the usual figure fills the page; smaller ones keep its size of letters


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str
    kind: ClassVar[str] = "text"


@dataclass(frozen=True)
class Code:
    """Text as it is, in fixed width."""

    text: str
    kind: ClassVar[str] = "code"


@dataclass(frozen=True)
class Facts:
    """Names with values."""

    facts: tuple[tuple[str, str], ...]
    kind: ClassVar[str] = "facts"


@dataclass(frozen=True)
class Picture:
    """An SVG drawing, the sentence below it, and how wide it is shown at most."""

    svg: Any
    caption: str
    width_rem: float = 60.0
    kind: ClassVar[str] = "picture"


@dataclass(frozen=True)
class Plot:
    """A chart that answers to the reader, as JSON, the still picture of it for where scripts are off, and a caption."""

    data: Any
    still: Picture
    caption: str
    kind: ClassVar[str] = "plot"


@dataclass(frozen=True)
class Column:
    """A table's column; numbers stand to the right."""

    name: str
    number: bool = False


@dataclass(frozen=True)
class Cell:
    """What a cell shows, and the number it sorts by; None to sort by its text."""

    text: str
    key: float | None = None


@dataclass(frozen=True)
class Table:
    """Rows under columns, each row as long as `columns`."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    kind: ClassVar[str] = "table"


Part: TypeAlias = Text | Code | Facts | Picture | Plot | Table


@dataclass(frozen=True)
class Section:
    """A heading and what stands under it."""

    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Page:
    """A report: the question, the answer in a few sentences, then the evidence."""

    title: str
    question: str
    answer: tuple[str, ...]
    sections: tuple[Section, ...]
    warnings: tuple[str, ...] = ()
    provenance: str = ""


def html(page: Page) -> str:
    """The page as one self-contained HTML document; the same page is the same text."""
    from markupsafe import Markup

    kinds = {part.kind for section in page.sections for part in section.parts}
    wanted = [*(SCRIPTS if "plot" in kinds else ()), *(("drawings.js",) if "picture" in kinds else ())]
    scripts = [Markup((STATIC / name).read_text(encoding="utf-8")) for name in wanted]
    return _template().render(page=page, scripts=scripts, generator=f"commsim {commsim.__version__}")


@lru_cache(maxsize=1)
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(TEMPLATE.read_text(encoding="utf-8"))


def plot(chart: Chart, caption: str) -> Plot:
    """A chart for a page, with its still picture; of a long timeline the beginning."""
    from markupsafe import Markup

    from commsim.report.chart_figure import draw

    chart = beginning(chart)
    return Plot(Markup(chart.to_json()), picture(draw(chart), caption), caption)


def picture(figure: Figure, caption: str) -> Picture:
    """A figure as inline SVG whose ids are its own, so that several can stand on one page."""
    import hashlib

    from markupsafe import Markup

    from commsim.report.plots import figure_bytes

    text = figure_bytes(figure, "svg").decode()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    # Two drawings on one page must not share the ids of their glyphs and clip paths.
    own = "p" + hashlib.sha256(text.encode()).hexdigest()[:8]
    text = re.sub(r'\bid="([^"]+)"', rf'id="{own}-\1"', text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{own}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{own}-\1)", text)
    width_rem = _REM_PER_INCH * figure.get_figwidth()
    return Picture(Markup(text), caption, round(width_rem, 1))  # drawn by matplotlib, which escapes the texts in it


def table(columns: Sequence[str | Column], rows: Iterable[Sequence[Any]], note: str = "") -> Table:
    """A table of plain values: numbers are shown with three to four digits, under a head in % with one after the point.

    They sort as numbers.
    """
    listed = [tuple(row) for row in rows]
    named = tuple(
        column
        if isinstance(column, Column)
        else Column(column, number=any(isinstance(row[i], (int, float)) for row in listed))
        for i, column in enumerate(columns)
    )
    rates = [column.name.endswith("(%)") for column in named]
    cells = tuple(
        tuple(_percent(value) if rate else cell(value) for value, rate in zip(row, rates, strict=True))
        for row in listed
    )
    return Table(named, cells, note)


def size_cell(nbytes: float) -> Cell:
    """Bytes with their unit, in the order of their number."""
    return Cell(format_bytes(nbytes), float(nbytes))


def _percent(value: Any) -> Cell:
    return Cell(f"{value:,.1f}", value) if isinstance(value, float) else cell(value)


def cell(value: Any) -> Cell:
    """A value as a person reads it: ``1.234``, ``12,345``, ``yes``, an empty cell for None."""
    if isinstance(value, Cell):
        return value
    if value is None or value == "":
        return Cell("")
    if isinstance(value, bool):
        return Cell("yes" if value else "no")
    if isinstance(value, int):
        return Cell(f"{value:,}", float(value))
    if isinstance(value, float):
        return Cell(number(value), value)
    return Cell(str(value))


def number(value: float) -> str:
    """About four significant digits, three below one; no exponent between a millionth and a billion."""
    size = abs(value)
    if size == 0 or 1e-3 <= size < GIGA:
        places = 0 if size >= 1000 or size == 0 else 1 if size >= 100 else 2 if size >= 10 else 3
        return f"{value:,.{places}f}"
    if 1e-6 <= size < 1e-3:
        return f"{value:.{2 - math.floor(math.log10(size))}f}"
    return f"{value:.2e}"
