"""What a sweep shows: a figure of merit along one swept path, a curve per combination of the others, knees marked.

The knee of a curve is where the figure comes within a share (95 %) of its best for good: "how much fabric do I need for
95 % of the ideal?".
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from commsim.errors import CommsimError
from commsim.planner.results import flat_rows

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SHARE = 0.95

FIGURES = {
    "busbw_GBps": ("bus bandwidth (GB/s)", True),
    "algbw_GBps": ("algorithm bandwidth (GB/s)", True),
    "step_s": ("step time (s)", False),
    "tokens_per_s_per_gpu": ("tokens/s per GPU", True),
    "mfu": ("MFU", True),
    "time_us": ("time (us)", False),
}
"""Columns worth drawing: their label, and whether more is better. The first that a sweep has is drawn."""

MOST_CURVES = 12


@dataclass(frozen=True)
class SweepCurve:
    """One curve: values of the path, in order, and the figure there; `names` are the values as they were written."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    names: tuple[str, ...] = ()

    def name(self, x: float) -> str:
        """A value of the path as it was written."""
        return self.names[self.x.index(x)] if self.names else f"{x:g}"


@dataclass(frozen=True)
class Knee:
    """Where a curve comes within a share of its best: the path's value, the figure there, and the best figure."""

    x: float
    y: float
    best: float


def knee(curve: SweepCurve, more_is_better: bool, share: float = SHARE) -> Knee:
    """Where the figure comes within `share` of its best for good (time: best / share): the smallest such value.

    Where it begins good and grows worse (oversubscription), the largest value up to which it is good.
    """
    best = max(curve.y) if more_is_better else min(curve.y)
    good = [(y >= share * best) if more_is_better else (y <= best / share) for y in curve.y]
    if good[0] and not good[-1]:
        at = good.index(False) - 1
    elif good[-1]:
        at = len(good) - 1
        while at > 0 and good[at - 1]:
            at -= 1
    else:  # the best lies between two worse ends
        at = good.index(True)
    return Knee(curve.x[at], curve.y[at], best)


def figure_of(points: Sequence[dict[str, Any]], wanted: str | None = None) -> str:
    """The column to draw: the one wanted, or the first of `FIGURES` that the rows have."""
    names = {name for point in points for row in point["rows"][:1] for name in row}
    if wanted is not None:
        if wanted not in names:
            listed = ", ".join(sorted(n for n in names if n in FIGURES)) or "none that can be drawn"
            raise CommsimError(f"found no column {wanted!r} in the sweep, expected one of {listed}")
        return wanted
    found = next((name for name in FIGURES if name in names), None)
    if found is None:
        raise CommsimError("found no row with a figure to draw: every point of the sweep failed")
    return found


def numeric_paths(points: Sequence[dict[str, Any]]) -> list[str]:
    """Swept paths with at least two numbers for values: those along which a curve can be drawn."""
    values: dict[str, set[float]] = {}
    for point in points:
        for name, value in point["values"].items():
            number = quantity(value)
            if number is None:
                values.setdefault(name, set()).add(math.nan)
            else:
                values.setdefault(name, set()).add(number)
    found = [n for n, seen in values.items() if len(seen) > 1 and not any(map(math.isnan, seen))]
    # Of paths that go together one stands for all.
    return [n for i, n in enumerate(found) if not any(follows(points, n, other) for other in found[:i])]


def follows(points: Iterable[dict[str, Any]], name: str, path: str) -> bool:
    """Whether a path's value is settled by that of another, and the other way round: they go together."""
    pairs = {(str(p["values"].get(name)), str(p["values"].get(path))) for p in points}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) > 1


def quantity(value: Any) -> float | None:
    """A number, or a quantity in SI units."""
    from commsim.errors import UnitError
    from commsim.units import parse_bandwidth, parse_bytes, parse_time

    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    for parse in (parse_bytes, parse_bandwidth, parse_time) if isinstance(value, str) else ():
        try:
            return float(parse(value))
        except UnitError:
            continue
    return None


def curves(points: Iterable[dict[str, Any]], path: str, figure: str) -> list[SweepCurve]:
    """The curves along a path: one per combination of the other paths, collective and size; equal ones are one."""
    points = list(points)
    names = {name for point in points for name in point["values"]} - {path}
    together = {name for name in names if follows(points, name, path)}
    found: dict[tuple[tuple[str, Any], ...], dict[float, float]] = {}
    written: dict[float, str] = {}
    for row in flat_rows(points):
        value, at = row.get(figure), quantity(row.get(path))
        if value is None or at is None or row.get("error"):
            continue
        written[at] = str(row[path])
        swept = [(n, v) for n, v in row.items() if "." in n and n != path and n not in together]
        what = [(n, row[n]) for n in ("collective", "size_bytes", "model") if n in row]
        found.setdefault((*swept, *what), {})[at] = float(value)
    constant = _constant(found)
    merged: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for key, line in found.items():
        if len(line) > 1:
            merged.setdefault(tuple(sorted(line.items())), []).append(_label(key, constant))
    made = []
    for line_, labels in merged.items():
        x, y = zip(*line_, strict=True)
        label = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} alike"
        made.append(SweepCurve(label, x, y, tuple(written[v] for v in x)))
    return made


