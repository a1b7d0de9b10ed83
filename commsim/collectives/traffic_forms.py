"""Bytes that every endpoint sends and receives, by arithmetic and not by counting rows.

A form gives units of nbytes / parts: exact for every rank when the array can be cut into that many equal parts, and
exact in all for every size. Ranks count from the root where there is one. n ranks, M nodes of g ranks, p the largest
power of two up to n.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsim.collectives.sharp import SwitchTree

Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Participants:
    """What a form depends on: ranks, root, ranks per node, and the tree of a fabric's switches where there is one."""

    n: int
    root: int
    g: int
    switches: SwitchTree | None = None

    @property
    def M(self) -> int:
        """Nodes."""
        return self.n // self.g

    @property
    def p(self) -> int:
        """The largest power of two up to n."""
        return 1 << (self.n.bit_length() - 1)

    def rooted(self, values: npt.ArrayLike) -> Int64:
        """Values counted from the root, by rank."""
        return np.roll(np.broadcast_to(np.asarray(values, np.int64), (self.n,)), self.root)


class Units(NamedTuple):
    """Units of nbytes / ``parts`` that each endpoint sends and receives."""

    parts: int
    sent: Int64
    received: Int64


Form = Callable[[Participants], Units]


def each(blocks: Callable[[Participants], int], parts: Callable[[Participants], int] = lambda at: at.n) -> Form:
    """Every rank sends and receives the same number of parts."""

    def form(at: Participants) -> Units:
        same = np.full(at.n, blocks(at), np.int64)
        return Units(parts(at), same, same)

    return form


def back(form: Form) -> Form:
    """The mirror image: what is sent is received."""

    def mirrored(at: Participants) -> Units:
        parts, sent, received = form(at)
        return Units(parts, received, sent)

    return mirrored


def both(one: Form, two: Form) -> Form:
    """One after the other; the coarser parts are counted in the finer ones."""

    def form(at: Participants) -> Units:
        a, b = one(at), two(at)
        parts = max(a.parts, b.parts)
        x, y = parts // a.parts, parts // b.parts
        return Units(parts, a.sent * x + b.sent * y, a.received * x + b.received * y)

    return form


def chain_broadcast(at: Participants) -> Units:
    v = np.arange(at.n)
    return Units(1, at.rooted(v < at.n - 1), at.rooted(v > 0))


def chain_reduce(at: Participants) -> Units:
    # NCCL's ring order: the rank after the root starts and the root ends.
    v = np.arange(at.n)
    return Units(1, at.rooted(v > 0), at.rooted((v != 1) & (at.n > 1)))


def chain_scatter(at: Participants) -> Units:
    v = np.arange(at.n)
    return Units(at.n, at.rooted(at.n - 1 - v), at.rooted(np.where(v > 0, at.n - v, 0)))


def flat_broadcast(at: Participants) -> Units:
    v = np.arange(at.n)
    return Units(1, at.rooted(np.where(v == 0, at.n - 1, 0)), at.rooted(v > 0))


def flat_scatter(at: Participants) -> Units:
    return Units(at.n, *flat_broadcast(at)[1:])


def flat_reduce_scatter(at: Participants) -> Units:
    v, n = np.arange(at.n), at.n
    return Units(n, at.rooted(np.where(v == 0, n - 1, n)), at.rooted(np.where(v == 0, n * (n - 1), 1)))


def flat_all_gather(at: Participants) -> Units:
    v, n = np.arange(at.n), at.n
    return Units(n, at.rooted(np.where(v == 0, (n - 1) ** 2, 1)), at.rooted(n - 1))


def parameter_server(at: Participants) -> Units:
    own = np.append(np.ones(at.n, np.int64), at.n)
    return Units(1, own, own)


