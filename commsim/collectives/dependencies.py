"""Which rows must wait for which: derived by sorting from the places that rows read and write.

Every slot is looked at alone. Its accesses in step order fall into epochs: reads, one copy, or reductions.
All rows of an epoch come before all rows of the next one at that slot. This gives read-after-write,
write-after-read and write-after-write; the order between epochs further apart follows.

* Reductions into a slot that nobody reads in between are one epoch: they commute and do not wait for each
  other.
* A row that reads a slot and another that writes it **in the same step** do not wait for each other:
  recursive doubling swaps in place and would deadlock. The receiver holds what arrives until its own reads
  of that step have gone out. What the reader must precede is the epoch after that write, so the edges go
  there.

So every derived edge leads to a later step, and rows sorted by step are in topological order. Edges that
follow from others are not all removed; builders of regular families give the reduced set by arithmetic.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Dependencies = tuple[Int64, Int32]
"""Successors in CSR form: ``ptr`` (rows + 1,) and ``idx`` (edges,)."""

_READ, _COPY, _REDUCE = 0, 1, 2


def derive(op: npt.NDArray[np.uint8], read: Int64, write: Int64, step: Int32, after: Int64) -> Dependencies:
    """Successors of each row from the numbered slots that it reads and writes; ``op`` is 0 copy, 1 reduce."""
    rows = op.size
    slot, access_step, kind, row = _sorted_accesses(op, read, write, step)
    if not rows:
        return from_edges(rows, after[:, 0], after[:, 1])
    new_slot = np.r_[True, slot[1:] != slot[:-1]]
    new_step = np.r_[True, access_step[1:] != access_step[:-1]]
    new_kind = np.r_[True, kind[1:] != kind[:-1]]
    start = np.flatnonzero(new_slot | new_kind | (new_step & (kind == _COPY)))
    size = np.diff(np.r_[start, slot.size])
    epoch = np.repeat(np.arange(start.size), size)
    # next_size: rows in the following epoch of the same slot; 0 when there is none.
    follows = np.r_[slot[start[1:]] == slot[start[:-1]], False]
    next_size = np.where(follows, np.r_[size[1:], 0], 0)
    pairs_from, pairs_to = _all_pairs(np.arange(slot.size), np.r_[start[1:], 0][epoch], next_size[epoch])
    kept = access_step[pairs_from] < access_step[pairs_to]
    # Same-step reads of an overwritten slot: order them before the epoch after the write instead.
    held = np.unique(pairs_from[~kept & (kind[pairs_from] == _READ)])
    beyond = epoch[held] + 2
    exists = follows[epoch[held] + 1]
    held, beyond = held[exists], beyond[exists]
    held_from, held_to = _all_pairs(held, start[beyond], size[beyond])
    sources = np.concatenate([row[pairs_from[kept]], row[held_from], after[:, 0]])
    targets = np.concatenate([row[pairs_to[kept]], row[held_to], after[:, 1]])
    return from_edges(rows, sources, targets)


def _sorted_accesses(
    op: npt.NDArray[np.uint8], read: Int64, write: Int64, step: Int32
) -> tuple[Int64, Int64, Int64, Int64]:
    """Slot, step, kind and row of all reads and writes, sorted by them in this order, (2 * rows,)."""
    rows = op.size
    slot = np.concatenate([read, write])
    kind = np.concatenate([np.full(rows, _READ, np.int64), _COPY + op.astype(np.int64)])
    access_step = np.concatenate([step, step]).astype(np.int64)
    row = np.tile(np.arange(rows, dtype=np.int64), 2)
    span = (int(step.max()) + 1 if rows else 1) * 3
    if rows and int(slot.max()) < 2**62 // span:
        order = np.argsort(slot * span + access_step * 3 + kind, kind="stable")
    else:
        order = np.lexsort((row, kind, access_step, slot))
    return slot[order], access_step[order], kind[order], row[order]


def _all_pairs(left: Int64, first: Int64, count: Int64) -> tuple[Int64, Int64]:
    """Every (left[i], first[i] + k) for k < count[i]."""
    total = int(count.sum())
    begin = np.cumsum(count) - count
    return np.repeat(left, count), np.arange(total) - np.repeat(begin - first, count)


def from_edges(rows: int, sources: Int64, targets: Int64) -> Dependencies:
    """CSR successors from edge lists; repeated edges count once."""
    key = np.sort(sources * max(rows, 1) + targets)
    key = key[np.r_[True, key[1:] != key[:-1]]] if key.size else key
    ptr = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(key // max(rows, 1), minlength=rows), out=ptr[1:])
    return ptr, cast(Int32, (key % max(rows, 1)).astype(np.int32))


def with_extra(known: Dependencies, after: Int64) -> Dependencies:
    """Known successors plus the edges ``after`` (edges, 2)."""
    if not len(after):
        return known
    ptr, idx = known
    rows = ptr.size - 1
    sources = np.repeat(np.arange(rows, dtype=np.int64), np.diff(ptr))
    return from_edges(rows, np.r_[sources, after[:, 0]], np.r_[idx.astype(np.int64), after[:, 1]])
