"""Flat trees: the shares of a packing chosen anew, so that short ways are taken where the level allows it.

The linear program of the packing with the seconds to the farthest end of each tree in its objective. New trees are
grown under its prices from the root on, each rank joined where price and distance from the root together are least;
this is a heuristic, as a cheapest tree of least depth is hard to find.
"""

from __future__ import annotations

import time

import numpy as np

from commsim.synthesis.forest import Forest, Tree
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
    ``until``: on the clock of `time.monotonic`, when no more trees are looked for.
    """
    p, whole_s = packing, packing.byte_s * nbytes
    at = {"weight": whole_s} if most is None else {"weight": 1e-3 * whole_s, "most": most, "even": EVEN * whole_s}
    far: list[float] = []
    if time.monotonic() < until or not p.y.size:
        _grow(p, hop_s, np.zeros(p.network.edges), weight)
    value = np.inf
    for _ in range(_ROUNDS):
        far += [tree.farthest_s(hop_s) + float(hop_s[tree.edges].sum()) / p.network.n for tree in p.trees[len(far) :]]
        cost = weight * np.array(far)
        price = p.program(cost, **at, until=until)
        if time.monotonic() > until:
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
        return _paired(p, chosen, p.y[kept])
    share = p.y[kept] / p.y[kept].sum()
    into = bool(p.demand.into.any())
    return Forest(p.network, share, **{"into" if into else "out": tuple(chosen)})


def _paired(p: Packing, trees: list[Tree], share: Float64) -> Forest:
    """Trees into each root and out of it side by side, cut where one of either ends."""
    out: list[Tree] = []
    into: list[Tree] = []
    shares: list[float] = []
    for root in dict.fromkeys(tree.root for tree in trees):
        sides = [
            [
                [tree, part]
                for tree, part in zip(trees, share.tolist(), strict=True)
                if tree.root == root and tree.into == up
            ]
            for up in (True, False)
        ]
        up, down = sides
        while up and down:
            part = min(up[0][1], down[0][1])
            if part > _NOTHING:
                into.append(up[0][0])
                out.append(down[0][0])
                shares.append(part)
            for side in sides:
                side[0][1] -= part
                if side[0][1] <= _NOTHING:
                    side.pop(0)
    total = np.array(shares)
    return Forest(p.network, total / total.sum(), tuple(out), tuple(into))
