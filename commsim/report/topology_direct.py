"""Pictures of fabrics without levels: a dragonfly as groups around a ring, a torus as a grid of routers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.report.topology_shapes import FILL, FILL_NODE, LINE, MUTED, box, cut, ellipsis
from commsim.topology.dragonfly import DragonflyRoutes, SprayedRoutes
from commsim.topology.graph import LinkKind, Topology, VertexKind
from commsim.topology.torus import TorusRoutes
from commsim.units import gb_per_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_SWITCHES = 4


def draw_dragonfly(ax: Axes, t: Topology) -> None:
    """Groups side by side, their switches joined all to all, and arches for the global links between groups."""
    fabric = t.fabric_routes
    fabric = getattr(fabric, "base", fabric)
    assert isinstance(fabric, (DragonflyRoutes, SprayedRoutes))
    s = fabric.shape
    groups = cut(s.groups, 4)
    centres: dict[int, float] = {}
    x = 0.0
    for g in groups:
        if g is None:
            ellipsis(ax, x + 0.2, 1.2, 18)
            x += 0.9
            continue
        shown = cut(s.switches, _MOST_SWITCHES)
        width = 1.25 * len(shown)
        centres[g] = x + width / 2
        _draw_group(ax, t, (g, s.switches), shown, x, isinstance(fabric, SprayedRoutes))
        x += width + 0.7
    places = list(centres.values())
    for i, a in enumerate(places):
        for b in places[i + 1 :]:
            _arch(ax, a, b, 2.25, LINE[LinkKind.FABRIC])
    if len(places) > 1:
        far = gb_per_s(t.link_bandwidth[fabric.far[0, 0]].sum())
        text = f"{far:.4g} GB/s between any two of {s.groups} groups"
        ax.text((places[0] + places[-1]) / 2, 3.75, text, ha="center", fontsize=9, color=MUTED)
    half = max((x + 0.3) / 2, 4.2)
    ax.set_xlim((x - 0.7) / 2 - half, (x - 0.7) / 2 + half)
    ax.set_ylim(-0.9, 4.0 if len(places) > 1 else 2.6)


def _draw_group(ax: Axes, t: Topology, group: tuple[int, int], shown: list[int | None], x: float, hub: bool) -> None:
    """One group: switches with arches between them, or below one bar where links are merged; nodes below."""
    g, switches = group
    middle = x + 1.25 * len(shown) / 2
    places = []
    for i, k in enumerate(shown):
        at = x + (i + 0.5) * 1.25
        if k is None:
            ellipsis(ax, at, 1.0, 12)
            continue
        places.append(at)
        box(ax, (at, 1.0), (1.05, 0.42), f"switch\n{k}", FILL[VertexKind.SWITCH])
        first = (g * switches + k) * t.nodes_per_leaf
        last = min(first + t.nodes_per_leaf, t.nodes) - 1
        ax.plot([at, at], [0.05, 0.79], color=LINE[LinkKind.NETWORK], lw=1.6, zorder=1)
        name = f"node {first}" if last == first else f"nodes\n{first} - {last}"
        box(ax, (at, -0.25), (1.05, 0.6), name if last >= first else "no node", FILL_NODE)
    for i, a in enumerate(places):
        if hub:
            ax.plot([a, a], [1.21, 1.75], color=LINE[LinkKind.FABRIC], lw=1.6, zorder=1)
        else:
            for b in places[i + 1 :]:
                _arch(ax, a, b, 1.21, LINE[LinkKind.FABRIC], lift=0.55)
    if hub and switches > 1:
        box(ax, (middle, 1.9), (1.1 * len(shown), 0.34), f"group {g}: all links to all", "#c3ccd4")
    else:
        ax.text(middle, 2.0, f"group {g}", ha="center", fontsize=9, style="italic", color=MUTED)


def _arch(ax: Axes, a: float, b: float, y: float, colour: str, lift: float = 1.2) -> None:
    along = np.linspace(0, 1, 41)
    rise = lift * min(1.0, 0.35 + abs(b - a) / 9) * 4 * along * (1 - along)
    ax.plot(a + (b - a) * along, y + rise, color=colour, lw=1.0, alpha=0.8, zorder=1)


def draw_torus(ax: Axes, t: Topology) -> None:
    """The routers of the last two dimensions as a grid (of a three-dimensional torus, of the first layers)."""
    fabric = t.fabric_routes
    fabric = getattr(fabric, "base", fabric)
    assert isinstance(fabric, TorusRoutes)
    sizes = fabric.sizes
    rows, columns = (1, *sizes)[-2:]
    layers = math.prod(sizes[:-2])
    shown_layers = [k for k in cut(layers, 3) if k is not None]
    ys, xs = (cut(n, 6 if layers == 1 else 4) for n in (rows, columns))
    width = 1.15 * len(xs)
    for i, layer in enumerate(shown_layers):
        _draw_layer(ax, layer * rows * columns, (ys, xs), (rows, columns), i * (width + 1.3))
        if layers > 1:
            at = i * (width + 1.3) + (width - 1.15) / 2
            ax.text(at, 0.75 * len(ys) + 0.15, f"layer {layer}", ha="center", fontsize=9, style="italic", color=MUTED)
    total = len(shown_layers) * (width + 1.3) - 1.3
    shape = " x ".join(map(str, sizes))
    note = f"torus of {shape}: a router per node, links round to the other side in every dimension"
    note += f"; layers {', '.join(map(str, shown_layers))} of {layers}" if layers > 1 else ""
    ax.text((total - 1.15) / 2, -1.0, note, ha="center", fontsize=9, color=MUTED)
    half = max(total / 2 + 0.4, 4.2)
    ax.set_xlim((total - 1.15) / 2 - half, (total - 1.15) / 2 + half)
    ax.set_ylim(-1.15, 0.75 * len(ys) + 0.5)


def _draw_layer(
    ax: Axes, first: int, shown: tuple[list[int | None], list[int | None]], sizes: tuple[int, int], x: float
) -> None:
    (ys, xs), (rows, columns) = shown, sizes
    top, right = 0.75 * (len(ys) - 1), x + 1.15 * (len(xs) - 1)
    look: dict[str, Any] = {"color": LINE[LinkKind.FABRIC], "lw": 1.4, "zorder": 1}
    around = look | {"ls": ":"}  # stubs at the rims: the links round to the other side
    for i, r in enumerate(ys):
        y = top - 0.75 * i
        for j, c in enumerate(xs):
            at = x + 1.15 * j
            if r is None or c is None:
                ellipsis(ax, at, y, 11)
                continue
            box(ax, (at, y), (0.9, 0.42), f"node {first + r * columns + c}", FILL_NODE)
            if j + 1 < len(xs):
                ax.plot([at + 0.45, at + 0.7], [y, y], **look)
            if i + 1 < len(ys):
                ax.plot([at, at], [y - 0.21, y - 0.54], **look)
        if columns > 2 and r is not None:
            ax.plot([x - 0.45, x - 0.65], [y, y], **around)
            ax.plot([right + 0.45, right + 0.65], [y, y], **around)
    for j, c in enumerate(xs):
        if rows > 2 and c is not None:
            at = x + 1.15 * j
            ax.plot([at, at], [top + 0.21, top + 0.4], **around)
            ax.plot([at, at], [-0.21, -0.4], **around)
