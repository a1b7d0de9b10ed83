"""Picture of a topology: one node in detail, and above it the fabric with its nodes, leaves and spines.

Only what differs is drawn: all nodes are alike, so one stands for them, and long rows of nodes, rails and leaf
groups are cut with an ellipsis.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.report.link_heat import Heat, colour_bar, node_heat
from commsim.report.topology_fabric import draw_fabric
from commsim.report.topology_node import draw_node, node_drawing
from commsim.report.topology_shapes import INK, LINE, LINK_NAME, MUTED, network_name
from commsim.report.topology_tables import fabric_words
from commsim.topology.graph import LinkKind, Topology
from commsim.topology.tree import TreeRoutes
from commsim.units import format_bandwidth, gb_per_s, gbit_per_s

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_topology(topology: Topology, heat: Heat | None = None, title: str = "") -> Figure:
    """The picture as a matplotlib Figure; writes nothing. With `heat` links are coloured by how busy they were."""
    from matplotlib.figure import Figure

    drawing = node_drawing(topology)
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
        draw_fabric(figure.add_subplot(grid[0]), topology, heat)
    draw_node(figure.add_subplot(grid[-1]), topology, drawing, None if heat is None else node_heat(topology, heat))
    _headline(figure, topology, title)
    if heat is None:
        _legend(figure, topology)
    else:
        colour_bar(figure, height)
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
