"""A cache on its way from the replica that read a prompt to the one that answers, over the links of the machine.

Every GPU that decodes fetches its part from the GPU that made it, all of them at once, as NIXL and Mooncake do: RDMA
from the NIC of the one to the NIC of the other, at the rate of the tightest link. Ways that share links slow each other
down (`commsim.engine.sharing`); between two replicas caches follow one another.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from commsim.engine.clock import SimpyClock
from commsim.engine.sharing import CallTraffic, LinkLoad, Sharing
from commsim.engine.under_way import CallsUnderWay
from commsim.generation.memory import replica_memory
from commsim.generation.queue import Send
from commsim.generation.replica import Replica
from commsim.topology.graph import Topology
from commsim.topology.kinds import Int64, LinkKind

REFERENCE_TOKENS = 4096
"""Of the message whose load stands for those of all sizes."""

MOST_WAYS = 2048
"""Between replicas, of which it is found how they share links; beyond, each goes as if alone."""

NETWORK_EFFICIENCY = 0.95
"""Of the rate of a NIC what RDMA carries, as NCCL's own transfers do (commsim/nccl/networks/infiniband.yaml)."""

SETUP_S = 20e-6
"""To agree on where the blocks of the cache lie: a message there and one back between two hosts."""


@dataclass(frozen=True, eq=False)
class PoolPlace:
    """Replicas of one pool: how each is cut, and the rank of the first GPU of each."""

    replica: Replica
    first: tuple[int, ...]


class CacheWays:
    """The ways of caches between two pools: what each takes alone, and which of them share links."""

    def __init__(self, readers: PoolPlace, decoders: PoolPlace, topology: Topology) -> None:
        self._readers, self._decoders = readers, decoders
        self._bytes_of = replica_memory(decoders.replica).sequence_bytes
        self._rate = topology.link_bandwidth.copy()
        self._rate[topology.link_kind == LinkKind.NETWORK] *= NETWORK_EFFICIENCY
        reference = self._bytes_of(REFERENCE_TOKENS)
        made: list[CallTraffic] = []
        self._per_byte: list[float] = []
        self._first_s: list[float] = []
        for pairs in self._all_pairs():
            link, pair = ways(topology, pairs)
            lines = np.bincount(link, minlength=self._rate.size).astype(np.float64)
            load = LinkLoad.of(lines * reference, lines, self._rate)
            self._per_byte.append(load.busiest_s / reference)
            latency = np.bincount(pair, topology.link_latency[link], len(pairs))
            self._first_s.append(SETUP_S + float(latency.max(initial=0.0)))
            made.append(CallTraffic(0.0, max(load.busiest_s, 1e-12), load))
        sharing = Sharing(made) if len(made) <= MOST_WAYS else None
        self._sharing = sharing if sharing is not None and any(map(sharing.meets, range(len(made)))) else None

    @property
    def meets(self) -> bool:
        """Whether some ways share a link that has not enough for both."""
        return self._sharing is not None

    def seconds(self, reader: int, decoder: int, tokens: int) -> float:
        """What a cache of so many tokens takes alone."""
        way = self._number(reader, decoder)
        return self._first_s[way] + self._bytes_of(tokens) * self._per_byte[way]

    def _number(self, reader: int, decoder: int) -> int:
        return reader * len(self._decoders.first) + decoder

    def sender(self) -> Send:
        """What sends the caches of one run."""
        under_way: list[CallsUnderWay] = []
        last: dict[tuple[int, int], Any] = {}

        def send(env: Any, reader: int, decoder: int, tokens: int) -> Generator[Any, Any, None]:
            if self._sharing is not None and not under_way:
                under_way.append(CallsUnderWay(SimpyClock(env), self._sharing))
            before, arrived = last.get((reader, decoder)), env.event()
            last[reader, decoder] = arrived
            if before is not None and not before.processed:
                yield before
            seconds, number = self.seconds(reader, decoder, tokens), self._number(reader, decoder)
            if under_way and under_way[0].meets(number):
                through = env.event()
                under_way[0].start(number, seconds, through.succeed)
                yield through
            else:
                yield env.timeout(seconds)
            arrived.succeed()

        return send

    def _all_pairs(self) -> Generator[Int64, None, None]:
        for reader in range(len(self._readers.first)):
            for decoder in range(len(self._decoders.first)):
                yield self._pairs_of(reader, decoder)

    def _pairs_of(self, reader: int, decoder: int) -> Int64:
        """(source, destination) ranks, (GPUs of one group of the decoder over its stages, 2).

        Of several groups of attention data parallelism the pair's own is taken, in turn.
        """
        a, b = self._readers.replica, self._decoders.replica
        turn, rows = reader + decoder, []
        for stage in range(b.pp):
            for part in range(b.tp):
                src = _place(a, stage * a.pp // b.pp, turn % a.attention_dp, part * a.tp // b.tp)
                dst = _place(b, stage, turn % b.attention_dp, part)
                rows.append((self._readers.first[reader] + src, self._decoders.first[decoder] + dst))
        return np.array(rows, np.int64)


def _place(replica: Replica, stage: int, group: int, part: int) -> int:
    """The number of a GPU in its replica: tensor parallel ranks innermost, then groups, then stages."""
    return (stage * replica.attention_dp + group) * replica.tp + part


def ways(topology: Topology, pairs: Int64) -> tuple[Int64, Int64]:
    """The links of the ways of pairs (pairs, 2) of ranks and the pair of each, both (links of all ways,).

    Between nodes a way leaves by the NIC of its first GPU and comes in by that of the other: it is the way to the GPU
    in the same place of the other node up to there, and from there the way that one from the other's place ends with.
    """
    src, dst = pairs[:, 0], pairs[:, 1]
    node, first = topology.rank_node, topology.node_first_rank
    across = node[src] != node[dst]
    there = np.where(across, first[node[dst]] + src - first[node[src]], dst)
    here = first[node[src]] + dst - first[node[dst]]
    end = topology.node_first_vertex[node[dst]], topology.node_first_vertex[node[dst] + 1]

    def inside(link: Int64, pair: Int64) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Whether links lead into or inside the node of a pair's second rank."""
        vertex = topology.link_dst[link]
        return np.asarray((vertex >= end[0][pair]) & (vertex < end[1][pair]))

    link, pair = topology.routes(src, there).along()
    kept = ~(across[pair] & inside(link, pair))
    last, of = topology.routes(here[across], dst[across]).along()
    of = np.flatnonzero(across)[of]
    into = inside(last, of)
    return np.concatenate([link[kept], last[into]]), np.concatenate([pair[kept], of[into]])
