"""Blocks that go whole, or in a few pieces: each of them over one tree, so that loads are even.

Shares of a linear program are fractions; rounded one by one they overload some link. So every piece is given, in turn
and several times over, the tree under which the busiest links together are least busy and the way is short.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from commsim.synthesis.exchange import PathPacking, ends_of
from commsim.synthesis.forest import Forest, Tree
from commsim.synthesis.packing import Packing
from commsim.topology.kinds import Float64

_PASSES = 4
"""Times that every piece is given a tree."""
_POWER = 12.0
"""Of busy times in their mean: the largest counts, and those near it a little."""
_SHORT = 1e-3
"""What a way of the length of the limit counts, where a link as busy as the limit counts 1."""
_TRIED = 24
"""Trees of a block that are tried, the shortest ones and those of the largest shares."""


def whole_blocks(packing: Packing, hop_s: Float64, nbytes: int, count: int = 1) -> Forest:
    """The forest in which each block goes in ``count`` pieces over a tree each; not for an undivided array."""
    p = packing
    busy_s = p.byte_s * nbytes / p.rate  # seconds of each class of edges for a share of 1
    groups: dict[Hashable, list[int]] = {}
    far = np.array([tree.farthest_s(hop_s) for tree in p.trees])
    for k, tree in enumerate(p.trees):
        groups.setdefault(ends_of(tree) if isinstance(p, PathPacking) else tree.root, []).append(k)
    share = np.pad(p.y, (0, len(p.trees) - p.y.size))
    choices = {key: _promising(own, far, share) for key, own in groups.items()}
    need = {key: _share(p, key) / count for key in choices}
    load = np.zeros(p.rate.size)
    used = {k: np.unique(p.edge_class[p.trees[k].edges], return_counts=True) for own in choices.values() for k in own}
    chosen: dict[tuple[Hashable, int], int] = {}

    def gain(k: int, part: float) -> float:
        edges, times = used[k]
        now = load[edges]
        return float((((now + part * times * busy_s[edges]) / scale) ** _POWER - (now / scale) ** _POWER).sum())

    scale = max(p.byte_s * nbytes * p.level, float(far.min()))
    for _ in range(_PASSES):
        for key, own in choices.items():
            for piece in range(count):
                old = chosen.get((key, piece))
                if old is not None:
                    edges, times = used[old]
                    load[edges] -= need[key] * times * busy_s[edges]
                best = min(own, key=lambda k: gain(k, need[key]) + far[k] / scale * _SHORT)
                chosen[key, piece] = best
                edges, times = used[best]
                load[edges] += need[key] * times * busy_s[edges]
    shares: dict[int, float] = {}
    for (key, _), k in chosen.items():
        shares[k] = shares.get(k, 0.0) + need[key]
    order = sorted(shares)
    trees: tuple[Tree, ...] = tuple(p.trees[k] for k in order)
    total = np.array([shares[k] for k in order])
    into = bool(p.demand.into.any())
    return p.moved(Forest(p.network, total, into=trees) if into else Forest(p.network, total, out=trees))


def _promising(own: list[int], far: Float64, share: Float64) -> list[int]:
    """Some of the trees of a block: flat ones, and those that carry most."""
    flat = sorted(own, key=lambda k: float(far[k]))[: _TRIED // 2]
    full = sorted(own, key=lambda k: -float(share[k]))[: _TRIED // 2]
    return list(dict.fromkeys(flat + full))


def _share(p: Packing, key: Hashable) -> float:
    if isinstance(p, PathPacking):
        assert isinstance(key, tuple)
        return float(p.share[key])
    assert isinstance(key, int)
    return float(p.demand.out[key] + p.demand.into[key])