def _constant(found: Iterable[tuple[tuple[str, Any], ...]]) -> set[str]:
    """Names with the same value everywhere: no label needs them."""
    values: dict[str, set[Any]] = {}
    for key in found:
        for name, value in key:
            values.setdefault(name, set()).add(value)
    return {name for name, seen in values.items() if len(seen) == 1}


def _label(key: tuple[tuple[str, Any], ...], constant: set[str]) -> str:
    from commsim.units import format_bytes

    shown = []
    said: set[Any] = set()
    for name, value in key:
        if name in constant or value in said:
            continue
        said.add(value)
        short = name.rsplit(".", 1)[-1]
        shown.append(
            format_bytes(value)
            if name == "size_bytes"
            else str(value)
            if isinstance(value, str)
            else f"{short} {value}"
        )
    return ", ".join(shown) or "all"


def plot_sweep(points: Sequence[dict[str, Any]], path: str, figure: str, title: str) -> Figure:
    """The curves along a path with their knees."""
    from commsim.report import style

    drawn = curves(points, path, figure)
    if not drawn:
        raise CommsimError(f"found no two values of {path} with a {figure}, expected some to draw a curve through")
    label, more = FIGURES.get(figure, (figure, True))
    # What spreads widest is drawn: the rest would hide it.
    drawn.sort(key=lambda c: max(c.y) / max(min(c.y), 1e-30), reverse=True)
    shown, left = drawn[:MOST_CURVES], len(drawn) - MOST_CURVES
    with style.drawing(8.4, 4.6) as (made, axes):
        colours = (*style.PREDICTED_COLOURS, *style.MEASURED_COLOURS)
        for i, curve in enumerate(shown):
            colour, dashes = colours[i % len(colours)], ("-", "--", ":")[i // len(colours) % 3]
            axes.plot(curve.x, curve.y, color=colour, linestyle=dashes, marker=".", label=curve.label)
            bend = knee(curve, more)
            axes.plot(
                [bend.x], [bend.y], marker="o", markersize=9, markerfacecolor="none", color=colour, linestyle="none"
            )
        values = sorted({x for c in shown for x in c.x})
        if values[0] > 0 and values[-1] / values[0] >= 8:
            axes.set_xscale("log", base=2)
            axes.minorticks_off()
        names = {x: c.name(x) for c in shown for x in c.x}
        ticks = values[:: max(1, math.ceil(len(values) / 10))]
        axes.set_xticks(ticks, [names[x] for x in ticks])
        low, high = min(min(c.y) for c in shown), max(max(c.y) for c in shown)
        if low > 0 and high / low >= 30:
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set_xlabel(path)
        axes.set_ylabel(label)
        axes.set_title(title)
        note = f"circle: from or up to here within {100 * SHARE:.0f} % of the curve's best"
        if left > 0:
            note += f"; {left} flatter curves are not drawn"
        # A label of the figure, so that the layout leaves it room: plain text ran over the name of the path.
        made.supxlabel(note, x=0.992, ha="right", fontsize=7.5, color=style.MUTED)
        made.legend(loc="outside right upper", fontsize=8, handlelength=3.2)
    return made


def knee_lines(points: Sequence[dict[str, Any]], path: str, figure: str) -> list[str]:
    """The knee of every curve in a sentence."""
    label, more = FIGURES.get(figure, (figure, True))
    lines = []
    for curve in curves(points, path, figure)[:MOST_CURVES]:
        bend = knee(curve, more)
        if max(curve.y) <= 1.001 * min(curve.y):
            lines.append(f"{curve.label}: {path} changes nothing ({figure_words(label, curve.y[0])})")
            continue
        lines.append(
            f"{curve.label}: {path} {curve.name(bend.x)} reaches {figure_words(label, bend.y)}, "
            f"{100 * (bend.y / bend.best if more else bend.best / bend.y):.0f} % of the best ({bend.best:.4g})"
        )
    return lines


def figure_words(label: str, value: float) -> str:
    """``bus bandwidth 21.4 GB/s`` of the label ``bus bandwidth (GB/s)``."""
    name, _, unit = label.partition(" (")
    return f"{name} {value:.4g} {unit.removesuffix(')')}".rstrip()
