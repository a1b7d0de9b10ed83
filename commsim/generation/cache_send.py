"""A cache on its way from the replica that read a prompt to the one that answers, over the links of the machine.

Every GPU that decodes fetches its part from the GPU that made it, all of them at once, as NCCL sends. Ways that share
links slow each other down (`commsim.engine.sharing`); between two replicas caches follow one another.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np

from commsim.engine.under_way import CallsUnderWay
from commsim.generation.memory import replica_memory
from commsim.generation.queue import Send
from commsim.generation.replica import Replica
from commsim.generation.step_table import between
from commsim.training.communicators import GroupCalls, Ranks
from commsim.training.flows import Flow, FlowBuilder

REFERENCE_TOKENS = 4096
"""Of the message whose load stands for those of all sizes."""

MOST_WAYS = 2048
"""Between replicas, of which it is found how they share links; beyond, each goes as if alone."""


@dataclass(frozen=True, eq=False)
class Placed:
    """Replicas of one pool: how each is cut, and the rank of the first GPU of each."""

    replica: Replica
    first: tuple[int, ...]


class CacheWays:
    """The ways of caches between two pools: what each takes alone, and which of them share links."""

    def __init__(self, readers: Placed, decoders: Placed, calls: GroupCalls) -> None:
        self._readers, self._decoders, self._calls = readers, decoders, calls
        self._bytes_of = replica_memory(decoders.replica).sequence_bytes
        shared = len(readers.first) * len(decoders.first) <= MOST_WAYS
        builder = FlowBuilder(calls, calls if shared else None)
        self._pairs: dict[tuple[int, int], Ranks] = {}
        self._flows: dict[tuple[int, int], Flow] = {}
        for r in range(len(readers.first)):
            for d in range(len(decoders.first)):
                self._pairs[r, d] = pairs = self._pairs_of(r, d)
                self._flows[r, d] = builder.send(pairs, self._bytes_of(REFERENCE_TOKENS))
        self._sharing = builder.sharing() if shared else None
        self._knots: dict[tuple[int, int, int], float] = {}

    @property
    def meets(self) -> bool:
        """Whether some ways share a link that has not enough for both."""
        return self._sharing is not None

    def seconds(self, reader: int, decoder: int, tokens: int) -> float:
        """What a cache of so many tokens takes alone: asked at powers of two, and read between them."""
        low, high, share = between(tokens)
        at = self._knot(reader, decoder, low)
        return at + share * (self._knot(reader, decoder, high) - at) if share else at

    def _knot(self, reader: int, decoder: int, tokens: int) -> float:
        key = reader, decoder, tokens
        if key not in self._knots:
            nbytes = float(round(self._bytes_of(max(tokens, 1))))
            self._knots[key] = self._calls("send_recv", nbytes, self._pairs[reader, decoder])
        return self._knots[key]

    def sender(self) -> Send:
        """What sends the caches of one run."""
        under_way: list[CallsUnderWay] = []
        last: dict[tuple[int, int], Any] = {}

        def send(env: Any, reader: int, decoder: int, tokens: int) -> Generator[Any, Any, None]:
            if self._sharing is not None and not under_way:
                under_way.append(CallsUnderWay(env, self._sharing))
            before, arrived = last.get((reader, decoder)), env.event()
            last[reader, decoder] = arrived
            if before is not None and not before.processed:
                yield before
            seconds, number = self.seconds(reader, decoder, tokens), self._flows[reader, decoder].shared
            if under_way and under_way[0].meets(number):
                yield under_way[0].start(number, seconds)
            else:
                yield env.timeout(seconds)
            arrived.succeed()

        return send

    def _pairs_of(self, reader: int, decoder: int) -> Ranks:
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
