"""Barriers: a token from every rank to every rank; a rank may have heard from another one more than once."""

from __future__ import annotations

import numpy as np

from commsim.collectives.chain import chain_broadcast, chain_reduce
from commsim.collectives.knomial import knomial_all_reduce
from commsim.collectives.recursive import recursive_doubling_all_reduce
from commsim.collectives.rows import assemble, blocks, rows
from commsim.collectives.schedule import Op, Schedule, at_least_one, then
from commsim.collectives.star import flat_all_reduce


def dissemination_barrier(world_size: int, nbytes: int = 0, *, itemsize: int = 1) -> Schedule:
    """In step t rank r tells r + 2^t all that it has heard: ceil(log2 n) steps for any rank count.

    Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", 1988.

    >>> dissemination_barrier(5).steps
    3
    """
    at_least_one(ranks=world_size)
    step, rank = np.arange((world_size - 1).bit_length())[:, None], np.arange(world_size)
    moves = rows(step, rank, (rank + (1 << step)) % world_size, 0, op=Op.REDUCE)
    return assemble("barrier", "dissemination", world_size, [moves], blocks(nbytes, 1, itemsize))


def recursive_doubling_barrier(world_size: int, nbytes: int = 0, *, itemsize: int = 1) -> Schedule:
    """Swaps with a partner per step, ranks beyond the power of two folded."""
    return recursive_doubling_all_reduce(world_size, nbytes, itemsize=itemsize).edit(collective="barrier")


def binomial_barrier(world_size: int, nbytes: int = 0, root: int = 0, *, itemsize: int = 1) -> Schedule:
    """Tokens up a binomial tree, and the release down."""
    both_ways = knomial_all_reduce(world_size, nbytes, root, itemsize=itemsize)
    return both_ways.edit(collective="barrier", algorithm="binomial")


def flat_barrier(world_size: int, nbytes: int = 0, root: int = 0, *, itemsize: int = 1) -> Schedule:
    """Every rank reports to the root, which releases all."""
    return flat_all_reduce(world_size, nbytes, root, itemsize=itemsize).edit(collective="barrier")


def ring_barrier(world_size: int, nbytes: int = 0, root: int = 0, *, itemsize: int = 1) -> Schedule:
    """A token twice round the ring, up to the rank before the root."""
    round_ = chain_reduce(world_size, nbytes, root=root, itemsize=itemsize)
    return then(
        round_,
        chain_broadcast(world_size, nbytes, root=root, itemsize=itemsize),
        collective="barrier",
        algorithm="ring",
    )
