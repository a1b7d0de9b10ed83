"""The fabric of a topology picture: spines, leaves, and nodes with a row of ports; long rows are cut short."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.report.topology_shapes import FILL, INK, LINE, box, cut
from commsim.topology.graph import LinkKind, Topology, VertexKind

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MOST_RAILS = 8


def draw_fabric(ax: Axes, t: Topology) -> None:
    """Spines, leaves and nodes; a node shows its NICs as a row of ports."""
    fabric = t.fabric_routes
    assert fabric is not None
    groups = -(-t.nodes // fabric.nodes_per_leaf)
    rails = int(fabric.leaf[0].max() - fabric.leaf[0].min()) + 1
    shown_groups = cut(groups, 3)
    most_nodes = 4 if len(shown_groups) == 1 else 3
    x, centres = 0.0, list[float]()
    for g in shown_groups:
        if g is None:
            ax.text(x + 0.1, 1.1, "...", fontsize=18, ha="center", va="center", color=INK)
            x += 0.8
            continue
        first, last = g * fabric.nodes_per_leaf, min((g + 1) * fabric.nodes_per_leaf, t.nodes)
        x = _draw_group(ax, t, range(first, last), x, rails, most_nodes, centres) + 0.6
    middle = (x - 0.8) / 2
    half = max((x + 0.4) / 2, 4.2)  # few nodes are not blown up to the width of the page
    ax.set_xlim(middle - half, middle + half)
    if fabric.up.shape[1]:
        _draw_spines(ax, fabric.up.shape[1], centres, middle)
    ax.set_ylim(-0.75, 2.75 if fabric.up.shape[1] else 1.6)
    ax.axis("off")


def _draw_group(
    ax: Axes, t: Topology, nodes: range, x: float, rails: int, most_nodes: int, centres: list[float]
) -> float:
    """The nodes under one group of leaves, from x on; returns where they end."""
    shown = cut(len(nodes), most_nodes)
    width = 1.9
    end = x + sum(0.7 if k is None else width for k in shown)
    leaves = cut(rails, _MOST_RAILS)
    places: dict[int, float] = {}
    for i, r in enumerate(leaves):
        at = x + (i + 0.5) * (end - x - 0.2) / len(leaves)
        if r is None:
            ax.text(at, 1.1, "...", ha="center", va="center", color=INK, fontsize=12)
            continue
        places[r] = at
        centres.append(at)
        name = "switch" if t.fabric_routes is not None and len(t.vertex_name) == _only_switch(t) else f"leaf\nrail {r}"
        if rails == 1 and name != "switch":
            name = "leaf"
        wide = min(0.85 * (end - x - 0.2) / len(leaves), 2.4)
        box(ax, (at, 1.1), (wide, 0.42), name, FILL[VertexKind.SWITCH])
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
    nics = [n for n in cut(t.nics_per_node, _MOST_RAILS) if n is not None]
    fabric = t.fabric_routes
    assert fabric is not None
    first = int(fabric.leaf[node].min())
    for i, n in enumerate(nics):
        port = x - 0.75 + 1.5 * (i + 0.5) / len(nics)
        rail = int(fabric.leaf[node, n]) - first
        if rail in places:
            ax.plot([port, places[rail]], [0.06, 0.9], color=LINE[LinkKind.NETWORK], lw=0.9, alpha=0.75, zorder=1)
        ax.plot([port], [0.06], marker="s", markersize=5, color=FILL[VertexKind.NIC], mec=INK, mew=0.6, zorder=3)
    box(ax, (x, -0.25), (1.7, 0.5), f"node {node}\n{t.ranks_per_node} GPUs", "#eef6e7")


def _draw_spines(ax: Axes, spines: int, leaves: list[float], middle: float) -> None:
    shown = [s for s in cut(spines, 6) if s is not None]
    for i, s in enumerate(shown):
        x = middle + (i - (len(shown) - 1) / 2) * 2.0
        for leaf in leaves:
            ax.plot([leaf, x], [1.31, 2.15], color=LINE[LinkKind.FABRIC], lw=1.1, alpha=0.8, zorder=1)
        name = "spines" if spines == 1 else f"spine {s}"
        box(ax, (x, 2.35), (1.7, 0.42), name, FILL[VertexKind.SWITCH])
