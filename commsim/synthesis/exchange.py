"""Paths packed into a network: what pairs of ranks send each other (all_to_all, gather, scatter, send_recv).

The same linear program as that of trees, with a path for a tree and a pair for a root. Prices of edges and seconds over
them add up along a path alike, so that cheapest paths answer both: how little the busiest edge carries, and how short
ways are at that level.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from commsim.synthesis.arborescence import PricedWays
from commsim.synthesis.flat import EVEN
from commsim.synthesis.forest import Branch, Forest, Tree
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.packing import Demand, Packing
from commsim.synthesis.symmetry import Symmetry
from commsim.topology.kinds import Float64

_ROUNDS = 4
"""Linear programs for short paths."""
_NOTHING = 1e-7
"""Of the largest share: one below which a path is left out."""


class PathPacking(Packing):
    """Paths of pairs and their shares; ``share`` (n, n): of the array from each rank to each other.

    Under a `symmetry`, which must leave the shares as they are, pairs of the first rank of each class stand for all.
    """

    def __init__(
        self, network: FlowNetwork, share: Float64, least: float = 0.0, symmetry: Symmetry | None = None
    ) -> None:
        nothing = np.zeros(network.n)
        super().__init__(network, Demand(nothing, nothing), least, symmetry)
        self.share = share.copy() if symmetry is None else share * symmetry.shared(np.ones(network.n))[:, None]
        np.fill_diagonal(self.share, 0.0)
        self.pairs: list[tuple[int, int]] = [(int(a), int(b)) for a, b in np.argwhere(self.share > 0)]
        self._number = {pair: k for k, pair in enumerate(self.pairs)}
        # Paths may lead over ranks; what copies only passes on here.
        self._ways = PricedWays(network)
        self.sure = True

    @property
    def roots(self) -> int:
        """Paths that any prices give."""
        return len(self.pairs)

    def _shortest(self, price: Float64) -> tuple[float, list[Tree]]:
        """What all pairs cost together, each over its cheapest path, and the paths."""
        paths = Paths(self._ways, price)
        total, trees = 0.0, []
        for a, b in self.pairs:
            total += float(self.share[a, b]) * paths.cost(a, b)
            trees.append(paths.tree(a, b))
        return total, trees

    def price(self, price: Float64, load: Float64 | None = None) -> bool:
        """Cheapest paths under some prices become columns, and the bound rises; whether a path is new."""
        total, trees = self._shortest(price)
        if load is not None:
            for (a, b), tree in zip(self.pairs, trees, strict=True):
                np.add.at(load, self.edge_class[tree.edges], float(self.share[a, b]))
        self._bound_by(total, price)
        return sum(self.add(tree) for tree in trees) > 0

    def _blocks(self, level: int, width: int) -> tuple[Any, Float64]:
        del level
        from scipy.sparse import coo_array

        pair = np.array([self._number[ends_of(tree)] for tree in self.trees])
        ends = (pair, np.arange(len(self.trees)))
        equal = coo_array((np.ones(pair.size), ends), shape=(len(self.pairs), width)).tocsr()
        return equal, np.array([self.share[pair] for pair in self.pairs])

    def shorten(self, hop_s: Float64, nbytes: int, weight: float = 1.0, most: float | None = None) -> Forest:
        """The forest of least seconds, as `flatten` has it for trees."""
        whole_s, far = self.byte_s * nbytes, list[float]()
        for tree in self._shortest(hop_s)[1]:
            self.add(tree)
        share_of = 1.0 / float(self.share.sum())
        for _ in range(_ROUNDS):
            far += [tree.farthest_s(hop_s) for tree in self.trees[len(far) :]]
            at = (
                {"weight": whole_s}
                if most is None
                else {"weight": 1e-3 * whole_s, "most": most, "even": EVEN * whole_s}
            )
            cost = weight * share_of * np.array(far)
            price = self.program(cost, **at)
            if not sum(self.add(tree) for tree in self._shortest(price + weight * share_of * hop_s)[1]):
                break
        kept = np.flatnonzero(self.y > _NOTHING * float(self.y.max()))
        return self.moved(Forest(self.network, self.y[kept], out=tuple(self.trees[k] for k in kept.tolist())))


def ends_of(tree: Tree) -> tuple[int, int]:
    """The pair that a path joins."""
    return tree.root, tree.branches[-1].dst


class Paths:
    """Cheapest paths between all ranks under prices, over other ranks too."""

    def __init__(self, ways: PricedWays, price: Float64) -> None:
        self._ways = ways
        ways.set(price)
        n = ways.network.n
        best = ways.cost[:n, :n].copy()
        ends = best.shape[0]
        if ways.ends.size > n:  # switches that copy pass on like others
            best = ways.cost.copy()
            ends = best.shape[0]
        np.fill_diagonal(best, 0.0)
        self._next = np.broadcast_to(np.arange(ends), best.shape).copy()
        for k in range(ends):
            through = best[:, [k]] + best[[k], :]
            shorter = through < best * (1 - 1e-12)
            best = np.where(shorter, through, best)
            self._next = np.where(shorter, self._next[:, [k]], self._next)
        self._cost = best

    def cost(self, a: int, b: int) -> float:
        """Price of the cheapest path."""
        return float(self._cost[a, b])

    def tree(self, a: int, b: int) -> Tree:
        """The path, cut at ranks."""
        n, branches, way = self._ways.network.n, list[Branch](), tuple[int, ...]()
        at = start = a
        while at != b:
            then = int(self._next[at, b])
            way += self._ways.way(at, then)
            at = then
            if at < n:
                branches.append(Branch(start, at, way))
                start, way = at, ()
        return Tree(a, tuple(branches))
