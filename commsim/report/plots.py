"""Figures: data in, a matplotlib Figure out; nothing is written here and pyplot is not imported."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from commsim.accuracy.compare import Comparison
from commsim.measure.records import Curve, FloatArray
from commsim.report import style
from commsim.units import gb_per_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_TWO_COLUMNS = 42  # characters of a name up to which two columns of the legend fit beside each other
_ERROR_LIMIT = 100.0  # percent: the axis never shows more; what lies beyond stands at the edge as a number


def plot_bandwidth(
    predicted: Sequence[Curve],
    measured: Sequence[Curve],
    title: str,
    comparisons: Sequence[Comparison] = (),
    provenance: str = "",
) -> Figure:
    """Bus bandwidth in GB/s against message size, predictions as lines and measurements as markers.

    A prediction's band (`low_s`, `high_s`) is shaded, its `lower_bound_s` is a thin dashed line. Below, one error panel
    shows the signed error of the time for every row of `comparisons`, with guides at 5 % and 15 %. Their curves are
    among those drawn.
    """
    curves = [*predicted, *measured]
    if not any(len(curve) for curve in curves):
        raise ValueError("found no curve with a row, expected at least one to draw")
    low = min(int(c.size_bytes[0]) for c in curves if len(c))
    high = max(int(c.size_bytes[-1]) for c in curves if len(c))
    colours = _colours(predicted, measured, comparisons)
    entries = len(curves) + any(c.lower_bound_s is not None for c in predicted)
    columns = 2 if max(len(c.name) for c in curves) <= _TWO_COLUMNS and entries > 1 else 1
    height = 4.3 + 0.2 * math.ceil(entries / columns) + (1.8 if comparisons else 0.0)
    panels = {"nrows": 2, "sharex": True, "height_ratios": (2.3, 1.0)} if comparisons else {}
    with style.drawing(8.4, height, provenance, **panels) as (figure, axes):
        top, bottom = axes if comparisons else (axes, axes)
        _bandwidth_panel(top, predicted, measured, colours)
        if comparisons:
            _error_panel(bottom, comparisons, measured, colours[1])
        style.size_axis(bottom, low, high)
        top.set_title(title)
        bottom.set_xlabel("message size")
        handles, labels = top.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower left", ncols=columns, columnspacing=2.5, borderaxespad=0.4)
    return figure


def plot_comparisons(comparisons: Sequence[Comparison], title: str) -> Figure:
    """The bandwidth of compared curves, each drawn once, with the errors below."""
    predicted = list({id(c.predicted): c.predicted for c in comparisons}.values())
    measured = list({id(c.measured): c.measured for c in comparisons}.values())
    return plot_bandwidth(predicted, measured, title, comparisons)


def _colours(
    predicted: Sequence[Curve], measured: Sequence[Curve], comparisons: Sequence[Comparison]
) -> tuple[list[str], list[str]]:
    """Colours of both lists; where each of several predictions has its own measurement, a pair shares one."""
    own = style.colours(style.MEASURED_COLOURS, len(measured))
    lines = style.colours(style.PREDICTED_COLOURS, len(predicted))
    partner = {id(c.measured): id(c.predicted) for c in comparisons}
    partners = [partner[id(curve)] for curve in measured if id(curve) in partner]
    if len(predicted) < 2 or len(set(partners)) < len(measured):
        return lines, own
    order = [id(curve) for curve in predicted]
    return lines, [lines[order.index(p)] for p in partners]


def _bandwidth_panel(
    axes: Axes, predicted: Sequence[Curve], measured: Sequence[Curve], colours: tuple[list[str], list[str]]
) -> None:
    top = max(float(np.max(gb_per_s(1) * c.busbw())) for c in (*predicted, *measured) if len(c))
    ceiling = 1.12 * top
    for curve, colour in zip(predicted, colours[0], strict=True):
        size, factor = curve.size_bytes, curve.factor()
        if curve.low_s is not None and curve.high_s is not None:
            slow, fast = (gb_per_s(1) * size * factor / t for t in (curve.high_s, curve.low_s))
            axes.fill_between(size, slow, fast, color=colour, alpha=0.16, linewidth=0)
            ceiling = max(ceiling, min(1.35 * top, 1.03 * float(np.max(fast))))
        speed, label = gb_per_s(1) * curve.busbw(), f"predicted: {curve.name}"
        axes.plot(size, speed, color=colour, marker=".", markersize=5, label=label, zorder=3)
    for i, (curve, colour) in enumerate(zip(measured, colours[1], strict=True)):
        speed, label = gb_per_s(1) * curve.busbw(), f"measured: {curve.name}"
        axes.plot(curve.size_bytes, speed, linestyle="none", label=label, zorder=4, **_marker(i, colour, 6.0))
    for i, curve in enumerate(c for c in predicted if c.lower_bound_s is not None):
        with np.errstate(divide="ignore"):
            bound = gb_per_s(1) * curve.size_bytes * curve.factor() / cast("FloatArray", curve.lower_bound_s)
        ceiling = max(ceiling, min(1.35 * top, 1.05 * float(np.max(bound))))
        dashes: dict[str, Any] = {"color": style.BOUND, "linewidth": 1.1, "linestyle": (0, (5, 3))}
        label = "no algorithm can be faster" if i == 0 else "_repeated"  # a leading _ keeps it out of the legend
        axes.plot(curve.size_bytes, bound, label=label, zorder=2, **dashes)
    axes.set_ylim(-0.015 * ceiling, ceiling)
    axes.set_ylabel("bus bandwidth (GB/s)")


def _marker(index: int, colour: str, size: float) -> dict[str, Any]:
    """A hollow marker: what was measured."""
    shape = style.MEASURED_MARKERS[index % len(style.MEASURED_MARKERS)]
    hollow = {"markerfacecolor": "white", "markeredgewidth": size / 4}
    return {"color": colour, "marker": shape, "markersize": size, **hollow}


def _error_panel(
    axes: Axes, comparisons: Sequence[Comparison], measured: Sequence[Curve], colours: Sequence[str]
) -> None:
    for guide, shade in ((15, "#F0F0F0"), (5, "#DDDDDD")):
        axes.axhspan(-guide, guide, color=shade, linewidth=0, zorder=0.5)
    axes.axhline(0, color=style.INK, linewidth=0.8, zorder=1)
    largest = max((float(np.max(np.abs(100 * c.error))) for c in comparisons if c.n), default=0.0)
    limit = min(_ERROR_LIMIT, max(25.0, 1.2 * largest))
    order = [id(curve) for curve in measured]
    drawn: list[tuple[float, float]] = []
    for comparison in comparisons:
        at = order.index(id(comparison.measured))
        colour = colours[at]
        error = 100 * comparison.error
        shown = np.clip(error, -0.94 * limit, 0.94 * limit)
        drawn += zip(np.log(comparison.size_bytes).tolist(), shown.tolist(), strict=True)
        axes.plot(comparison.size_bytes, shown, linewidth=1.0, zorder=3, **_marker(at, colour, 4.5))
        for size, value, y in zip(comparison.size_bytes, error, shown, strict=True):
            if abs(value) > limit:
                place, inward = (float(size), float(y)), -9 if value > 0 else 9
                look: dict[str, Any] = {"fontsize": 7, "ha": "center", "va": "center", "color": colour}
                axes.annotate(f"{value:+.0f} %", place, (0, inward), textcoords="offset points", **look)
    axes.set_ylim(-limit, limit)
    ticks = (5, 15) if limit <= 30 else (15, 30) if limit <= 45 else (15, 50) if limit <= 95 else (15, 50, 100)
    axes.set_yticks([-t for t in reversed(ticks)] + [0, *ticks])
    axes.set_ylabel("error of time (%)")
    middle = (min(drawn)[0] + max(drawn)[0]) / 2 if drawn else 0.0
    for up, side in ((1, "slower"), (-1, "faster")):
        # In the corner that the curves keep farther away from.
        left, right = (max((up * y for x, y in drawn if (x > middle) == far), default=0.0) for far in (False, True))
        x, align = (0.006, "left") if left <= right else (0.994, "right")
        text: dict[str, Any] = {"fontsize": 7.5, "color": style.MUTED, "ha": align, "va": "top" if up > 0 else "bottom"}
        axes.text(x, 0.5 + 0.47 * up, f"predicted {side} than measured", transform=axes.transAxes, **text)


def figure_bytes(figure: Figure, form: str) -> bytes:
    """The figure as a ``png`` or ``svg`` file, without a date, so the same figure is the same bytes."""
    import matplotlib as mpl

    stream = io.BytesIO()
    with mpl.rc_context(cast("Any", style.RC)):
        figure.savefig(stream, format=form, metadata={"Date": None} if form == "svg" else None)
    return stream.getvalue()
