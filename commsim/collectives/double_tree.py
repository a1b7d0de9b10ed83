"""Broadcast and reduce along two binary trees at once, half of the array on each (Sanders, Speck, Träff 2009).

The trees are NCCL's, over all ranks but the root; the root feeds the roots of both. A rank is interior in at most
one of the trees, but for one rank when their number is odd, so with many pieces every rank sends about what it gets.
"""

from __future__ import annotations

import numpy as np

from commsim.collectives.schedule import Schedule, at_least_one, check_root
from commsim.collectives.tree import Int32, along_trees, double_binary_tree


def double_tree_broadcast(
    world_size: int, nbytes: int, channels: int = 1, root: int = 0, chunks: int = 1, *, itemsize: int = 1
) -> Schedule:
    """Broadcast along two trees per channel.

    >>> double_tree_broadcast(5, nbytes=100).sent_bytes()
    array([100,  50, 100, 100,  50])
    """
    parent = _parents(world_size, root, channels)
    return along_trees("broadcast", "double_binary_tree", parent, nbytes, chunks, itemsize=itemsize)


def double_tree_reduce(
    world_size: int, nbytes: int, channels: int = 1, root: int = 0, chunks: int = 1, *, itemsize: int = 1
) -> Schedule:
    """Reduce along two trees per channel."""
    parent = _parents(world_size, root, channels)
    return along_trees("reduce", "double_binary_tree", parent, nbytes, chunks, itemsize=itemsize)


def _parents(world_size: int, root: int, channels: int) -> Int32:
    """Parent of each rank, (2 * channels, world_size)."""
    at_least_one(ranks=world_size, channels=channels)
    check_root(root, world_size)
    parent = np.full((2, world_size), -1, np.int64)
    if world_size > 1:
        # A parent of -1, a tree's root, becomes 0: the root of the broadcast, from which ranks are counted.
        above = double_binary_tree(world_size - 1).parent + 1
        parent[:, 1:] = (above + root) % world_size
    return np.tile(np.roll(parent, root, axis=1), (channels, 1)).astype(np.int32)
