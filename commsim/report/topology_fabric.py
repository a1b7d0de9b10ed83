"""The fabric of a topology picture. Trees: nodes with a row of ports, leaves, spines, cores; long rows are cut."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.report.topology_direct import draw_dragonfly, draw_torus
from commsim.report.topology_shapes import FILL, INK, LINE, box, cut
from commsim.topology.graph import LinkKind, Topology, VertexKind
from commsim.topology.tree import TreeRoutes, TreeShape

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from commsim.report.link_heat import Heat

_MOST_RAILS = 8
_SPINES, _CORES = 2.35, 3.6  # heights of the rows
_NODE = 1.9


@dataclass
class _Row:
    """Places along a row of switches, by their number."""

    place: dict[int, float] = field(default_factory=dict)


def draw_fabric(ax: Axes, t: Topology, heat: Heat | None = None) -> None:
    """The picture of the fabric, by its kind; of trees in the colours of `heat` if it is given."""
    fabric = t.fabric_routes
    assert fabric is not None
    fabric = getattr(fabric, "base", fabric)  # static routes change no cable
    if isinstance(fabric, TreeRoutes):
        _draw_tree(ax, t, fabric, heat)
    elif t.kind == "torus":
        draw_torus(ax, t)
    else:
        draw_dragonfly(ax, t)
    ax.axis("off")


def _draw_tree(ax: Axes, t: Topology, fabric: TreeRoutes, heat: Heat | None) -> None:
    s = fabric.shape
    groups = cut(s.groups, 3)
    most_nodes = 4 if len(groups) == 1 else 3
    leaves, spans = _Row(), dict[int, list[float]]()
    x = 0.0
    for g in groups:
        if g is None:
            ax.text(x + 0.1, 1.1, "...", fontsize=18, ha="center", va="center", color=INK)
            x += 0.8
            continue
        nodes = range(g * t.nodes_per_leaf, min((g + 1) * t.nodes_per_leaf, t.nodes))
        end = _draw_group(ax, t, s, nodes, x, most_nodes, leaves, heat)
        spans.setdefault(g // s.groups_per_pod, []).extend((x, end - 0.2))
        x = end + 0.6
    middle = (x - 0.8) / 2
    half = max((x + 0.4) / 2, 4.2)  # few nodes are not blown up to the width of the page
    ax.set_xlim(middle - half, middle + half)
    if s.spines:
        _draw_spines(ax, t, fabric, leaves, spans, (middle - half, middle + half), heat)
    ax.set_ylim(-0.75, 1.6 if not s.spines else _SPINES + 0.4 if s.pods == 1 else _CORES + 0.4)


def _draw_group(
    ax: Axes, t: Topology, s: TreeShape, nodes: range, x: float, most_nodes: int, leaves: _Row, heat: Heat | None
) -> float:
    """The nodes under one group of leaves, from x on; returns where they end."""
    shown = cut(len(nodes), most_nodes)
    end = x + sum(0.7 if k is None else _NODE for k in shown)
    lanes = cut(s.lanes, _MOST_RAILS)
    group = nodes[0] // t.nodes_per_leaf
    for i, lane in enumerate(lanes):
        at = x + (i + 0.5) * (end - x - 0.2) / len(lanes)
        if lane is None:
            ax.text(at, 1.1, "...", ha="center", va="center", color=INK, fontsize=12)
            continue
        leaves.place[group * s.lanes + lane] = at
        wide = min(0.85 * (end - x - 0.2) / len(lanes), 2.4)
        box(ax, (at, 1.1), (wide, 0.42), _leaf_label(t, s, lane, wide), FILL[VertexKind.SWITCH])
    at = x
    for k in shown:
        if k is None:
            ax.text(at + 0.25, -0.2, "...", ha="center", va="center", color=INK, fontsize=14)
            at += 0.7
            continue
        _draw_ports(ax, t, nodes[k], at + (_NODE - 0.2) / 2, leaves, heat)
        at += _NODE
    return end


def _leaf_label(t: Topology, s: TreeShape, lane: int, wide: float) -> str:
    if t.kind == "single_switch":
        return "switch" if s.lanes == 1 else f"switch\nplane {lane}"
    if s.lanes == 1:
        return "leaf"
    if t.kind == "fat_tree":
        return f"leaf\nplane {lane}" if wide > 0.6 else f"leaf\n{lane}"
    return f"leaf\nrail {lane}" if wide > 0.5 else f"rail\n{lane}"


def _look(heat: Heat | None, links: Iterable[int], kind: LinkKind, wide: float, alpha: float) -> dict[str, Any]:
    """Colour and width of a line."""
    return {"color": LINE[kind], "lw": wide, "alpha": alpha} if heat is None else heat.look(links, wide + 0.8)


def _draw_ports(ax: Axes, t: Topology, node: int, x: float, leaves: _Row, heat: Heat | None) -> None:
    fabric = t.fabric_routes
    assert fabric is not None
    nics = [n for n in cut(int(t.nics_of_nodes[node]), _MOST_RAILS) if n is not None]
    for i, n in enumerate(nics):
        port = x - 0.75 + 1.5 * (i + 0.5) / len(nics)
        leaf = int(fabric.leaf[node, n])
        if leaf in leaves.place:
            style = "-" if t.usable_nics[node, n] else ":"
            ends = [port, leaves.place[leaf]]
            links = (int(fabric.port_up[node, n]), int(fabric.port_down[node, n]))
            ax.plot(ends, [0.06, 0.9], ls=style, zorder=1, **_look(heat, links, LinkKind.NETWORK, 0.9, 0.75))
        ax.plot([port], [0.06], marker="s", markersize=5, color=FILL[VertexKind.NIC], mec=INK, mew=0.6, zorder=3)
    group = t.groups[int(t.node_group[node])]
    gpus = f"{group.ranks_per_node} GPUs" if t.uniform else f"{group.ranks_per_node} x {group.gpu.model}"
    box(ax, (x, -0.25), (1.7, 0.5), f"node {node}\n{gpus}", "#eef6e7")


def _draw_spines(
    ax: Axes,
    t: Topology,
    fabric: TreeRoutes,
    leaves: _Row,
    spans: dict[int, list[float]],
    page: tuple[float, float],
    heat: Heat | None,
) -> None:
    """A row of spines over each pod that is drawn, and the cores over all; a box per plane where there are several."""
    s = fabric.shape
    spines = _Row()
    for pod, span in spans.items():
        left, right = (min(span), max(span)) if s.pods > 1 else page
        middle = (left + right) / 2
        room = max(right - left, 1.5)
        shown = cut(s.planes, 6) if s.planes > 1 else cut(s.spines, 6 if s.pods == 1 else 3)
        step = min(2.0, room / len(shown))
        for i, k in enumerate(shown):
            x = middle + (i - (len(shown) - 1) / 2) * step
            if k is None:
                ax.text(x, _SPINES, "...", ha="center", va="center", color=INK, fontsize=12)
                continue
            spines.place[pod * max(s.planes, s.spines) + k] = x
            for leaf, at in leaves.place.items():
                here = leaf // s.lanes // s.groups_per_pod == pod
                if here and (s.planes == 1 or leaf % s.lanes % s.planes == k):
                    ends = [1.31, _SPINES - 0.2]
                    own = slice(None) if s.planes > 1 else slice(k, k + 1)
                    links = [*fabric.up[leaf, own].tolist(), *fabric.down[leaf, own].tolist()]
                    ax.plot([at, x], ends, zorder=1, **_look(heat, links, LinkKind.FABRIC, 1.1, 0.8))
            box(ax, (x, _SPINES), (min(1.7, 0.88 * step), 0.42), _spine_label(t, s, k, step), FILL[VertexKind.SWITCH])
        if s.pods > 1:
            ax.text(
                left, _SPINES + 0.36, f"pod {pod}", fontsize=9, style="italic", color="#566573", va="bottom", zorder=3
            )
    if s.pods > 1:
        _draw_cores(ax, fabric, spines, list(spans), (page[0] + page[1]) / 2, heat)


def _spine_label(t: Topology, s: TreeShape, k: int, step: float) -> str:
    if s.planes == 1:
        return "spines" if s.spines == 1 else f"spine {k}"
    count = "spines" if s.spines == 1 else f"{s.spines} spines"
    what = "rail" if t.kind == "rail_only" else "plane"
    return f"{count}\n{what} {k}" if step < 1.2 else f"{count}, {what} {k}"


def _draw_cores(ax: Axes, fabric: TreeRoutes, spines: _Row, pods: list[int], middle: float, heat: Heat | None) -> None:
    s = fabric.shape
    total = s.spines * s.cores_per_spine
    shown = cut(s.planes, 6) if s.planes > 1 else cut(total, 6)
    width = max(s.planes, s.spines)
    for i, k in enumerate(shown):
        x = middle + (i - (len(shown) - 1) / 2) * 1.5
        if k is None:
            ax.text(x, _CORES, "...", ha="center", va="center", color=INK, fontsize=12)
            continue
        below = k if s.planes > 1 else k // s.cores_per_spine
        for pod in pods:
            at = spines.place.get(pod * width + below, np.nan)
            ends = [_SPINES + 0.21, _CORES - 0.21]
            links = [
                int(link)
                for table in (fabric.core_up, fabric.core_down)
                for link in (
                    table[pod, k].ravel()
                    if s.planes > 1
                    else table[pod, 0, below, k % s.cores_per_spine : k % s.cores_per_spine + 1]
                )
            ]
            ax.plot([at, x], ends, zorder=1, **_look(heat, links, LinkKind.FABRIC, 1.1, 0.8))
        name = f"{total} cores\nplane {k}" if s.planes > 1 else "cores" if total == 1 else f"core {k}"
        box(ax, (x, _CORES), (1.3, 0.42), name, FILL[VertexKind.SWITCH])
