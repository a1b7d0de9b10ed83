"""Bytes that endpoints send and receive where switches add and multicast, by arithmetic on the trees of switches.

A tree is the count of each endpoint's neighbours above (0 or 1) and below; forms multiply these by what a neighbour is
sent.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.collectives.traffic_forms import Int64, Participants, Units, btree_children, second_tree

_RADIX = 8


def _and_switches(
    parts: int, sent: int | Int64, received: int | Int64, ranks: int, out: npt.ArrayLike, into: npt.ArrayLike
) -> Units:
    ends = [np.broadcast_to(np.asarray(v, np.int64), (ranks,)) for v in (sent, received)]
    return Units(parts, np.append(ends[0], out).astype(np.int64), np.append(ends[1], into).astype(np.int64))


def nvls_reduce_scatter(at: Participants) -> Units:
    n = at.n
    return _and_switches(n, n, 1, n, n, n * n)


def nvls_one_shot(at: Participants) -> Units:
    n = at.n
    return _and_switches(1, 1, n - 1, n, n * (n - 1), n)


def nvls_rail_ring(at: Participants) -> Units:
    n, M = at.n, at.M
    return _and_switches(n, 2 * M - 1, n + M - 1, n, np.full(M, n * at.g), np.full(M, n))


def nvls_tree(at: Participants) -> Units:
    g = at.g
    parent, first, second = (np.arange(at.M) > 0).astype(np.int64), *btree_children(at.M)
    degree = parent + first + second
    links = np.repeat(degree + second_tree(degree), g)
    through = np.full(at.M, 2 * g + 2 * g * g)
    return _and_switches(2 * g, 2 * g + links + 2, 2 * g + links + 2, at.n, through, through)


@dataclass(frozen=True)
class _SwitchTree:
    """Of every endpoint: the one above (-1 at the top and outside), how many are right below, heads at or below it."""

    above: Int64
    below: Int64
    heads: Int64

    @property
    def up(self) -> Int64:
        """1 for endpoints with one above."""
        return (self.above >= 0).astype(np.int64)

    def path(self, root: int) -> Int64:
        """1 for the endpoints above the root."""
        on = np.zeros_like(self.above)
        while (root := int(self.above[root])) >= 0:
            on[root] = 1
        return on


def _trees(at: Participants, heads: Int64) -> list[_SwitchTree]:
    """The trees above each row of heads, with endpoints numbered without gaps: those of a fabric, or one switch."""
    if at.switches is None:
        levels = [[(each, np.full(each.size, at.n))] for each in heads]
    else:
        levels = [list(at.switches(each)) for each in heads]
    used = np.unique(np.concatenate([parent for one in levels for _, parent in one]))
    trees = []
    for mine, one in zip(heads, levels, strict=True):
        above = np.full(at.n + used.size, -1)
        count = np.zeros_like(above)
        count[mine] = 1
        for child, parent in one:
            below = np.where(child < at.n, child, at.n + np.searchsorted(used, child))
            above[below] = at.n + np.searchsorted(used, parent)
            np.add.at(count, above[below], count[below])
        trees.append(_SwitchTree(above, np.bincount(above[above >= 0], minlength=above.size), count))
    return trees


def _whole_tree(at: Participants) -> _SwitchTree:
    """The tree above all ranks: a fabric's, or one of switches with eight ports down, of ranks in order."""
    if at.switches is not None and at.n > 1:
        return _trees(at, np.arange(at.n)[None])[0]
    above, heads, first, width = [np.zeros(0, np.int64)], [np.ones(at.n, np.int64)], 0, at.n
    while width > 1:
        first += width
        above.append(first + np.arange(width) // _RADIX)
        heads.append(np.add.reduceat(heads[-1], np.arange(0, width, _RADIX)))
        width = -(-width // _RADIX)
    over = np.append(np.concatenate(above), -1)
    return _SwitchTree(over, np.bincount(over[over >= 0], minlength=over.size), np.concatenate(heads))


def _heads(at: Participants) -> Int64:
    """The rank of each local rank and node, (g, M)."""
    return np.arange(at.n).reshape(at.M, at.g).T


def collnet_direct_all_reduce(at: Participants) -> Units:
    """A share of its node up and down for every neighbour in the tree of its rail."""
    through = sum((tree.up + tree.below for tree in _trees(at, _heads(at))), start=np.zeros(1, np.int64))
    through[: at.n] += 2 * (at.g - 1)
    return Units(at.g, through, through)


def collnet_direct_reduce_scatter(at: Participants) -> Units:
    """M blocks up; down those of the heads below."""
    sent, received = np.zeros(1, np.int64), np.zeros(1, np.int64)
    for tree in _trees(at, _heads(at)):
        switch = np.arange(tree.above.size) >= at.n
        sent = sent + at.M * tree.up + tree.heads * switch
        received = received + at.M * tree.below + tree.heads * tree.up
    inside = (at.g - 1) * at.M * (np.arange(sent.size) < at.n)
    return Units(at.n, sent + inside, received + inside)


def collnet_chain(at: Participants) -> Units:
    """The array up and down for every neighbour, in the node's chain and in the tree of the first ranks."""
    (tree,) = _trees(at, _heads(at)[:1])
    through, local = tree.up + tree.below, np.arange(at.n) % at.g
    through[: at.n] += (local > 0).astype(np.int64) + (local < at.g - 1)
    return Units(1, through, through)


def sharp_all_reduce(at: Participants) -> Units:
    """The array up and down for every neighbour."""
    tree = _whole_tree(at)
    return Units(1, tree.up + tree.below, tree.up + tree.below)


def sharp_broadcast(at: Participants) -> Units:
    """Every endpoint gets the array once, and sends it to its neighbours but the one it came from."""
    tree = _whole_tree(at)
    path = tree.path(at.root)
    start = np.arange(path.size) == at.root
    some = int(at.n > 1)
    return Units(1, tree.below + (path | start) * tree.up - path, some * (1 - start))


def sharp_reduce(at: Participants) -> Units:
    """Everything up to the top switch once, then down along the root's path alone."""
    tree = _whole_tree(at)
    path = tree.path(at.root)
    start = np.arange(path.size) == at.root
    return Units(1, tree.up + path, tree.below + (path | start) * tree.up)