def knomial_children(n: int, radix: int) -> Int64:
    """Children of each rank: up to radix - 1 at each distance radix^j below its lowest nonzero digit, (n,)."""
    v, count, width = np.arange(n), np.zeros(n, np.int64), 1
    while width < n:
        holder = v % (width * radix) == 0
        count += np.where(holder, np.minimum(radix - 1, (n - 1 - v) // width), 0)
        width *= radix
    return count


def knomial_below(n: int, radix: int) -> Int64:
    """Ranks in the subtree of each rank, itself included: its lowest nonzero digit's place, cut off at n, (n,)."""
    v, below, width = np.arange(n), np.ones(n, np.int64), 1
    while width < n:
        width *= radix
        below = np.where(v % width == 0, width, below)
    return np.minimum(below, n - v)


def knomial_broadcast(radix: int) -> Form:
    def form(at: Participants) -> Units:
        return Units(1, at.rooted(knomial_children(at.n, radix)), at.rooted(np.arange(at.n) > 0))

    return form


def knomial_scatter(radix: int) -> Form:
    def form(at: Participants) -> Units:
        below = knomial_below(at.n, radix)
        return Units(at.n, at.rooted(below - 1), at.rooted(np.where(np.arange(at.n) > 0, below, 0)))

    return form


def hierarchical_broadcast(at: Participants) -> Units:
    home, rail = divmod(at.root, at.g)
    node, local = np.divmod(np.arange(at.n), at.g)
    place, turn = (node - home) % at.M, (local - rail) % at.g
    across = np.where(turn == 0, knomial_children(at.M, 2)[place], 0)
    received = ((place > 0) | (turn > 0)).astype(np.int64)
    return Units(1, across + knomial_children(at.g, 2)[turn], received)


def btree_children(n: int) -> tuple[Int64, Int64]:
    """Whether each node of NCCL's first binary tree has a first and a second child, (n,) each."""
    r = np.arange(n)
    even = r % 2 == 0
    second = np.where(r == 0, n > 1, even & (r + 1 < n))
    return (even & (r > 0)).astype(np.int64), second.astype(np.int64)


def second_tree(values: Int64) -> Int64:
    """What the nodes of the first tree have, for the second one: mirrored for even counts, shifted by one for odd."""
    return values[::-1] if values.size % 2 == 0 else np.roll(values, 1)


def tree_all_reduce(at: Participants) -> Units:
    """Links of each rank in both trees: its chain in the node, its node's parent and children at the head's places."""
    first, second = btree_children(at.M)
    parent = (np.arange(at.M) > 0).astype(np.int64)
    links = np.zeros((at.M, at.g), np.int64)
    links[:, :-1] += 2
    links[:, 1:] += 2
    links[:, 0] += parent + second + second_tree(parent) + second_tree(second)
    links[:, min(1, at.g - 1)] += first + second_tree(first)
    return Units(2, links.reshape(-1), links.reshape(-1))


def double_tree_broadcast(at: Participants) -> Units:
    n = at.n
    children = np.zeros(max(n - 1, 0), np.int64)
    if n > 1:
        one = np.add(*btree_children(n - 1))
        children = one + second_tree(one)
    return Units(2, at.rooted(np.append(2 * (n > 1), children)), at.rooted(np.where(np.arange(n) > 0, 2, 0)))


def _pairs(at: Participants) -> tuple[Int64, Int64]:
    """Ranks folded away and those that stand for them."""
    extra = np.arange(at.n - at.p) * 2
    return extra, extra + 1


def _with_folded(at: Participants, among_active: int, parts: int) -> Units:
    """Active ranks move as given; a folded rank hands over the whole array and gets the whole result."""
    extra, into = _pairs(at)
    units = np.full(at.n, among_active, np.int64)
    units[extra] = parts
    units[into] += parts
    return Units(parts, units, units)


def swap_all_reduce(at: Participants) -> Units:
    return _with_folded(at, at.p.bit_length() - 1, 1)


def swap_halves_all_reduce(at: Participants) -> Units:
    return _with_folded(at, 2 * (at.p - 1), at.p)


def swap_reduce_scatter(partners: Callable[[int], Int64]) -> Form:
    """Folded ranks send all blocks but their own; an active rank gets what it answers for after each step.

    What rank r answers for after step t weighs W_t(r), with W_last the blocks of r and of the rank folded into it,
    and W_t-1(r) = W_t(r) + W_t(partner).
    """

    def form(at: Participants) -> Units:
        n, (extra, into) = at.n, _pairs(at)
        weight = 1 + (np.arange(at.p) < extra.size)
        arrived = np.zeros(at.p, np.int64)
        for partner in partners(at.p)[::-1]:
            arrived += weight
            weight = weight + weight[partner]
        received = np.ones(n, np.int64)
        received[np.append(into, np.arange(2 * extra.size, n))] = arrived
        received[into] += n - 1
        return Units(n, np.full(n, n - 1), received)

    return form


def bits_below(n: int) -> int:
    """Set bits of all numbers below n: moves of a rank in Bruck's all-to-all."""
    return sum(d.bit_count() for d in range(n))


def rails(at: Participants) -> int:
    """Blocks of a rank in an all-to-all through rails: M for each other local rank, g for each other node."""
    return at.M * (at.g - 1) + at.g * (at.M - 1)
