"""Bruck's algorithms: ceil(log2 n) steps for any rank count, by shifts of doubling distance.

Chunks are named, so the local rotations of the original (J. Bruck et al., IEEE TPDS 8(11), 1997) are no moves
here.
"""

from __future__ import annotations

import numpy as np

from commsim.collectives.rows import Rows, assemble, blocks, equal_blocks, mirror, rows
from commsim.collectives.schedule import Buffer, Schedule, at_least_one


def bruck_all_gather(world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """All-gather: rank r holds 2^t blocks from r on and sends them to r - 2^t; the last step sends what is missing.

    >>> bruck_all_gather(5, nbytes=500).steps
    3
    """
    at_least_one(ranks=world_size)
    rank, parts, held = np.arange(world_size)[:, None], list[Rows](), 1
    while held < world_size:
        offset = np.arange(min(held, world_size - held))
        chunk = (rank + offset) % world_size
        parts.append(rows(len(parts), rank, (rank - held) % world_size, chunk))
        held *= 2
    return assemble("all_gather", "bruck", world_size, parts, blocks(nbytes, world_size, itemsize))


bruck_reduce_scatter = mirror(bruck_all_gather, "reduce_scatter")


def bruck_all_to_all(world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """All-to-all: the block for the rank d further on makes a hop of 2^t in step t for every bit t of d.

    A rank sends about half of its array in each of ceil(log2 n) steps: for small blocks. Between hops block d
    waits in scratch slot d.

    >>> bruck_all_to_all(4, nbytes=400).sent_bytes()
    array([400, 400, 400, 400])
    """
    at_least_one(ranks=world_size)
    n = world_size
    rank, parts = np.arange(n)[:, None], list[Rows]()
    parts.append(rows(0, rank, rank, rank, src_buffer=Buffer.INPUT))
    for t in range((n - 1).bit_length()):
        distance = np.arange(n)[(np.arange(n) >> t) & 1 == 1]
        before = distance & ((1 << t) - 1)
        start, last = before == 0, distance >> (t + 1) == 0
        target = (rank + (1 << t)) % n
        origin = (rank - before) % n
        for first, final in ((True, True), (True, False), (False, True), (False, False)):
            d = (start == first) & (last == final)
            parts.append(
                rows(
                    t,
                    rank,
                    target,
                    (rank + distance[d]) % n if first else distance[d],
                    to=origin[:, d] if final else distance[d],
                    src_buffer=Buffer.INPUT if first else Buffer.SCRATCH,
                    dst_buffer=Buffer.OUTPUT if final else Buffer.SCRATCH,
                )
            )
    return assemble("all_to_all", "bruck", n, parts, equal_blocks(nbytes, n, itemsize), in_place=False)
