"""All-to-all in rounds: every rank sends to one rank and receives from one rank at a time, in NCCL's order."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.collectives.rows import Int64, assemble, between_ranks, equal_blocks, rows
from commsim.collectives.schedule import Buffer, Schedule, at_least_one, elements, split_evenly
from commsim.errors import ScheduleError


def nccl_rounds(world_size: int, ranks_per_node: int | None = None) -> Int64:
    """Rank that each rank sends to in each round, (rounds, ranks); round 0 is the rank itself.

    One node is one group; several nodes have groups of gcd(8, ranks_per_node) ranks. Group distances follow
    (x^2 + x) / 2 modulo the next power of two; within a pair of groups all local distances follow each other.
    Source: NCCL 2.30.7 src/init.cc:890-963.

    >>> nccl_rounds(4, ranks_per_node=1)[:, 0]
    array([0, 1, 3, 2])
    """
    at_least_one(ranks=world_size)
    local_ranks = world_size if ranks_per_node is None else ranks_per_node
    if world_size % local_ranks:
        raise ScheduleError(f"{world_size} ranks are no whole number of nodes of {local_ranks} ranks")
    group = local_ranks if local_ranks == world_size else math.gcd(8, local_ranks)
    groups = world_size // group
    power = 1 << (groups - 1).bit_length()
    x = np.arange(power)
    delta = (x * (x + 1) // 2) % power
    delta = delta[delta < groups][:, None, None]
    rank = np.arange(world_size)
    step = np.arange(group)[:, None]
    to: Int64 = (rank // group + delta) % groups * group + (rank % group + step) % group
    return to.reshape(-1, world_size)


def _all_to_all(
    algorithm: str, world_size: int, nbytes: int, ranks_per_node: int | None = None, *, itemsize: int = 1
) -> Schedule:
    """All-to-all with one partner per round, n rounds, or all at once; the own block is a copy within the rank.

    >>> pairwise_all_to_all(4, nbytes=400).steps, direct_all_to_all(4, nbytes=400).steps
    (4, 1)
    """
    to, rank = nccl_rounds(world_size, ranks_per_node), np.arange(world_size)
    moves = rows(_step(algorithm, world_size), rank, to, to, to=rank, src_buffer=Buffer.INPUT)
    frame = equal_blocks(nbytes, world_size, itemsize)
    return assemble("all_to_all", algorithm, world_size, [moves], frame, in_place=False)


def _step(algorithm: str, rounds: int) -> Int64:
    return np.arange(rounds)[:, None] * (algorithm == "pairwise")


pairwise_all_to_all = partial(_all_to_all, "pairwise")
direct_all_to_all = partial(_all_to_all, "direct")


def ring_all_to_all(world_size: int, nbytes: int, *, itemsize: int = 1) -> Schedule:
    """Blocks from rank to rank round a ring: the block for the rank d further on makes d hops.

    A rank sends (n-1)/2 * nbytes. In step t it hands on what came from t ranks back, from scratch slot d.

    >>> ring_all_to_all(4, nbytes=400).sent_bytes()
    array([600, 600, 600, 600])
    """
    at_least_one(ranks=world_size)
    n, rank = world_size, np.arange(world_size)[:, None]
    parts = [rows(0, rank, rank, rank, src_buffer=Buffer.INPUT)]
    for t in range(n - 1):
        origin = (rank - t) % n
        on = np.arange(t + 2, n)
        source: dict[str, Any] = {"src_buffer": Buffer.SCRATCH if t else Buffer.INPUT}
        last = t + 1 if t else (origin + t + 1) % n
        parts.append(
            rows(t, rank, (rank + 1) % n, on if t else (origin + on) % n, to=on, **source)
            | {"dst_buffer": np.full(n * on.size, Buffer.SCRATCH)}
        )
        parts.append(rows(t, rank, (rank + 1) % n, last, to=origin, **source))
    return assemble("all_to_all", "ring", n, parts, equal_blocks(nbytes, n, itemsize), in_place=False)


def pair_blocks(world_size: int, nbytes: int, counts: npt.ArrayLike | None, itemsize: int) -> Int64:
    """Bytes from each rank to each rank, (n * n,): ``counts`` elements, or the elements of ``nbytes`` evenly."""
    at_least_one(ranks=world_size)
    if counts is None:
        return split_evenly(elements(nbytes, itemsize), world_size**2) * itemsize
    given = np.asarray(counts, np.int64)
    if given.shape != (world_size, world_size) or given.min() < 0 or given.sum() * itemsize != nbytes:
        raise ScheduleError(
            f"counts of shape {given.shape} add up to {given.sum() * itemsize} bytes, expected "
            f"({world_size}, {world_size}) counts from 0 up of {nbytes} bytes together"
        )
    return given.reshape(-1) * itemsize


def _all_to_all_v(
    algorithm: str,
    world_size: int,
    nbytes: int,
    ranks_per_node: int | None = None,
    *,
    counts: npt.ArrayLike | None = None,
    itemsize: int = 1,
) -> Schedule:
    """All-to-all of unequal blocks in rounds or at once; ``counts[s, r]`` elements go from rank s to rank r.

    >>> pairwise_all_to_all_v(2, nbytes=10, counts=[[1, 2], [3, 4]]).sent_bytes()
    array([2, 3])
    """
    to, rank = nccl_rounds(world_size, ranks_per_node), np.arange(world_size)
    moves = rows(_step(algorithm, world_size), rank, to, rank * world_size + to)
    frame = pair_blocks(world_size, nbytes, counts, itemsize)
    return assemble("all_to_all_v", algorithm, world_size, [between_ranks(moves)], frame)


pairwise_all_to_all_v = partial(_all_to_all_v, "pairwise")
direct_all_to_all_v = partial(_all_to_all_v, "direct")
