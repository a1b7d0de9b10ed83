"""Broadcast and reduce along two binary trees at once, half of the array on each (Sanders, Speck, Träff 2009).

The trees are NCCL's, over all ranks but the root; the root feeds the roots of both. A rank is interior in at most
one of the trees, but for one rank when their number is odd, so with many pieces every rank sends about what it gets.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from commsim.collectives.schedule import Schedule, at_least_one, check_root
from commsim.collectives.tree import along_trees, double_binary_tree


def _along_both(
    collective: str,
    world_size: int,
    nbytes: int,
    channels: int = 1,
    root: int = 0,
    chunks: int = 1,
    *,
    itemsize: int = 1,
) -> Schedule:
    """Along two trees per channel."""
    at_least_one(ranks=world_size, channels=channels)
    check_root(root, world_size)
    parent = np.full((2, world_size), -1, np.int64)
    if world_size > 1:
        # A parent of -1, a tree's root, becomes 0: the root of the broadcast, from which ranks are counted.
        above = double_binary_tree(world_size - 1).parent + 1
        parent[:, 1:] = (above + root) % world_size
    trees = np.tile(np.roll(parent, root, axis=1), (channels, 1)).astype(np.int32)
    return along_trees(collective, "double_binary_tree", trees, nbytes, chunks, itemsize=itemsize)


double_tree_broadcast = partial(_along_both, "broadcast")
double_tree_reduce = partial(_along_both, "reduce")
