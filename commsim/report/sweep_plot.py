"""What a sweep shows: a figure of merit along one swept path, a curve per combination of the others, knees marked.

The knee of a curve is where the figure comes within a share (95 %) of its best for good: "how much fabric do I need for
95 % of the ideal?". Of paths that are a fabric's, the least that comes within that share of the ideal one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.document.labels import short_label, value_label
from commsim.document.types import shorten
from commsim.errors import CommsimError, UnitError
from commsim.planner.results import flat_rows
from commsim.report import style
from commsim.report.chart import Axis, Chart, Panel, Series, Unit
from commsim.report.chart_figure import draw
from commsim.units import GIGA, format_bytes, parse_bandwidth, parse_bytes, parse_time

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

OWN_NAMES = ("collective", "size_bytes", "model")
"""Columns that set rows of one point apart."""

MOST_CURVES = 12


@dataclass(frozen=True)
class SweepCurve:
    """One curve: values of the path, in order, and the figure there; `names` are the values as they were written."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Knee:
    """Where a curve comes within a share of its best: the path's value, the figure there, and the best figure."""

    x: float
    y: float
    best: float


def knee(curve: SweepCurve, more_is_better: bool) -> Knee:
    """Where the figure comes within `SHARE` of its best for good (time: best / share): the smallest such value.

    Where it begins good and grows worse (oversubscription), the largest value up to which it is good.
    """
    best = max(curve.y) if more_is_better else min(curve.y)
    good = [(y >= SHARE * best) if more_is_better else (y <= best / SHARE) for y in curve.y]
    if good[0] and not good[-1]:
        at = good.index(False) - 1
    elif good[-1]:
        at = len(good) - 1
        while at > 0 and good[at - 1]:
            at -= 1
    else:  # the best lies between two worse ends
        at = good.index(True)
    return Knee(curve.x[at], curve.y[at], best)


def figure_of(points: Sequence[dict[str, Any]]) -> str:
    """The column to draw: the first of `FIGURES` that the rows have."""
    names = {name for point in points for row in point["rows"][:1] for name in row}
    for name in FIGURES:
        if name in names:
            return name
    raise CommsimError("found no row with a figure to draw: every point of the sweep failed")


def numeric_paths(points: Sequence[dict[str, Any]]) -> list[str]:
    """Swept paths with at least two numbers for values: those along which a curve can be drawn."""
    values: dict[str, set[float | None]] = {}
    for point in points:
        for name, value in point["values"].items():
            values.setdefault(name, set()).add(quantity(value))
    numeric = [name for name, seen in values.items() if len(seen) > 1 and None not in seen]
    # Of paths that go together one stands for all.
    return [name for i, name in enumerate(numeric) if not any(follows(points, name, other) for other in numeric[:i])]


def follows(points: Iterable[dict[str, Any]], name: str, path: str) -> bool:
    """Whether a path's value is settled by that of another, and the other way round: they go together."""
    pairs = {(str(p["values"].get(name)), str(p["values"].get(path))) for p in points}
    return len(pairs) == len({a for a, _ in pairs}) == len({b for _, b in pairs}) > 1


def quantity(value: Any) -> float | None:
    """A number, or a quantity in SI units."""
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
    lines: dict[tuple[tuple[str, Any], ...], dict[float, float]] = {}
    written: dict[float, str] = {}
    for row in flat_rows(points):
        value, at = row.get(figure), quantity(row.get(path))
        if value is None or at is None or row.get("error"):
            continue
        written[at] = str(row[path])
        swept = [(n, v) for n, v in row.items() if "." in n and n != path and n not in together]
        own = [(n, row[n]) for n in OWN_NAMES if n in row]
        lines.setdefault((*swept, *own), {})[at] = float(value)
    pairs = {pair for key in lines for pair in key}
    varying = {name for name, count in Counter(name for name, _ in pairs).items() if count > 1}
    merged: dict[tuple[tuple[float, float], ...], list[str]] = {}
    for key, line in lines.items():
        if len(line) > 1:
            names_of: dict[Any, str] = {}  # each value is named once
            for name, value in key:
                if name in varying:
                    names_of.setdefault(value, name)
            label = ", ".join(named(name, value) for value, name in names_of.items())
            label = label or ", ".join(named(name, value) for name, value in own) or "all of it"
            merged.setdefault(tuple(sorted(line.items())), []).append(label)
    made = []
    for curve, labels in merged.items():
        x, y = zip(*curve, strict=True)
        label = labels[0] if len(labels) == 1 else f"{labels[0]} and {len(labels) - 1} alike"
        made.append(SweepCurve(label, x, y, tuple(written[v] for v in x)))
    return made


