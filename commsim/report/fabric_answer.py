"""How much fabric is enough: the least of a sweep with which the figure comes within 95 % of the ideal one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from commsim.planner.results import flat_rows
from commsim.report.sweep_plot import FIGURES, OWN_NAMES, SHARE, figure_words, named, quantity, settings

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


def enough(points: Sequence[dict[str, Any]], figure: str) -> list[Enough]:
    """One answer per collective, size and model, and per value of what else is swept; none without a fabric's path."""
    more = FIGURES.get(figure, (figure, True))[1]
    groups: dict[tuple[tuple[str, Any], ...], list[tuple[float, float, dict[str, Any]]]] = {}
    for row in flat_rows(points):
        paths = [name for name in FABRIC if row.get(name) is not None]
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
        # Of equally good ones the least is the ideal.
        ideal = min(choices, key=lambda c: (sign * c[1], c[0]))
        good = [c for c in choices if (c[1] >= SHARE * ideal[1] if more else c[1] <= ideal[1] / SHARE)]
        least = min(good, key=lambda c: (c[0], sign * c[1]))
        most = max(choices, key=lambda c: c[0])
        answers.append(Enough(_label(own, groups), most[2], ideal[1], least[2], least[1], least[0] / most[0]))
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
