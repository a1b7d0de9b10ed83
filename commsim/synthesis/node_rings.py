"""Rings of nodes over rails: how every piece of an array comes to all nodes, and in each of them to all ranks.

A piece starts at its owner and goes along chains of nodes, each time over the rail whose turn it is, and from where it
arrives to the other ranks of the node. Every node takes in every piece once, over all its rails: no plan needs
less of its NICs. Turned round, the same ways add pieces up at their owners.
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


@dataclass(frozen=True, eq=False)
class Chains:
    """How a piece goes round a ring of m nodes: from its owner to some heads, and from each on along a chain.

    By distance from the owner, (m,): where a node takes it from (``above``), and ``order``, the turn at which it does.
    """

    above: Int64
    order: Int64

    @staticmethod
    def of(m: int, heads: int) -> Chains:
        """So many chains of about one length."""
        k = max(1, min(heads, m - 1))
        first = np.linspace(1, m, k + 1).round().astype(np.int64)
        chain = np.searchsorted(first, np.arange(m), side="right") - 1
        depth = np.arange(m) - first[np.maximum(chain, 0)]
        above = np.where(depth == 0, 0, np.arange(m) - 1)
        return Chains(np.where(np.arange(m) > 0, above, -1), np.where(np.arange(m) > 0, 1 + depth * k + chain, 0))


@dataclass(frozen=True, eq=False)
class Round:
    """One array that goes round a ring: over how many ``heads``, of which ``turn`` (how many went before, after which
    rails go on in turn), and by what ``shares`` (hops, rails) of the rails on each hop, evenly without.

    ``period``: only what the first nodes take in is wanted, where a shift by so many changes nothing.
    """

    heads: int = 1
    turn: int = 0
    shares: Float64 | None = None
    period: int | None = None


def spread_moves(levels: Levels, ring: Int64, leaves: Int64, per_node: int, on: Round) -> Moves:
    """The moves of ``per_node`` pieces of each node of a ring to all ranks; piece p of owner o is ``o * per_node + p``.

    Piece p starts at local rank ``p % G``. Nodes of `leaves` own none and take each piece from one node of the ring.
    """
    t, G, P, m = levels.topology, levels.G, per_node, ring.size
    H, chains = m if on.period is None else on.period, Chains.of(m, on.heads)
    # Of every node of the ring, distance from the owner and piece: how it arrives there.
    v, s, p = np.ogrid[:H, 1:m, :P]
    q = chains.above[s]
    sender = (v - s + q) % m
    rail = _rails(levels, ring, P, on)
    by, to = levels.gateway[ring[sender], rail], levels.gateway[ring[v], rail]
    holder = np.empty((H, m, P), np.int64)
    holder[:, 0] = np.arange(P) % G
    holder[:, 1:] = to
    came = np.full((H, m, P), -1)
    came[:, 1:] = np.arange(H * (m - 1) * P).reshape(H, m - 1, P)
    copies = H * (m - 1) * P + np.arange(H * m * P * (G - 1)).reshape(H, m, P, G - 1)
    piece = ((np.arange(H)[:, None] - np.arange(m)) % m)[:, :, None] * P + np.arange(P)
    due = 2 * (chains.order[None, :, None] * P + np.arange(P)) + np.zeros((H, 1, 1), np.int64)
    known = (holder, came, copies)
    parts = [
        Moves(
            src=(t.node_first_rank[ring[sender]] + by).ravel(),
            dst=(t.node_first_rank[ring[v]] + to).ravel(),
            rail=rail.ravel(),
            piece=piece[:, 1:].ravel(),
            key=due[:, 1:].ravel(),
            before=_before(known, (sender % H, q, p), by).ravel(),
        ),
        _copies(
            t.node_first_rank[ring[:H]][:, None, None, None] + 0 * holder[..., None], holder, piece, due + 1, came, G
        ),
    ]
    for k, leaf in enumerate(leaves.tolist()):
        begin = sum(part.src.size for part in parts)
        parts += _to_leaf(levels, ring, (k, leaf), (P, on.turn, begin), known, chains)
    return joined(parts)


def _rails(levels: Levels, ring: Int64, P: int, on: Round) -> Int64:
    """The rail by which each piece comes to each node of the ring, (nodes, distances from 1 on, pieces)."""
    m, chains = ring.size, Chains.of(ring.size, on.heads)
    H = m if on.period is None else on.period
    place = (on.turn * (m - 1) + np.arange(m - 1))[:, None] * P + np.arange(P)
    heads = [] if levels.alike(ring.tolist()) else np.flatnonzero(chains.above == 0).tolist()
    out = np.empty((H, m - 1, P), np.int64)
    for v in range(H):
        hop = (v - 1) % m
        turns = levels.turns(int(ring[hop]), int(ring[v])) if on.shares is None else turns_of(on.shares[hop])
        out[v] = turns[place % turns.size]
        for s in heads:
            turns = levels.turns(int(ring[(v - s) % m]), int(ring[v]))
            out[v, s - 1] = turns[(on.turn * P + np.arange(P)) % turns.size]  # a pair of nodes has but these
    return out


def _before(known: tuple[Int64, Int64, Int64], at: tuple[Int64, Int64, Int64], by: Int64) -> Int64:
    """What a piece waits for that leaves by a rank: its arrival there, or its copy from where it arrived."""
    holder, came, copies = known
    here = holder[at]
    if copies.shape[-1] == 0:
        return came[at]
    relayed = copies[(*at, np.minimum(by - (by > here), copies.shape[-1] - 1))]
    return np.where(by != here, relayed, came[at])


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
    cut: tuple[int, int, int],
    known: tuple[Int64, Int64, Int64],
    chains: Chains,
) -> list[Moves]:
    """Every piece from one node of the ring to a node beside it, evenly from all of them, then to its ranks."""
    t, G, m, (k, w), (P, before, begin) = levels.topology, levels.G, ring.size, leaf, cut
    o, p = (x.ravel() for x in np.indices((m, P)))
    s = (o * P + p + 7 * k) % m
    near = (o + s) % m
    order = np.lexsort((chains.order[s], near))  # each node beside it in turn takes its rails, from another one on
    count = np.bincount(near, minlength=m)
    turn = np.empty(order.size, np.int64)
    turn[order] = np.arange(order.size) - np.repeat(np.cumsum(count) - count, count)
    turn += before * count[near] + near
    turns = np.stack([levels.turns(int(v), w) for v in ring.tolist()])
    rail = turns[near, turn % turns.shape[1]]
    by, to = levels.gateway[ring[near], rail], levels.gateway[w, rail]
    key = 2 * ((chains.order[s] + 1) * P + p)
    forward = Moves(
        src=t.node_first_rank[ring[near]] + by,
        dst=t.node_first_rank[w] + to,
        rail=rail,
        piece=o * P + p,
        key=key,
        before=_before(known, (near, s, p), by),
    )
    first = np.full((o.size, 1), t.node_first_rank[w])
    return [forward, _copies(first, to, o * P + p, key + 1, begin + np.arange(o.size), G)]


def turned(moves: Moves) -> tuple[Moves, Int64, Int64]:
    """The moves backwards, from all ranks to the owners, and their order as (row, row that waits for it)."""
    held = np.flatnonzero(~moves.first)
    back = replace(moves, src=moves.dst, dst=moves.src, key=int(moves.key.max()) - moves.key)
    return back, held, moves.before[held]
