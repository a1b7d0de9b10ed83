"""Which algorithm is quickest, by message size and number of ranks: a map of coloured fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.report import style
from commsim.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_LABELLED = 16
"""Sizes and numbers of ranks up to which each has a label on its axis."""


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
    palette = style.colours((*style.PREDICTED_COLOURS, *style.MEASURED_COLOURS[:5]), len(names))
    with style.drawing(9.0, 2.4 + 0.42 * max(4, min(len(ranks), 14)), provenance) as (figure, axes):
        edges = (np.arange(len(values) + 1) - 0.5 for values in (sizes, ranks))
        look: dict[str, Any] = {"cmap": ListedColormap(palette), "edgecolors": "white", "linewidth": 0.8}
        axes.pcolormesh(*edges, np.ma.masked_invalid(field), vmin=-0.5, vmax=len(names) - 0.5, **look)
        for axis, values in ((axes.xaxis, [format_bytes(s) for s in sizes]), (axes.yaxis, [f"{r:,}" for r in ranks])):
            every = max(1, -(-len(values) // MOST_LABELLED))
            axis.set_ticks(range(0, len(values), every), values[::every])
        axes.tick_params(axis="x", labelrotation=45 if len(sizes) > 10 else 0)
        axes.grid(visible=False)
        axes.set_xlabel("message size")
        axes.set_ylabel("ranks")
        axes.set_title(title)
        handles = [Patch(color=colour, label=name) for colour, name in zip(palette, names, strict=True)]
        figure.legend(handles=handles, loc="outside right upper", title=names_title, alignment="left")
    return figure
