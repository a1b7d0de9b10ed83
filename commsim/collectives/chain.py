"""Pipelined chains along a ring of ranks: what NCCL calls its Ring broadcast and Ring reduce."""

from __future__ import annotations

import numpy as np

from commsim.collectives.ring import Order, ring_orders
from commsim.collectives.schedule import Schedule, at_least_one
from commsim.collectives.tree import Int32, along_trees
from commsim.errors import ScheduleError


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


def _previous(world_size: int, channels: int, root: int, order: Order) -> Int32:
    """The rank before each rank in its channel's ring, (channels, world_size); -1 for the root."""
    at_least_one(world_size=world_size, channels=channels)
    if not 0 <= root < world_size:
        raise ScheduleError(f"root {root} is not one of the ranks 0..{world_size - 1}")
    rings = ring_orders(order, world_size, channels)
    parent = np.empty_like(rings)
    np.put_along_axis(parent, rings, np.roll(rings, 1, axis=1), axis=1)
    parent[:, root] = -1
    return parent