def named(name: str, value: Any) -> str:
    """A value in a label: a size with its unit, a text alone, any other after the last part of its name."""
    if name == "size_bytes":
        return format_bytes(value)
    return value_label(name, value) if isinstance(value, str) else settings({name: value})


def settings(values: dict[str, Any]) -> str:
    """Values of paths, each after the label of its path: ``nodes 4, oversubscription 2``."""
    return ", ".join(f"{short_label(name, values)} {value_label(name, value)}" for name, value in values.items())


def sweep_chart(points: Sequence[dict[str, Any]], path: str, figure: str, title: str) -> Chart:
    """The curves along a path with their knees; a CommsimError where there is none."""
    drawn = curves(points, path, figure)
    if not drawn:
        raise CommsimError(f"found no two values of {path} with a {figure}, expected some to draw a curve through")
    label, more = FIGURES.get(figure, (figure, True))
    # What spreads widest is drawn: the rest would hide it.
    drawn.sort(key=lambda c: max(c.y) / max(min(c.y), 1e-30), reverse=True)
    shown, left = drawn[:MOST_CURVES], len(drawn) - MOST_CURVES
    names = [curve.label for curve in shown]
    colours, named = (
        style.line_colours(names, style.PREDICTED_COLOURS + style.MEASURED_COLOURS),
        style.ordered(names) is not None,
    )
    unit, scale, words = _unit_of(shown[0])
    lines = [Series(c.label, tuple(scale * x for x in c.x), c.y, colour, named=named)
             for c, colour in zip(shown, colours, strict=True)]  # fmt: skip
    bends = [bend for c in shown if not _flat(c) and not _gains_to_the_end(c, bend := knee(c, more))]
    if bends:
        bends.sort(key=lambda bend: bend.x)
        knees = Series(KNEE, tuple(scale * b.x for b in bends), tuple(b.y for b in bends), style.INK, "points")
        lines.append(knees)
    values = sorted({x for c in shown for x in c.x})
    low, high = min(min(c.y) for c in shown), max(max(c.y) for c in shown)
    wide = low > 0 and high / low >= 30
    doubles = values[0] > 0 and values[-1] / values[0] >= 8
    notes = [f"{path} changes nothing"] if all(map(_flat, drawn)) else []
    notes += [f"{left} flatter curves are not drawn"] if left > 0 else []
    return Chart(
        title,
        Axis(short_label(path) + words, "log" if doubles else "linear", unit, base=2),
        (Panel(Axis(label, "log" if wide else "linear", switch=low > 0), tuple(lines), height=1.2),),
        note="; ".join(notes),
    )


KNEE = f"from or up to here within {100 * SHARE:.0f} % of the curve's best"


def _unit_of(curve: SweepCurve) -> tuple[Unit, float, str]:
    """How the values of a path are shown, as they were written: the unit of their axis, a factor, and words."""
    text = curve.names[0] if curve.names else ""
    if text.endswith("/s"):
        return ("", 8 / GIGA, " (Gb/s)") if text.endswith("b/s") else ("", 1 / GIGA, " (GB/s)")
    if text.endswith("B"):
        return "bytes", 1.0, ""
    return ("s" if text.endswith("s") else ""), 1.0, ""


def plot_sweep(points: Sequence[dict[str, Any]], path: str, figure: str, title: str) -> Figure:
    """The figure of `sweep_chart`."""
    return draw(sweep_chart(points, path, figure, title))


def _flat(curve: SweepCurve) -> bool:
    return max(curve.y) <= 1.001 * min(curve.y)


