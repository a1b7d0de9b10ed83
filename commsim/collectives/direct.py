"""Direct forms: every rank talks to every other one itself, in one step; what a full crossbar is good for."""

from __future__ import annotations

import numpy as np

from commsim.collectives.pairwise import nccl_rounds
from commsim.collectives.rows import Rows, assemble, between_ranks, blocks, in_turn, mirror, rows
from commsim.collectives.schedule import Op, Schedule, at_least_one


def _to_all(world_size: int) -> Rows:
    """Block r from rank r to every other rank, the next one first: otherwise the port of rank 0 was the bottleneck."""
    rank = np.arange(world_size)
    return rows(0, rank, nccl_rounds(world_size)[1:], rank)


def direct_all_gather(world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """Every rank sends its block to all others, in one step.

    >>> direct_all_gather(4, nbytes=400).sent_bytes()
    array([300, 300, 300, 300])
    """
    at_least_one(ranks=world_size)
    return assemble("all_gather", "direct", world_size, [_to_all(world_size)], blocks(nbytes, world_size, itemsize))


direct_reduce_scatter = mirror(direct_all_gather, "reduce_scatter")
"""Every rank sends all others their block, in one step; the owners add."""


def one_shot_all_reduce(world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """Every rank sends its whole array to all others, in one step: for the smallest arrays.

    >>> one_shot_all_reduce(4, nbytes=100).sent_bytes()
    array([300, 300, 300, 300])
    """
    at_least_one(ranks=world_size)
    moves = _to_all(world_size)
    nothing = np.zeros_like(moves["src"])
    moves |= {"src_chunk": nothing, "dst_chunk": nothing, "op": nothing + Op.REDUCE}
    return assemble("all_reduce", "direct_one_shot", world_size, [moves], blocks(nbytes, 1, itemsize))


two_shot_all_reduce = in_turn(direct_reduce_scatter, direct_all_gather, algorithm="direct_two_shot")
"""Two steps, the bytes of a ring."""


def direct_send_recv(world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """Every rank sends its array to the next rank, the last one to rank 0, as nccl-tests' sendrecv does.

    >>> direct_send_recv(3, nbytes=100).sent_bytes()
    array([100, 100, 100])
    """
    at_least_one(ranks=world_size)
    rank = np.arange(world_size)
    moves = between_ranks(rows(0, rank, (rank + 1) % world_size, 0))
    return assemble("send_recv", "direct", world_size, [moves], blocks(nbytes, 1, itemsize))
