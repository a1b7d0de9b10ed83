"""What a call costs on the rehearsed machine, and whom its bytes go to, in closed form.

The law has the shape that NCCL's algorithms and protocols give it (a start, hops inside a node and between nodes, bytes
over the channels that a call of its size takes, a tree's chunks), and constants of its own: what a calibration finds
must come from the times alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil, inf, log2

from rehearsal.settings import Settings

_KIB, _MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Work:
    """One collective as NCCL's callers count it: `nbytes` of the whole array, `sends` where peers are named."""

    kind: str
    nbytes: int
    root: int = 0
    sends: tuple[tuple[int, int], ...] = ()  # peer and bytes, of grouped sends


@dataclass(frozen=True)
class Cost:
    """What a protocol costs: its start and its hops (s), what a channel carries (bytes/s), what a tree hands on whole.

    `least` are the bytes for which a call takes a further channel: 32 KiB, of LL with its flags, an all_reduce twice
    (src/enqueue.cc of 2.28.9, scheduleCollTasksToPlan).
    """

    start_s: float
    nvlink_s: float
    net_s: float
    rate: float
    chunk: int
    least: int


COSTS = {
    "LL": Cost(7.4e-6, 1.1e-6, 6.1e-6, 7.6e9, 32 * _KIB, 8 * _KIB),
    "LL128": Cost(16.1e-6, 2.5e-6, 9.9e-6, 13.6e9, 120 * _KIB, 32 * _KIB),
    "Simple": Cost(13.2e-6, 3.6e-6, 17.6e-6, 18.5e9, 512 * _KIB, 32 * _KIB),
}

_LINES = 512 * 8
"""Bytes a rank for which a ring of LL takes a further channel: a line of 8 B for each of 512 threads."""

_PEER_S = 2.4e-6
"""Of a rank that one sends to or receives from, after the first."""

_SEND_RATE = 8.2e9
"""Bytes/s of one send to another node."""

_CHOICES: dict[bool, tuple[tuple[str, str, float], ...]] = {
    False: (("ring", "LL", 4 * _MIB), ("ring", "Simple", inf)),
    True: (("ring", "LL", _MIB), ("ring", "LL128", 32 * _MIB), ("ring", "Simple", inf)),
}
"""Algorithm and protocol below so many bytes, on one node and on several: about what 2.28.9 takes on nodes of H100."""

_TREE_BELOW = 128 * _KIB
"""The same for the tree of an all_reduce of 8 ranks and more on several nodes."""

CHOSEN = ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce")
"""Collectives that have an algorithm; the others are sends and receives."""


def choice(s: Settings, work: Work, ranks: list[int], env: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """Algorithm and protocol of a call, which NCCL_ALGO and NCCL_PROTO may force."""
    nodes = _nodes(s, ranks)
    algorithm, protocol, _ = next(one for one in _CHOICES[nodes > 1] if work.nbytes < one[2])
    if work.kind == "all_reduce" and nodes > 1 and len(ranks) >= 8 and work.nbytes < _TREE_BELOW:
        algorithm = "tree"
    if work.kind in CHOSEN:
        protocol = {"LL": "LL", "LL128": "LL128", "SIMPLE": "Simple"}.get(env.get("NCCL_PROTO", "").upper(), protocol)
    if work.kind == "all_reduce":
        algorithm = env.get("NCCL_ALGO", algorithm).lower()
    return algorithm, protocol


def seconds(s: Settings, work: Work, ranks: list[int], env: Mapping[str, str] = os.environ) -> float:
    """Time of a call among these ranks of the run once all have come."""
    n, nodes = len(ranks), _nodes(s, ranks)
    if work.kind not in CHOSEN or n == 1:
        return _sends_s(work, n, nodes)
    algorithm, protocol = choice(s, work, ranks, env)
    cost = COSTS[protocol]
    count = channels(s, work, n, nodes, algorithm, protocol)
    part = work.nbytes / count
    rate = cost.rate if nodes == 1 else min(cost.rate, s.net_bandwidth)
    if work.kind in ("broadcast", "reduce"):
        # Calls follow each other down a chain, but the last rank of one channel's is not the last one of the next's.
        chain = (n - nodes) * cost.nvlink_s + (nodes - 1) * cost.net_s if count > 1 else 0.0
        return cost.start_s + chain + part / rate
    if algorithm == "tree":
        hops = 2 * (n // nodes - 1) * cost.nvlink_s + 2 * log2(nodes) * cost.net_s
        deep, first = 2 * (n // nodes - 1) + 2 * log2(nodes), min(part, cost.chunk)
        return float(cost.start_s + hops + deep * first / rate + (part - first) / rate)
    steps = (2 if work.kind == "all_reduce" else 1) * (n - 1)
    between = ceil(steps * nodes / n) if nodes > 1 else 0
    return cost.start_s + between * cost.net_s + (steps - between) * cost.nvlink_s + steps * part / n / rate


def channels(s: Settings, work: Work, n: int, nodes: int, algorithm: str, protocol: str) -> int:
    """Channels of a call: as many as it has bytes for, at most two for every one of the graph."""
    if algorithm == "ring" and protocol == "LL":
        wanted = ceil(work.nbytes / (_LINES * n))
    else:
        wanted = ceil(work.nbytes * (2 if work.kind == "all_reduce" else 1) / COSTS[protocol].least)
    return max(1, min(graph_channels(s, nodes)[0] * 2, wanted))


def graph_channels(s: Settings, nodes: int) -> tuple[int, int]:
    """Channels of the graphs, and GB/s of each: among nodes one per NIC, with 40 of its 50 GB/s."""
    return (s.gpus_of_node, 40) if nodes > 1 else (8, 40)


def _sends_s(work: Work, n: int, nodes: int) -> float:
    cost = COSTS["Simple"]
    if n == 1:
        return cost.start_s + work.nbytes / 1e12
    hop = cost.net_s if nodes > 1 else cost.nvlink_s
    rate = _SEND_RATE if nodes > 1 else cost.rate
    far = n - n // nodes if nodes > 1 else n - 1
    block = work.nbytes / n
    if work.kind in ("all_to_all", "gather"):
        return cost.start_s + hop + far * _PEER_S + far * block / rate
    if work.kind == "scatter":
        return cost.start_s + hop + _PEER_S + far * block / rate
    return cost.start_s + hop + work.nbytes / rate


def _nodes(s: Settings, ranks: list[int]) -> int:
    return len({s.node_of(rank) for rank in ranks})


def sent_to(work: Work, rank: int, n: int) -> dict[int, float]:
    """Bytes that one rank sends to every other in a call, by rank within the communicator."""
    after, block = (rank + 1) % n, work.nbytes / n
    if n == 1:
        return {}
    if work.kind == "all_reduce":
        return {after: 2 * (n - 1) * block}
    if work.kind in ("all_gather", "reduce_scatter"):
        return {after: (n - 1) * block}
    if work.kind == "broadcast":  # a chain that begins at the root
        return {after: float(work.nbytes)} if after != work.root else {}
    if work.kind == "reduce":  # a chain that ends there
        return {after: float(work.nbytes)} if rank != work.root else {}
    if work.kind == "all_to_all":
        return {peer: block for peer in range(n) if peer != rank}
    if work.kind == "gather":
        return {work.root: block} if rank != work.root else {}
    if work.kind == "scatter":
        return {peer: block for peer in range(n) if peer != rank} if rank == work.root else {}
    total: dict[int, float] = {}
    for peer, nbytes in work.sends:
        if peer != rank:
            total[peer] = total.get(peer, 0.0) + nbytes
    return total
