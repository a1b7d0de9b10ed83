"""One node of a topology picture: rows of NICs, CPUs, PCIe switches, GPUs and NVSwitch; direct NVLinks as arcs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from commsim.report.topology_shapes import FILL, INK, LINE, MUTED, box
from commsim.topology.graph import LinkKind, Topology, VertexKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from commsim.report.link_heat import Heat

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
    """Places of the vertices of a node that are drawn, the links of all, and the extent of the drawing."""

    kinds: dict[int, VertexKind]
    near: _Links
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


def node_drawing(t: Topology) -> NodeDrawing:
    """Where every vertex of node 0 stands."""
    near: _Links = {int(v): [] for v in np.flatnonzero(t.vertex_node == 0)}
    for link in range(int(t.node_first_link[1])):
        near[int(t.link_src[link])].append((int(t.link_dst[link]), LinkKind(int(t.link_kind[link])), link))
    d = NodeDrawing({v: VertexKind(int(t.vertex_kind[v])) for v in near}, near)
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
            users = np.flatnonzero(t.group_of(0).node_routes.nearest_nic == i)
            first = int(t.rank_vertex[users[0]]) if len(users) else -1
            x[v] = d.place[first][0] if first in d.place else parents[0]
    return x


def draw_node(ax: Axes, t: Topology, d: NodeDrawing, heat: Heat | None = None) -> None:
    """Lines and boxes of one node; lines in the colours of `heat` if it is given."""

    def look(v: int, w: int, kind: LinkKind, thick: float) -> dict[str, Any]:
        if heat is None:
            return {"color": LINE[kind], "linewidth": thick}
        both = [link for a, b in ((v, w), (w, v)) for end, _, link in d.near[a] if end == b]
        return heat.look(both, max(thick, 2.6))

    ax.set_xlim(d.left, d.right)
    ax.set_ylim(d.bottom, d.top)
    ax.axis("off")
    arcs = d.arcs()
    direct = {(v, w) for v, w, _ in arcs}
    for v, (x, y) in d.place.items():
        for w, kind, _ in d.near[v]:
            if w not in d.place or v > w or (kind == LinkKind.NVLINK and (v, w) in direct):
                continue
            if kind == LinkKind.HOST:
                _host_link(ax, d, (v, w), look(v, w, kind, 1.8))
                continue
            far = d.place[w]
            xs = (
                far[0] if d.kinds[v] == VertexKind.NVSWITCH else x,
                x if d.kinds[w] == VertexKind.NVSWITCH else far[0],
            )
            thick = 3.2 if kind in {LinkKind.NVLINK, LinkKind.C2C} else 1.8
            ax.plot(xs, (y, far[1]), zorder=1, **look(v, w, kind, thick))
    most = max((t.link_bandwidth[link] for _, _, link in arcs), default=1.0)
    for v, w, link in arcs:
        rate = t.link_bandwidth[link]
        ends = (d.place[v][0], d.place[w][0])
        colour = look(v, w, LinkKind.NVLINK, 2.6)["color"]
        _arc(ax, ends, f"{rate / t.group_of(0).nvlink_link_bandwidth:g}", 3.4 * rate / most, colour)
    for v, place in d.place.items():
        box(ax, place, (d.width.get(v, _WIDTH[d.kinds[v]]), 0.5), _label(t, v), FILL[d.kinds[v]])
    if d.hidden:
        text = f"... and {d.hidden}\nmore GPUs\nlike these"
        ax.text(d.right - 0.7, 0, text, ha="center", va="center", color=INK)
    if t.nodes > 1:
        ax.text(d.left + 0.1, d.top - 0.1, "one node", fontsize=10, style="italic", color=MUTED, va="top")


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
