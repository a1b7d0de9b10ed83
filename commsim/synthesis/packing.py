"""Trees packed into a network up to what its links can carry: column generation over arborescences.

The linear program: the least L such that the trees of every root carry its block, and no edge e carries more than
L * capacity(e). Its columns, the trees, are far too many to list. So a few are kept; the duals of the program over
these are prices of edges, under which Edmonds' cheapest arborescences are the trees that are missing. Any prices p also
bound what a packing needs from below, by sum over roots of block * cheapest tree / sum of p(e) * capacity(e), so the
distance to the optimum is known throughout. The optimum is the cut bound where vertices pass on what they take in
(Edmonds 1973; ForestColl, arXiv 2402.06787).

The first prices are those of multiplicative weights (Garg & Koenemann 1998), which find most trees quickly.

Where moves map the network and the demand onto themselves, some optimum is the same under all of them. So a tree
then stands for all its images, edges that are moved onto each other are one row of the program, and of ranks that are
only the first has trees: the program is as small as what is not alike, and its optimum that of the whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from commsim.errors import InfeasibleError
from commsim.synthesis.arborescence import PricedWays
from commsim.synthesis.forest import Forest, Tree, tree_of
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.symmetry import Symmetry
from commsim.topology.kinds import Float64, Int64

GAP = 1e-3
"""Share that a packing may lie above the limit: less than pieces in a pipeline lose."""

_ROUNDS = 12
"""Rounds of multiplicative weights before the first linear program."""
_TREES = 200
"""Trees at least after these rounds, where roots are few."""
_VARIED, _NEAR = 24, 0.3
"""Trees more for each program, where roots are few, and how far prices are moved for them, as a power of e."""
_STEEPNESS = 8.0
"""How much dearer the busiest edge is than an idle one, as a power of e, when these rounds begin; later still more."""
_FLAT = 1e-6
"""Of the mean price of a way: what a branch that does not start at the root costs more, so that of equal trees the
flattest is taken."""
_BENDS = (0.6, 0.85)
"""Parts of the level above which an edge costs more where loads are to be even."""
_PATIENCE, _PROGRESS = 6, 1e-4
"""Programs in a row that may gain less than this share, where nothing bounds what is still to be gained."""
_LEAST_S, _TIME_UP = 0.1, 1
"""Seconds that a program has at least, and HiGHS's status of one that had too few."""
_SMOOTH = 0.6
"""Share of the best prices so far in those that are tried (Wentges 1997): duals of few columns jump."""


@dataclass(frozen=True, eq=False)
class Demand:
    """What trees carry: ``out`` (n,) shares of the array out of each rank, ``into`` (n,) into each.

    ``free``: every part of one array goes into some root and out of it, wherever that is best (all_reduce).
    """

    out: Float64
    into: Float64
    free: bool = False


class Side:
    """Trees out of roots on a network, or into them: those on the network turned round."""

    def __init__(self, network: FlowNetwork, into: bool, need: Float64) -> None:
        self.into, self.need = into, need
        self.roots: list[int] = np.flatnonzero(need).tolist()
        self.ways = PricedWays(network.reversed() if into else network)
        # Numbers of acting vertices are those of the network: what copies and what adds may differ.
        acting = np.flatnonzero(network.copies | network.adds)
        self._number = np.concatenate([np.arange(network.n), network.n + np.searchsorted(acting, self.ways.acting)])

    def tree(self, parent: Int64, root: int) -> Tree:
        """The tree of these parents over the ways of now."""
        ways = {int(self._number[v]): self.ways.way(int(parent[v]), v) for v in np.flatnonzero(parent >= 0).tolist()}
        renamed = np.full(int(self._number.max()) + 1, -1, np.int64)
        renamed[self._number] = np.where(parent >= 0, self._number[parent], -1)
        return tree_of(renamed, root, ways, self.into)

    def cheapest(self, root: int) -> tuple[float, Tree]:
        """The price of a cheapest tree of the root, and the tree."""
        cost = self.ways.cost
        finite = cost[np.isfinite(cost)]
        parent = self.ways.cheapest(root, _FLAT * float(finite.mean()) if finite.size else 0.0)
        taken = np.flatnonzero(parent >= 0)
        return float(cost[parent[taken], taken].sum()), self.tree(parent, root)


