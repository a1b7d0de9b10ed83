"""Figures of curves and of a whole validation: data in, a matplotlib Figure out; nothing is written here."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from commsim.accuracy.compare import Comparison
from commsim.measure.records import Curve, FloatArray
from commsim.report import style
from commsim.report.chart import Axis, Chart, Mark, Panel, Series, Shade
from commsim.report.chart_figure import draw
from commsim.report.fonts import lend_fonts
from commsim.units import gb_per_s

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIMIT = "no algorithm can be faster"
_ERROR_LIMIT = 100.0  # percent: the axis never shows more; what lies beyond stands at the edge as a number
_ERROR_SHADES = (Shade(-15, 15, "#F0F0F0"), Shade(-5, 5, "#DDDDDD"))


def bandwidth_chart(
    predicted: Sequence[Curve],
    measured: Sequence[Curve],
    title: str,
    comparisons: Sequence[Comparison] = (),
    choices: Mapping[int, str] | None = None,
) -> Chart:
    """Bus bandwidth and, below, time against message size; predictions as lines, measurements as markers.

    A prediction's band (`low_s`, `high_s`) is shaded, its `lower_bound_s` is dashed. `choices`: by size what the
    library runs; marks stand where it changes. With `comparisons`, whose curves are among those drawn, a third panel
    shows the signed error of the time of every row over shades of 5 and 15 %.
    """
    curves = [*predicted, *measured]
    if not any(len(curve) for curve in curves):
        raise ValueError("found no curve with a row, expected at least one to draw")
    colours = _colours(predicted, measured, comparisons)
    choices = choices or {}
    panels = [
        Panel(
            Axis("bus bandwidth (GB/s)", switch=True),
            tuple(_curves(predicted, measured, colours, lambda c, t: gb_per_s(1) * c.size_bytes * c.factor() / t)),
            tuple(_switches(choices)),
        ),
        Panel(Axis("time", "log", "s", switch=True), tuple(_curves(predicted, measured, colours, lambda c, t: t)),
              tuple(Mark(mark.x, "") for mark in _switches(choices)), height=0.72),
    ]  # fmt: skip
    panels = [replace(p, series=tuple(_noted(s, choices) for s in p.series)) for p in panels[:1]] + panels[1:]
    if comparisons:
        panels.append(_errors(comparisons, measured, colours[1]))
    note = "errors above zero: predicted slower than measured" if comparisons else ""
    return Chart(title, Axis("message size", "log", "bytes", switch=True), tuple(panels), note=note)


def plot_bandwidth(
    predicted: Sequence[Curve],
    measured: Sequence[Curve],
    title: str,
    comparisons: Sequence[Comparison] = (),
    provenance: str = "",
    choices: Mapping[int, str] | None = None,
) -> Figure:
    """The figure of `bandwidth_chart`."""
    return draw(bandwidth_chart(predicted, measured, title, comparisons, choices), provenance=provenance)


def comparison_chart(comparisons: Sequence[Comparison], title: str) -> Chart:
    """The bandwidth of compared curves, each drawn once, with the errors below."""
    predicted = list({id(c.predicted): c.predicted for c in comparisons}.values())
    measured = list({id(c.measured): c.measured for c in comparisons}.values())
    return bandwidth_chart(predicted, measured, title, comparisons)


def plot_comparisons(comparisons: Sequence[Comparison], title: str) -> Figure:
    """The figure of `comparison_chart`."""
    return draw(comparison_chart(comparisons, title))


def _colours(
    predicted: Sequence[Curve], measured: Sequence[Curve], comparisons: Sequence[Comparison]
) -> tuple[list[str], list[str]]:
    """Colours of both lists; where each of several predictions has its own measurement, a pair shares one."""
    own = style.colours(style.MEASURED_COLOURS, len(measured))
    lines = style.line_colours([curve.name for curve in predicted], style.PREDICTED_COLOURS)
    partner = {id(c.measured): id(c.predicted) for c in comparisons}
    partners = [partner[id(curve)] for curve in measured if id(curve) in partner]
    if len(predicted) < 2 or len(set(partners)) < len(measured):
        return lines, own
    order = [id(curve) for curve in predicted]
    return lines, [lines[order.index(p)] for p in partners]


def _curves(
    predicted: Sequence[Curve],
    measured: Sequence[Curve],
    colours: tuple[list[str], list[str]],
    shown: Callable[[Curve, FloatArray], FloatArray],
) -> Iterator[Series]:
    """Predictions with their bands, measurements, then the bound; `shown` makes of seconds what the panel shows."""
    for curve, colour in zip(predicted, colours[0], strict=True):
        band = []
        if curve.low_s is not None and curve.high_s is not None:
            ends = [shown(curve, curve.low_s), shown(curve, curve.high_s)]
            band = [tuple(f(*ends).tolist()) for f in (np.fmin, np.fmax)]
        low, high = band or ((), ())
        y = tuple(shown(curve, curve.time_s).tolist())
        yield Series(f"predicted: {curve.name}", _sizes(curve), y, colour, low=low, high=high)
    for curve, colour in zip(measured, colours[1], strict=True):
        y = tuple(shown(curve, curve.time_s).tolist())
        yield Series(f"measured: {curve.name}", _sizes(curve), y, colour, "points")
    for curve in predicted:
        if curve.lower_bound_s is not None:
            with np.errstate(divide="ignore"):
                bound = shown(curve, curve.lower_bound_s)
            y = tuple(value if np.isfinite(value) and value > 0 else None for value in bound.tolist())
            yield Series(LIMIT, _sizes(curve), y, style.BOUND, "dashed")


def _sizes(curve: Curve) -> tuple[float, ...]:
    return tuple(float(size) for size in curve.size_bytes)


def _switches(choices: Mapping[int, str]) -> Iterator[Mark]:
    """A mark for the first size and wherever what runs changes, if it does."""
    last = ""
    if len(set(choices.values())) < 2:
        return
    for size, name in sorted(choices.items()):
        if name != last:
            yield Mark(float(size), name)
        last = name


def _noted(series: Series, choices: Mapping[int, str]) -> Series:
    notes = tuple(choices.get(int(x), "") for x in series.x)
    return replace(series, notes=notes) if series.look == "line" and any(notes) else series


def _errors(comparisons: Sequence[Comparison], measured: Sequence[Curve], colours: Sequence[str]) -> Panel:
    largest = max((float(np.max(np.abs(100 * c.error))) for c in comparisons if c.n), default=0.0)
    limit = min(_ERROR_LIMIT, max(25.0, 1.2 * largest))
    order = [id(curve) for curve in measured]
    series = []
    for comparison in comparisons:
        error = 100 * comparison.error
        beyond = tuple(f"{value:+.0f} %" if abs(value) > limit else "" for value in error.tolist())
        series.append(
            Series(
                f"measured: {comparison.measured.name}",
                tuple(float(size) for size in comparison.size_bytes),
                tuple(np.clip(error, -0.94 * limit, 0.94 * limit).tolist()),
                colours[order.index(id(comparison.measured))],
                notes=tuple(text and f"beyond the axis: {text}" for text in beyond),
                labels=beyond if any(beyond) else (),
            )
        )
    label = "error of time (%)"
    return Panel(Axis(label, low=-limit, high=limit), tuple(series), height=0.6, shades=_ERROR_SHADES)


def figure_bytes(figure: Figure, form: str) -> bytes:
    """The figure as a ``png`` or ``svg`` file, without a date, so the same figure is the same bytes.

    In SVG what is named ``title:TEXT`` (its gid) shows the text where a pointer stays.
    """
    import matplotlib as mpl

    stream = io.BytesIO()
    lend_fonts(figure)
    with mpl.rc_context(cast("Any", style.RC)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")  # a box is drawn; `lend_fonts` says which
        figure.savefig(stream, format=form, metadata={"Date": None} if form == "svg" else None)
    return re.sub(rb'<g id="title:([^"]*)">', rb"<g><title>\1</title>", stream.getvalue())
