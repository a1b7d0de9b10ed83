"""Picture of a topology: one node in detail, and above it the fabric with its nodes, leaves and spines.

Only what differs is drawn: all nodes are alike, so one stands for them, and long rows of nodes, rails and leaf
groups are cut with an ellipsis. A node: rows of NICs, CPUs, PCIe switches, GPUs and NVSwitch; direct NVLinks as arcs.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from commsim.report.topology_fabric import draw_fabric
from commsim.report.topology_marks import mark_line, marks_of, notable, title_of
from commsim.report.topology_shapes import (
    FILL,
    INK,
    LINE,
    LINK_NAME,
    MUTED,
    Heat,
    box,
    colour_bar,
    network_name,
    node_heat,
)
from commsim.report.topology_tables import fabric_words
from commsim.topology.graph import LinkKind, Topology, VertexKind
from commsim.topology.tree import TreeRoutes
from commsim.units import format_bandwidth, gb_per_s, gbit_per_s

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_topology(topology: Topology, heat: Heat | None = None, title: str = "") -> Figure:
    """The picture as a matplotlib Figure; writes nothing. With `heat` links are coloured by how busy they were."""
    from matplotlib.figure import Figure

    wanted = notable(topology, heat)
    drawing = node_drawing(topology, wanted.node)
    several = topology.nodes > 1
    least = 12.0 if topology.kind in {"dragonfly", "torus"} and several else 9.0
    width = max(least, 1.22 * (drawing.right - drawing.left) + 1.0)
    node_height = 0.82 * (drawing.top - drawing.bottom) + 0.6
    heights = [4.0 + 1.2 * (topology.kind == "dragonfly" or _levels(topology) == 3), node_height][not several :]
    height = sum(heights) + 1.9
    figure = Figure(figsize=(width, height), facecolor="white")
    sides = {"left": 0.02, "right": 0.98, "top": 1 - 0.95 / height, "bottom": 0.85 / height, "hspace": 0.12}
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights, **sides)
    if several:
        draw_fabric(figure.add_subplot(grid[0]), topology, heat, wanted)
    hot = None if heat is None else node_heat(topology, heat, wanted.node)
    draw_node(figure.add_subplot(grid[-1]), topology, drawing, hot)
    marks = marks_of(figure.axes)
    _headline(figure, topology, title)
    if heat is None:
        _legend(figure, topology)
    else:
        colour_bar(figure, height, heat)
    if marks:
        look: dict[str, Any] = {"frameon": False, "fontsize": 9.5, "ncols": len(marks), "loc": "upper center"}
        place = (0.5, 1 - 0.68 / height)
        figure.legend(marks.values(), marks, bbox_to_anchor=place, **look)
    return figure


def _levels(t: Topology) -> int:
    """Levels of switches of a tree; 0 for other fabrics."""
    fabric = getattr(t.fabric_routes, "base", t.fabric_routes)
    if not isinstance(fabric, TreeRoutes):
        return 0
    return 1 + (fabric.shape.spines > 0) + (fabric.shape.pods > 1)


def _headline(figure: Figure, t: Topology, headline: str) -> None:
    """The machine's title above its figures, or, if there is one, the `headline` above the machine's title."""
    width, height = figure.get_size_inches()
    sorts = Counter[str]()
    for g, count in zip(t.groups, np.bincount(t.node_group).tolist(), strict=True):
        sorts[f"{g.ranks_per_node} x {g.gpu.model}"] += count
    listed = " and ".join(f"{count} nodes of {gpus}" for gpus, count in sorts.items())
    title = f"{t.name}: {listed}" if t.nodes > 1 else f"{t.name}: {next(iter(sorts))}"
    if len({(g.nics_per_node, g.nic_bandwidth) for g in t.groups}) == 1 and t.nics_per_node:
        rate = f"{gbit_per_s(t.nic_bandwidth):g} Gb/s"
        title += f", {t.nics_per_node} x {rate} {network_name(t.network, t.plugin)}"
    top = headline or title
    size = min(14.0, 105 * width / len(top))
    figure.suptitle(top, y=1 - 0.22 / height, fontsize=size, color=INK, weight="bold", va="top")
    facts = [title] if headline else []
    if t.nodes > 1:
        facts.append(fabric_words(t))
    if t.world_size > 1 and not headline:
        facts.append(f"bisection {format_bandwidth(t.bisection_bandwidth())} one direction")
    figure.text(0.5, 1 - 0.6 / height, "; ".join(facts), ha="center", va="top", fontsize=10, color=MUTED)


def _legend(figure: Figure, t: Topology) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for kind in LinkKind:
        rates = np.unique(t.link_bandwidth[t.link_kind == kind])
        if not len(rates):
            continue
        name = "switch to switch" if kind == LinkKind.FABRIC and _levels(t) != 2 else LINK_NAME[kind]
        label = f"{name} " + " / ".join(f"{gb_per_s(r):.4g}" for r in rates) + " GB/s"
        if kind == LinkKind.NVLINK and t.uniform and t.nvlink_link_bandwidth:
            counts = " / ".join(f"{r / t.nvlink_link_bandwidth:.4g}" for r in rates)
            label += f" ({counts} x {gb_per_s(t.nvlink_link_bandwidth):g})"
        handles.append(Line2D([], [], color=LINE[kind], linewidth=3, label=label))
    look: dict[str, Any] = {"frameon": False, "fontsize": 9.5, "title_fontsize": 9}
    figure.legend(
        handles=handles, loc="lower center", ncols=min(3, len(handles)), title="one link, one direction", **look
    )


_MOST_GPUS = 16  # of a node drawn in full; of a larger one (a rack) the first eight


_WIDTH = {
    VertexKind.GPU: 0.72,
    VertexKind.NVSWITCH: 2.0,
    VertexKind.PCIE_SWITCH: 0.68,
    VertexKind.HOST: 0.6,
    VertexKind.NIC: 0.52,
    VertexKind.SWITCH: 0.8,
    VertexKind.CARD: 0.6,
}
_WORDS = {"gpu": "GPU ", "nic": "NIC ", "cpu": "CPU ", "pcie": "PCIe\nswitch ", "nvswitch": "NVSwitch "}

_Links: TypeAlias = dict[int, list[tuple[int, LinkKind, int]]]
"""By vertex of node 0 the links that leave it: (other end, kind, link)."""


@dataclass
class NodeDrawing:
    """Places of the vertices of a node (its number) that are drawn, the links of all, and the extent of the drawing."""

    kinds: dict[int, VertexKind]
    near: _Links
    node: int = 0
    place: dict[int, tuple[float, float]] = field(default_factory=dict)
    width: dict[int, float] = field(default_factory=dict)
    left: float = 0.0
    right: float = 0.0
    bottom: float = 0.0
    top: float = 0.0
    hidden: int = 0

    def of_kind(self, kind: VertexKind) -> list[int]:
        """The vertices of one kind, whether drawn or not."""
        return [v for v in self.near if self.kinds[v] == kind]

    def arcs(self) -> list[tuple[int, int, int]]:
        """NVLinks that run directly between drawn GPUs: (left, right, link)."""
        gpus = {v for v in self.place if self.kinds[v] == VertexKind.GPU}
        return [
            (v, w, link)
            for v in gpus
            for w, kind, link in self.near[v]
            if kind == LinkKind.NVLINK and w in gpus and v < w
        ]

    def both(self, v: int, w: int) -> list[int]:
        """The links between two vertices, in both directions."""
        return [link for a, b in ((v, w), (w, v)) for end, _, link in self.near[a] if end == b]

    def way(self, v: int, w: int) -> tuple[list[float], list[float]]:
        """The places of a line from box to box: through gaps of the rows in between, so that it runs behind no box."""
        low, high = sorted((v, w), key=lambda one: self.place[one][1])
        (x0, y0), (x1, y1) = self.place[low], self.place[high]
        if self.kinds[low] == VertexKind.NVSWITCH:
            x0 = x1  # it is as wide as what hangs on it
        if y0 == y1:
            return [x0, x1], [y0, y1]
        y0, y1 = y0 + _HALF, y1 - _HALF
        xs, ys = [x0], [y0]
        for row in sorted({y for _, y in self.place.values() if y0 < y < y1}):
            boxes = sorted(
                (x - half, x + half)
                for u, (x, y) in self.place.items()
                if y == row
                for half in (self.width.get(u, _WIDTH[self.kinds[u]]) / 2,)
            )
            straight = xs[-1] + (x1 - xs[-1]) * (row - ys[-1]) / (y1 - ys[-1])
            lean = abs(x1 - xs[-1]) / (y1 - ys[-1]) * _HALF  # what a straight line moves by beside a box
            if all(straight + lean < a or straight - lean > b for a, b in boxes):
                continue
            ends = [-math.inf, *(edge for pair in boxes for edge in pair), math.inf]
            gaps = [
                (a + _BESIDE, b - _BESIDE) for a, b in zip(ends[::2], ends[1::2], strict=True) if b - a > 2 * _BESIDE
            ]
            at = min((min(max(straight, a), b) for a, b in gaps), key=lambda x: abs(x - straight))
            xs += [at, at]
            ys += [row - _HALF - 0.04, row + _HALF + 0.04]
        return [*xs, x1], [*ys, y1]


_HALF, _BESIDE = 0.25, 0.05
"""Half the height of a box, and how far from it a line passes beside it."""


def node_drawing(t: Topology, node: int = 0) -> NodeDrawing:
    """Where every vertex of a node stands."""
    near: _Links = {int(v): [] for v in np.flatnonzero(t.vertex_node == node)}
    for link in range(int(t.node_first_link[node]), int(t.node_first_link[node + 1])):
        near[int(t.link_src[link])].append((int(t.link_dst[link]), LinkKind(int(t.link_kind[link])), link))
    d = NodeDrawing({v: VertexKind(int(t.vertex_kind[v])) for v in near}, near, node)
    gpus = d.of_kind(VertexKind.GPU)
    shown = gpus if len(gpus) <= _MOST_GPUS else gpus[:8]
    d.hidden = len(gpus) - len(shown)
    x, level = _rise(d, shown)
    hosts = [v for v in x if d.kinds[v] == VertexKind.HOST]
    high = max((level[v] for v in x if v not in hosts), default=0)
    d.place.update({v: (x[v], 1.25 * level[v]) for v in x if v not in hosts})
    _row(d, {v: x[v] for v in hosts}, 1.25 * (high + 1))
    _row(d, _nic_places(d, t), 1.25 * (high + 1 + bool(hosts)))
    switches = d.of_kind(VertexKind.NVSWITCH)
    for i, v in enumerate(switches):
        share = len(shown) / len(switches)
        d.place[v], d.width[v] = ((i + 0.5) * share - 0.5, -1.4), share - 0.25
    xs, ys = zip(*d.place.values(), strict=True)
    spans = [abs(d.place[v][0] - d.place[w][0]) for v, w, _ in d.arcs()]
    d.left, d.right = min(xs) - 0.6, max(xs) + 0.6 + (1.2 if d.hidden else 0)
    d.bottom = min(min(ys) - 0.5, -0.4 - 0.42 * max(spans, default=0) - 0.3)
    d.top = max(ys) + 0.7
    return d


def _rise(d: NodeDrawing, gpus: list[int]) -> tuple[dict[int, float], dict[int, int]]:
    """Place along the row and level of GPUs, PCIe switches and CPUs: each above the middle of what hangs below it."""
    x = {v: float(i) for i, v in enumerate(gpus)}
    level = dict.fromkeys(gpus, 0)
    frontier = gpus
    while frontier:  # those nearest to the GPUs first
        above = sorted({w for v in frontier for w, _, _ in d.near[v]} - set(level))
        rise = [
            w
            for w in above
            if d.kinds[w] == VertexKind.PCIE_SWITCH
            or (
                d.kinds[w] == VertexKind.HOST
                and any(v in frontier and kind != LinkKind.HOST for v, kind, _ in d.near[w])
            )
        ]
        for w in rise:
            x[w] = float(np.mean([x[v] for v, _, _ in d.near[w] if v in level and d.kinds[v] != VertexKind.HOST]))
            level[w] = 1 + max(level[v] for v, _, _ in d.near[w] if v in level and v in frontier)
        frontier = rise
    return x, level


def _row(d: NodeDrawing, x: dict[int, float], y: float) -> None:
    """Places vertices in a row in order of x, so far apart that their boxes do not touch."""
    last = -np.inf
    for v in sorted(x, key=lambda v: (x[v], v)):
        last = max(x[v], last + 0.62)
        d.place[v] = (float(last), y)


def _nic_places(d: NodeDrawing, t: Topology) -> dict[int, float]:
    """NICs stand above the first GPU that they serve, so that their links pass beside the CPUs."""
    x: dict[int, float] = {}
    for i, v in enumerate(d.of_kind(VertexKind.NIC)):
        parents = [d.place[w][0] for w, _, _ in d.near[v] if w in d.place]
        if parents:
            rank = int(t.node_first_rank[d.node])
            users = np.flatnonzero(t.group_of(rank).node_routes.nearest_nic == i)
            first = int(t.rank_vertex[rank + users[0]]) if len(users) else -1
            x[v] = d.place[first][0] if first in d.place else parents[0]
    return x


def draw_node(ax: Axes, t: Topology, d: NodeDrawing, heat: Heat | None = None) -> None:
    """Lines and boxes of one node; lines in the colours of `heat` if it is given."""

    def look(v: int, w: int, kind: LinkKind, thick: float) -> dict[str, Any]:
        if heat is None:
            return {"color": LINE[kind], "linewidth": thick}
        return heat.look(d.both(v, w), max(thick, 2.6))

    ax.set(xlim=(d.left, d.right), ylim=(d.bottom, d.top))
    ax.axis("off")
    arcs = d.arcs()
    direct = {(v, w) for v, w, _ in arcs}
    for v in d.place:
        for w, kind, _ in d.near[v]:
            if w not in d.place or v > w or (kind == LinkKind.NVLINK and (v, w) in direct):
                continue
            if kind == LinkKind.HOST:
                _host_link(ax, d, (v, w), look(v, w, kind, 1.8))
                continue
            thick = 3.2 if kind in {LinkKind.NVLINK, LinkKind.C2C} else 1.8
            said = title_of(t, heat, d.both(v, w)) or None
            ax.plot(*d.way(v, w), zorder=1, gid=said, **look(v, w, kind, thick))
            mark_line(ax, t, heat, d.way(v, w), d.both(v, w))
    most = max((t.link_bandwidth[link] for _, _, link in arcs), default=1.0)
    for v, w, link in arcs:
        rate = t.link_bandwidth[link]
        ends = (d.place[v][0], d.place[w][0])
        colour = look(v, w, LinkKind.NVLINK, 2.6)["color"]
        _arc(
            ax, ends, f"{rate / t.groups[int(t.node_group[d.node])].nvlink_link_bandwidth:g}", 3.4 * rate / most, colour
        )
    for v, place in d.place.items():
        box(ax, place, (d.width.get(v, _WIDTH[d.kinds[v]]), 0.5), _label(t, v), FILL[d.kinds[v]])
    if d.hidden:
        text = f"... and {d.hidden}\nmore GPUs\nlike these"
        ax.text(d.right - 0.7, 0, text, ha="center", va="center", color=INK)
    if t.nodes > 1:
        name = "one node" if not d.node and heat is None else f"node {d.node}"
        ax.text(d.left + 0.1, d.top - 0.1, name, fontsize=10, style="italic", color=MUTED, va="top")


def _host_link(ax: Axes, d: NodeDrawing, ends: tuple[int, int], look: dict[str, Any]) -> None:
    """A line between neighbouring CPUs, otherwise an arch over the CPUs in between."""
    (x0, y0), (x1, y1) = sorted(d.place[v] for v in ends)
    hosts = [d.place[v] for v in d.place if d.kinds[v] == VertexKind.HOST]
    between = sum(x0 < x < x1 and y == y0 for x, y in hosts)
    along = np.linspace(0, 1, 41)
    lift = 4 * min(0.16 + 0.13 * between, 0.5) * along * (1 - along) + 0.25 if between else 0.0 * along
    ax.plot(x0 + (x1 - x0) * along, y0 + (y1 - y0) * along + lift, zorder=1, **look)


def _label(t: Topology, v: int) -> str:
    name = t.vertex_name[v].split(".", 1)[1]
    stem = name.rstrip("0123456789")
    return (_WORDS.get(stem, f"{stem} ") + name[len(stem) :]).strip()


def _arc(ax: Axes, ends: tuple[float, float], count: str, width: float, colour: Any) -> None:
    """An NVLink arc below the GPU row with the number of its links; double links are twice as thick as single ones."""
    from matplotlib.patches import Arc

    middle, span = sum(ends) / 2, abs(ends[1] - ends[0])
    depth = 0.84 * span
    ax.add_patch(Arc((middle, -0.25), span, depth, theta1=180, theta2=360, lw=width, color=colour))
    plate = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
    look: dict[str, Any] = {"fontsize": 7.5, "ha": "center", "va": "center", "color": INK, "bbox": plate, "zorder": 3}
    ax.text(middle, -0.25 - depth / 2, count, **look)
