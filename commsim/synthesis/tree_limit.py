"""The least time in which some blocks can be spread or collected, exact, with the cut that says why.

Blocks of weight w start at ranks. If an array is spread at a rate of x arrays a second, every set A of vertices that a
rank is outside of must let out w(A) x <= out of A; the least of all out(A) / w(A) is reached by packing trees
(Edmonds 1973; Bang-Jensen, Frank, Jackson 1995 with vertices that only pass on what they take in). It is found by
flows: where x is too much for a rank, the least cut before it names a smaller x (Newton's method on ratios).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd

import numpy as np

from commsim.synthesis.alike import one_of_each
from commsim.synthesis.maxflow import FlowSearch
from commsim.synthesis.network import FlowNetwork


@dataclass(frozen=True)
class FlowCut:
    """Vertices that must take in, or give out, a ``share`` of the array over the ``edges`` between them and the rest.

    ``inward``: the vertices take in. ``share`` may be above 1 where parts of the array cross more than once.
    """

    vertices: frozenset[int]
    edges: tuple[int, ...]
    inward: bool
    share: Fraction


@dataclass(frozen=True)
class TreeLimit:
    """Arrays a second that trees spread at most, in units of the network for an array of ``weight`` 1, and the cut."""

    rate: Fraction
    cut: FlowCut | None


def spread_limit(network: FlowNetwork, weights: Sequence[int], sinks: Sequence[int] | None = None) -> TreeLimit:
    """What the blocks of the ranks, whole numbers of any unit, can be spread to all ranks at, or to some (``sinks``).

    The rate is in units of the network: units of ``network.unit`` bytes/s for all blocks together.
    """
    common = gcd(*weights)
    w = [int(x) // common for x in weights]
    total, goals = sum(w), list(range(network.n)) if sinks is None else list(sinks)
    if len(goals) == network.n:
        goals = one_of_each(network, goals, w)
    into, out = (units[network.ranks].tolist() for units in (network.taken_in, network.given_out))
    first = [(into[r], total - w[r], r, True) for r in goals if total > w[r]]
    first += [(out[r], w[r], r, False) for r in range(network.n) if w[r] and goals != [r] and network.n > 1]
    if not first:
        return TreeLimit(Fraction(0), None)
    units, share, at, inward = min(first, key=lambda one: (one[0] / one[1], one[2]))
    ratio = Fraction(units, share)
    cut = _cut(network, frozenset([int(network.ranks[at])]), inward, Fraction(share, total))
    search = _search(network, w)
    _set_rate(search, network, w, ratio)
    ranks = network.ranks.tolist()
    for sink in goals:
        while True:
            wanted = ratio.numerator * total
            reached, side = search.flow(ranks[sink], wanted)
            if reached >= wanted:
                break
            inside = frozenset(side)
            crossing = sum(int(network.capacity[e]) for e in _into(network, inside))
            away = total - sum(w[r] for r in range(network.n) if ranks[r] in inside)
            ratio = Fraction(crossing, away)
            cut = _cut(network, inside, True, Fraction(away, total))
            _set_rate(search, network, w, ratio)
            for done in goals[: goals.index(sink)]:
                search.add_goal(ranks[done])
        search.add_goal(ranks[sink])
    return TreeLimit(ratio * total, cut)


def _search(network: FlowNetwork, w: list[int]) -> FlowSearch:
    """Flows from a rank back to where blocks start: a vertex before all ranks that have one."""
    starts = np.array([int(network.ranks[r]) for r in range(network.n) if w[r]], np.int64)
    tail = np.concatenate([network.head, starts])
    head = np.concatenate([network.tail, np.full(starts.size, network.vertices)])
    return FlowSearch(network.vertices + 1, tail, head)


def _set_rate(search: FlowSearch, network: FlowNetwork, w: list[int], ratio: Fraction) -> None:
    """Edges times the denominator, blocks times the numerator."""
    capacity = [c * ratio.denominator for c in network.capacity.tolist()]
    search.with_capacity([*capacity, *(x * ratio.numerator for x in w if x)], [network.vertices])


def _into(network: FlowNetwork, inside: frozenset[int]) -> list[int]:
    within = np.zeros(network.vertices, bool)
    within[list(inside)] = True
    return np.flatnonzero(within[network.head] & ~within[network.tail]).tolist()


def _cut(network: FlowNetwork, inside: frozenset[int], inward: bool, share: Fraction) -> FlowCut:
    turned = network if inward else network.reversed()
    return FlowCut(inside, tuple(_into(turned, inside)), inward, share)
