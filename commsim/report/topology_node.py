"""One node of a topology picture: rows of NICs, CPUs, PCIe switches, GPUs and NVSwitch; direct NVLinks as arcs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.report.topology_shapes import FILL, INK, LINE, box
from commsim.topology.graph import LinkKind, Topology, VertexKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from commsim.report.link_heat import Heat

_MOST_GPUS = 16  # of a node drawn in full; of a larger one (a rack) the first eight


@dataclass
class NodeDrawing:
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
    out: dict[int, list[tuple[int, LinkKind, float]]] = {int(v): [] for v in np.flatnonzero(t.vertex_node == 0)}
    for i in range(int(t.node_first_link[1])):
        end = (int(t.link_dst[i]), LinkKind(int(t.link_kind[i])), float(t.link_bandwidth[i]))
        out[int(t.link_src[i])].append(end)
    return out


def node_drawing(t: Topology) -> NodeDrawing:
    near = _neighbours(t)
    kinds = {v: VertexKind(int(t.vertex_kind[v])) for v in near}
    gpus = [v for v in near if kinds[v] == VertexKind.GPU]
    d = NodeDrawing()
    shown = gpus if len(gpus) <= _MOST_GPUS else gpus[:8]
    d.hidden = len(gpus) - len(shown)
    x = {v: float(i) for i, v in enumerate(shown)}
    level = dict.fromkeys(shown, 0)

    frontier = shown
    while frontier:  # CPUs and PCIe switches, nearest to the GPUs first, above the middle of what hangs below them
        above = {w for v in frontier for w, _, _ in near[v]} - set(level)
        rise = [w for w in sorted(above) if kinds[w] in {VertexKind.PCIE_SWITCH, VertexKind.HOST}]
        rise = [w for w in rise if kinds[w] == VertexKind.PCIE_SWITCH or _joined(near, w, frontier)]
        for w in rise:
            below = [x[v] for v, _, _ in near[w] if v in level and kinds[v] != VertexKind.HOST]
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


def _row(d: NodeDrawing, members: list[int], x: dict[int, float], y: float, least: float) -> None:
    """Places members of a row in order of x, at least `least` apart."""
    last = -np.inf
    for v in sorted(members, key=lambda v: (x[v], v)):
        last = max(x[v], last + least)
        d.place[v] = (float(last), y)


def _nic_row(
    d: NodeDrawing,
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
        users = np.flatnonzero(t.group_of(0).node_routes.nearest_nic == i)
        first = int(t.rank_vertex[users[0]]) if len(users) else -1
        x[v] = d.place[first][0] if first in d.place else parents[0]
    _row(d, list(x), x, y, 0.62)


def _extent(d: NodeDrawing, t: Topology, near: dict[int, list[tuple[int, LinkKind, float]]]) -> None:
    xs, ys = zip(*d.place.values(), strict=True)
    gpu_spans = [abs(d.place[v][0] - d.place[w][0]) for v, w, _ in _arcs(d, t, near)]
    d.left, d.right = min(xs) - 0.6, max(xs) + 0.6 + (1.2 if d.hidden else 0)
    d.bottom = min(min(ys) - 0.5, -0.4 - 0.42 * max(gpu_spans, default=0) - 0.3)
    d.top = max(ys) + 0.7


def _arcs(
    d: NodeDrawing, t: Topology, near: dict[int, list[tuple[int, LinkKind, float]]]
) -> list[tuple[int, int, float]]:
    """NVLinks that run directly between drawn GPUs: (left, right, bytes/s)."""
    gpus = {v for v in d.place if t.vertex_kind[v] == VertexKind.GPU}
    return [(v, w, rate) for v in gpus for w, kind, rate in near[v] if kind == LinkKind.NVLINK and w in gpus and v < w]


def _ends(t: Topology) -> dict[tuple[int, int], list[int]]:
    """The links of node 0 between two vertices, both directions, by the vertices in order."""
    found: dict[tuple[int, int], list[int]] = {}
    for i in range(int(t.node_first_link[1])):
        a, b = int(t.link_src[i]), int(t.link_dst[i])
        found.setdefault((min(a, b), max(a, b)), []).append(i)
    return found


def draw_node(ax: Axes, t: Topology, d: NodeDrawing, heat: Heat | None = None) -> None:
    """Lines and boxes of one node; lines in the colours of `heat` if it is given."""
    near, ends = _neighbours(t), _ends(t)

    def look(v: int, w: int, kind: LinkKind, thick: float) -> dict[str, Any]:
        if heat is None:
            return {"color": LINE[kind], "linewidth": thick}
        return heat.look(ends[min(v, w), max(v, w)], max(thick, 2.6))

    ax.set_xlim(d.left, d.right)
    ax.set_ylim(d.bottom, d.top)
    ax.axis("off")
    for v, (x, y) in d.place.items():
        for w, kind, _ in near[v]:
            if w in d.place and v < w and not (kind == LinkKind.NVLINK and _both_gpus(t, v, w)):
                far = d.place[w]
                target = (x, far[1]) if t.vertex_kind[w] == VertexKind.NVSWITCH else far
                start = (far[0], y) if t.vertex_kind[v] == VertexKind.NVSWITCH else (x, y)
                if kind == LinkKind.HOST:
                    _host_link(ax, d, t, (v, w), look(v, w, kind, 1.8))
                    continue
                thick = 3.2 if kind in {LinkKind.NVLINK, LinkKind.C2C} else 1.8
                ax.plot(*zip(start, target, strict=True), zorder=1, **look(v, w, kind, thick))
    arcs = _arcs(d, t, near)
    for v, w, rate in arcs:
        _arc(
            ax,
            d.place[v][0],
            d.place[w][0],
            rate / t.group_of(0).nvlink_link_bandwidth,
            most=max(a[2] for a in arcs) / rate,
            colour=look(v, w, LinkKind.NVLINK, 2.6)["color"],
        )
    for v, (x, y) in d.place.items():
        sort = VertexKind(int(t.vertex_kind[v]))
        box(ax, (x, y), (d.width.get(v, _WIDTH[sort]), 0.5), _label(t, v), FILL[sort])
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


def _host_link(ax: Axes, d: NodeDrawing, t: Topology, ends: tuple[int, int], look: dict[str, Any]) -> None:
    """A line between neighbouring CPUs, otherwise an arch over the CPUs in between."""
    (x0, y0), (x1, y1) = sorted(d.place[v] for v in ends)
    hosts = [d.place[v] for v in d.place if t.vertex_kind[v] == VertexKind.HOST]
    between = sum(x0 < x < x1 and y == y0 for x, y in hosts)
    along = np.linspace(0, 1, 41)
    lift = 4 * min(0.16 + 0.13 * between, 0.5) * along * (1 - along) + 0.25 if between else 0.0 * along
    y = y0 + (y1 - y0) * along + lift
    ax.plot(x0 + (x1 - x0) * along, y, zorder=1, **look)


_WIDTH = {
    VertexKind.GPU: 0.72,
    VertexKind.NVSWITCH: 2.0,
    VertexKind.PCIE_SWITCH: 0.68,
    VertexKind.HOST: 0.6,
    VertexKind.NIC: 0.52,
    VertexKind.SWITCH: 0.8,
    VertexKind.CARD: 0.6,
}


def _both_gpus(t: Topology, v: int, w: int) -> bool:
    return bool(t.vertex_kind[v] == t.vertex_kind[w] == VertexKind.GPU)


def _label(t: Topology, v: int) -> str:
    name = t.vertex_name[v].split(".", 1)[1]
    words = {"gpu": "GPU ", "nic": "NIC ", "cpu": "CPU ", "pcie": "PCIe\nswitch ", "nvswitch": "NVSwitch "}
    stem = name.rstrip("0123456789")
    return (words.get(stem, f"{stem} ") + name[len(stem) :]).strip()


def _arc(ax: Axes, a: float, b: float, count: float, most: float, colour: Any) -> None:
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
            color=colour,
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
