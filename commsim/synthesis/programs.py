"""Limits as linear programs (HiGHS): exchanges between pairs, sums that are spread, switches that cannot pass all on.

A program's unknowns are rates in units of the network. Flows are put together by their source: a source's flow goes to
all its receivers. Flows that meet at a rank's vertex may be passed on there, as trees and stores of ranks do.

Where moves map the network onto itself, the mean of the images of an optimum is one too. So only the first ranks of
those that are moved onto each other have flows, and edges that are moved onto each other are one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from commsim.errors import InfeasibleError
from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.symmetry import Symmetry
from commsim.topology.kinds import Float64, Int64

_NOTHING = 1e-9
"""Price of an edge, of all prices, below which it does not bind."""
_TOLERANCE = 1e-10
"""HiGHS's least tolerance on feasibility."""


@dataclass(frozen=True)
class ProgramLimit:
    """Arrays, or demands, a second in units of the network; ``binding``: the edges that say so, with their ``price``.

    Prices (edges,) are shares of the time that an edge is to blame for. ``flow`` (sources, edges) are units on each
    edge for each of the sources, where the program is one of flows by source.
    """

    rate: float
    binding: tuple[int, ...]
    price: Float64
    flow: Float64 | None = None


class _Alike:
    """What is alike under moves: the ``ranks`` that stand for all, the one for each rank, the edges of each class."""

    def __init__(self, network: FlowNetwork, symmetry: Symmetry | None) -> None:
        from scipy.sparse import csr_array

        every, edges = np.arange(network.n), np.arange(network.edges)
        self.symmetry = symmetry
        self.moves = 1 if symmetry is None else symmetry.moves
        self.ranks, self.stands = np.unique(every if symmetry is None else symmetry.first, return_inverse=True)
        edge_class = edges if symmetry is None else symmetry.edge_class
        self.many = np.bincount(edge_class).astype(np.float64)
        self.of_class = csr_array((np.ones(edges.size), (edges, edge_class)), shape=(edges.size, self.many.size))
        self.edge_class = edge_class

    def spread(self, of_ranks: Float64) -> Float64:
        """The flows of all ranks, (n, E), from those of the ranks that stand for them."""
        if self.symmetry is None:
            return of_ranks
        return np.asarray(of_ranks[self.stands[:, None], self.symmetry.edge[self.symmetry.to_first]], np.float64)


def exchange_limit(network: FlowNetwork, demand: Float64, symmetry: Symmetry | None = None) -> ProgramLimit:
    """The most that all pairs can be served at once (maximum concurrent flow), ``demand`` (n, n) from row to column.

    The rate is how often a second all demands are served, in units of the network. A `symmetry` must leave the demand
    as it is.
    """
    E, V, alike = network.edges, network.vertices, _Alike(network, symmetry)
    wanted = demand.copy()
    np.fill_diagonal(wanted, 0.0)
    sources = alike.ranks[wanted[alike.ranks].sum(axis=1) > 0]
    if not sources.size:
        return ProgramLimit(np.inf, (), np.zeros(E))
    k = sources.size
    arrives = np.zeros((k, V))
    arrives[:, network.ranks] = wanted[sources]
    arrives[np.arange(k), network.ranks[sources]] = -wanted[sources].sum(axis=1)
    from scipy.sparse import csr_array, eye_array, hstack, kron

    conserved = hstack([kron(eye_array(k), _incidence(network)), csr_array(-arrives.reshape(-1, 1))])
    shared = hstack([kron(np.ones((1, k)), alike.of_class.T), csr_array((alike.many.size, 1))])
    cost = np.zeros(k * E + 1)
    cost[-1] = -1.0
    room = np.bincount(alike.edge_class, _scaled(network)) / alike.moves
    x, price = _solved(cost, shared, room, conserved)
    scale = float(network.capacity.max())
    flow = np.zeros((alike.ranks.size, E))
    flow[np.isin(alike.ranks, sources)] = x[:-1].reshape(k, E) * scale
    return _limit(float(x[-1]) * scale, price[alike.edge_class], alike.spread(flow))


