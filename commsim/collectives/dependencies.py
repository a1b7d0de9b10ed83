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

import numpy as np
import numpy.typing as npt

from commsim.memory import require_memory

Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Dependencies = tuple[Int64, Int32]
"""Successors in CSR form: ``ptr`` (rows + 1,) and ``idx`` (edges,)."""

_READ, _COPY = 0, 1  # kinds of access; reductions are 2
_EDGE_BYTES = 64  # of a pair of rows while edges are sorted; measured peaks 46 to 61, of 17 and 64 million
_JOINED = 1024  # edges of one pair of epochs from which a join stands for them


def derive(
    op: npt.NDArray[np.uint8], read: Int64, write: Int64, step: Int32, after: Int64, *, joins: bool = False
) -> Dependencies:
    """Successors of each row from the numbered slots that it reads and writes; ``op`` is 0 copy, 1 reduce.

    With ``joins``, where many rows come before many others, one more op after the rows stands between them: it follows
    all of the first and comes before all of the second, a + b edges in place of a b (511 sums of a block that 511 ranks
    then read, 512 times: 0.5 M edges in place of 134 M).
    """
    rows = op.size
    if not rows:
        return from_edges(rows, after[:, 0], after[:, 1])
    new_slot, access_step, kind, row = _sorted_accesses(op, read, write, step)
    new_step = new_slot | _changes(access_step)
    start = np.flatnonzero(new_slot | _changes(kind) | (new_step & (kind == _COPY)))
    size = np.diff(start, append=row.size)
    # Epochs that another one of the same slot follows: only these lead to edges, and often they are few.
    follows = np.append(~new_slot[start[1:]], False)
    at = np.flatnonzero(follows)
    first, next_start, next_size = start[at], start[at + 1], size[at + 1]
    # Accesses of the last step of an epoch (late) do not come before those of the next epoch in that step (head).
    run = np.append(np.flatnonzero(new_step), row.size)
    last = np.searchsorted(run, next_start - 1, side="right") - 1
    run_end = run[last + 1]
    late = np.where(run_end > next_start, next_start - np.maximum(run[last], first), 0)
    head = np.where(late > 0, np.minimum(run_end - next_start, next_size), 0)
    early = size[at] - late
    # Same-step reads of an overwritten slot: order them before the epoch after the write instead.
    held = np.flatnonzero((late > 0) & (kind[first] == _READ) & follows[at + 1])
    after_next = at[held] + 2
    pairs = (
        np.concatenate([first, first + early, (first + early)[held]]),
        np.concatenate([early, late, late[held]]),
        np.concatenate([next_start, next_start + head, start[after_next]]),
        np.concatenate([next_size, next_size - head, size[after_next]]),
    )
    del first, next_start, next_size, run, last, run_end, late, head, early, start, size, new_step, access_step
    edges: list[tuple[npt.NDArray[np.integer], npt.NDArray[np.integer]]] = [(after[:, 0], after[:, 1])]
    ops = rows
    many = pairs[1] * pairs[3] > _JOINED
    if joins and many.any():
        between = rows + np.arange(int(many.sum()))
        ops += between.size
        for begin, count, forth in ((pairs[0], pairs[1], True), (pairs[2], pairs[3], False)):
            one, join = _all_pairs(begin[many], count[many], between, np.ones_like(between))
            edges.append((row[one], join) if forth else (join, row[one]))
        pairs = (pairs[0][~many], pairs[1][~many], pairs[2][~many], pairs[3][~many])
    edges_left = int((pairs[1] * pairs[3]).sum())
    advice = "take fewer ranks, or an algorithm in which not all wait for all"
    subject = f"the order of {rows:,} chunk moves, a list"
    require_memory(_EDGE_BYTES * edges_left, edges_left, subject=subject, what="pairs", advice=advice)
    one, two = _all_pairs(*pairs)
    edges.append((row[one], row[two]))
    return from_edges(ops, *(np.concatenate(side) for side in zip(*edges, strict=True)))


def _changes(column: npt.NDArray[np.integer]) -> npt.NDArray[np.bool_]:
    """Where a value differs from the one before; the first always does."""
    return np.append(True, column[1:] != column[:-1])


def _sorted_accesses(
    op: npt.NDArray[np.uint8], read: Int64, write: Int64, step: Int32
) -> tuple[npt.NDArray[np.bool_], Int32, npt.NDArray[np.uint8], Int32]:
    """All reads and writes by (slot, step, kind, row): whether the slot is new, step, kind, row, (2 * rows,)."""
    rows = op.size
    row_bits, step_bits = rows.bit_length(), int(step[-1]).bit_length()
    largest = max(int(read.max()), int(write.max()))
    if largest.bit_length() + step_bits + 2 + row_bits <= 62:
        # One sort of packed words is several times faster than an argsort and four gathers.
        top = step_bits + 2 + row_bits
        key = np.empty(2 * rows, np.int64)
        np.left_shift(read, top, out=key[:rows])
        np.left_shift(write, top, out=key[rows:])
        tail = step.astype(np.int64) << (2 + row_bits)
        tail |= np.arange(rows)
        key[:rows] |= tail
        key[rows:] |= tail
        key[rows:] |= (_COPY + op.astype(np.int64)) << row_bits
        key.sort()
        new_slot = np.append(True, (key[1:] ^ key[:-1]) >> top != 0)
        row = (key & ((1 << row_bits) - 1)).astype(np.int32)
        key >>= row_bits
        kind = (key & 3).astype(np.uint8)
        key >>= 2
        key &= (1 << step_bits) - 1
        return new_slot, key.astype(np.int32), kind, row
    slot = np.concatenate([read, write])
    kind = np.concatenate([np.full(rows, _READ, np.uint8), _COPY + op])
    both_steps, both_rows = np.tile(step, 2), np.tile(np.arange(rows, dtype=np.int32), 2)
    order = np.lexsort((both_rows, kind, both_steps, slot))
    return _changes(slot[order]), both_steps[order], kind[order], both_rows[order]


def _all_pairs(a: Int64, a_size: Int64, b: Int64, b_size: Int64) -> tuple[Int64, Int64]:
    """Every (a[i] + j, b[i] + k) for j < a_size[i], k < b_size[i]."""
    count = a_size * b_size
    pair = np.repeat(np.arange(a.size), count)
    place = np.arange(pair.size) - (np.cumsum(count) - count)[pair]
    if a_size.size and int(a_size[count > 0].max(initial=1)) == 1:
        return a[pair], b[pair] + place
    left, right = np.divmod(place, b_size[pair])
    return a[pair] + left, b[pair] + right


def from_edges(rows: int, sources: npt.NDArray[np.integer], targets: npt.NDArray[np.integer]) -> Dependencies:
    """CSR successors from edge lists; repeated edges count once."""
    bits = max(rows, 1).bit_length()
    key = sources.astype(np.int64)
    key <<= bits
    key |= targets
    key.sort()
    if key.size:
        key = key[_changes(key)]
    ptr = np.zeros(rows + 1, np.int64)
    np.cumsum(np.bincount(key >> bits, minlength=rows), out=ptr[1:])
    return ptr, (key & ((1 << bits) - 1)).astype(np.int32)


def with_extra(known: Dependencies, after: Int64) -> Dependencies:
    """Known successors plus the edges ``after`` (edges, 2)."""
    if not len(after):
        return known
    ptr, idx = known
    sources = np.repeat(np.arange(ptr.size - 1), np.diff(ptr))
    return from_edges(ptr.size - 1, np.append(sources, after[:, 0]), np.append(idx, after[:, 1]))
