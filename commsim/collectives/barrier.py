"""Barriers: a token from every rank to every rank; a rank may have heard from another one more than once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from commsim.collectives.chain import chain_all_reduce
from commsim.collectives.knomial import knomial_all_reduce
from commsim.collectives.recursive import recursive_doubling_all_reduce
from commsim.collectives.rows import P, assemble, blocks, rows
from commsim.collectives.schedule import Op, Schedule, at_least_one
from commsim.collectives.sharp import sharp_all_reduce
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


def _as_barrier(builder: Callable[P, Schedule], algorithm: str = "") -> Callable[P, Schedule]:
    """What is an all-reduce of a token."""

    def build(*args: P.args, **options: P.kwargs) -> Schedule:
        s = builder(*args, **options)
        return s.edit(collective="barrier", algorithm=algorithm or s.algorithm)

    return build


recursive_doubling_barrier = _as_barrier(recursive_doubling_all_reduce)
sharp_barrier = _as_barrier(sharp_all_reduce)
flat_barrier = _as_barrier(flat_all_reduce)
"""Every rank reports to the root, which releases all."""
binomial_barrier = _as_barrier(knomial_all_reduce, "binomial")
"""Tokens up a binomial tree, and the release down."""
ring_barrier = _as_barrier(chain_all_reduce, "ring")
"""A token twice round the ring, up to the rank before the root."""