def knee_lines(points: Sequence[dict[str, Any]], path: str, figure: str) -> list[str]:
    """The knee of every curve in a sentence."""
    label, more = FIGURES.get(figure, (figure, True))
    lines = []
    for curve in curves(points, path, figure)[:MOST_CURVES]:
        bend = knee(curve, more)
        if _flat(curve):
            lines.append(f"{curve.label}: {path} changes nothing ({figure_words(label, curve.y[0])})")
            continue
        name = curve.names[curve.x.index(bend.x)]
        if _gains_to_the_end(curve, bend):
            lines.append(f"{curve.label}: {path} {name}, the last tried, still gains: {figure_words(label, bend.y)}")
            continue
        lines.append(
            f"{curve.label}: {_where(curve, bend)} {path} {name}: {figure_words(label, bend.y)}, "
            f"{100 * (bend.y / bend.best if more else bend.best / bend.y):.0f} % of the best ({bend.best:.4g})"
        )
    return lines


def _gains_to_the_end(curve: SweepCurve, bend: Knee) -> bool:
    return bend.x == curve.x[-1]  # nobody knows from where on more brings nothing


def _where(curve: SweepCurve, bend: Knee) -> str:
    """On which side of a knee a curve is good: ``from`` it on, ``up to`` it, or ``at`` it alone."""
    good = [abs(y / bend.best - 1) <= abs(bend.y / bend.best - 1) + 1e-9 for y in curve.y]
    return "from" if good[-1] and not good[0] else "up to" if good[0] and not good[-1] else "at"


def figure_words(label: str, value: float) -> str:
    """``bus bandwidth 21.4 GB/s`` of the label ``bus bandwidth (GB/s)``."""
    name, _, unit = label.partition(" (")
    return f"{name} {value:.4g} {unit.removesuffix(')')}".rstrip()


FABRIC = {
    "topology.nic_bandwidth": 1.0,
    "topology.nics_per_node": 1.0,
    "topology.oversubscription": -1.0,
    "topology.fabric.oversubscription": -1.0,
}
"""Paths that are a network's bandwidth, and the power with which they enter it."""


@dataclass(frozen=True)
class Enough:
    """The ideal point of a sweep and the least fabric that comes within a share of it.

    ``ideal`` and ``least`` are values of the fabric's paths as they were written, ``best`` and ``figure`` the figures
    there; ``part`` is the bandwidth of the least over that of the ideal. ``flat``: all that was tried gives one figure.
    """

    what: str
    ideal: dict[str, Any]
    best: float
    least: dict[str, Any]
    figure: float
    part: float
    flat: bool = False


def unchanged_paths(points: Sequence[dict[str, Any]]) -> list[str]:
    """The swept paths that change no figure of any row, whatever the others are; paths that go together count alike.

    One that decides whether a point is answered at all is none of them.
    """
    every = list(flat_rows(points))
    listed = [row for row in every if not row.get("error")]
    figures = [name for name in FIGURES if any(name in row for row in listed)]
    paths = list(dict.fromkeys(name for point in points for name in point["values"]))
    found = []
    for path in paths:
        beside = [n for n in paths if n != path and not follows(points, n, path)]
        groups: dict[tuple[Any, ...], dict[Any, list[tuple[Any, ...]]]] = {}
        for row in listed:
            key = tuple(row.get(name) for name in (*beside, *OWN_NAMES))
            of_value = groups.setdefault(key, {})
            of_value.setdefault(row.get(path), []).append(tuple(row.get(name) for name in figures))
        outcomes: dict[tuple[Any, ...], set[bool]] = {}
        for row in every:
            outcomes.setdefault(tuple(row.get(name) for name in beside), set()).add(bool(row.get("error")))
        decides = any(len(seen) > 1 for seen in outcomes.values())
        compared = [list(group.values()) for group in groups.values() if len(group) > 1]
        if figures and compared and not decides and all(_alike(group) for group in compared):
            found.append(path)
    return found


def _alike(rows: list[list[tuple[Any, ...]]]) -> bool:
    """Whether all values of a path give the same figures, to nine digits."""
    first, *others = (np.array(some, dtype=float) for some in rows)  # None: not a number
    return all(o.shape == first.shape and np.allclose(o, first, rtol=1e-9, atol=0, equal_nan=True) for o in others)


