"""Pipelined chains along a ring of ranks: what NCCL calls its Ring broadcast and Ring reduce."""

from __future__ import annotations

import numpy as np

from commsim.collectives.ring import Order, ring_orders
from commsim.collectives.rows import assemble, blocks, in_turn, mirror, rows
from commsim.collectives.schedule import Op, Schedule, at_least_one, check_root
from commsim.collectives.tree import Int32, along_trees


def chain_broadcast(
    world_size: int,
    nbytes: int,
    channels: int = 1,
    root: int = 0,
    chunks: int = 1,
    *,
    itemsize: int = 1,
    order: Order = None,
) -> Schedule:
    """Broadcast along the ring from the root; the rank before the root in ring order sends nothing.

    ``order`` is as for ``ring_all_reduce``; each channel cuts its share into ``chunks`` pieces.

    >>> chain_broadcast(3, nbytes=100, root=1).sent_bytes()
    array([  0, 100, 100])
    """
    parent = _previous(world_size, channels, root, order)
    return along_trees("broadcast", "chain", parent, nbytes, chunks, itemsize=itemsize)


def chain_reduce(
    world_size: int,
    nbytes: int,
    channels: int = 1,
    root: int = 0,
    chunks: int = 1,
    *,
    itemsize: int = 1,
    order: Order = None,
) -> Schedule:
    """Reduce along the ring into the root; the rank after the root in ring order starts.

    >>> chain_reduce(3, nbytes=100, root=1).sent_bytes()
    array([100,   0, 100])
    """
    at_least_one(world_size=world_size, channels=channels)
    backwards = ring_orders(order, world_size, channels)[:, ::-1]
    parent = _previous(world_size, channels, root, backwards)
    return along_trees("reduce", "chain", parent, nbytes, chunks, itemsize=itemsize)


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


def _previous(world_size: int, channels: int, root: int, order: Order) -> Int32:
    """The rank before each rank in its channel's ring, (channels, world_size); -1 for the root."""
    at_least_one(world_size=world_size, channels=channels)
    check_root(root, world_size)
    rings = ring_orders(order, world_size, channels)
    parent = np.empty_like(rings)
    np.put_along_axis(parent, rings, np.roll(rings, 1, axis=1), axis=1)
    parent[:, root] = -1
    return parent
