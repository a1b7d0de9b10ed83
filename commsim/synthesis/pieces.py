"""Blocks cut into pieces: how many chunks of the array each tree carries, and how long they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import split_evenly

Float64 = npt.NDArray[np.float64]
Int64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pieces:
    """Chunks of the array in memory order: the tree that carries each, its turn on that tree, and bytes; (chunks,)."""

    tree: Int64
    turn: Int64
    nbytes: Int64


def apportion(share: Float64, count: int) -> Int64:
    """``count`` divided as the shares are, each at least 1: by largest remainders."""
    given = np.ones(share.size, np.int64)
    left = count - share.size
    wanted = share / share.sum() * count
    more = np.maximum(np.floor(wanted).astype(np.int64) - 1, 0)
    while more.sum() > left:
        more[int(np.argmax(np.where(more > 0, given + more - wanted, -np.inf)))] -= 1
    given += more
    for _ in range(count - int(given.sum())):
        given[int(np.argmax(wanted - given))] += 1
    return given


def cut(share: Float64, nbytes: int, count: int, itemsize: int, even: bool = False) -> tuple[Int64, Int64]:
    """(tree, bytes) of the ``count`` chunks of one block of so many bytes that trees carry as ``share`` says.

    ``even``: all chunks are as long as whole elements allow, and trees carry whole numbers of them. Of more trees than
    chunks those with the largest shares carry something.
    """
    if share.size > count:
        kept = np.sort(np.argsort(-share, kind="stable")[:count])
        tree, length = cut(share[kept], nbytes, count, itemsize, even)
        return kept[tree], length
    of_tree = apportion(share, count)
    tree = np.repeat(np.arange(share.size), of_tree)
    items, rest = divmod(nbytes, itemsize)
    if even:
        length = split_evenly(items, count)
    else:
        ends = np.rint(np.cumsum(share) / share.sum() * items).astype(np.int64)
        own = np.diff(ends, prepend=0)
        length = np.concatenate([split_evenly(int(n), int(k)) for n, k in zip(own, of_tree, strict=True)])
    length = length * itemsize
    if rest:
        length[-1] += rest
    return tree, length


def pieces_of_blocks(
    blocks: Sequence[tuple[Sequence[int], Float64]],
    sizes: Sequence[int],
    count: int,
    itemsize: int,
    even: bool = False,
) -> Pieces:
    """Every block cut into ``count`` chunks; a block is the places of its trees and the shares that these carry."""
    trees, lengths = [], []
    for (places, share), nbytes in zip(blocks, sizes, strict=True):
        tree, length = cut(share, nbytes, count, itemsize, even)
        trees.append(np.asarray(places, np.int64)[tree])
        lengths.append(length)
    tree, length = np.concatenate(trees), np.concatenate(lengths)
    order = np.argsort(tree, kind="stable")
    first = np.searchsorted(tree[order], tree[order], side="left")
    turn = np.empty(tree.size, np.int64)
    turn[order] = np.arange(tree.size) - first
    return Pieces(tree, turn, length)
