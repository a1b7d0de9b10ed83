"""Rings of nodes over rails: how every piece of an array comes to all nodes, and in each of them to all ranks.

A piece starts at its owner, goes from node to node round the ring, each time over the rail whose turn it is, and from
where it arrives to the other ranks of the node. Every node takes in every piece once, over all its rails evenly: no plan
needs less of its NICs. Turned round, the same ways add pieces up at their owners.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from commsim.synthesis.levels import Levels, turns_of
from commsim.topology.kinds import Bool, Float64, Int64


@dataclass(frozen=True, eq=False)
class Moves:
    """Rows of a schedule, (rows,): ranks, the rail (-1 in a node), the piece, when it is due (`key`), and the row that
    it waits for (`before`, -1: none). ``last``: nobody waits for it.
    """

    src: Int64
    dst: Int64
    rail: Int64
    piece: Int64
    key: Int64
    before: Int64

    @property
    def first(self) -> Bool:
        """Whether a row waits for none."""
        return self.before < 0


def joined(parts: list[Moves]) -> Moves:
    """All rows one below the other; what they wait for is counted already."""
    return Moves(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Moves)))


def spread_moves(
    levels: Levels,
    ring: Int64,
    leaves: Int64,
    per_node: int,
    period: int | None = None,
    shares: Float64 | None = None,
    turn: int = 0,
) -> Moves:
    """The moves of ``per_node`` pieces of each node of a ring to all ranks; piece p of owner o is ``o * per_node + p``.

    Piece p starts at local rank ``p % G``. Nodes of `leaves` own none and take each piece from one node of the ring.
    ``shares`` (hops, rails): of the rails on each hop, evenly without; ``turn``: how many arrays went before, after which
    rails go on in turn. ``period``: only what the first nodes of the ring send, where a shift by so many changes nothing.
    """
    t, G, P, m = levels.topology, levels.G, per_node, ring.size
    H = m if period is None else period
    h, s, p = np.ogrid[:H, : m - 1, :P]
    if shares is None:
        turns = np.stack([levels.turns(int(ring[k]), int(ring[(k + 1) % m])) for k in range(H)])
    else:
        turns = np.stack([turns_of(share) for share in shares])
    rail = turns[h, ((turn * (m - 1) + s) * P + p) % turns.shape[1]]
    node, following = ring[:H], ring[np.arange(1, H + 1) % m]
    leaves_by, arrives_at = levels.gateway[node[:, None, None], rail], levels.gateway[following[:, None, None], rail]
    holder = np.empty((H, m, P), np.int64)
    holder[:, 0] = np.arange(P) % G
    holder[:, 1:] = np.roll(arrives_at, 1, axis=0)
    forward = np.arange(H * (m - 1) * P).reshape(H, m - 1, P)
    came = np.full((H, m, P), -1)
    came[:, 1:] = np.roll(forward, 1, axis=0)
    copies = forward.size + np.arange(H * m * P * (G - 1)).reshape(H, m, P, G - 1)
    owner = (np.arange(H)[:, None] - np.arange(m)[None, :]) % m
    piece = owner[:, :, None] * P + np.arange(P)
    due = 2 * (np.arange(m)[None, :, None] * P + np.arange(P)[None, None, :]) + np.zeros((H, 1, 1), np.int64)
    base = t.node_first_rank[node][:, None, None]
    at = holder[:, : m - 1]
    relayed = np.take_along_axis(
        copies[:, : m - 1], np.minimum(leaves_by - (leaves_by > at), G - 2)[..., None], axis=3
    )[..., 0] if G > 1 else came[:, : m - 1]  # fmt: skip
    parts = [
        Moves(
            src=(base + leaves_by).ravel(),
            dst=(t.node_first_rank[following][:, None, None] + arrives_at).ravel(),
            rail=rail.ravel(),
            piece=piece[:, : m - 1].ravel(),
            key=(due[:, : m - 1] + 2 * P).ravel(),
            before=np.where(leaves_by != at, relayed, came[:, : m - 1]).ravel(),
        ),
        _copies(base[..., None] + 0 * holder[..., None], holder, piece, due + 1, came, G),
    ]
    for k, leaf in enumerate(leaves.tolist()):
        parts += _to_leaf(
            levels, ring, (k, leaf), P, (holder, came, copies), turn, sum(part.src.size for part in parts)
        )
    return joined(parts)


def _copies(base: Int64, holder: Int64, piece: Int64, key: Int64, came: Int64, G: int) -> Moves:
    """From where each piece is to the other ranks of its node; of arrays of one shape."""
    other = np.arange(G - 1) + (np.arange(G - 1) >= holder[..., None])
    shape = (*holder.shape, G - 1)
    return Moves(
        src=np.broadcast_to(base + holder[..., None], shape).ravel(),
        dst=(base + other).ravel(),
        rail=np.full(other.size, -1),
        piece=np.broadcast_to(piece[..., None], shape).ravel(),
        key=np.broadcast_to(key[..., None], shape).ravel(),
        before=np.broadcast_to(came[..., None], shape).ravel(),
    )


def _to_leaf(
    levels: Levels,
    ring: Int64,
    leaf: tuple[int, int],
    P: int,
    known: tuple[Int64, Int64, Int64],
    before: int,
    begin: int,
) -> list[Moves]:
    """Every piece from one node of the ring to a node beside it, evenly from all and all the time, then to its ranks."""
    holder, came, copies = known
    t, G, m, (k, w) = levels.topology, levels.G, ring.size, leaf
    o, p = (x.ravel() for x in np.indices((m, P)))
    s = (o * P + p + 7 * k) % m
    near = (o + s) % m
    order = np.lexsort((o, p, s))
    turn = np.empty(order.size, np.int64)
    turn[order] = np.arange(order.size) + before * order.size
    turns = np.stack([levels.turns(int(v), w) for v in ring.tolist()])
    rail = turns[near, turn % turns.shape[1]]
    by, to = levels.gateway[ring[near], rail], levels.gateway[w, rail]
    at = holder[near, s, p]
    relayed = copies[near, s, p, np.minimum(by - (by > at), G - 2)] if G > 1 else came[near, s, p]
    key = 2 * (s * P + p) + 2 * P
    there = begin + np.arange(o.size)
    forward = Moves(
        src=t.node_first_rank[ring[near]] + by,
        dst=t.node_first_rank[w] + to,
        rail=rail,
        piece=o * P + p,
        key=key,
        before=np.where(by != at, relayed, came[near, s, p]),
    )
    first = np.full((o.size, 1), t.node_first_rank[w])
    return [forward, _copies(first, to, o * P + p, key + 1, there, G)]


def turned(moves: Moves) -> tuple[Moves, Int64, Int64]:
    """The moves backwards, from all ranks to the owners, and their order as (row, row that waits for it)."""
    held = np.flatnonzero(~moves.first)
    back = replace(moves, src=moves.dst, dst=moves.src, key=int(moves.key.max()) - moves.key)
    return back, held, moves.before[held]
