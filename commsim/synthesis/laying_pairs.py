"""Paths laid out as a schedule of what pairs of ranks send each other: out of INPUT, into OUTPUT, over SCRATCH."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from commsim.collectives.dependencies import Dependencies
from commsim.collectives.schedule import Buffer, Op, Schedule
from commsim.synthesis.exchange import ends_of
from commsim.synthesis.forest import Forest
from commsim.synthesis.laying import Laid, lay
from commsim.synthesis.pieces import Pieces
from commsim.topology.kinds import Int64


def lay_pairs(forest: Forest, pieces: Pieces, collective: str, count: int) -> Laid:
    """The schedule of an all_to_all or a send_recv whose messages are cut into ``count`` pieces, pair after pair."""
    base = lay(forest, pieces, collective)
    s, n = base.schedule, forest.network.n
    pair = np.array([ends_of(tree) for tree in forest.out], np.int64)[pieces.tree]
    piece = np.arange(pieces.tree.size) % count
    blocks = n if collective == "all_to_all" else 1
    source = (pair[:, 1] if blocks > 1 else 0) * count + piece  # of each chunk of the forest, in its sender's array
    target = (pair[:, 0] if blocks > 1 else 0) * count + piece
    chunk = s.src_chunk.astype(np.int64)
    begins, ends = s.src == pair[chunk, 0], s.dst == pair[chunk, 1]
    kept, places = _kept(s.dst.astype(np.int64), chunk, ~ends, piece, count, n)
    held = np.where(begins, 0, places[s.src, chunk])
    scratch = max(0, kept * count - blocks * count)
    one = pieces.nbytes[:count]
    columns: dict[str, Int64] = {
        "src_buffer": np.where(begins, Buffer.INPUT, Buffer.SCRATCH),
        "src_chunk": np.where(begins, source[chunk], held),
        "dst_buffer": np.where(ends, Buffer.OUTPUT, Buffer.SCRATCH),
        "dst_chunk": np.where(ends, target[chunk], places[s.dst, chunk]),
    } | {name: getattr(s, name).astype(np.int64) for name in ("op", "src", "dst", "step", "channel")}
    way = base.way
    if blocks > 1:  # what a rank sends itself
        rank = np.repeat(np.arange(n), count)
        own = rank * count + np.tile(np.arange(count), n)
        more = {"src": rank, "dst": rank, "src_chunk": own, "dst_chunk": own}
        more |= {
            "op": np.full(own.size, Op.COPY),
            "step": np.full(own.size, s.steps - 1),
            "channel": np.zeros_like(own),
        }
        more |= {"src_buffer": np.full(own.size, Buffer.INPUT), "dst_buffer": np.full(own.size, Buffer.OUTPUT)}
        columns = {name: np.concatenate([column, more[name]]) for name, column in columns.items()}
        way = np.concatenate([way, np.full(own.size, len(base.ways))])
    rows = columns["src"].size

    def dependencies() -> Dependencies:
        ptr, idx = s.dependencies()
        return np.concatenate([ptr, np.full(rows - s.rows, ptr[-1])]), idx

    schedule = Schedule(
        collective=collective,
        algorithm=s.algorithm,
        world_size=n,
        endpoints=n,
        chunk_bytes=np.tile(one, blocks + scratch // count),
        in_place=False,
        scratch_chunks=scratch,
        known_dependencies=dependencies,
        **_typed(columns),
    )
    return dataclasses.replace(base, schedule=schedule, way=way, ways=(*base.ways, ()))


def _typed(columns: dict[str, Int64]) -> dict[str, Any]:
    return dict(columns)


def _kept(dst: Int64, chunk: Int64, relays: Any, piece: Int64, count: int, n: int) -> tuple[int, Int64]:
    """Most messages that a rank keeps to pass on, and the slot of each chunk at each rank, (n, chunks)."""
    places = np.zeros((n, piece.size), np.int64)
    most = 0
    for rank in range(n):
        own = np.unique(chunk[relays & (dst == rank)])
        turn = np.zeros(own.size, np.int64)
        for k in range(count):
            mine = piece[own] == k
            turn[mine] = np.arange(int(mine.sum()))
        places[rank, own] = turn * count + piece[own]
        most = max(most, int(turn.max(initial=-1)) + 1)
    return most, places
