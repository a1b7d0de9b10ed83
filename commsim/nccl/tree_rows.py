"""The rows of one pair of a tree's channels, and which of them follow which: one byte to a piece, on no machine yet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from commsim.collectives.dependencies import Dependencies, from_edges
from commsim.collectives.schedule import Op, Schedule
from commsim.collectives.tree import tree_all_reduce

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]

PAIR = 2

_MOST_ROWS = 1 << 18
"""Rows up to which they are kept for other machines of the same nodes: some 8 MB."""


@dataclass(frozen=True, eq=False)
class Hops:
    """The hops of all rows, each once: from which rank to which, and its tree, odd where it goes up (2 tree + up)."""

    src: Int64
    dst: Int64
    way: Int64


@dataclass(frozen=True, eq=False)
class TreeRows:
    """Rows in pieces: the piece of each, its hop among those of all rows, and the rows that follow each."""

    piece: Int32
    hop: Int32
    hops: Hops
    followers: Dependencies


def tree_rows(counts: tuple[int, ...], pattern: str, pieces: int) -> TreeRows:
    """Those of nodes of so many ranks, along trees of a pattern, for so many pieces."""
    few = 2 * PAIR * pieces * sum(counts) <= _MOST_ROWS
    return (_kept if few else _made)(counts, pattern, pieces)


def _made(counts: tuple[int, ...], pattern: str, pieces: int) -> TreeRows:
    schedule = tree_schedule(counts, pattern, pieces)
    piece = schedule.src_chunk % pieces
    # Rows of pieces do not wait for each other: one piece's followers, for each of them.
    one = tree_schedule(counts, pattern, 1)
    ptr, idx = one.dependencies()
    rows = np.argsort(piece, kind="stable").reshape(pieces, one.rows)  # of each piece, in the order of one
    before = np.repeat(np.arange(one.rows), np.diff(ptr))
    followers = from_edges(piece.size, rows[:, before].ravel(), rows[:, idx].ravel())
    n, up = one.world_size, one.op == Op.REDUCE
    keys = ((one.src.astype(np.int64) * n + one.dst) * PAIR + one.channel) * 2 + up
    each, of_one = np.unique(keys, return_inverse=True)
    hop = np.empty(piece.size, np.int32)
    hop[rows] = of_one.reshape(-1)
    pair, way = np.divmod(each, 2 * PAIR)
    return TreeRows(piece.astype(np.int32), hop, Hops(pair // n, pair % n, way), followers)


_kept = lru_cache(maxsize=32)(_made)


def tree_schedule(counts: tuple[int, ...], pattern: str, pieces: int) -> Schedule:
    """The schedule of which the rows are."""
    return tree_all_reduce(
        sum(counts),
        PAIR * pieces,
        channels=PAIR,
        ranks_per_node=np.array(counts),
        chunks=pieces,
        pattern=pattern,
    )
