"""Pipelined chains along a ring of ranks: what NCCL calls its Ring broadcast and Ring reduce."""

from __future__ import annotations

from functools import partial

import numpy as np

from commsim.collectives.ring import Order, ring_orders
from commsim.collectives.rows import assemble, blocks, in_turn, mirror, rows
from commsim.collectives.schedule import Op, Schedule, at_least_one, check_root
from commsim.collectives.tree import along_trees


def _chain(
    collective: str,
    world_size: int,
    nbytes: int,
    channels: int = 1,
    root: int = 0,
    chunks: int = 1,
    *,
    itemsize: int = 1,
    order: Order = None,
) -> Schedule:
    """Along the ring from the root or into it; the rank before the root sends nothing, or that after it starts.

    ``order`` is as for ``ring_all_reduce``; each channel cuts its share into ``chunks`` pieces.

    >>> chain_broadcast(3, nbytes=100, root=1).sent_bytes(), chain_reduce(3, nbytes=100, root=1).sent_bytes()
    (array([  0, 100, 100]), array([100,   0, 100]))
    """
    at_least_one(world_size=world_size, channels=channels)
    check_root(root, world_size)
    rings = ring_orders(order, world_size, channels)
    parent = np.empty_like(rings)
    np.put_along_axis(parent, rings, np.roll(rings, 1 if collective == "broadcast" else -1, axis=1), axis=1)
    parent[:, root] = -1
    return along_trees(collective, "chain", parent, nbytes, chunks, itemsize=itemsize)


chain_broadcast = partial(_chain, "broadcast")
chain_reduce = partial(_chain, "reduce")


chain_all_reduce = in_turn(chain_reduce, chain_broadcast)


def chain_scatter(world_size: int, nbytes: int, root: int = 0, *, itemsize: int = 1) -> Schedule:
    """Scatter along the ring from the root, the block of the farthest rank first, in n-1 steps.

    >>> chain_scatter(4, nbytes=400).sent_bytes()
    array([300, 200, 100,   0])
    """
    at_least_one(ranks=world_size)
    hop, block = np.divmod(np.arange(world_size**2), world_size)
    hop, block = hop[hop < block], block[hop < block]
    # The block for the rank d further on leaves in step n - 1 - d and makes a hop per step.
    step, n = world_size - 1 - block + hop, world_size
    moves = rows(step, (root + hop) % n, (root + hop + 1) % n, (root + block) % n)
    return assemble("scatter", "chain", n, [moves], blocks(nbytes, n, itemsize), root=root)


chain_gather = mirror(chain_scatter, "gather", Op.COPY)
