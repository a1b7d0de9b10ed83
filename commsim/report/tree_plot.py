"""Pictures of a synthesized schedule: how busy its trees keep the links of the machine, and the largest trees."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np

from commsim.report import style
from commsim.report.topology_plot import plot_topology
from commsim.report.topology_shapes import INK, MUTED, Heat
from commsim.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from commsim.synthesis.forest import Tree
    from commsim.synthesis.search import Synthesis
    from commsim.topology.graph import Topology

_MOST = 6
"""Shapes of trees that are drawn."""
_LEAST = 0.01
"""Of what one rank has: what the trees of a shape carry at least to be drawn."""
_NODES = (*style.PREDICTED_COLOURS, *style.MEASURED_COLOURS[:4])
_MOST_LABELLED = 40
"""Ends of a tree up to which each has its number."""


def plot_load(topology: Topology, one: Synthesis) -> Figure:
    """The machine, its links the hotter the longer they carry data."""
    network = one.question.network
    busy = np.full(topology.link_src.size, np.nan)
    for edge, share in enumerate((one.link_s / max(one.seconds, one.packed_s)).tolist()):
        if share > 0:
            busy[list(network.links[edge])] = share
    return plot_topology(topology, Heat(busy), _title(one))


def plot_trees(one: Synthesis) -> Figure:
    """The trees that carry most of what one rank has, from its root down, one of each shape; colours are nodes."""
    forest = one.forest
    trees = forest.out or forest.into
    root = trees[0].root
    own = [k for k, tree in enumerate(trees) if tree.root == root and tree.branches]
    whole = float(forest.share[own].sum())
    known: dict[Shape, int] = {}
    alike: dict[int, list[int]] = {}
    for k in sorted(own, key=lambda k: -forest.share[k]):
        alike.setdefault(_shape(trees[k], one, known), []).append(k)
    parts = sorted(((float(forest.share[group].sum()) / whole, group) for group in alike.values()), reverse=True)
    chosen = [(part, group) for part, group in parts[:_MOST] if part > _LEAST]
    columns = min(len(chosen), 3)
    rows = -(-len(chosen) // columns)
    width = max(6.3, 4.2 * columns)
    with style.drawing(width, 2.9 * rows + 0.7, nrows=rows, ncols=columns, squeeze=False) as (figure, grid):
        for axes in grid.flat:
            axes.set_axis_off()
        for axes, (part, group) in zip(grid.flat, chosen, strict=False):
            _draw(axes, trees[group[0]], one)
            several = f", {len(group)} trees alike" if len(group) > 1 else ""
            axes.set_title(f"{100 * part:.3g} % of what goes {_way(trees[group[0]])} rank {root}{several}", fontsize=9)
        shown = sum(len(group) for _, group in chosen)
        more = f"; {shown} of {len(own)} trees of rank {root}" if len(own) > shown else ""
        more += "; a colour for each node" if np.unique(one.question.network.node).size > 2 else ""
        figure.suptitle(fill(_title(one) + more, int(13 * width)), fontsize=10, color=INK)
    return figure


Shape = tuple[bool, bool, tuple[int, ...]]
"""Of what hangs below a vertex: whether it is a rank, and of its parent's node; the numbers of the shapes below it."""


def _shape(tree: Tree, one: Synthesis, known: dict[Shape, int]) -> int:
    """The number of a tree's shape, the same whichever ranks stand where; new ones are added to those known."""
    below = _below(tree)
    order, parent = [tree.root], {tree.root: tree.root}
    for vertex in order:
        for child in below.get(vertex, []):
            parent[child] = vertex
            order.append(child)
    number: dict[int, int] = {}
    for vertex in reversed(order):
        beside = _node(vertex, one) == _node(parent[vertex], one)
        children = tuple(sorted(number[child] for child in below.get(vertex, [])))
        number[vertex] = known.setdefault((vertex < one.question.network.n, beside, children), len(known))
    return number[tree.root]


def _below(tree: Tree) -> dict[int, list[int]]:
    """What hangs below each vertex, seen from the root."""
    below: dict[int, list[int]] = {}
    for branch in tree.branches:
        near, far = (branch.dst, branch.src) if tree.into else (branch.src, branch.dst)
        below.setdefault(near, []).append(far)
    return below


def _node(vertex: int, one: Synthesis) -> int:
    """The node of a rank, or of a switch that acts, behind the ranks; -1 of a fabric's."""
    network = one.question.network
    at = (
        network.ranks[vertex]
        if vertex < network.n
        else np.flatnonzero(network.copies | network.adds)[vertex - network.n]
    )
    return int(network.node[int(at)])


def _way(tree: Tree) -> str:
    return "to" if tree.into else "out of"


def _title(one: Synthesis) -> str:
    q = one.question
    return f"{q.collective} of {format_bytes(q.size)} on {q.network.name}: {one.ratio:.3f} of the limit"


def _draw(axes: Axes, tree: Tree, one: Synthesis) -> None:
    """One tree, its root above, ends side by side in the order of the branches."""
    network = one.question.network
    below = _below(tree)
    x: dict[int, float] = {}
    y: dict[int, int] = {tree.root: 0}
    stack, order = [tree.root], []
    while stack:
        vertex = stack.pop()
        order.append(vertex)
        for child in reversed(below.get(vertex, [])):
            y[child] = y[vertex] + 1
            stack.append(child)
    ends = [vertex for vertex in order if vertex not in below]
    x.update({vertex: float(place) for place, vertex in enumerate(ends)})
    for vertex in reversed(order):
        if vertex in below:
            x[vertex] = float(np.mean([x[child] for child in below[vertex]]))
    for near, children in below.items():
        for far in children:
            axes.plot([x[near], x[far]], [-y[near], -y[far]], color=MUTED, linewidth=0.8, zorder=1)
    for vertex in order:
        is_rank = vertex < network.n
        node = _node(vertex, one)
        fill = _NODES[node % len(_NODES)] if node >= 0 else MUTED
        axes.scatter([x[vertex]], [-y[vertex]], s=90, color=fill, zorder=2, marker="o" if is_rank else "s")
        if len(order) <= _MOST_LABELLED and is_rank:
            axes.text(x[vertex], -y[vertex], str(vertex), fontsize=6, color="white", ha="center", va="center", zorder=3)
    axes.margins(0.08, 0.15)
