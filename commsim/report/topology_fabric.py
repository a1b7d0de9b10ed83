"""The fabric of a topology picture: trees by levels, a dragonfly round a ring, a torus as a grid.

Trees: nodes with a row of ports, leaves, spines, cores; long rows are cut.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.report.topology_marks import Notable, mark_line, title_of
from commsim.report.topology_shapes import FILL, FILL_NODE, INK, LINE, MUTED, Heat, box, cut, ellipsis
from commsim.topology.dragonfly import DragonflyRoutes, SprayedRoutes
from commsim.topology.graph import LinkKind, Topology, VertexKind
from commsim.topology.torus import TorusRoutes
from commsim.topology.tree import TreeRoutes, TreeShape
from commsim.units import gb_per_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_RAILS, _MOST_SWITCHES = 8, 4
_SPINES, _CORES = 2.35, 3.6  # heights of the rows
_NODE = 1.9


@dataclass
class _TreePen:
    """Draws a tree; holds the places of the leaves and spines drawn so far along their rows, by number."""

    ax: Axes
    t: Topology
    fabric: TreeRoutes
    heat: Heat | None
    notable: Notable
    leaves: dict[int, float] = field(default_factory=dict)
    spines: dict[int, float] = field(default_factory=dict)

    def line(self, ends: list[float], heights: list[float], links: Iterable[int], look: dict[str, Any]) -> None:
        """A line for some links, in the colour of the heat if there is one, with its marks."""
        if self.heat is not None:
            look = look | self.heat.look(links, look["linewidth"] + 0.8)
        links = list(links)
        if not self.t.works[[link for link in links if link >= 0]].all():
            look = look | {"linestyle": ":"}
        self.ax.plot(ends, heights, zorder=1, gid=title_of(self.t, self.heat, links) or None, **look)
        mark_line(self.ax, self.t, self.heat, (ends, heights), links)

    def switch(self, x: float, y: float, width: float, name: str) -> None:
        """A box for a switch."""
        box(self.ax, (x, y), (width, 0.42), name, FILL[VertexKind.SWITCH])


_UPLINK = {"color": LINE[LinkKind.FABRIC], "linewidth": 1.1, "alpha": 0.8}


def draw_fabric(ax: Axes, t: Topology, heat: Heat | None, wanted: Notable) -> None:
    """The picture of the fabric, by its kind; of trees in the colours of `heat` if it is given, with what is wanted."""
    fabric = t.fabric_routes
    fabric = getattr(fabric, "base", fabric)  # static routes change no cable
    if isinstance(fabric, TreeRoutes):
        _draw_tree(_TreePen(ax, t, fabric, heat, wanted))
    elif t.kind == "torus":
        draw_torus(ax, t)
    else:
        draw_dragonfly(ax, t)
    ax.axis("off")


def _draw_tree(pen: _TreePen) -> None:
    s, t = pen.fabric.shape, pen.t
    lit = [node // t.nodes_per_leaf for node in pen.notable.nodes] + [leaf // s.lanes for leaf in pen.notable.leaves]
    groups = cut(s.groups, 3, lit)
    spans: dict[int, list[float]] = {}
    x = 0.0
    for g in groups:
        if g is None:
            ellipsis(pen.ax, x + 0.1, 1.1, 18)
            x += 0.8
            continue
        nodes = range(g * t.nodes_per_leaf, min((g + 1) * t.nodes_per_leaf, t.nodes))
        end = _draw_group(pen, nodes, x, 4 if len(groups) == 1 else 3)
        spans.setdefault(g // s.groups_per_pod, []).extend((x, end - 0.2))
        x = end + 0.6
    middle = (x - 0.8) / 2
    half = max((x + 0.4) / 2, 4.2)  # few nodes are not blown up to the width of the page
    pen.ax.set_xlim(middle - half, middle + half)
    if s.spines:
        _draw_spines(pen, spans, (middle - half, middle + half))
    pen.ax.set_ylim(-0.75, 1.6 if not s.spines else _SPINES + 0.4 if s.pods == 1 else _CORES + 0.4)


def _draw_group(pen: _TreePen, nodes: range, x: float, most_nodes: int) -> float:
    """The nodes under one group of leaves, from x on; returns where they end."""
    s = pen.fabric.shape
    shown = cut(len(nodes), most_nodes, [n - nodes[0] for n in pen.notable.nodes if n in nodes])
    end = x + sum(0.7 if k is None else _NODE for k in shown)
    lanes = cut(s.lanes, _MOST_RAILS, [*pen.notable.nics, *(leaf % s.lanes for leaf in pen.notable.leaves)])
    group = nodes[0] // pen.t.nodes_per_leaf
    for i, lane in enumerate(lanes):
        at = x + (i + 0.5) * (end - x - 0.2) / len(lanes)
        if lane is None:
            ellipsis(pen.ax, at, 1.1, 12)
            continue
        pen.leaves[group * s.lanes + lane] = at
        width = min(0.85 * (end - x - 0.2) / len(lanes), 2.4)
        pen.switch(at, 1.1, width, _leaf_label(pen.t, s, lane, width))
    at = x
    for k in shown:
        if k is None:
            ellipsis(pen.ax, at + 0.25, -0.2, 14)
            at += 0.7
            continue
        _draw_ports(pen, nodes[k], at + (_NODE - 0.2) / 2)
        at += _NODE
    return end


def _leaf_label(t: Topology, s: TreeShape, lane: int, width: float) -> str:
    if t.kind == "single_switch":
        return "switch" if s.lanes == 1 else f"switch\nplane {lane}"
    if s.lanes == 1:
        return "leaf"
    if t.kind == "fat_tree":
        return f"leaf\nplane {lane}" if width > 0.6 else f"leaf\n{lane}"
    return f"leaf\nrail {lane}" if width > 0.5 else f"rail\n{lane}"


def _draw_ports(pen: _TreePen, node: int, x: float) -> None:
    t, ports = pen.t, pen.t.fabric_routes
    assert ports is not None
    nics = [n for n in cut(int(t.nics_of_nodes[node]), _MOST_RAILS, pen.notable.nics) if n is not None]
    for i, n in enumerate(nics):
        port = x - 0.75 + 1.5 * (i + 0.5) / len(nics)
        leaf = int(ports.leaf[node, n])
        if leaf in pen.leaves:
            links = (int(ports.port_up[node, n]), int(ports.port_down[node, n]))
            look = {"color": LINE[LinkKind.NETWORK], "linewidth": 0.9, "alpha": 0.75}
            dashes = {"linestyle": "-" if t.usable_nics[node, n] else ":"}
            pen.line([port, pen.leaves[leaf]], [0.06, 0.9], links, look | dashes)
        pen.ax.plot([port], [0.06], marker="s", markersize=5, color=FILL[VertexKind.NIC], mec=INK, mew=0.6, zorder=3)
    group = t.groups[int(t.node_group[node])]
    gpus = f"{group.ranks_per_node} GPUs" if t.uniform else f"{group.ranks_per_node} x {group.gpu.model}"
    box(pen.ax, (x, -0.25), (1.7, 0.5), f"node {node}\n{gpus}", FILL_NODE)


def _draw_spines(pen: _TreePen, spans: dict[int, list[float]], page: tuple[float, float]) -> None:
    """A row of spines over each pod that is drawn, and the cores over all; a box per plane where there are several."""
    s, fabric = pen.fabric.shape, pen.fabric
    for pod, span in spans.items():
        left, right = (min(span), max(span)) if s.pods > 1 else page
        shown = cut(s.planes, 6) if s.planes > 1 else cut(s.spines, 6 if s.pods == 1 else 3, pen.notable.spines)
        step = min(2.0, max(right - left, 1.5) / len(shown))
        for i, k in enumerate(shown):
            x = (left + right) / 2 + (i - (len(shown) - 1) / 2) * step
            if k is None:
                ellipsis(pen.ax, x, _SPINES, 12)
                continue
            pen.spines[pod * max(s.planes, s.spines) + k] = x
            for leaf, at in pen.leaves.items():
                here = leaf // s.lanes // s.groups_per_pod == pod
                if here and (s.planes == 1 or leaf % s.lanes % s.planes == k):
                    own = slice(None) if s.planes > 1 else slice(k, k + 1)
                    links = [*fabric.up[leaf, own].tolist(), *fabric.down[leaf, own].tolist()]
                    pen.line([at, x], [1.31, _SPINES - 0.2], links, _UPLINK)
            pen.switch(x, _SPINES, min(1.7, 0.88 * step), _spine_label(pen.t, s, k, step))
        if s.pods > 1:
            look: dict[str, Any] = {"fontsize": 9, "style": "italic", "color": MUTED, "va": "bottom", "zorder": 3}
            pen.ax.text(left, _SPINES + 0.36, f"pod {pod}", **look)
    if s.pods > 1:
        _draw_cores(pen, list(spans), (page[0] + page[1]) / 2)


def _spine_label(t: Topology, s: TreeShape, k: int, step: float) -> str:
    if s.planes == 1:
        return "spines" if s.spines == 1 else f"spine {k}"
    count = "spines" if s.spines == 1 else f"{s.spines} spines"
    plane = "rail" if t.kind == "rail_only" else "plane"
    return f"{count}\n{plane} {k}" if step < 1.2 else f"{count}, {plane} {k}"


def _draw_cores(pen: _TreePen, pods: list[int], middle: float) -> None:
    s, fabric = pen.fabric.shape, pen.fabric
    total = s.spines * s.cores_per_spine
    shown = cut(s.planes if s.planes > 1 else total, 6)
    for i, k in enumerate(shown):
        x = middle + (i - (len(shown) - 1) / 2) * 1.5
        if k is None:
            ellipsis(pen.ax, x, _CORES, 12)
            continue
        below, core = (k, 0) if s.planes > 1 else divmod(k, s.cores_per_spine)
        for pod in pods:
            at = pen.spines.get(pod * max(s.planes, s.spines) + below, np.nan)
            own = (pod, k) if s.planes > 1 else (pod, 0, below, core)
            links = [int(link) for table in (fabric.core_up, fabric.core_down) for link in np.ravel(table[own])]
            pen.line([at, x], [_SPINES + 0.21, _CORES - 0.21], links, _UPLINK)
        name = f"{total} cores\nplane {k}" if s.planes > 1 else "cores" if total == 1 else f"core {k}"
        pen.switch(x, _CORES, 1.3, name)


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
        _draw_switches(ax, t, (g, s.switches), shown, x, isinstance(fabric, SprayedRoutes))
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
    ax.set(xlim=((x - 0.7) / 2 - half, (x - 0.7) / 2 + half), ylim=(-0.9, 4.0 if len(places) > 1 else 2.6))


def _draw_switches(ax: Axes, t: Topology, group: tuple[int, int], shown: list[int | None], x: float, hub: bool) -> None:
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
    ax.set(xlim=((total - 1.15) / 2 - half, (total - 1.15) / 2 + half), ylim=(-1.15, 0.75 * len(ys) + 0.5))


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