class Packing:
    """The linear program as it stands: its columns ``trees``, their shares ``y``, its level L and its bound.

    ``edge_class`` (E,) numbers the rows of edges; without `symmetry` each edge is one. ``rate`` (classes,) are shares
    of the fastest edge's, summed over the class, so that levels are near 1. ``least``: the limit where it is known,
    which is needed where switches copy, as then a cheapest tree is not found for certain.
    """

    def __init__(
        self, network: FlowNetwork, demand: Demand, least: float = 0.0, symmetry: Symmetry | None = None
    ) -> None:
        self.network, self.symmetry = network, symmetry
        self.edge_class = np.arange(network.edges) if symmetry is None else symmetry.edge_class
        self.rate = np.bincount(self.edge_class, network.capacity / float(network.capacity.max()))
        if symmetry is not None:
            demand = replace(demand, out=symmetry.shared(demand.out), into=symmetry.shared(demand.into))
        self.demand = demand
        both = ((False, demand.out), (True, demand.into))
        self.sides = [Side(network, into, need) for into, need in both if need.any()]
        self.sure = not any(side.ways.acting.size for side in self.sides)
        self.trees: list[Tree] = []
        self._known: set[tuple[int, bool, bytes]] = set()
        self.bound, self.level, self.y = least, np.inf, np.zeros(0)
        self._chance = np.random.default_rng(0)

    @property
    def byte_s(self) -> float:
        """Seconds for each byte of the array at level 1."""
        return 1.0 / (float(self.network.capacity.max()) * float(self.network.unit))

    @property
    def roots(self) -> int:
        """Trees that any prices give, images counted."""
        images = 1 if self.symmetry is None else self.symmetry.moves
        return images * sum(len(side.roots) for side in self.sides)

    def add(self, tree: Tree) -> bool:
        """Whether the tree is new."""
        key = (tree.root, tree.into, np.sort(tree.edges).tobytes())
        if key in self._known:
            return False
        self._known.add(key)
        self.trees.append(tree)
        return True

    def price(self, price: Float64, load: Float64 | None = None) -> bool:
        """Cheapest trees under some prices (E,) become columns, and the bound rises; whether a tree is new.

        ``load`` (classes,): what the trees lay on edges is added to it.
        """
        new, total = False, 0.0
        costs = np.zeros((2, self.network.n))
        for side in self.sides:
            side.ways.set(price)
            for root in side.roots:
                cost, tree = side.cheapest(root)
                costs[int(side.into), root] = cost
                new |= self.add(tree)
                if load is not None:
                    np.add.at(load, self.edge_class[tree.edges], float(side.need[root]))
                total += float(side.need[root]) * cost
        if self.demand.free:
            total = float(costs[:, self.sides[0].roots].sum(axis=0).min())
        if self.sure:
            self._bound_by(total, price)
        return new

    def _bound_by(self, total: float, price: Float64) -> None:
        """The bound that prices (E,), alike for what is moved onto each other, give by all that trees cost."""
        of_class = np.zeros(self.rate.size)
        of_class[self.edge_class] = price
        self.bound = max(self.bound, total / float(of_class @ self.rate))

    def weigh(self, until: float = np.inf) -> None:
        """Multiplicative weights: every round prices edges by what the rounds before have laid on them.

        ``until``: on the clock of `time.process_time`, when no more rounds begin.
        """
        load = np.zeros(self.rate.size)
        price = 1.0 / self.rate
        rounds = max(_ROUNDS, _TREES // self.roots)
        for k in range(rounds):
            self.price(price[self.edge_class], load)
            if time.process_time() > until:
                return
            used = load / self.rate
            price = np.exp(_STEEPNESS * (1 + k / _ROUNDS) * (used / used.max() - 1.0)) / self.rate

    def _vary(self, price: Float64) -> bool:
        """Trees of few roots under prices near these: one tree for each program would take very many programs."""
        new = False
        for _ in range(_VARIED // self.roots):
            near = price * np.exp(_NEAR * self._chance.standard_normal(price.size)) + 1e-3 * float(price.mean())
            for side in self.sides:
                side.ways.set(near)
                for root in side.roots:
                    new |= self.add(side.cheapest(root)[1])
        return new

    def program(
        self,
        cost: Float64 | None = None,
        weight: float = 1.0,
        most: float | None = None,
        even: float = 0.0,
        until: float = np.inf,
    ) -> Float64:
        """Solves the program over the columns; the prices of edges, (E,).

        It minimises ``weight`` * L, and ``cost`` (trees,) of shares beside it, at a level of ``most`` at the utmost.
        ``even``: what an edge costs more for each part of that level by which it is above some thresholds, so that
        edges that need not be full are not. ``until``: on the clock of `time.process_time`, when the shares before are
        kept instead, if there are any; then no price is known.
        """
        from scipy.optimize import linprog
        from scipy.sparse import coo_array

        n, E, count = self.network.n, self.rate.size, len(self.trees)
        edges = self.edge_class[np.concatenate([tree.edges for tree in self.trees])]
        column = np.repeat(np.arange(count), [tree.edges.size for tree in self.trees])
        bends = _BENDS if even and most is not None else ()
        # The column of L stands after those of trees, and of shares of roots where they are free.
        level = count + (n if self.demand.free else 0)
        width = level + 1 + E * len(bends)
        e = np.arange(E)
        row, at, value = [edges, e], [column, np.full(E, level)], [np.ones(column.size), -self.rate]
        right: list[Float64] = [np.zeros(E)]
        for k, bend in enumerate(bends, 1):
            row, at = [*row, edges + k * E, e + k * E], [*at, column, level + 1 + (k - 1) * E + e]
            value = [*value, np.ones(column.size), -self.rate]
            right.append(np.multiply(self.rate, bend * float(most or 0.0)))
        ends = (np.concatenate(row), np.concatenate(at))
        upper = coo_array((np.concatenate(value), ends), shape=(E * (1 + len(bends)), width)).tocsr()
        equal, need = self._blocks(level, width)
        objective = np.zeros(width)
        objective[level] = weight
        objective[level + 1 :] = even / float(most or 1.0)
        if cost is not None:
            objective[:count] = cost
        bounds = np.zeros((width, 2))
        bounds[:, 1] = np.inf
        bounds[level, 1] = np.inf if most is None else most
        objective /= objective.max()  # seconds would drown in the solver's tolerance of 1e-7
        limits = np.concatenate(right)
        left = {"time_limit": max(until - time.process_time(), _LEAST_S)} if np.isfinite(until) and self.y.size else {}
        answer = linprog(objective, upper, limits, equal, need, bounds, method="highs", options=left)
        if answer.status == _TIME_UP and left:  # the shares before hold still
            self.y = np.concatenate([self.y, np.zeros(count - self.y.size)])
            return np.zeros(self.network.edges)
        if answer.status != 0:
            raise InfeasibleError(f"{self.network.name}: no packing of trees was found: {answer.message}")
        self.y, self.level = answer.x[:count], float(answer.x[level])
        of_class = np.maximum(-answer.ineqlin.marginals, 0.0).reshape(-1, E).sum(axis=0)
        return np.asarray(of_class[self.edge_class], np.float64)

    def moved(self, forest: Forest) -> Forest:
        """The forest of the whole network, of one of the trees that stand for others."""
        return forest if self.symmetry is None else self.symmetry.images(forest)

    def _blocks(self, level: int, width: int) -> tuple[Any, Float64]:
        """What the trees of each root must carry together: rows of the program, and their right sides."""
        from scipy.sparse import coo_array

        n, count = self.network.n, len(self.trees)
        place = [np.array([tree.root + (n if tree.into else 0) for tree in self.trees])]
        entry, at = [np.ones(count)], [np.arange(count)]
        need = np.concatenate([self.demand.out, self.demand.into])
        if self.demand.free:
            both = np.arange(2 * n)
            place, entry, at = [*place, both], [*entry, -np.ones(2 * n)], [*at, level - n + both % n]
            place, entry, at = [*place, np.full(n, 2 * n)], [*entry, np.ones(n)], [*at, level - n + np.arange(n)]
            need = np.append(np.zeros(2 * n), 1.0)
        ends = (np.concatenate(place), np.concatenate(at))
        equal = coo_array((np.concatenate(entry), ends), shape=(need.size, width)).tocsr()
        kept = np.flatnonzero(np.diff(equal.indptr) > 0)
        return equal[kept], np.asarray(need[kept], np.float64)

    def solve(
        self, gap: float = GAP, budget_s: float = np.inf, track: Callable[[float, float], None] | None = None
    ) -> None:
        """Adds trees until the level is within ``gap`` of the bound, no tree is missing, or time is up."""
        started = time.process_time()
        self.weigh(started + budget_s / 2)
        best: Float64 | None = None
        idle, least = 0, np.inf
        while idle < _PATIENCE:
            price = self.program()
            if track is not None:
                track(self.level, self.bound)
            if self.level <= self.bound * (1 + gap) or time.process_time() - started > budget_s:
                return
            idle, least = (0, self.level) if self.level < least * (1 - _PROGRESS) else (idle + 1, least)
            if self.sure:
                idle = 0
            before, new = self.bound, self._vary(price)
            if best is not None:
                smooth = _SMOOTH * best + (1 - _SMOOTH) * price
                new = self.price(smooth)
                if self.bound > before:
                    best = smooth
            if best is None or not new or self.bound <= before:
                known = self.bound
                new |= self.price(price)
                if best is None or self.bound > known:
                    best = price
            if not new:
                return