def reduce_spread_limit(network: FlowNetwork, symmetry: Symmetry | None = None) -> ProgramLimit:
    """How many arrays a second can be summed at ranks and spread from there, both at once (all_reduce).

    Every part of an array is added on its way to some rank, whichever is best, and its sum goes from there to all.
    Vertices without a rank pass on what they take in, or copy and add where the network says so.
    """
    E, V, alike = network.edges, network.vertices, _Alike(network, symmetry)
    from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

    n, C = alike.ranks.size, alike.many.size
    one, edges, of_class = eye_array(n), eye_array(E), alike.of_class
    # Where the parts of roots start, and where flows to and from the ranks end.
    at = csr_array((np.ones(network.n), (network.ranks, alike.stands)), shape=(V, n))
    place = np.arange(n) * V + network.ranks[alike.ranks]
    ends = csr_array((np.ones(n), (place, np.zeros(n, int))), shape=(n * V, 1))
    every, gone = csr_array(np.ones((n, 1))), _incidence(network)
    # Unknowns: flows to each rank, flows from each (n E), classes of edges for spreading, for adding (C), roots (n),
    # the rate.
    spread = hstack([kron(one, gone), csr_array((n * V, n * E + 2 * C)), kron(every, at), -ends])
    collect = hstack([csr_array((n * V, n * E)), kron(one, gone), csr_array((n * V, 2 * C)), -kron(every, at), ends])
    roots = csr_array(np.bincount(alike.stands).astype(np.float64)[None, :])
    whole = hstack([csr_array((1, 2 * n * E + 2 * C)), roots, csr_array([[-1.0]])])
    rest = csr_array((n * E, n + 1))
    below = [
        hstack([kron(one, edges), csr_array((n * E, n * E)), -kron(every, of_class), csr_array((n * E, C)), rest]),
        hstack([csr_array((n * E, n * E)), kron(one, edges), csr_array((n * E, C)), -kron(every, of_class), rest]),
    ]
    passing, adding = _passes(network, network.copies) @ of_class, _passes(network, network.adds) @ of_class
    nothing = csr_array((passing.shape[0], 2 * n * E)), csr_array((adding.shape[0], 2 * n * E))
    below += [
        hstack([nothing[0], -passing, csr_array((passing.shape[0], C + n + 1))]),
        hstack([nothing[1], csr_array((adding.shape[0], C)), adding, csr_array((adding.shape[0], n + 1))]),
    ]
    classes = eye_array(C)
    shared = hstack([csr_array((C, 2 * n * E)), classes, classes, csr_array((C, n + 1))])
    more = sum(block.shape[0] for block in below)
    cost = np.zeros(2 * n * E + 2 * C + n + 1)
    cost[-1] = -1.0
    room = np.bincount(alike.edge_class, _scaled(network)) / alike.many
    bound = np.concatenate([room, np.zeros(more)])
    x, price = _solved(cost, vstack([shared, *below]), bound, vstack([spread, collect, whole]))
    return _limit(float(x[-1]) * float(network.capacity.max()), price[:C][alike.edge_class])


def passed_on_limit(network: FlowNetwork, weights: Sequence[int], sinks: Sequence[int]) -> ProgramLimit:
    """What `spread_limit` finds, for networks where vertices without a rank take in less than they give out.

    They cannot copy, so that what they give out of a tree is no more than what they take in of it.
    """
    n, E, V = len(sinks), network.edges, network.vertices
    from scipy.sparse import csr_array, eye_array, hstack, kron, vstack

    edges, total = eye_array(E), float(sum(weights))
    arrives = np.zeros((n, V))
    arrives[:, network.ranks] = -np.array(weights, np.float64)
    arrives[np.arange(n), network.ranks[list(sinks)]] += total
    gone = hstack([kron(eye_array(n), _incidence(network)), csr_array((n * V, E)), csr_array(-arrives.reshape(-1, 1))])
    within = hstack([eye_array(n * E), -kron(np.ones((n, 1)), edges), csr_array((n * E, 1))])
    shared = hstack([csr_array((E, n * E)), edges, csr_array((E, 1))])
    passing = _passes(network, network.copies)
    passed = hstack([csr_array((passing.shape[0], n * E)), -passing, csr_array((passing.shape[0], 1))])
    cost = np.zeros((n + 1) * E + 1)
    cost[-1] = -1.0
    bound = np.concatenate([_scaled(network), np.zeros(n * E + passing.shape[0])])
    x, price = _solved(cost, vstack([shared, within, passed]), bound, gone)
    return _limit(float(x[-1]) * total * float(network.capacity.max()), price[:E])


def _incidence(network: FlowNetwork) -> Any:
    """What edges bring to vertices less what they take away, (V, E)."""
    from scipy.sparse import csr_array

    E, one = np.arange(network.edges), np.ones(network.edges)
    ends = np.concatenate([network.head, network.tail])
    return csr_array((np.concatenate([one, -one]), (ends, np.tile(E, 2))), shape=(network.vertices, network.edges))


def _passes(network: FlowNetwork, acts: Any) -> Any:
    """Rows of `_incidence` of the vertices that have no rank and only pass on."""
    return _incidence(network)[_passive(network, acts)]


def _passive(network: FlowNetwork, acts: Any) -> Int64:
    return np.flatnonzero((network.rank_of < 0) & ~acts)


def _scaled(network: FlowNetwork) -> Float64:
    return network.capacity / float(network.capacity.max())


def _solved(cost: Float64, a_ub: Any, b_ub: Float64, a_eq: Any) -> tuple[Float64, Float64]:
    """Unknowns of 0 or more that cost least, and what a unit more of each upper bound would save."""
    from scipy.optimize import linprog

    options = {"primal_feasibility_tolerance": _TOLERANCE, "dual_feasibility_tolerance": _TOLERANCE}
    equal = np.zeros(a_eq.shape[0])
    done = linprog(cost, A_ub=a_ub.tocsr(), b_ub=b_ub, A_eq=a_eq.tocsr(), b_eq=equal, method="highs", options=options)
    if done.status != 0:
        raise InfeasibleError(f"the linear program was not solved: {done.message}")
    return done.x, -done.ineqlin.marginals


def _limit(rate: float, price: Float64, flow: Float64 | None = None) -> ProgramLimit:
    share = price / max(price.sum(), 1e-300)
    return ProgramLimit(rate, tuple(np.flatnonzero(share > _NOTHING).tolist()), share, flow)
