"""What must not be missing on the drawing of a machine: parts that failed or are slower, and the busiest link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.report.topology_shapes import INK, Heat
from commsim.topology.tree import TreeRoutes
from commsim.units import format_bandwidth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from commsim.topology.graph import Topology

FAILED = "failed"
BUSIEST = "the busiest link"
_LOOKS: dict[str, dict[str, Any]] = {
    FAILED: {"marker": "X", "markersize": 9, "color": INK, "markeredgecolor": "white"},
    "slower": {"marker": "v", "markersize": 8, "color": "#D55E00", "markeredgecolor": "white"},
    BUSIEST: {"marker": "*", "markersize": 14, "color": "#0072B2", "markeredgecolor": "white"},
}


@dataclass(frozen=True)
class Notable:
    """Numbers of what is drawn even where rows are cut: nodes, NICs in their nodes, leaves and spines.

    ``node`` is the one that stands for all: that of the busiest link, else the first with a fault inside.
    """

    node: int = 0
    nodes: tuple[int, ...] = ()
    nics: tuple[int, ...] = ()
    leaves: tuple[int, ...] = ()
    spines: tuple[int, ...] = ()


def notable(t: Topology, heat: Heat | None) -> Notable:
    """What the busiest link and the faults of a machine are at; the busiest first."""
    busiest = -1 if heat is None else heat.busiest
    faulty = np.flatnonzero(~t.works | (_share(t) < 1.0)).tolist()
    links = [*([busiest] if busiest >= 0 else []), *faulty]
    inside, nodes = _inside(t, links)
    nics, leaves, spines = _of_fabric(t, links)
    return Notable(inside[0] if inside else 0, nodes, nics, leaves, spines)


def _share(t: Topology) -> Any:
    return np.ones(t.link_src.size) if t.link_share is None else t.link_share


def _inside(t: Topology, links: Sequence[int]) -> tuple[list[int], tuple[int, ...]]:
    """Nodes with such a link inside, and all nodes that have one or are at its end."""
    ends = [(int(t.vertex_node[t.link_src[link]]), int(t.vertex_node[t.link_dst[link]])) for link in links]
    return [a for a, b in ends if a == b >= 0], tuple(dict.fromkeys(n for pair in ends for n in pair if n >= 0))


def _of_fabric(t: Topology, links: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    """NICs of ports among links, leaves and spines of uplinks among them."""
    fabric = getattr(t.fabric_routes, "base", t.fabric_routes)
    if fabric is None or not links:
        return (), (), ()
    ports = [np.isin(table, links) for table in (fabric.port_up, fabric.port_down)]
    nics = np.flatnonzero((ports[0] | ports[1]).any(axis=0))
    if not isinstance(fabric, TreeRoutes) or not fabric.shape.spines:
        return tuple(nics.tolist()), (), ()
    up = np.isin(fabric.up, links) | np.isin(fabric.down, links)
    leaves, spines = (np.flatnonzero(up.any(axis=axis)) for axis in (1, 0))
    return tuple(nics.tolist()), tuple(leaves.tolist()), tuple(spines.tolist())


def mark_line(
    ax: Axes, t: Topology, heat: Heat | None, way: tuple[Sequence[float], Sequence[float]], links: Iterable[int]
) -> None:
    """Marks the middle of a line for some links: failed, slower than it is rated for, the busiest."""
    own = [int(link) for link in links if link >= 0]
    if not own:
        return
    share = float(_share(t)[own].min())
    middle = _middle(way)
    if not t.works[own].all():
        _mark(ax, middle, FAILED, FAILED)
    elif share < 1.0:
        _mark(ax, middle, "slower", f"slower: {100 * share:.3g} % of its rate")
    if heat is not None and heat.busiest in own:
        _mark(ax, middle, BUSIEST, BUSIEST)


def title_of(t: Topology, heat: Heat | None, links: Iterable[int]) -> str:
    """What is said of the line for some links where a pointer stays: ends, rate, how busy."""
    own = [int(link) for link in links if link >= 0]
    if not own:
        return ""
    share = np.nan if heat is None else heat.of(own)
    busy = "" if np.isnan(share) else f", busy {100 * share:.0f} %"
    return f"title:{t.link_name(own[0])}: {format_bandwidth(float(t.link_bandwidth[own[0]]))}{busy}"


def _middle(way: tuple[Sequence[float], Sequence[float]]) -> tuple[float, float]:
    """The point halfway along a line of several pieces."""
    xs, ys = (np.asarray(values, float) for values in way)
    along = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(xs), np.diff(ys)))])
    half = along[-1] / 2
    return float(np.interp(half, along, xs)), float(np.interp(half, along, ys))


def _mark(ax: Axes, at: tuple[float, float], kind: str, label: str) -> None:
    ax.plot([at[0]], [at[1]], linestyle="none", zorder=5, label=label, **_LOOKS[kind])


def marks_of(axes: Iterable[Axes]) -> dict[str, Any]:
    """Handles of the marks that were drawn, by their name, for a key."""
    return {label: handle for one in axes for handle, label in zip(*one.get_legend_handles_labels(), strict=True)}
