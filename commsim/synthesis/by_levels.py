"""Schedules of large machines from plans between nodes: all_gather, reduce_scatter and all_reduce round rings of nodes.

An all_reduce is cut into slices: while one is spread, the next is added up, so that NICs work both ways all the time.
Nodes with less bandwidth than others are left out of the ring for a share of the array: each piece of it they give to
one node of the ring, and take its sum from one, which is less than to pass all on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from commsim.collectives.dependencies import Dependencies, from_edges
from commsim.collectives.schedule import Buffer, Op, Schedule, split_evenly
from commsim.synthesis.levels import Levels
from commsim.synthesis.node_rings import Moves, Round, spread_moves, turned
from commsim.synthesis.rail_shares import RingPart, hop_shares
from commsim.topology.kinds import Int64

_UP, _DOWN = 1, 3
"""Slices before these, each twice as long as the one before it, and after them, each half as long."""
_NONE = np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class RowTable:
    """Rows before they are a schedule: ``chunk`` is the slot, ``step`` the order, ``pairs`` who waits for whom."""

    src: Int64
    dst: Int64
    rail: Int64
    chunk: Int64
    step: Int64
    op: Int64
    pairs: tuple[Int64, Int64]


def gather_rows(
    levels: Levels, per_rank: int, *, backwards: bool, heads: int = 1, period: int | None = None
) -> RowTable:
    """The rows of an all_gather with ``per_rank`` pieces of each block; backwards of a reduce_scatter."""
    P = per_rank * levels.G
    moves = spread_moves(levels, levels.order, _NONE, P, Round(heads, period=period))
    owner, p = np.divmod(np.arange(levels.m * P), P)
    rank = levels.topology.node_first_rank[levels.order[owner]] + p % levels.G
    slot = rank * per_rank + p // levels.G
    if backwards:
        back, before, after = turned(moves)
        return _table(back, slot, Op.REDUCE, 0, (before, after))
    held = np.flatnonzero(~moves.first)
    return _table(moves, slot, Op.COPY, 0, (moves.before[held], held))


def _table(moves: Moves, slot: Int64, op: Op, first: int, pairs: tuple[Int64, Int64]) -> RowTable:
    step, kind = moves.key + first, np.full(moves.src.size, int(op), np.int64)
    return RowTable(moves.src, moves.dst, moves.rail, slot[moves.piece], step, kind, pairs)


def reduce_rows(
    levels: Levels, slices: int, *, heads: int = 1, period: int | None = None
) -> tuple[RowTable, list[float]]:
    """The rows of an all_reduce in so many slices of one length, and the share of the array of each chunk."""
    shares = ring_shares(levels)
    lengths = [1 / slices] * slices if slices == 1 or levels.alike(levels.order.tolist()) else slice_lengths(slices)
    plan = [(k, weak, share * one) for k, one in enumerate(lengths) for weak, share in shares.items()]
    tables: list[RowTable] = []
    weights: list[float] = []
    rows, chunks, longest, done = 0, 0, 2 * (levels.m + heads + 2) * levels.G, dict.fromkeys(shares, 0)
    parts = {
        weak: RingPart(levels.order[~np.isin(levels.order, out)], out, share)
        for weak, out, share in ((weak, _weakest(levels, weak), share) for weak, share in shares.items())
    }
    over = dict(zip(parts, hop_shares(levels, list(parts.values()), heads), strict=True))
    for k, weak, share in plan:
        part, rails = parts[weak], over[weak] if period is None else None
        moves = spread_moves(levels, part.ring, part.leaves, levels.G, Round(heads, done[weak], rails, period))
        done[weak] += 1
        count = part.ring.size * levels.G
        tables.append(
            _both(
                moves,
                chunks + np.arange(count),
                (k * longest, (k + 1) * longest),
                rows,
                None if period is None else period * levels.G,
            )
        )
        rows += tables[-1].src.size
        chunks += count
        weights += [share / count] * count
    names = ("src", "dst", "rail", "chunk", "step", "op")
    whole = {name: np.concatenate([getattr(table, name) for table in tables]) for name in names}
    pairs = [np.concatenate([table.pairs[i] for table in tables]) for i in (0, 1)]
    return RowTable(**whole, pairs=(pairs[0], pairs[1])), weights


def _both(moves: Moves, slot: Int64, starts: tuple[int, int], begin: int, alike: int | None = None) -> RowTable:
    """A slice that is added up, then spread; pieces so many apart are alike, and one of them stands for all."""
    back, before, after = turned(moves)
    count = moves.src.size
    held = np.flatnonzero(~moves.first)
    ends = np.flatnonzero(moves.first)  # of a piece the last to be added at its owner, and the first to leave it
    piece = moves.piece if alike is None else moves.piece % alike
    by = ends[np.argsort(piece[ends], kind="stable")]
    sizes = np.bincount(piece[by])
    sizes = sizes[sizes > 0]
    first = np.cumsum(sizes) - sizes
    last = np.repeat(by, np.repeat(sizes, sizes))
    place = np.arange(last.size) - np.repeat(np.cumsum(sizes**2) - sizes**2, sizes**2)
    then = by[np.repeat(first, sizes**2) + place % np.repeat(sizes, sizes**2)]
    pairs = (
        begin + np.concatenate([before, count + moves.before[held], last]),
        begin + np.concatenate([after, count + held, count + then]),
    )
    join = [np.concatenate([a, b]) for a, b in ((back.src, moves.src), (back.dst, moves.dst))]
    step = np.concatenate([back.key + starts[0], moves.key + starts[1]])
    op = np.repeat([int(Op.REDUCE), int(Op.COPY)], count)
    return RowTable(join[0], join[1], np.tile(moves.rail, 2), slot[np.tile(moves.piece, 2)], step, op, pairs)


def _weakest(levels: Levels, count: int) -> Int64:
    """So many nodes of the least bandwidth."""
    return np.argsort(levels.node_rate, kind="stable")[:count].astype(np.int64)


def ring_shares(levels: Levels) -> dict[int, float]:
    """What share of an all_reduce goes round the ring without so many of the weakest nodes, by a linear program.

    A node of a ring of k sends each piece 2 (k - 1) / k times, and once more for its part of those beside the ring; a
    node beside the ring sends it once and takes it once.
    """
    rate = np.sort(levels.node_rate)
    weak = [0, *(np.flatnonzero(np.diff(rate) > 1e-9 * rate[-1]) + 1).tolist()]
    weak = [k for k in weak if levels.m - k >= 2]
    if len(weak) == 1:
        return {0: 1.0}
    from scipy.optimize import linprog

    ring = [2 * (levels.m - k - 1) / (levels.m - k) + k / (levels.m - k) for k in weak]
    loads = np.array([[1.0 if v < k else of for k, of in zip(weak, ring, strict=True)] for v in range(levels.m)])
    upper = np.column_stack([loads, -rate / rate[-1]])
    cost = np.append(np.zeros(len(weak)), 1.0)
    equal = np.append(np.ones(len(weak)), 0.0)[None, :]
    done = linprog(cost, upper, np.zeros(levels.m), equal, [1.0], method="highs")
    return {k: float(share) for k, share in zip(weak, done.x[:-1], strict=True) if share > 1e-6}


def slice_lengths(count: int) -> list[float]:
    """Shares of the array of slices that follow each other.

    The first and the last ones are short, as nothing is spread beside the one and nothing added beside the other.
    """
    length = np.concatenate([0.5 ** np.arange(_UP, 0, -1), np.ones(count), 0.5 ** np.arange(1, _DOWN + 1)])
    return list((length / length.sum()).tolist())


def order_of(ends: tuple[Int64, Int64], step: Int64, op: Int64, ranks: int) -> Int64:
    """Rows by step; of one step what is added first, then by the distance of its ranks, which no shift changes."""
    return np.lexsort(((ends[1] - ends[0]) % ranks, op, step))


def schedule_of(table: RowTable, collective: str, ranks: int, chunk_bytes: Int64) -> tuple[Schedule, Int64]:
    """The schedule of some rows, and the number of each of its rows in the table."""
    order = order_of((table.src, table.dst), table.step, table.op, ranks)
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    before, after = (place[side] for side in table.pairs)

    def dependencies() -> Dependencies:
        return from_edges(order.size, before, after)

    columns: dict[str, Any] = {name: getattr(table, name)[order] for name in ("op", "src", "dst")}
    columns |= dict.fromkeys(("src_buffer", "dst_buffer"), np.full(order.size, Buffer.OUTPUT))
    columns |= dict.fromkeys(("src_chunk", "dst_chunk"), table.chunk[order])
    columns["step"] = np.unique(table.step[order], return_inverse=True)[1].reshape(-1)
    columns["channel"] = np.maximum(table.rail[order], 0)
    schedule = Schedule(
        collective=collective,
        algorithm="synthesized",
        world_size=ranks,
        endpoints=ranks,
        chunk_bytes=chunk_bytes,
        **columns,
        known_dependencies=dependencies,
    )
    return schedule, order


def even_bytes(nbytes: int, ranks: int, per_rank: int) -> Int64:
    """Bytes of the pieces of equal blocks, (ranks * per_rank,)."""
    return split_evenly(split_evenly(nbytes, ranks), per_rank).ravel()


def shared_bytes(nbytes: int, weights: list[float]) -> Int64:
    """Bytes of chunks of some shares of an array, whole bytes that add up to it."""
    ends = np.rint(np.cumsum(weights) / float(np.sum(weights)) * nbytes).astype(np.int64)
    return np.diff(ends, prepend=0)
