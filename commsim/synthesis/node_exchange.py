"""all_to_all of large machines: every block over one rail, those of a pair of nodes over all rails that both have.

A block goes to the gateway of its rail within its node, over the rail, and from the other gateway to its rank. Its rail
is that of its receiver, unless one of the nodes has none there or less of it: then rails take the blocks in turn. All
nodes send to nodes at one distance at a time, near and far ones in turn, so that links between switches have as much to
carry at any time.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from commsim.collectives.dependencies import Dependencies, from_edges
from commsim.collectives.schedule import Buffer, Op, Schedule
from commsim.synthesis.by_levels import order_of
from commsim.synthesis.levels import Levels
from commsim.topology.kinds import Int64

_GOLDEN = 0.618
"""Part of the ring by which the next distance is another: multiples of the golden section lie most evenly."""


@dataclass(frozen=True, eq=False)
class BlockRows:
    """Rows of an all_to_all, (rows,): ranks, rail (-1 in a node), sender and receiver of the block, leg and order."""

    src: Int64
    dst: Int64
    rail: Int64
    sender: Int64
    receiver: Int64
    leg: Int64  # 0 to the gateway, 1 over the rail, 2 from the gateway; 3 within a node
    step: Int64
    before: Int64


def exchange_rows(levels: Levels, period: int | None = None) -> BlockRows:
    """The rows of an all_to_all; ``period``: those of the first nodes, where a shift by so many changes nothing."""
    t, G, m = levels.topology, levels.G, levels.m
    H = m if period is None else period
    place = np.empty(m, np.int64)
    place[levels.order] = np.arange(m)
    u, far, a, b = (x.ravel() for x in np.indices((H, m - 1, G, G)))
    node, other = levels.order[u], levels.order[(u + far + 1) % m]
    rail = _rails(levels, node, other, a, b, far)
    out, into = levels.gateway[node, rail], levels.gateway[other, rail]
    first, last = t.node_first_rank[node], t.node_first_rank[other]
    sender, receiver = first + a, last + b
    blocks = np.arange(sender.size)
    begins, ends = out != a, into != b
    number = [np.flatnonzero(begins), blocks, np.flatnonzero(ends)]
    starts = np.cumsum([0, *(part.size for part in number)])
    to_gateway = np.full(blocks.size, -1)
    to_gateway[number[0]] = np.arange(number[0].size)
    legs = [
        (sender, first + out, np.full(blocks.size, -1), to_gateway[:0]),
        (first + out, last + into, rail, to_gateway),
        (last + into, receiver, np.full(blocks.size, -1), starts[1] + blocks),
    ]
    src = [legs[k][0][number[k]] for k in range(3)]
    dst = [legs[k][1][number[k]] for k in range(3)]
    rails = [legs[k][2][number[k]] for k in range(3)]
    before = [np.full(number[0].size, -1), to_gateway, legs[2][3][number[2]]]
    # In a round all nodes send to one distance; within it senders begin with different receivers.
    turn = _mixed(m)[far] * (G * G) * 4 + ((b - a) % G) * G * 4 + a * 4
    own = [x.ravel() for x in np.indices((H, G, G))]
    mine, peer = (t.node_first_rank[levels.order[own[0]]] + own[k] for k in (1, 2))
    whole = [
        (np.concatenate([*parts, inside]))
        for parts, inside in (
            (src, mine),
            (dst, peer),
            (rails, np.full(mine.size, -1)),
            ([sender[k] for k in number], mine),
            ([receiver[k] for k in number], peer),
            ([np.full(number[k].size, k) for k in range(3)], np.full(mine.size, 3)),
            ([turn[number[k]] + k for k in range(3)], np.full(mine.size, (m - 1) * G * G * 4) + own[1] * G + own[2]),
            (before, np.full(mine.size, -1)),
        )
    ]
    return BlockRows(*whole)


def _mixed(m: int) -> Int64:
    """When each of the distances 1 .. m - 1 has its turn: all of them, any few in a row spread over the whole range."""
    step = next(k for k in range(max(1, round(m * _GOLDEN)), 2 * m) if gcd(k, m) == 1)
    turn = np.empty(m, np.int64)
    turn[np.arange(m) * step % m] = np.arange(m)
    return turn[1:]


def _rails(levels: Levels, node: Int64, other: Int64, a: Int64, b: Int64, far: Int64) -> Int64:
    """The rail of each block: of its receiver where all rails of both nodes are alike, else in turn."""
    G, R = levels.G, levels.rails
    rate = levels.rate
    sort = np.unique(rate, axis=0, return_inverse=True)[1].reshape(-1)
    whole = (rate == rate.max()).all(axis=1)
    out = np.empty(node.size, np.int64)
    plain = whole[node] & whole[other]
    nearest = np.array([int(g) for g in levels.topology.group_of(0).node_routes.nearest_nic], np.int64)
    out[plain] = nearest[b[plain]] if len(set(nearest.tolist())) == R else (a[plain] + b[plain]) % R
    kinds = sort.max() + 1
    pair = sort[node] * kinds + sort[other]
    for number in np.unique(pair[~plain]).tolist():
        k = np.flatnonzero(~plain & (pair == number))
        turns = levels.turns(int(node[k[0]]), int(other[k[0]]))
        out[k] = turns[((far[k] * G + a[k]) * G + b[k]) % turns.size]
    return out


def exchange_schedule(rows: BlockRows, levels: Levels, block_bytes: int) -> tuple[Schedule, Int64]:
    """The schedule of all rows, for blocks of so many bytes, and the number of each of its rows in the table."""
    n = levels.topology.world_size
    order = order_of((rows.src, rows.dst), rows.step, np.zeros_like(rows.step), n)
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    held = np.flatnonzero(rows.before >= 0)
    before, after = place[rows.before[held]], place[held]

    def dependencies() -> Dependencies:
        return from_edges(order.size, before, after)

    relayed, slot = _slots(rows, n)
    starts, final = rows.src == rows.sender, rows.dst == rows.receiver
    columns: dict[str, Any] = {
        "src": rows.src,
        "dst": rows.dst,
        "step": np.unique(rows.step, return_inverse=True)[1].reshape(-1),
        "channel": np.maximum(rows.rail, 0),
        "src_buffer": np.where(starts, Buffer.INPUT, Buffer.SCRATCH),
        "src_chunk": np.where(starts, rows.receiver, slot[np.maximum(rows.before, 0)]),
        "dst_buffer": np.where(final, Buffer.OUTPUT, Buffer.SCRATCH),
        "dst_chunk": np.where(final, rows.sender, slot),
    }
    scratch = max(0, relayed - n)
    schedule = Schedule(
        collective="all_to_all",
        algorithm="synthesized",
        world_size=n,
        endpoints=n,
        op=np.full(order.size, Op.COPY, np.uint8),
        chunk_bytes=np.full(n + scratch, block_bytes, np.int64),
        in_place=False,
        scratch_chunks=scratch,
        known_dependencies=dependencies,
        **{name: column[order] for name, column in columns.items()},
    )
    return schedule, order


def _slots(rows: BlockRows, n: int) -> tuple[int, Int64]:
    """Most blocks that a rank passes on, and the slot of scratch that each row writes, where it does."""
    passed = np.flatnonzero(rows.dst != rows.receiver)
    by = passed[np.argsort(rows.dst[passed], kind="stable")]
    counts = np.bincount(rows.dst[by], minlength=n)
    slot = np.zeros(rows.src.size, np.int64)
    slot[by] = np.arange(by.size) - np.repeat(np.cumsum(counts) - counts, counts)
    return int(counts.max(initial=0)), slot
