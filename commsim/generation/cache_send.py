"""A cache on its way from the replica that read a prompt to the one that answers, over the links of the machine.

Every GPU that decodes fetches its part from the GPU that made it, all of them at once, as NCCL sends. Ways that share
links slow each other down (`commsim.engine.sharing`); between two replicas caches follow one another.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from commsim.generation.memory import replica_memory
from commsim.generation.replica import Replica
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


@dataclass(eq=False)
class CacheSender:
    """Sends caches between two pools; made for one run."""

    readers: Placed
    decoders: Placed
    calls: GroupCalls
    _flows: dict[tuple[int, int], Flow] = field(default_factory=dict)
    _pairs: dict[tuple[int, int], Ranks] = field(default_factory=dict)
    _last: dict[tuple[int, int], Any] = field(default_factory=dict)
    _seconds: dict[tuple[int, int, int], float] = field(default_factory=dict)
    _under_way: Any = None

    def __post_init__(self) -> None:
        memory = replica_memory(self.decoders.replica)
        self._bytes_of = memory.sequence_bytes
        self.shared = len(self.readers.first) * len(self.decoders.first) <= MOST_WAYS
        builder = FlowBuilder(self.calls, self.calls if self.shared else None)
        for r in range(len(self.readers.first)):
            for d in range(len(self.decoders.first)):
                self._pairs[r, d] = pairs = self._pairs_of(r, d)
                self._flows[r, d] = builder.send(pairs, self._bytes_of(REFERENCE_TOKENS))
        self._sharing = builder.sharing() if self.shared else None

    @property
    def meets(self) -> bool:
        """Whether some ways share a link that has not enough for both."""
        return self._sharing is not None

    def seconds(self, reader: int, decoder: int, tokens: int) -> float:
        """What a cache of so many tokens takes alone."""
        key = reader, decoder, tokens
        if key not in self._seconds:
            nbytes = float(round(self._bytes_of(tokens)))
            self._seconds[key] = self.calls("send_recv", nbytes, self._pairs[reader, decoder])
        return self._seconds[key]

    def send(self, env: Any, reader: int, decoder: int, tokens: int) -> Generator[Any, Any, None]:
        """Waits, in a simpy process, until a cache has arrived."""
        from commsim.engine.under_way import CallsUnderWay

        if self._under_way is None and self._sharing is not None:
            self._under_way = CallsUnderWay(env, self._sharing)
        before, arrived = self._last.get((reader, decoder)), env.event()
        self._last[reader, decoder] = arrived
        if before is not None and not before.processed:
            yield before
        seconds, flow = self.seconds(reader, decoder, tokens), self._flows[reader, decoder]
        if self._under_way is not None and self._under_way.meets(flow.shared):
            yield self._under_way.start(flow.shared, seconds)
        else:
            yield env.timeout(seconds)
        arrived.succeed()

    def _pairs_of(self, reader: int, decoder: int) -> Ranks:
        """(source, destination) ranks, (GPUs of one group of the decoder over its stages, 2).

        Of several groups of attention data parallelism the pair's own is taken, in turn.
        """
        a, b = self.readers.replica, self.decoders.replica
        turn, rows = reader + decoder, []
        for stage in range(b.pp):
            for part in range(b.tp):
                src = _place(a, stage * a.pp // b.pp, turn % a.attention_dp, part * a.tp // b.tp)
                dst = _place(b, stage, turn % b.attention_dp, part)
                rows.append((self.readers.first[reader] + src, self.decoders.first[decoder] + dst))
        return np.array(rows, np.int64)


def _place(replica: Replica, stage: int, group: int, part: int) -> int:
    """The number of a GPU in its replica: tensor parallel ranks innermost, then groups, then stages."""
    return (stage * replica.attention_dp + group) * replica.tp + part
