"""What comes first: a binary heap of events (time, key), and a tree of minima."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from commsim.engine.loops.compiled import inlined, u

TIE = 1e-11
"""Share by which two times may differ and still be one time.

Two sums that are equal in real numbers differ in their last bits as floats; without it the order of events would hang
on the order of additions. Above what sums lose: each addition at most 1.1e-16, so 90,000 in a row; a ring of 4,096
ranks lost 3e-13. Below what tells messages apart: in a run of 0.1 s it is 1 ps, less than a byte takes at 900 GB/s.
"""
BEFORE = 1.0 - TIE
"""What t is multiplied with for the latest time that is before t and not at one time with it."""


class Heap(NamedTuple):
    """``size[0]`` events in the first places of ``times`` and ``keys``; users see to it that there is room."""

    times: npt.NDArray[np.float64]
    keys: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]


@inlined
def first(t: float, key: int, other_t: float, other_key: int, before: float) -> bool:
    """Whether (t, key) comes before the other one: t is smaller, or the same and its key is smaller.

    ``before``: BEFORE if times that tie are the same, 1.0 if only equal ones are.
    """
    return (t < other_t * before) | ((t * before <= other_t) & (key < other_key))


@inlined
def _rise(heap: Heap, i: int, t: float, key: int, before: float) -> None:
    """Fill the free place i with (t, key), or with what must go below it."""
    while i > 0:
        parent = (i - 1) >> 1
        if first(heap.times[u(parent)], heap.keys[u(parent)], t, key, before):
            break
        heap.times[u(i)] = heap.times[u(parent)]
        heap.keys[u(i)] = heap.keys[u(parent)]
        i = parent
    heap.times[u(i)] = t
    heap.keys[u(i)] = key


@inlined
def push(heap: Heap, t: float, key: int, before: float) -> None:
    """Add (t, key)."""
    _rise(heap, heap.size[0], t, key, before)
    heap.size[0] += 1


@inlined
def drop_first(heap: Heap, before: float) -> None:
    """Remove the first event, which the caller has read at place 0."""
    last = heap.size[0] - 1
    heap.size[0] = last
    i = 0
    child = 1
    # The hole goes to the bottom first and the last entry then rises from there: it belongs near the bottom, and
    # choosing the smaller child without a branch is what makes this quick.
    while child + 1 < last:
        right = child + 1
        child += first(heap.times[u(right)], heap.keys[u(right)], heap.times[u(child)], heap.keys[u(child)], before)
        heap.times[u(i)] = heap.times[u(child)]
        heap.keys[u(i)] = heap.keys[u(child)]
        i = child
        child = 2 * i + 1
    if child < last:
        heap.times[u(i)] = heap.times[u(child)]
        heap.keys[u(i)] = heap.keys[u(child)]
        i = child
    _rise(heap, i, heap.times[u(last)], heap.keys[u(last)], before)


Tree = npt.NDArray[np.float64]
"""Of minima: node i has the children 2i and 2i + 1, leaf j of n is node n + j, node 1 is the smallest of all."""


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
