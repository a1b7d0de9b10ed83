"""Figures of curves and of a whole validation: data in, a matplotlib Figure out; nothing is written here."""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Mapping, Sequence
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
BAND = "shaded: band of the prediction"
LIMIT = "no algorithm can be faster"
_MOST_ABOVE = 3.0  # times the quickest curve that the limit may make the axis long
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
    entries = len(curves) + sum(
        any(getattr(c, name) is not None for c in predicted) for name in ("lower_bound_s", "low_s")
    )
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
            axes.fill_between(size, slow, fast, color=colour, alpha=0.16, linewidth=0, label=_once(axes, BAND))
            ceiling = max(ceiling, min(1.35 * top, 1.03 * float(np.max(fast))))
        speed, label = gb_per_s(1) * curve.busbw(), f"predicted: {curve.name}"
        axes.plot(size, speed, color=colour, marker=".", markersize=5, label=label, zorder=3)
    for i, (curve, colour) in enumerate(zip(measured, colours[1], strict=True)):
        speed, label = gb_per_s(1) * curve.busbw(), f"measured: {curve.name}"
        axes.plot(curve.size_bytes, speed, linestyle="none", label=label, zorder=4, **_marker(i, colour, 6.0))
    for curve in (c for c in predicted if c.lower_bound_s is not None):
        with np.errstate(divide="ignore"):
            bound = gb_per_s(1) * curve.size_bytes * curve.factor() / cast("FloatArray", curve.lower_bound_s)
        ceiling = max(ceiling, min(_MOST_ABOVE * top, 1.05 * float(np.max(bound))))
        dashes: dict[str, Any] = {"color": style.BOUND, "linewidth": 1.1, "linestyle": (0, (5, 3))}
        axes.plot(curve.size_bytes, bound, label=_once(axes, LIMIT), zorder=2, **dashes)
    axes.set(ylim=(-0.015 * ceiling, ceiling), ylabel="bus bandwidth (GB/s)")


def _once(axes: Axes, label: str) -> str:
    """The label, or one that stays out of the legend where it is in it."""
    return "_repeated" if label in axes.get_legend_handles_labels()[1] else label


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


_MOST_SHOWN = 100.0
"""Percent: errors beyond stand at the edge."""


def plot_validation(document: Mapping[str, Any], title: str) -> Figure:
    """The picture of what `commsim validate --json` wrote, of collectives or of training steps."""
    return _steps(document, title) if "per_row" in document else _logs(document, title)


def _steps(document: Mapping[str, Any], title: str) -> Figure:
    """Predicted over measured seconds of every step, in a band of 10 %; the sources with most rows have colours."""
    rows = [r for r in document["per_row"] if r.get("predicted_s") and r.get("measured_s")]
    named = [source for source, _ in Counter(row["source"] for row in rows).most_common(8)]
    palette = style.colours((*style.PREDICTED_COLOURS, *style.MEASURED_COLOURS[:5]), len(named))
    with style.drawing(8.8, 6.4) as (figure, axes):
        every = np.array([[r["measured_s"], r["predicted_s"]] for r in rows], float)
        ends = np.array([0.7 * every.min(), 1.4 * every.max()])
        for share, shade in ((0.25, "#F0F0F0"), (0.1, "#DDDDDD")):
            axes.fill_between(ends, ends / (1 + share), ends * (1 + share), color=shade, linewidth=0, zorder=0.5)
        axes.plot(ends, ends, color=style.INK, linewidth=0.8, zorder=1)
        for source in (None, *reversed(named)):
            mine = [r for r in rows if (r["source"] == source if source else r["source"] not in named)]
            if mine:
                colour = palette[named.index(source)] if source else style.BOUND
                look: dict[str, Any] = {"linestyle": "none", "marker": ".", "markersize": 5, "alpha": 0.7}
                label = f"{source or 'other sources'} ({len(mine)})"
                measured, predicted = ([r[name] for r in mine] for name in ("measured_s", "predicted_s"))
                axes.plot(measured, predicted, color=colour, label=label, **look)
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends, box_aspect=1)
        axes.set(xlabel="measured step (s)", ylabel="predicted step (s)")
        inside = np.mean(np.abs(every[:, 1] / every[:, 0] - 1) <= 0.1)
        axes.set_title(title)
        note = f"{len(rows):,} steps; shaded: within 10 % ({100 * inside:.0f} % of them) and 25 %"
        axes.text(0.99, 0.02, note, transform=axes.transAxes, ha="right", fontsize=8, color=style.MUTED)
        figure.legend(loc="outside right upper", fontsize=8, title="source", alignment="left", markerscale=2)
    return figure


def _logs(document: Mapping[str, Any], title: str) -> Figure:
    """Mean error and bias of every log by class of machine, its median marked."""
    rows = [r for r in document["per_log"] if r.get("mape") is not None and r.get("healthy") != "no"]
    classes = list(dict.fromkeys(r["class"] for r in rows))
    collectives = sorted({r["collective"] for r in rows})
    palette = style.colours((*style.PREDICTED_COLOURS, *style.MEASURED_COLOURS[:5]), len(collectives))
    with style.drawing(8.6, 2.6 + 0.9 * len(classes)) as (figure, axes):
        for shade, guide in (("#F0F0F0", 15), ("#DDDDDD", 5)):
            axes.axvspan(0, guide, color=shade, linewidth=0, zorder=0.5)
        for i, name in enumerate(classes):
            mine = sorted((r for r in rows if r["class"] == name), key=lambda r: float(r["mape"]))
            middle = float(np.median([r["mape"] for r in mine]))
            axes.plot([middle] * 2, [i - 0.4, i + 0.4], color=style.INK, linewidth=2, zorder=4)
            axes.text(middle, i - 0.43, f"median {middle:.1f} %", ha="center", va="bottom", fontsize=8)
            for k, row in enumerate(mine):
                offset = 0.3 * ((k % 7) / 3 - 1)  # spread, so that equal errors stay apart
                colour = palette[collectives.index(row["collective"])]
                x = min(float(row["mape"]), _MOST_SHOWN)
                axes.plot(x, i + offset, marker="o", markersize=4.5, alpha=0.8, color=colour)
        for name, colour in zip(collectives, palette, strict=True):
            axes.plot([], [], linestyle="none", marker="o", markersize=4.5, color=colour, label=name)
        axes.set_yticks(range(len(classes)), classes)
        axes.set_ylim(len(classes) - 0.35, -0.75)
        axes.set_xlim(0, min(_MOST_SHOWN, 1.05 * max(float(r["mape"]) for r in rows)) * 1.02)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel("mean |predicted - measured| / measured of a log (%); shaded: 5 and 15 %")
        axes.set_title(f"{title}: {len(rows)} logs, {document['mode']}")
        figure.legend(loc="outside lower left", ncols=6, columnspacing=1.2)
    return figure
