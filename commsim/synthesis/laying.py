"""A forest and pieces laid out as a schedule: every piece goes over its tree, branch after branch.

A row is one piece over one branch. Its step is when it would go if all trees flowed evenly, side by side, less what is
still before it: so that where links take what is waiting in the order of steps, old pieces go before young ones, and of
one age those with the longest way first. That order is what lets the links be busy from the beginning to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from commsim.collectives.dependencies import Dependencies, from_edges
from commsim.collectives.schedule import Buffer, Op, Schedule
from commsim.synthesis.forest import Forest, Tree
from commsim.synthesis.pieces import Pieces
from commsim.topology.kinds import Bool, Float64, Int64

SYNTHESIZED = "synthesized"
"""The algorithm that a schedule of trees names."""
_GOLDEN = (5**0.5 - 1) / 2
"""Multiples of it lie evenly between whole numbers, however many there are (Knuth 1973, section 6.4)."""
_WAITING = 2.0
"""Pieces that a busy link sends from when a piece comes to it until that piece has left: one before it, and itself."""
_STEPS_A_TURN = 4
"""Steps in which a piece follows the one before it."""
_STEPS_A_WAY = 64
"""Steps of the longest way at least, where pieces are long against latencies."""
_STEPS = 4096
"""Steps of all at most, but for those that follow from each other."""


@dataclass(frozen=True, eq=False)
class Laid:
    """A schedule, and the place in ``ways`` (edges of the network, in order) of the way of each row, (rows,)."""

    schedule: Schedule
    way: Int64
    ways: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class _Branches:
    """Branches of trees one below the other; ``above``: the branch before each on the way from its root, -1 at it.

    ``after_s``: seconds from the start of a branch to the end of the whole way. ``first`` (trees + 1,): of each tree.
    """

    src: Int64
    dst: Int64
    way: Int64
    above: Int64
    depth: Int64
    after_s: Float64
    first: Int64


@dataclass(frozen=True, eq=False)
class _PieceRows:
    """Pieces over branches: row numbers from ``begin`` on, chunk by chunk."""

    branch: Int64
    chunk: Int64
    before: Int64  # the row over the branch above, -1 at the root
    begin: int


def _branches(trees: tuple[Tree, ...], ways: dict[tuple[int, ...], int], hop_s: Float64, then_s: Float64) -> _Branches:
    src, dst, way, above, depth = (list[int]() for _ in range(5))
    late, first = list[float](), [0]
    for tree, then in zip(trees, then_s.tolist(), strict=True):
        own = [float(hop_s[list(branch.way)].sum()) for branch in tree.branches]
        rest = [0.0] * len(own)
        if tree.into:  # to the root, then on
            for k, up in enumerate(tree.above):
                rest[k] = own[k] + (then if up < 0 else rest[up])
        else:
            for k in range(len(own) - 1, -1, -1):
                rest[k] += own[k]
                if (up := tree.above[k]) >= 0:
                    rest[up] = max(rest[up], rest[k])
        src += [branch.src for branch in tree.branches]
        dst += [branch.dst for branch in tree.branches]
        way += [ways.setdefault(branch.way, len(ways)) for branch in tree.branches]
        above += [up if up < 0 else up + first[-1] for up in tree.above]
        depth += tree.depths
        late += rest
        first.append(len(src))
    a, b, c, d, e = (np.array(column, np.int64) for column in (src, dst, way, above, depth))
    return _Branches(a, b, c, d, e, np.array(late, np.float64), np.array(first, np.int64))


def _rows(table: _Branches, pieces: Pieces, begin: int) -> _PieceRows:
    count = np.diff(table.first)[pieces.tree]
    chunk = np.repeat(np.arange(pieces.tree.size), count)
    start = np.cumsum(count) - count
    place = np.arange(chunk.size) - start[chunk]
    base = table.first[pieces.tree][chunk]
    above = table.above[place + base]
    before = np.where(above >= 0, begin + start[chunk] + above - base, -1)
    return _PieceRows(place + base, chunk, before, begin)


def lay(forest: Forest, pieces: Pieces, collective: str, root: int = 0, name: str = SYNTHESIZED) -> Laid:
    """The schedule of a forest that carries pieces of an array."""
    nbytes = int(pieces.nbytes.sum())
    whole_s = forest.seconds_per_byte * nbytes
    slow = 1.0 / (forest.network.capacity * float(forest.network.unit))
    hop_s = forest.network.latency + _WAITING * slow * float(np.median(pieces.nbytes))
    ways: dict[tuple[int, ...], int] = {}
    turns = np.bincount(pieces.tree, minlength=len(forest.roots))
    later = _phases(forest.roots) * (1.0 / np.maximum(turns, 1) - 1.0 / turns.max())
    due_s = (pieces.turn / turns[pieces.tree] + later[pieces.tree]) * whole_s
    zero = np.zeros(len(forest.roots))
    out = _branches(forest.out, ways, hop_s, zero) if forest.out else None
    then_s = np.array([tree.farthest_s(hop_s) for tree in forest.out]) if forest.out and not forest.apart else zero
    into = _branches(forest.into, ways, hop_s, then_s) if forest.into else None
    sides: list[tuple[_Branches, _PieceRows, bool]] = []
    edges: list[tuple[Int64, Int64]] = []
    if into is not None:
        rows = _rows(into, pieces, 0)
        sides.append((into, rows, True))
        held = rows.before >= 0
        edges.append((np.flatnonzero(held), rows.before[held]))
    if out is not None:
        rows = _rows(out, pieces, sides[0][1].branch.size if sides else 0)
        held, number = rows.before >= 0, rows.begin + np.arange(rows.branch.size)
        edges.append((rows.before[held], number[held]))
        if sides:
            edges.append(_turned(sides[0][1], rows, held, pieces.tree.size))
        sides.append((out, rows, False))
    keys = [due_s[rows.chunk] - table.after_s[rows.branch] for table, rows, _ in sides]
    if forest.apart:
        keys = [key + k * (whole_s + float(np.ptp(keys[0]))) for k, key in enumerate(keys)]
    key = np.concatenate(keys)
    columns = {
        "src": np.concatenate([table.src[rows.branch] for table, rows, _ in sides]),
        "dst": np.concatenate([table.dst[rows.branch] for table, rows, _ in sides]),
        "chunk": np.concatenate([rows.chunk for _, rows, _ in sides]),
        "way": np.concatenate([table.way[rows.branch] for table, rows, _ in sides]),
        "op": np.concatenate([np.full(rows.branch.size, Op.REDUCE if up else Op.COPY) for _, rows, up in sides]),
    }
    longest = max(float(table.after_s.max(initial=0.0)) for table, *_ in sides)
    length_s = min(whole_s / max(int(turns.max()), 1) / _STEPS_A_TURN, longest / _STEPS_A_WAY)
    length_s = max(length_s, float(np.ptp(key)) / _STEPS, 1e-30)
    step = np.floor((key - key.min(initial=0.0)) / length_s).astype(np.int64)
    columns["step"] = _rising(step, sides, edges)
    pairs = np.concatenate([np.stack(pair, axis=1) for pair in edges])
    return _schedule(forest, pieces, (collective, name, root), columns, pairs, tuple(ways))


def _phases(roots: list[int]) -> Float64:
    """When the first piece of each tree is due, as a part of its turn: those of a root do not all begin at once."""
    number, count = list[int](), dict[int, int]()
    for root in roots:
        number.append(count.setdefault(root, 0))
        count[root] += 1
    return np.array(number) * _GOLDEN % 1.0


def _turned(into: _PieceRows, out: _PieceRows, held: Bool, chunks: int) -> tuple[Int64, Int64]:
    """What comes into a root, before all that then leaves it, of every chunk."""
    last = np.flatnonzero(into.before < 0)
    count = np.bincount(into.chunk[last], minlength=chunks)
    begin = np.cumsum(count) - count  # rows go chunk by chunk
    first = np.flatnonzero(~held)
    many = count[out.chunk[first]]
    place = np.arange(int(many.sum())) - np.repeat(np.cumsum(many) - many, many)
    place += np.repeat(begin[out.chunk[first]], many)
    return last[place], np.repeat(out.begin + first, many)


def _rising(step: Int64, sides: list[tuple[_Branches, _PieceRows, bool]], edges: list[tuple[Int64, Int64]]) -> Int64:
    """Steps of which every row's is above that of what it passes on."""
    for table, rows, up in sides:
        depth = table.depth[rows.branch]
        number = rows.begin + np.arange(rows.branch.size)
        deepest = int(depth.max(initial=0))
        if not up and len(sides) == 2:
            np.maximum.at(step, edges[-1][1], step[edges[-1][0]] + 1)
        for level in range(deepest, 1, -1) if up else range(2, deepest + 1):
            mine = np.flatnonzero(depth == level)
            if up:
                np.maximum.at(step, rows.before[mine], step[number[mine]] + 1)
            else:
                step[number[mine]] = np.maximum(step[number[mine]], step[rows.before[mine]] + 1)
    return np.unique(step, return_inverse=True)[1].reshape(-1)


