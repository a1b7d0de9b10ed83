"""Stars: everything through one rank (``flat``) or through one more endpoint (``parameter_server``)."""

from __future__ import annotations

import numpy as np

from commsim.collectives.rows import assemble, blocks, in_turn, mirror, mirrored, rows
from commsim.collectives.schedule import Buffer, Op, Schedule, at_least_one


def flat_broadcast(world_size: int, nbytes: int, root: int = 0, *, itemsize: int = 1) -> Schedule:
    """The root sends the array to every other rank.

    >>> flat_broadcast(4, nbytes=100, root=1).sent_bytes()
    array([  0, 300,   0,   0])
    """
    moves = rows(0, root, _others(world_size, root), 0)
    return assemble("broadcast", "flat", world_size, [moves], blocks(nbytes, 1, itemsize), root=root)


def flat_scatter(world_size: int, nbytes: int, root: int = 0, *, itemsize: int = 1) -> Schedule:
    """The root sends every other rank its block.

    >>> flat_scatter(4, nbytes=400, root=1).sent_bytes()
    array([  0, 300,   0,   0])
    """
    others = _others(world_size, root)
    moves = rows(0, root, others, others)
    return assemble("scatter", "flat", world_size, [moves], blocks(nbytes, world_size, itemsize), root=root)


flat_reduce = mirror(flat_broadcast, "reduce")


flat_gather = mirror(flat_scatter, "gather", Op.COPY)


flat_all_reduce = in_turn(flat_reduce, flat_broadcast)
"""Parameter server that is one of the ranks: (n-1) * nbytes into the root and out of it."""


def flat_reduce_scatter(world_size: int, nbytes: int, root: int = 0, *, itemsize: int = 1) -> Schedule:
    """Reduce to one rank, which hands out the blocks of the sum."""
    frame = blocks(nbytes, world_size, itemsize)
    up = rows(0, _others(world_size, root)[:, None], root, np.arange(world_size), op=Op.REDUCE)
    down = rows(1, root, _others(world_size, root), _others(world_size, root))
    return assemble("reduce_scatter", "flat", world_size, [up, down], frame, root=root)


def flat_all_gather(world_size: int, nbytes: int, root: int = 0, *, itemsize: int = 1) -> Schedule:
    """Gather to one rank, which sends every other rank all blocks but its own: the mirror image.

    >>> flat_all_gather(4, nbytes=400).sent_bytes()
    array([900, 100, 100, 100])
    """
    forth = flat_reduce_scatter(world_size, nbytes, root, itemsize=itemsize)
    back = mirrored(forth, "all_gather", op=Op.COPY)
    return back.take(np.flatnonzero(back.src_chunk != back.dst))


def parameter_server_all_reduce(world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """Every rank sends its array to a server, endpoint n, and gets the sum back: n * nbytes into it and out of it.

    >>> parameter_server_all_reduce(4, nbytes=100).received_bytes()
    array([100, 100, 100, 100, 400])
    """
    at_least_one(ranks=world_size)
    rank = np.arange(world_size)
    push = rows(0, rank, world_size, 0, op=Op.REDUCE, dst_buffer=Buffer.SCRATCH)
    pull = rows(1, world_size, rank, 0, src_buffer=Buffer.SCRATCH)
    frame = blocks(nbytes, 1, itemsize)
    return assemble("all_reduce", "parameter_server", world_size, [push, pull], frame, switches=1)


def _others(world_size: int, root: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    at_least_one(ranks=world_size)
    return np.delete(np.arange(world_size), root)
