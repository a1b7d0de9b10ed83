"""Ways to divide a network into parts that must talk to each other: ranks, nodes, nodes of one leaf, halves.

Each gives a cut that no schedule gets round, in no more than a sum over edges: what is left where flows take too long.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from commsim.synthesis.network import FlowNetwork
from commsim.synthesis.tree_limit import FlowCut
from commsim.topology.kinds import Bool, Float64, Int64, VertexKind


def divisions(network: FlowNetwork) -> Iterator[Int64]:
    """The part of every vertex, (V,), -1 of those that are between the parts; every part has a rank.

    A switch that copies or adds is in the part of the first rank that is nearest to it.
    """
    seen = set[bytes]()
    for part in (_by_rank(network), *_by_node(network)):
        whole = _with_acting(network, part)
        ranks = whole[network.ranks]
        if np.unique(ranks).size > 1 and whole.tobytes() not in seen:
            seen.add(whole.tobytes())
            yield whole


def _by_rank(network: FlowNetwork) -> Int64:
    return network.rank_of.copy()


def _by_node(network: FlowNetwork) -> Iterator[Int64]:
    """Nodes, then those that hang on the same switches with these, then the first and the last half of the nodes."""
    node = network.node
    held = np.unique(node[network.ranks])
    if held.size < 2 or held[0] < 0:
        return
    yield node.copy()
    yield np.where(network.kind == VertexKind.NIC, -1, node)  # what feeds a NIC may be narrower than its port
    leaves: dict[int, set[int]] = {int(k): set() for k in held}
    for a, b in zip(network.tail.tolist(), network.head.tolist(), strict=True):
        if node[a] >= 0 > node[b] and network.kind[b] == VertexKind.SWITCH:
            leaves[int(node[a])].add(b)
    group = {key: i for i, key in enumerate(dict.fromkeys(tuple(sorted(leaves[int(k)])) for k in held))}
    by_leaf, below = np.full(network.vertices, -1, np.int64), np.array([-1] * (int(node.max()) + 1))
    for k in held.tolist():
        below[k] = group[tuple(sorted(leaves[k]))]
    shared = np.bincount([v for key in group for v in key], minlength=network.vertices) > 1
    for key, i in group.items():
        by_leaf[[v for v in key if not shared[v]]] = i
    inside = node >= 0
    by_leaf[inside] = below[node[inside]]
    yield by_leaf
    half = np.where(inside, (node >= held[held.size // 2]).astype(np.int64), -1)
    yield half


def _with_acting(network: FlowNetwork, part: Int64) -> Int64:
    """The parts with the switches that act in the part of a rank beside them, the first of all where none is."""
    acting = np.flatnonzero((network.copies | network.adds) & (part < 0))
    if not acting.size:
        return part
    out, first = part.copy(), int(part[network.ranks[0]])
    for v in acting.tolist():
        near = part[network.tail[network.head == v]]
        held = near[near >= 0]
        out[v] = held.min() if held.size else first
    return out


def flows_of(network: FlowNetwork, part: Int64) -> tuple[Int64, Int64]:
    """Units into and out of each part, (parts,) each; parts without vertices have none."""
    parts = int(part.max()) + 1
    a, b = part[network.tail], part[network.head]
    across = a != b
    into, out = np.zeros(parts, np.int64), np.zeros(parts, np.int64)
    np.add.at(into, b[across & (b >= 0)], network.capacity[across & (b >= 0)])
    np.add.at(out, a[across & (a >= 0)], network.capacity[across & (a >= 0)])
    return into, out


def gossip_cut(network: FlowNetwork) -> tuple[Fraction, Int64]:
    """Arrays a second that parts can add and share at most, in units of the network, and the parts.

    k parts send each element 2 (k - 1) times at least: before some part knows the sum, k - 1 have sent; after it every
    other must still receive (Harary & Schwenk 1974 on gossip by one-way calls).
    """
    best, where = Fraction(0), network.rank_of
    for part in divisions(network):
        k = np.unique(part[network.ranks]).size
        carried = min(int(total.sum()) for total in flows_of(network, part))
        rate = Fraction(carried, 2 * (k - 1))
        if best == 0 or rate < best:
            best, where = rate, part
    return best, where


def exchange_cut(network: FlowNetwork, demand: Float64) -> tuple[float, FlowCut | None]:
    """How often a second all demands (n, n) can be served at most, in units of the network, by the parts' borders."""
    best, cut = float("inf"), None
    wanted = demand.copy()
    np.fill_diagonal(wanted, 0.0)
    for part in divisions(network):
        of = part[network.ranks]
        parts = int(part.max()) + 1
        away: Bool = of[:, None] != of[None, :]
        sent = np.bincount(of, (wanted * away).sum(axis=1), parts)
        received = np.bincount(of, (wanted * away).sum(axis=0), parts)
        into, out = flows_of(network, part)
        for inward, needed, carried in ((False, sent, out), (True, received, into)):
            with np.errstate(divide="ignore", invalid="ignore"):
                rate = np.where(needed > 0, carried / needed, np.inf)
            at = int(np.argmin(rate))
            if rate[at] < best:
                best = float(rate[at])
                share = Fraction(float(needed[at] / demand.sum(axis=1).max())).limit_denominator(10**6)
                cut = border(network, np.flatnonzero(part == at), inward=inward, share=share)
    return best, cut


def border(network: FlowNetwork, vertices: Int64, *, inward: bool, share: Fraction) -> FlowCut:
    """The cut around some vertices."""
    inside = np.zeros(network.vertices, bool)
    inside[vertices] = True
    a, b = inside[network.tail], inside[network.head]
    edges = np.flatnonzero(b & ~a if inward else a & ~b)
    return FlowCut(frozenset(vertices.tolist()), tuple(edges.tolist()), inward, share)
