"""How much fabric is enough: the least of a sweep with which the figure comes within 95 % of the ideal one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from commsim.planner.results import flat_rows
from commsim.report.sweep_plot import FIGURES, SHARE, figure_words, quantity
from commsim.units import format_bytes

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
    there; ``part`` is the bandwidth of the least over that of the ideal.
    """

    what: str
    ideal: dict[str, Any]
    best: float
    least: dict[str, Any]
    figure: float
    part: float


def enough(points: Sequence[dict[str, Any]], figure: str, share: float = SHARE) -> list[Enough]:
    """One answer per collective, size and model, and per value of what else is swept; none without a fabric's path."""
    more = FIGURES.get(figure, (figure, True))[1]
    groups: dict[tuple[tuple[str, Any], ...], list[tuple[float, float, dict[str, Any]]]] = {}
    for row in flat_rows(points):
        paths = [name for name in FABRIC if row.get(name) is not None]
        if row.get("error") or row.get(figure) is None or not paths:
            continue
        own = tuple((n, v) for n, v in row.items() if ("." in n and n not in FABRIC) or n in _NAMES)
        amount = 1.0
        for name in paths:
            amount *= (quantity(row[name]) or 1.0) ** FABRIC[name]
        groups.setdefault(own, []).append((amount, float(row[figure]), {n: row[n] for n in paths}))
    found = []
    for own, choices in groups.items():
        if len({amount for amount, _, _ in choices}) < 2:
            continue
        sign = -1.0 if more else 1.0
        # Of equally good ones the least is the ideal.
        ideal = min(choices, key=lambda c: (sign * c[1], c[0]))
        good = [c for c in choices if (c[1] >= share * ideal[1] if more else c[1] <= ideal[1] / share)]
        least = min(good, key=lambda c: (c[0], sign * c[1]))
        most = max(choices, key=lambda c: c[0])
        found.append(Enough(_what(own, groups), most[2], ideal[1], least[2], least[1], least[0] / most[0]))
    return found


_NAMES = ("collective", "size_bytes", "model")


def _what(own: tuple[tuple[str, Any], ...], groups: Any) -> str:
    """What sets a group apart from the others, in short."""
    said = [
        format_bytes(value) if name == "size_bytes" else _named(name, value)
        for name, value in own
        if value is not None
        and not name.endswith(".sizes")  # the row's size says it
        and (len({dict(other).get(name) for other in groups}) > 1 or name in _NAMES)
    ]
    return ", ".join(dict.fromkeys(said))


def _named(name: str, value: Any) -> str:
    return str(value) if isinstance(value, str) else f"{name.rsplit('.', 1)[-1]} {value}"


def enough_lines(points: Sequence[dict[str, Any]], figure: str) -> list[str]:
    """The answers in sentences."""
    label, more = FIGURES.get(figure, (figure, True))
    lines = []
    for one in enough(points, figure):
        reached = one.figure / one.best if more else one.best / one.figure
        if one.part >= 1.0:
            said = f"all of the fabric is needed ({_words(one.least)})"
        else:
            said = (
                f"{_words(one.least)} is enough, {_fraction(one.part)} of the most that was tried ({_words(one.ideal)})"
            )
        lines.append(
            f"For {100 * SHARE:.0f} % of the ideal {label.split(' (')[0]} of {one.what}: {said}; "
            f"{figure_words(label, one.figure)}, {100 * reached:.0f} % of the best ({one.best:.4g})."
        )
    return lines


def _words(values: dict[str, Any]) -> str:
    return ", ".join(f"{name.rsplit('.', 1)[-1]} {value}" for name, value in values.items())


def _fraction(part: float) -> str:
    """``1/8``, or percent where it is no such part."""
    whole = round(1 / part)
    return f"1/{whole}" if whole > 1 and abs(whole * part - 1) < 1e-6 else f"{100 * part:.0f} %"
