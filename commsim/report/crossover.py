"""Which algorithm wins at which size: every algorithm's time as a multiple of the quickest one's.

By size and number of ranks as well: a map of coloured fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.report import style
from commsim.report.chart import Axis, Chart, Mark, Panel, Series
from commsim.report.chart_figure import draw
from commsim.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from commsim.scenario.item import Item, Row

_MOST_OTHERS = 3  # of the algorithms that win nowhere
_MOST_TIMES_SLOWER = 10.0

MOST_LABELLED = 16
"""Sizes and numbers of ranks up to which each has a label on the axis of a map."""


def crossover_chart(item: Item, title: str, always: Sequence[str] = ()) -> Chart:
    """Time over that of the quickest algorithm, against message size; the winner of each stretch of sizes is named.

    `item` needs rows with `candidates` (``algorithm: auto``); a ValueError otherwise. Winners stand out; of the others
    those in `always` are drawn as well, and the three that come closest on average, dashed.
    """
    rows = [row for row in item.rows if row.candidates]
    if not rows:
        raise ValueError("found no row with candidates, expected the result of `algorithm: auto`")
    sizes = tuple(float(row.size_bytes) for row in rows)
    ratios = _ratios(rows)
    winners = list(dict.fromkeys(row.algorithm for row in rows))
    wanted = [name for name in always if name in ratios and name not in winners]
    others = [name for name in ratios if name not in {*winners, *wanted}]
    others = sorted(others, key=lambda name: float(np.nanmean(np.log(ratios[name]))))[:_MOST_OTHERS]
    colours = style.algorithm_colours([*winners, *wanted, *others])
    series = [
        Series(
            name,
            sizes,
            tuple(None if np.isnan(ratio) or ratio > _MOST_TIMES_SLOWER else ratio for ratio in ratios[name].tolist()),
            colours[name],
            "dashed" if name in others else "line",
        )
        for name in (*winners, *wanted, *others)
    ]
    half = (sizes[1] / sizes[0]) ** 0.5 if len(sizes) > 1 else 2**0.5  # as far as halfway to the next size
    stretches = [Mark(first / half, name, last * half, colours[name]) for name, first, last in _stretches(rows)]
    y = Axis("time over that of the quickest", "log", low=0.93, high=_MOST_TIMES_SLOWER, switch=True)
    return Chart(title, Axis("message size", "log", "bytes"), (Panel(y, tuple(series), tuple(stretches), 1.2),))


def plot_crossover(item: Item, title: str, provenance: str = "", always: Sequence[str] = ()) -> Figure:
    """The figure of `crossover_chart`."""
    return draw(crossover_chart(item, title, always), provenance=provenance)


def crossover_lines(item: Item) -> list[str]:
    """The winner of each stretch of sizes in words, with the runner-up of its last size."""
    rows = [row for row in item.rows if row.candidates]
    lines = []
    for name, first, last in _stretches(rows):
        row = next(r for r in rows if r.size_bytes == last)
        span = format_bytes(first) if first == last else f"{format_bytes(first)} .. {format_bytes(last)}"
        behind = 0.0 if row.runner_up_s is None or row.time_s == 0 else 100 * (row.runner_up_s / row.time_s - 1)
        next_best = "is as quick" if behind < 0.05 else f"takes {behind:.3g} % longer"
        lines.append(f"# {span}: {name} (at {format_bytes(last)} {row.runner_up} {next_best})")
    left_out = sum(len(row.left_out) for row in rows)
    if left_out:
        everything = left_out + sum(len(row.candidates) for row in rows)
        names = dict.fromkeys(name for row in rows for name, _ in row.left_out)
        lines.append(
            f"# {left_out} of {everything} simulations left out, whose lower bound is above the runner-up: "
            f"{', '.join(names)}"
        )
    return lines


def _ratios(rows: list[Row]) -> dict[str, np.ndarray]:
    names = dict.fromkeys(name for row in rows for name, _ in row.candidates)
    ratios = {name: np.full(len(rows), np.nan) for name in names}
    for i, row in enumerate(rows):
        for name, seconds in row.candidates:
            ratios[name][i] = seconds / row.time_s if row.time_s else 1.0
    return ratios


def _stretches(rows: list[Row]) -> list[tuple[str, int, int]]:
    """Runs of neighbouring sizes with the same winner: (algorithm, first size, last size)."""
    groups = ((name, [row.size_bytes for row in group]) for name, group in groupby(rows, lambda row: row.algorithm))
    return [(name, sizes[0], sizes[-1]) for name, sizes in groups]


@dataclass(frozen=True)
class Winner:
    """The quickest algorithm (with its protocol, if it has one) at one size on so many ranks of a machine."""

    size_bytes: int
    ranks: int
    name: str
    machine: str = ""


def winners_of(rows: Sequence[dict[str, Any]]) -> list[Winner]:
    """The quickest row of every size and number of ranks; rows as in result.csv, of one collective."""
    best: dict[tuple[int, int], tuple[float, str]] = {}
    for row in rows:
        if row.get("error") or not row.get("algorithm") or row.get("time_us") is None:
            continue
        key = (int(row["size_bytes"]), int(row["n_ranks"]))
        name = "/".join(part for part in (row["algorithm"], row.get("protocol")) if part and part != "-")
        if key not in best or float(row["time_us"]) < best[key][0]:
            best[key] = float(row["time_us"]), name
    return [Winner(size, ranks, name) for (size, ranks), (_, name) in sorted(best.items())]


def plot_map(winners: Sequence[Winner], title: str, provenance: str = "", names_title: str = "quickest") -> Figure:
    """The map: sizes to the right, ranks upwards, a colour per algorithm; blank where nothing was computed."""
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    sizes = sorted({w.size_bytes for w in winners})
    ranks = sorted({w.ranks for w in winners})
    # Neighbours in the list are often neighbours on the map: by algorithm, then by protocol.
    names = sorted({w.name for w in winners})
    field = np.full((len(ranks), len(sizes)), np.nan)
    for w in winners:
        field[ranks.index(w.ranks), sizes.index(w.size_bytes)] = names.index(w.name)
    palette = list(style.algorithm_colours(names).values())
    with style.drawing(9.0, 2.4 + 0.42 * max(4, min(len(ranks), 14)), provenance) as (figure, axes):
        edges = (np.arange(len(values) + 1) - 0.5 for values in (sizes, ranks))
        look: dict[str, Any] = {"cmap": ListedColormap(palette), "edgecolors": "white", "linewidth": 0.8}
        axes.pcolormesh(*edges, np.ma.masked_invalid(field), vmin=-0.5, vmax=len(names) - 0.5, **look)
        for axis, values in ((axes.xaxis, [format_bytes(s) for s in sizes]), (axes.yaxis, [f"{r:,}" for r in ranks])):
            every = max(1, -(-len(values) // MOST_LABELLED))
            axis.set_ticks(range(0, len(values), every), values[::every])
        axes.tick_params(axis="x", labelrotation=45 if len(sizes) > 10 else 0)
        axes.grid(visible=False)
        axes.set(xlabel="message size", ylabel="ranks", title=title)
        handles = [Patch(color=colour, label=name) for colour, name in zip(palette, names, strict=True)]
        figure.legend(handles=handles, loc="outside right upper", title=names_title, alignment="left")
    return figure
