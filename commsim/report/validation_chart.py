"""What `commsim validate --json` wrote, as a picture: training steps as points, logs by class of machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.report import style
from commsim.report.chart import Axis, Chart, Panel, Series
from commsim.report.chart_figure import draw

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_NAMED = 8  # sources with a colour of their own, those with most steps

_WITHIN = 0.1

_MOST_SHOWN = 100.0
"""Percent: errors beyond stand at the edge."""


def plot_validation(document: Mapping[str, Any], title: str) -> Figure:
    """The picture of what `commsim validate --json` wrote, of collectives or of training steps."""
    return draw(steps_chart(document["per_row"], title)) if "per_row" in document else _logs(document, title)


def steps_chart(rows: Sequence[Mapping[str, Any]], title: str) -> Chart:
    """Predicted over measured seconds of every step, in a band of 10 %; the sources with most rows have colours."""
    rows = [r for r in rows if r.get("predicted_s") and r.get("measured_s")]
    named = [source for source, _ in Counter(row["source"] for row in rows).most_common(_NAMED)]
    palette = style.colours((*style.PREDICTED_COLOURS, *style.MEASURED_COLOURS[:5]), len(named))
    every = [float(r[name]) for r in rows for name in ("measured_s", "predicted_s")]
    low, high = 0.7 * min(every), 1.4 * max(every)
    inside = float(np.mean([abs(r["predicted_s"] / r["measured_s"] - 1) <= _WITHIN for r in rows]))
    ends = (low, high)
    series = [
        Series(
            "as measured",
            ends,
            ends,
            style.INK,
            "dashed",
            low=tuple(at / (1 + _WITHIN) for at in ends),
            high=tuple(at * (1 + _WITHIN) for at in ends),
        )
    ]
    for source in (None, *reversed(named)):
        mine = [r for r in rows if (r["source"] == source if source else r["source"] not in named)]
        if mine:
            colour = palette[named.index(source)] if source else style.BOUND
            measured, predicted = (tuple(float(r[name]) for r in mine) for name in ("measured_s", "predicted_s"))
            notes = tuple(
                f"{r.get('model', '')}, {100 * (r['predicted_s'] / r['measured_s'] - 1):+.1f} %" for r in mine
            )
            label = f"{source or 'other sources'} ({len(mine)})"
            series.append(Series(label, measured, predicted, colour, "points", notes=notes))
    within = f"within {100 * _WITHIN:.0f} %: {100 * inside:.0f} % of {len(rows):,} steps"
    y = Axis("predicted step", "log", "s", low=low, high=high)
    x = Axis("measured step", "log", "s", low=low, high=high)
    return Chart(title, x, (Panel(y, tuple(series), height=1.8, band=within),))


def _logs(document: Mapping[str, Any], title: str) -> Figure:
    """Mean error and bias of every log by class of machine, its median marked."""
    rows = [r for r in document["per_log"] if r.get("mape") is not None and r.get("healthy") != "no"]
    classes = list(dict.fromkeys(r["class"] for r in rows))
    collectives = sorted({r["collective"] for r in rows})
    palette = list(style.collective_colours(collectives).values())
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
