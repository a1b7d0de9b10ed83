"""Predicted against measured, of a whole validation: a point per log, or per training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.report import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
