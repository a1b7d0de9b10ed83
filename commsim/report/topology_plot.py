"""Picture of a topology: one node in detail, and above it the fabric with its nodes, leaves and spines.

Only what differs is drawn: all nodes are alike, so one stands for them, and long rows of nodes, rails and leaf groups
are cut with an ellipsis. The node is laid out in rows (NICs, CPUs, PCIe switches, GPUs, NVSwitch), NVLinks that run
directly between GPUs as arcs below the GPUs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.topology.graph import LinkKind, Topology, VertexKind
from commsim.units import format_bandwidth

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK = "#22303c"
FILL = {
    VertexKind.GPU: "#8ccf5d",
    VertexKind.NVSWITCH: "#3f8f3a",
    VertexKind.PCIE_SWITCH: "#9db7d5",
    VertexKind.HOST: "#f4b266",
    VertexKind.NIC: "#c6a5de",
    VertexKind.SWITCH: "#d9dee3",
}
LINE = {
    LinkKind.NVLINK: "#3f8f3a",
    LinkKind.C2C: "#c2185b",
    LinkKind.PCIE: "#5b7fa8",
    LinkKind.HOST: "#d9822b",
    LinkKind.NETWORK: "#8556ab",
    LinkKind.FABRIC: "#4a5866",
}
LINK_NAME = {
    LinkKind.NVLINK: "NVLink",
    LinkKind.C2C: "NVLink-C2C",
    LinkKind.PCIE: "PCIe",
    LinkKind.HOST: "CPU to CPU",
    LinkKind.NETWORK: "NIC to switch",
    LinkKind.FABRIC: "leaf to spine",
}
_MOST_GPUS = 16  # of a node drawn in full; of a larger one (a rack) the first eight
_MOST_RAILS = 8


def plot_topology(topology: Topology) -> Figure:
    """The picture as a matplotlib Figure; writes nothing."""
    from matplotlib.figure import Figure

    drawing = _node_drawing(topology)
    several = topology.nodes > 1
    width = max(9.0, 1.22 * (drawing.right - drawing.left) + 1.0)
    node_height = 0.82 * (drawing.top - drawing.bottom) + 0.6
    heights = [4.0, node_height] if several else [node_height]
    figure = Figure(figsize=(width, sum(heights) + 1.9), facecolor="white")
    grid = figure.add_gridspec(
        len(heights),
        1,
        height_ratios=heights,
        left=0.02,
        right=0.98,
        top=1 - 0.95 / (sum(heights) + 1.9),
        bottom=0.85 / (sum(heights) + 1.9),
        hspace=0.12,
    )
    if several:
        _draw_fabric(figure.add_subplot(grid[0]), topology)
    _draw_node(figure.add_subplot(grid[-1]), topology, drawing)
    _headline(figure, topology)
    _legend(figure, topology)
    return figure


def _headline(figure: Any, t: Topology) -> None:
    height = figure.get_size_inches()[1]
    nodes = f"{t.nodes} nodes x " if t.nodes > 1 else ""
    nics = ""
    if t.nics_per_node:
        nics = f", {t.nics_per_node} x {t.nic_bandwidth * 8 / 1e9:g} Gb/s {t.network} per node"
    figure.suptitle(
        f"{t.name}: {nodes}{t.ranks_per_node} x {t.gpu.model}{nics}",
        y=1 - 0.22 / height,
        fontsize=14,
        color=INK,
        weight="bold",
        va="top",
    )
    facts = []
    if t.nodes > 1:
        facts.append(f"oversubscription {t.oversubscription:g}:1, {t.nodes_per_leaf} nodes per leaf")
    if t.world_size > 1:
        facts.append(f"bisection {format_bandwidth(t.bisection_bandwidth())} one direction")
    figure.text(0.5, 1 - 0.6 / height, "; ".join(facts), ha="center", va="top", fontsize=10, color="#566573")


def _legend(figure: Any, t: Topology) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for kind in LinkKind:
        rates = np.unique(t.link_bandwidth[t.link_kind == kind])
        if not len(rates):
            continue
        label = f"{LINK_NAME[kind]} " + " / ".join(f"{r / 1e9:.4g}" for r in rates) + " GB/s"
        if kind == LinkKind.NVLINK and t.nvlink_link_bandwidth:
            counts = " / ".join(f"{r / t.nvlink_link_bandwidth:.4g}" for r in rates)
            label += f" ({counts} x {t.nvlink_link_bandwidth / 1e9:g})"
        handles.append(Line2D([], [], color=LINE[kind], linewidth=3, label=label))
    figure.legend(
        handles=handles,
        loc="lower center",
        ncols=min(3, len(handles)),
        frameon=False,
        fontsize=9.5,
        title="one link, one direction",
        title_fontsize=9,
    )


# -- one node -------------------------------------------------------------------------------------------------------


@dataclass
class _Drawing:
    """Places of the vertices of a node that are drawn, and the extent of it all."""

    place: dict[int, tuple[float, float]] = field(default_factory=dict)
    width: dict[int, float] = field(default_factory=dict)
    left: float = 0.0
    right: float = 0.0
    bottom: float = 0.0
    top: float = 0.0
    hidden: int = 0


def _neighbours(t: Topology) -> dict[int, list[tuple[int, LinkKind, float]]]:
    """(other end, kind, bytes/s) of the links that leave each vertex of node 0."""
    out: dict[int, list[tuple[int, LinkKind, float]]] = {
        int(v): [] for v in np.flatnonzero(t.vertex_node == 0)
    }
    for i in range(t.node_routes.links):
        end = (int(t.link_dst[i]), LinkKind(int(t.link_kind[i])), float(t.link_bandwidth[i]))
        out[int(t.link_src[i])].append(end)
    return out


def _node_drawing(t: Topology) -> _Drawing:
    near = _neighbours(t)
    kinds = {v: VertexKind(int(t.vertex_kind[v])) for v in near}
    gpus = [v for v in near if kinds[v] == VertexKind.GPU]
    d = _Drawing()
    shown = gpus if len(gpus) <= _MOST_GPUS else gpus[:8]
    d.hidden = len(gpus) - len(shown)
    x = {v: float(i) for i, v in enumerate(shown)}
    level = {v: 0 for v in shown}

    frontier = shown
    while (
        frontier
    ):  # CPUs and PCIe switches, nearest to the GPUs first, above the middle of what hangs below them
        above = {w for v in frontier for w, _, _ in near[v]} - set(level)
        rise = [w for w in sorted(above) if kinds[w] in {VertexKind.PCIE_SWITCH, VertexKind.HOST}]
        rise = [w for w in rise if kinds[w] == VertexKind.PCIE_SWITCH or _joined(near, w, frontier)]
        for w in rise:
            below = [x[v] for v, _, _ in near[w] if v in level]
            x[w] = float(np.mean(below))
            level[w] = 1 + max(level[v] for v, _, _ in near[w] if v in level and v in frontier)
        frontier = rise
    hosts = [v for v in x if kinds[v] == VertexKind.HOST]
    high = max((level[v] for v in x if v not in hosts), default=0)
    d.place.update({v: (x[v], 1.25 * level[v]) for v in x if v not in hosts})
    _row(d, hosts, x, 1.25 * (high + 1), 0.62)
    _nic_row(d, t, near, kinds, 1.25 * (high + 1 + bool(hosts)))
    switches = [v for v in near if kinds[v] == VertexKind.NVSWITCH]
    for i, v in enumerate(switches):
        share = len(shown) / len(switches)
        d.place[v], d.width[v] = ((i + 0.5) * share - 0.5, -1.4), share - 0.25
    _extent(d, t, near)
    return d


def _joined(near: dict[int, list[tuple[int, LinkKind, float]]], host: int, below: Iterable[int]) -> bool:
    return any(v in below and kind != LinkKind.HOST for v, kind, _ in near[host])


def _row(d: _Drawing, members: list[int], x: dict[int, float], y: float, least: float) -> None:
    """Places members of a row in order of x, at least `least` apart."""
    last = -np.inf
    for v in sorted(members, key=lambda v: (x[v], v)):
        last = max(x[v], last + least)
        d.place[v] = (float(last), y)


def _nic_row(
    d: _Drawing,
    t: Topology,
    near: dict[int, list[tuple[int, LinkKind, float]]],
    kinds: dict[int, VertexKind],
    y: float,
) -> None:
    """NICs stand above the first GPU that they serve, so that their links pass beside the CPUs."""
    nics = [v for v in near if kinds[v] == VertexKind.NIC]
    x: dict[int, float] = {}
    for i, v in enumerate(nics):
        parents = [d.place[w][0] for w, _, _ in near[v] if w in d.place]
        if not parents:
            continue
        users = np.flatnonzero(t.node_routes.nearest_nic == i)
        first = int(t.rank_vertex[users[0]]) if len(users) else -1
        x[v] = d.place[first][0] if first in d.place else parents[0]
    _row(d, list(x), x, y, 0.62)


def _extent(d: _Drawing, t: Topology, near: dict[int, list[tuple[int, LinkKind, float]]]) -> None:
    xs, ys = zip(*d.place.values(), strict=True)
    gpu_spans = [abs(d.place[v][0] - d.place[w][0]) for v, w, _ in _arcs(d, t, near)]
    d.left, d.right = min(xs) - 0.6, max(xs) + 0.6 + (1.2 if d.hidden else 0)
    d.bottom = min(min(ys) - 0.5, -0.4 - 0.42 * max(gpu_spans, default=0) - 0.3)
    d.top = max(ys) + 0.55


def _arcs(
    d: _Drawing, t: Topology, near: dict[int, list[tuple[int, LinkKind, float]]]
) -> list[tuple[int, int, float]]:
    """NVLinks that run directly between drawn GPUs: (left, right, bytes/s)."""
    gpus = {v for v in d.place if t.vertex_kind[v] == VertexKind.GPU}
    return [
        (v, w, rate)
        for v in gpus
        for w, kind, rate in near[v]
        if kind == LinkKind.NVLINK and w in gpus and v < w
    ]


def _draw_node(ax: Axes, t: Topology, d: _Drawing) -> None:
    near = _neighbours(t)
    ax.set_xlim(d.left, d.right)
    ax.set_ylim(d.bottom, d.top)
    ax.axis("off")
    for v, (x, y) in d.place.items():
        for w, kind, _ in near[v]:
            if w in d.place and v < w and not (kind == LinkKind.NVLINK and _both_gpus(t, v, w)):
                far = d.place[w]
                target = (x, far[1]) if t.vertex_kind[w] == VertexKind.NVSWITCH else far
                start = (far[0], y) if t.vertex_kind[v] == VertexKind.NVSWITCH else (x, y)
                thick = 3.2 if kind in {LinkKind.NVLINK, LinkKind.C2C} else 1.8
                ax.plot(*zip(start, target, strict=True), color=LINE[kind], linewidth=thick, zorder=1)
    arcs = _arcs(d, t, near)
    for v, w, rate in arcs:
        _arc(
            ax,
            d.place[v][0],
            d.place[w][0],
            rate / t.nvlink_link_bandwidth,
            most=max(a[2] for a in arcs) / rate,
        )
    for v, (x, y) in d.place.items():
        kind = VertexKind(int(t.vertex_kind[v]))
        _box(ax, (x, y), (d.width.get(v, _WIDTH[kind]), 0.5), _label(t, v), FILL[kind])
    if d.hidden:
        ax.text(
            d.right - 0.7,
            0,
            f"... and {d.hidden}\nmore GPUs\nlike these",
            ha="center",
            va="center",
            color=INK,
        )
    if t.nodes > 1:
        ax.text(d.left + 0.1, d.top - 0.1, "one node", fontsize=10, style="italic", color="#566573", va="top")


_WIDTH = {
    VertexKind.GPU: 0.72,
    VertexKind.NVSWITCH: 2.0,
    VertexKind.PCIE_SWITCH: 0.68,
    VertexKind.HOST: 0.6,
    VertexKind.NIC: 0.52,
    VertexKind.SWITCH: 0.8,
}


def _both_gpus(t: Topology, v: int, w: int) -> bool:
    return bool(t.vertex_kind[v] == t.vertex_kind[w] == VertexKind.GPU)


def _label(t: Topology, v: int) -> str:
    name = t.vertex_name[v].split(".", 1)[1]
    words = {"gpu": "GPU ", "nic": "NIC ", "cpu": "CPU ", "pcie": "PCIe\nswitch ", "nvswitch": "NVSwitch "}
    stem = name.rstrip("0123456789")
    return (words.get(stem, f"{stem} ") + name[len(stem) :]).strip()


def _arc(ax: Axes, a: float, b: float, count: float, most: float) -> None:
    """An NVLink arc below the GPU row; double links are drawn twice as thick as single ones."""
    from matplotlib.patches import Arc

    depth = 0.84 * abs(b - a)
    width = 3.4 / most
    ax.add_patch(
        Arc(
            ((a + b) / 2, -0.25),
            abs(b - a),
            depth,
            theta1=180,
            theta2=360,
            lw=width,
            color=LINE[LinkKind.NVLINK],
        )
    )
    ax.text(
        (a + b) / 2,
        -0.25 - depth / 2,
        f"{count:g}",
        fontsize=7.5,
        ha="center",
        va="center",
        color=INK,
        bbox={"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"},
        zorder=3,
    )


def _box(ax: Axes, centre: tuple[float, float], size: tuple[float, float], text: str, fill: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    (x, y), (w, h) = centre, size
    ax.add_patch(
        FancyBboxPatch(
            (x - w / 2, y - h / 2),
            w,
            h,
            boxstyle="round,pad=0,rounding_size=0.07",
            facecolor=fill,
            edgecolor=INK,
            linewidth=0.8,
            zorder=2,
        )
    )
    ax.text(x, y, text, ha="center", va="center", fontsize=8, color=INK, zorder=4, linespacing=0.95)


# -- fabric ---------------------------------------------------------------------------------------------------------


def _cut(count: int, most: int) -> list[int | None]:
    """Indices to draw: all, or the first ones, None for an ellipsis, and the last."""
    if count <= most:
        return list(range(count))
    return [*range(most - 2), None, count - 1]


def _draw_fabric(ax: Axes, t: Topology) -> None:
    """Spines, leaves and nodes; a node shows its NICs as a row of ports."""
    fabric = t.fabric_routes
    assert fabric is not None
    groups = -(-t.nodes // fabric.nodes_per_leaf)
    rails = int(fabric.leaf[0].max() - fabric.leaf[0].min()) + 1
    shown_groups = _cut(groups, 3)
    most_nodes = 4 if len(shown_groups) == 1 else 3
    x, centres = 0.0, []
    for g in shown_groups:
        if g is None:
            ax.text(x + 0.1, 1.1, "...", fontsize=18, ha="center", va="center", color=INK)
            x += 0.8
            continue
        first, last = g * fabric.nodes_per_leaf, min((g + 1) * fabric.nodes_per_leaf, t.nodes)
        x = _draw_group(ax, t, range(first, last), x, rails, most_nodes, centres) + 0.6
    ax.set_xlim(-0.5, x - 0.1)
    if fabric.up.shape[1]:
        _draw_spines(ax, fabric.up.shape[1], centres, (x - 0.6) / 2, t)
    ax.set_ylim(-0.75, 2.75 if fabric.up.shape[1] else 1.6)
    ax.axis("off")


def _draw_group(
    ax: Axes, t: Topology, nodes: range, x: float, rails: int, most_nodes: int, centres: list[float]
) -> float:
    """The nodes under one group of leaves, from x on; returns where they end."""
    shown = _cut(len(nodes), most_nodes)
    width = 1.9
    end = x + sum(0.7 if k is None else width for k in shown)
    leaves = _cut(rails, _MOST_RAILS)
    places: dict[int, float] = {}
    for i, r in enumerate(leaves):
        at = x + (i + 0.5) * (end - x - 0.2) / len(leaves)
        if r is None:
            ax.text(at, 1.1, "...", ha="center", va="center", color=INK, fontsize=12)
            continue
        places[r] = at
        centres.append(at)
        name = (
            "switch"
            if t.fabric_routes is not None and len(t.vertex_name) == _only_switch(t)
            else f"leaf\nrail {r}"
        )
        if rails == 1 and name != "switch":
            name = "leaf"
        wide = min(0.85 * (end - x - 0.2) / len(leaves), 2.4)
        _box(ax, (at, 1.1), (wide, 0.42), name, FILL[VertexKind.SWITCH])
    at = x
    for k in shown:
        if k is None:
            ax.text(at + 0.25, -0.2, "...", ha="center", va="center", color=INK, fontsize=14)
            at += 0.7
            continue
        _draw_ports(ax, t, nodes[k], at + (width - 0.2) / 2, places)
        at += width
    return end


def _only_switch(t: Topology) -> int:
    """Number of vertices of a machine whose fabric is one switch."""
    return int((t.vertex_node >= 0).sum()) + 1


def _draw_ports(ax: Axes, t: Topology, node: int, x: float, places: dict[int, float]) -> None:
    nics = [n for n in _cut(t.nics_per_node, _MOST_RAILS) if n is not None]
    fabric = t.fabric_routes
    assert fabric is not None
    first = int(fabric.leaf[node].min())
    for i, n in enumerate(nics):
        port = x - 0.75 + 1.5 * (i + 0.5) / len(nics)
        rail = int(fabric.leaf[node, n]) - first
        if rail in places:
            ax.plot(
                [port, places[rail]], [0.06, 0.9], color=LINE[LinkKind.NETWORK], lw=0.9, alpha=0.75, zorder=1
            )
        ax.plot(
            [port], [0.06], marker="s", markersize=5, color=FILL[VertexKind.NIC], mec=INK, mew=0.6, zorder=3
        )
    _box(ax, (x, -0.25), (1.7, 0.5), f"node {node}\n{t.ranks_per_node} GPUs", "#eef6e7")


def _draw_spines(ax: Axes, spines: int, leaves: list[float], middle: float, t: Topology) -> None:
    shown = [s for s in _cut(spines, 6) if s is not None]
    for i, s in enumerate(shown):
        x = middle + (i - (len(shown) - 1) / 2) * 2.0
        for leaf in leaves:
            ax.plot([leaf, x], [1.31, 2.15], color=LINE[LinkKind.FABRIC], lw=1.1, alpha=0.8, zorder=1)
        name = "spines" if spines == 1 else f"spine {s}"
        _box(ax, (x, 2.35), (1.7, 0.42), name, FILL[VertexKind.SWITCH])
