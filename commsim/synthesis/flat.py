"""Flat trees: the shares of a packing chosen anew, so that short ways are taken where the level allows it.

The linear program of the packing with the seconds to the farthest end of each tree in its objective. New trees are
grown under its prices from the root on, each rank joined where price and distance from the root together are least;
this is a heuristic, as a cheapest tree of least depth is hard to find.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from commsim.synthesis.forest import Forest, Tree
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.packing import Packing
from commsim.topology.kinds import Float64

_ROUNDS = 5
"""Linear programs, each with more trees."""
EVEN = 0.01
"""Of the time that the busiest edge is busy: what it costs to load another as much."""
_TRADES = (1.0, 8.0)
"""What prices count against seconds when trees are grown."""
_NOTHING = 1e-7
"""Share of a tree below which it is left out."""


def flatten(
    packing: Packing,
    hop_s: Float64,
    nbytes: int,
    weight: float = 1.0,
    most: float | None = None,
    until: float = np.inf,
) -> Forest:
    """The forest of least seconds: those of the busiest edge, and ``weight`` times those to the farthest ends.

    ``hop_s`` (E,): seconds over each edge. With ``most`` (a level) only the ways count, at no more than this level.
    ``until``: on the clock of `time.process_time`, when no more trees are looked for.
    """
    p, whole_s = packing, packing.byte_s * nbytes
    at = {"weight": whole_s} if most is None else {"weight": 1e-3 * whole_s, "most": most, "even": EVEN * whole_s}
    far: list[float] = []
    if time.process_time() < until or not p.y.size:
        _grow(p, hop_s, np.zeros(p.network.edges), weight)
    value = np.inf
    for _ in range(_ROUNDS):
        far += [tree.farthest_s(hop_s) + float(hop_s[tree.edges].sum()) / p.network.n for tree in p.trees[len(far) :]]
        cost = weight * np.array(far)
        price = p.program(cost, **at, until=until)
        if time.process_time() > until:
            break
        now = float(cost @ p.y) + (whole_s * p.level if most is None else 0.0)
        if (most is None and now > value * (1 - 1e-3)) or not _grow(p, hop_s, price, weight):
            break
        value = now
    return p.moved(forest_of(p))


def _grow(p: Packing, hop_s: Float64, price: Float64, weight: float) -> bool:
    """Adds flat trees of every root under these prices; whether any is new."""
    new = False
    for side in p.sides:
        ways = side.ways
        ways.set(price + weight * hop_s, hop_s)
        joined = np.isfinite(ways.cost)
        priced = np.where(joined, np.maximum(ways.cost - weight * np.where(joined, ways.late, 0.0), 0.0), np.inf)
        for root in side.roots:
            for more in _TRADES if price.any() else (1.0,):
                new |= p.add(side.tree(ways.flattest(root, priced * (more / weight)), root))
    return new


def forest_of(packing: Packing) -> Forest:
    """The trees of a packing that carry something, with their shares."""
    p = packing
    kept = np.flatnonzero(p.y > _NOTHING)
    chosen = [p.trees[k] for k in kept.tolist()]
    if p.demand.free:
        return paired(p.network, chosen, p.y[kept].tolist())
    share = p.y[kept] / p.y[kept].sum()
    trees = tuple(chosen)
    return Forest(p.network, share, into=trees) if p.demand.into.any() else Forest(p.network, share, out=trees)


def paired(network: FlowNetwork, trees: Sequence[Tree], share: Sequence[float], apart: bool = False) -> Forest:
    """Trees into each root and out of it side by side, cut where one of either ends."""
    out: list[Tree] = []
    into: list[Tree] = []
    shares: list[float] = []
    for root in dict.fromkeys(tree.root for tree in trees):
        own = [(tree, part) for tree, part in zip(trees, share, strict=True) if tree.root == root]
        up, down = ([(tree, part) for tree, part in own if tree.into == inward] for inward in (True, False))
        while up and down:
            (in_tree, coming), (out_tree, going) = up[0], down[0]
            part = min(coming, going)
            if part > _NOTHING:
                into.append(in_tree)
                out.append(out_tree)
                shares.append(part)
            up[:1] = [(in_tree, coming - part)] if coming - part > _NOTHING else []
            down[:1] = [(out_tree, going - part)] if going - part > _NOTHING else []
    total = np.array(shares)
    return Forest(network, total / total.sum(), tuple(out), tuple(into), apart)
