"""The rows of one pair of a tree's channels, and which of them follow which: one byte to a piece, on no machine yet."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from commsim.collectives.dependencies import Dependencies, from_edges
from commsim.collectives.schedule import Schedule
from commsim.collectives.tree import tree_all_reduce

PAIR = 2

_MOST_ROWS = 1 << 18
"""Rows up to which they are kept for other machines of the same nodes: some 10 MB."""


@dataclass(frozen=True, eq=False)
class TreeRows:
    """A schedule in pieces, the piece of each row, and the rows that follow each."""

    schedule: Schedule
    piece: npt.NDArray[np.integer]
    followers: Dependencies


def tree_rows(counts: tuple[int, ...], pattern: str, pieces: int) -> TreeRows:
    """Those of nodes of so many ranks, along trees of a pattern, for so many pieces."""
    few = 2 * PAIR * pieces * sum(counts) <= _MOST_ROWS
    return (_kept if few else _made)(counts, pattern, pieces)


def _made(counts: tuple[int, ...], pattern: str, pieces: int) -> TreeRows:
    schedule = _schedule(counts, pattern, pieces)
    piece = schedule.src_chunk % pieces
    # Rows of pieces do not wait for each other: one piece's followers, for each of them.
    one = _schedule(counts, pattern, 1)
    ptr, idx = one.dependencies()
    rows = np.argsort(piece, kind="stable").reshape(pieces, one.rows)  # of each piece, in the order of one
    before = np.repeat(np.arange(one.rows), np.diff(ptr))
    return TreeRows(schedule, piece, from_edges(piece.size, rows[:, before].ravel(), rows[:, idx].ravel()))


_kept = lru_cache(maxsize=8)(_made)


def _schedule(counts: tuple[int, ...], pattern: str, pieces: int) -> Schedule:
    return tree_all_reduce(
        sum(counts),
        PAIR * pieces,
        channels=PAIR,
        ranks_per_node=np.array(counts),
        chunks=pieces,
        pattern=pattern,
    )
