"""A tree of minima: node i has the children 2i and 2i + 1, leaf j of n is node n + j, node 1 is the smallest of all."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from commsim.engine.loops.compiled import inlined, u

Tree = npt.NDArray[np.float64]


@inlined
def set_leaf(tree: Tree, leaf: int, value: float) -> None:
    """Set one leaf."""
    i = tree.size // 2 + leaf
    tree[u(i)] = value
    while i > 1:
        i >>= 1
        smallest = min(tree[u(2 * i)], tree[u(2 * i + 1)])
        if tree[u(i)] == smallest:
            break
        tree[u(i)] = smallest


@inlined
def first_leaf(tree: Tree) -> int:
    """The lowest leaf that holds the smallest value."""
    leaves = tree.size // 2
    i = 1
    while i < leaves:
        i *= 2
        if tree[u(i)] > tree[u(i + 1)]:
            i += 1
    return i - leaves
