"""How a step or a collective scales with the machine: strong (the same work) and weak (the same work per rank)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commsim.report import style
from commsim.report.chart import Axis, Chart, Panel, Series
from commsim.report.chart_figure import draw
from commsim.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LINES = 8


@dataclass(frozen=True)
class Scaling:
    """One curve: ranks, the rate there (tokens/s, or GB/s of bus bandwidth) and the efficiency.

    ``kind`` is ``strong``, ``weak`` or ``fixed size``; ``efficiency`` is the rate per rank over that of the smallest
    (of a collective: its busbw over that of the smallest).
    """

    label: str
    kind: str
    ranks: tuple[int, ...]
    rate: tuple[float, ...]
    efficiency: tuple[float, ...]


def scalings(rows: Iterable[dict[str, Any]]) -> list[Scaling]:
    """The curves that rows of a sweep hold; several rows of one size stand for the best of them."""
    listed = [row for row in rows if not row.get("error")]
    steps = [row for row in listed if row.get("step_s") and row.get("gpus")]
    return _of_steps(steps) if steps else _of_collectives(listed)


def _of_steps(rows: Sequence[dict[str, Any]]) -> list[Scaling]:
    lines: dict[tuple[str, str, int], dict[int, float]] = {}
    for row in rows:
        gpus, rate = int(row["gpus"]), float(row["tokens_per_s_per_gpu"]) * int(row["gpus"])
        tokens = rate * float(row["step_s"])
        for kind, amount in (("strong", tokens), ("weak", tokens / gpus)):
            line = lines.setdefault((str(row["model"]), kind, round(amount)), {})
            line[gpus] = max(rate, line.get(gpus, 0.0))
    curves = []
    several = len({model for model, _, _ in lines}) > 1
    for (model, kind, amount), line in lines.items():
        each = [line[n] / n for n in sorted(line)]
        label = f"{kind}: {amount:,} tokens a {'step' if kind == 'strong' else 'GPU a step'}"
        curves.append(_curve(label + (f", {model}" if several else ""), kind, line, each))
    return [curve for curve in curves if len(curve.ranks) > 1]


def _of_collectives(rows: Sequence[dict[str, Any]]) -> list[Scaling]:
    lines: dict[tuple[str, int], dict[int, float]] = {}
    for row in rows:
        if row.get("busbw_GBps") and row.get("n_ranks"):
            line = lines.setdefault((str(row["collective"]), int(row["size_bytes"])), {})
            ranks = int(row["n_ranks"])
            line[ranks] = max(float(row["busbw_GBps"]), line.get(ranks, 0.0))
    curves = [
        _curve(f"{collective} of {format_bytes(size)}", "fixed size", line, [line[n] for n in sorted(line)])
        for (collective, size), line in sorted(lines.items(), key=lambda pair: (pair[0][0], -pair[0][1]))
    ]
    return [curve for curve in curves if len(curve.ranks) > 1]


def _curve(label: str, kind: str, line: dict[int, float], each: list[float]) -> Scaling:
    """The curve of rates by ranks; `each`: what a perfect machine would have alike on any number of ranks."""
    ranks = sorted(line)
    return Scaling(label, kind, tuple(ranks), tuple(line[n] for n in ranks), tuple(e / each[0] for e in each))


def scaling_chart(curves: Sequence[Scaling], title: str) -> Chart:
    """Rate against ranks with the ideal dashed, and below it the efficiency in percent of the smallest machine."""
    shown, left = list(curves[:MOST_LINES]), len(curves) - MOST_LINES
    steps = shown[0].kind != "fixed size"
    names = [curve.label for curve in shown]
    colours = style.line_colours(names, style.PREDICTED_COLOURS + style.MEASURED_COLOURS)
    rates, shares = [], []
    for curve, colour in zip(shown, colours, strict=True):
        x = tuple(map(float, curve.ranks))
        rates.append(Series(curve.label, x, curve.rate, colour, named=not steps and len(shown) > 1))
        shares.append(Series(curve.label, x, tuple(100 * e for e in curve.efficiency), colour))
        if steps:
            ideal = tuple(curve.rate[0] / curve.ranks[0] * n for n in curve.ranks)
            rates.append(Series("ideal", x, ideal, style.BOUND, "dashed"))
    rate = Axis("tokens/s" if steps else "bus bandwidth (GB/s)", "log" if steps else "linear", switch=True)
    most = max(105.0, 105 * max(e for curve in shown for e in curve.efficiency))
    return Chart(
        title,
        Axis("GPUs" if steps else "ranks", "log", base=2),
        (
            Panel(rate, tuple(rates)),
            Panel(Axis("of the smallest (%)", low=0.0, high=most), tuple(shares), height=0.6),
        ),
        note=f"{left} more curves are not drawn" if left > 0 else "",
    )


def plot_scaling(curves: Sequence[Scaling], title: str, provenance: str = "") -> Figure:
    """The figure of `scaling_chart`."""
    return draw(scaling_chart(curves, title), provenance=provenance)