def _schedule(
    forest: Forest,
    pieces: Pieces,
    named: tuple[str, str, int],
    columns: dict[str, Int64],
    pairs: Int64,
    ways: tuple[tuple[int, ...], ...],
) -> Laid:
    network = forest.network
    endpoints = network.n + int((network.copies | network.adds).sum()) if forest.in_switches else network.n
    # Of one step each sends to its next neighbour first: else all would send to rank 0 at once.
    turned = (columns["dst"] - columns["src"]) % endpoints
    order = np.lexsort((columns["chunk"], turned, columns["step"]))
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    pairs = place[pairs]

    def dependencies() -> Dependencies:
        return from_edges(order.size, pairs[:, 0], pairs[:, 1])

    c = {name: column[order] for name, column in columns.items()}
    buffers = (np.where(c[end] < network.n, Buffer.OUTPUT, Buffer.SCRATCH) for end in ("src", "dst"))
    src_buffer, dst_buffer = buffers
    collective, name, root = named
    given: dict[str, Any] = {name: c[name] for name in ("op", "src", "dst", "step")}
    given |= {"src_buffer": src_buffer, "dst_buffer": dst_buffer, "src_chunk": c["chunk"], "dst_chunk": c["chunk"]}
    schedule = Schedule(
        collective=collective,
        algorithm=name,
        world_size=network.n,
        endpoints=endpoints,
        chunk_bytes=pieces.nbytes,
        root=root,
        known_dependencies=dependencies,
        channel=np.zeros(order.size, np.int32),
        **given,
    )
    return Laid(schedule, c["way"], ways)