def unchanged_lines(points: Sequence[dict[str, Any]], why: Mapping[str, str]) -> list[str]:
    """A sentence for every path that changes no answer, with the reason where one is known."""
    lines = []
    for path in unchanged_paths(points):
        tried = ", ".join(dict.fromkeys(value_label(path, p["values"][path]) for p in points if path in p["values"]))
        reason = why.get(path, "nothing that was asked depends on it here")
        lines.append(f"{path} changes no answer (tried: {shorten(tried, 80)}): {reason}.")
    return lines


def enough(points: Sequence[dict[str, Any]], figure: str) -> list[Enough]:
    """One answer per collective, size and model, and per value of what else is swept; none without a fabric's path.

    Nor where no path of the fabric changes anything (`unchanged_paths`).
    """
    idle = set(unchanged_paths(points))
    more = FIGURES.get(figure, (figure, True))[1]
    groups: dict[tuple[tuple[str, Any], ...], list[tuple[float, float, dict[str, Any]]]] = {}
    for row in flat_rows(points):
        paths = [name for name in FABRIC if row.get(name) is not None and name not in idle]
        if row.get("error") or row.get(figure) is None or not paths:
            continue
        own = tuple((n, v) for n, v in row.items() if ("." in n and n not in FABRIC) or n in OWN_NAMES)
        amount = math.prod((quantity(row[name]) or 1.0) ** FABRIC[name] for name in paths)
        groups.setdefault(own, []).append((amount, float(row[figure]), {n: row[n] for n in paths}))
    answers = []
    for own, choices in groups.items():
        if len({amount for amount, _, _ in choices}) < 2:
            continue
        sign = -1.0 if more else 1.0
        ideal = min(choices, key=lambda c: (sign * c[1], c[0]))  # of equally good ones the least
        good = [c for c in choices if (c[1] >= SHARE * ideal[1] if more else c[1] <= ideal[1] / SHARE)]
        least = min(good, key=lambda c: (c[0], sign * c[1]))
        most = max(choices, key=lambda c: c[0])
        flat = math.isclose(min(c[1] for c in choices), max(c[1] for c in choices), rel_tol=1e-9)
        answers.append(Enough(_label(own, groups), most[2], ideal[1], least[2], least[1], least[0] / most[0], flat))
    return answers


def _label(own: tuple[tuple[str, Any], ...], groups: Any) -> str:
    """What sets a group apart from the others, in short."""
    words = [
        named(name, value)
        for name, value in own
        if value is not None
        and not name.endswith(".sizes")  # the row's size says it
        and (len({dict(other).get(name) for other in groups}) > 1 or name in OWN_NAMES)
    ]
    return ", ".join(dict.fromkeys(words))


def enough_lines(points: Sequence[dict[str, Any]], figure: str) -> list[str]:
    """The answers in sentences."""
    label, more = FIGURES.get(figure, (figure, True))
    lines = []
    for one in enough(points, figure):
        reached = one.figure / one.best if more else one.best / one.figure
        least, ideal = settings(one.least), settings(one.ideal)
        if one.flat:
            paths = " and ".join(short_label(name, one.least) for name in one.least)
            lines.append(
                f"For {one.what} {paths} changes nothing: {figure_words(label, one.figure)} in all that was tried."
            )
            continue
        if one.part >= 1.0:
            need = f"all of the fabric is needed ({least})"
        else:
            need = f"{least} is enough, {_fraction(one.part)} of the most that was tried ({ideal})"
        lines.append(
            f"For {100 * SHARE:.0f} % of the ideal {label.split(' (')[0]} of {one.what}: {need}; "
            f"{figure_words(label, one.figure)}, {100 * reached:.0f} % of the best ({one.best:.4g})."
        )
    return lines


def _fraction(part: float) -> str:
    """``1/8``, or percent where it is no such part."""
    whole = round(1 / part)
    return f"1/{whole}" if whole > 1 and abs(whole * part - 1) < 1e-6 else f"{100 * part:.0f} %"
