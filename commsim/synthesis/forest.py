"""Trees over a network, and how much of the array each of them carries."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from commsim.synthesis.network import FlowNetwork
from commsim.topology.kinds import Float64, Int64


@dataclass(frozen=True)
class Branch:
    """One step of a tree: from an endpoint to an endpoint over edges of the network, in the order of the bytes."""

    src: int
    dst: int
    way: tuple[int, ...]


@dataclass(frozen=True)
class Tree:
    """A way from its root to every rank, branches from the root on; ``into``: turned round, so bytes go to the root.

    Endpoints are ranks, and from their number on the vertices of the network that copy or add, in order.
    """

    root: int
    branches: tuple[Branch, ...]
    into: bool = False

    @cached_property
    def above(self) -> tuple[int, ...]:
        """The branch that comes before each on the way from the root, -1 at the root."""
        by = {self._far(branch): k for k, branch in enumerate(self.branches)}
        return tuple(by.get(self._near(branch), -1) for branch in self.branches)

    def _near(self, branch: Branch) -> int:
        return branch.dst if self.into else branch.src

    def _far(self, branch: Branch) -> int:
        return branch.src if self.into else branch.dst

    @cached_property
    def depths(self) -> tuple[int, ...]:
        """Branches between the root and the far end of each branch, that branch counted."""
        depth: list[int] = []
        for above in self.above:
            depth.append(1 if above < 0 else depth[above] + 1)
        return tuple(depth)

    @property
    def depth(self) -> int:
        """Branches on the longest way from the root."""
        return max(self.depths, default=0)

    @cached_property
    def edges(self) -> Int64:
        """Every edge that a byte on the tree takes, as often as it takes it."""
        return np.array([edge for branch in self.branches for edge in branch.way], np.int64)

    def farthest_s(self, hop_s: Float64) -> float:
        """Seconds from the root to the farthest end, ``hop_s`` (E,) over each edge."""
        far: list[float] = []
        for branch, above in zip(self.branches, self.above, strict=True):
            far.append((0.0 if above < 0 else far[above]) + float(hop_s[list(branch.way)].sum()))
        return max(far, default=0.0)


def tree_of(parent: Int64, root: int, ways: dict[int, tuple[int, ...]], into: bool) -> Tree:
    """The tree in which every endpoint has the parent given (-1: none), reached over the way given for it."""
    children: dict[int, list[int]] = {}
    for v, above in enumerate(parent.tolist()):
        if above >= 0:
            children.setdefault(above, []).append(v)
    branches, queue = [], [root]
    for u in queue:  # grows while it is read
        for v in children.get(u, []):
            branches.append(Branch(v, u, ways[v][::-1]) if into else Branch(u, v, ways[v]))
            queue.append(v)
    return Tree(root, tuple(branches), into)


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees that carry shares of the array: ``out`` of roots, or ``into`` them, or both: what came in then goes out.

    ``share`` (trees,) is of whichever there are; of both, piece k comes over ``into[k]`` and goes over ``out[k]``,
    which have the same root. ``apart``: all comes in before any goes out, as those of both sides fill links alike.
    """

    network: FlowNetwork
    share: Float64
    out: tuple[Tree, ...] = ()
    into: tuple[Tree, ...] = ()
    apart: bool = False

    @property
    def roots(self) -> list[int]:
        """The root of each tree."""
        return [tree.root for tree in (self.out or self.into)]

    def load(self) -> Float64:
        """Shares of the array over each edge, (E,)."""
        total = np.zeros(self.network.edges)
        for trees in (self.out, self.into):
            for tree, share in zip(trees, self.share.tolist(), strict=False):
                np.add.at(total, tree.edges, share)
        return total

    @cached_property
    def seconds_per_byte(self) -> float:
        """Seconds that the busiest edge is busy for each byte of the array."""
        rate = self.network.capacity * float(self.network.unit)
        return float((self.load() / rate).max(initial=0.0))

    @property
    def depth(self) -> int:
        """Branches of the longest way that a piece takes."""
        return sum(max((tree.depth for tree in trees), default=0) for trees in (self.out, self.into))

    @property
    def in_switches(self) -> bool:
        """Whether a switch copies or adds."""
        n = self.network.n
        return any(max(b.src, b.dst) >= n for trees in (self.out, self.into) for tree in trees for b in tree.branches)
