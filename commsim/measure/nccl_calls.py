"""The calls of libnccl that make up one collective: where each buffer begins, and what NCCL counts.

Offsets in place and counts are those of nccl-tests (src/*.cu, 2.19.6); `size` is the whole array, as in its table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from commsim.collectives.semantics import GATHERING, SCATTERING
from commsim.measure.libnccl import DATATYPES, REDUCTIONS, Nccl
from commsim.measure.pattern import Pattern
from commsim.measure.run import Task

Calls = list[tuple[Any, tuple[Any, ...]]]
"""Entry points with their arguments, to be called one after the other."""


@dataclass(frozen=True)
class Layout:
    """Bytes of one rank's part: what it sends and receives, and where in the receive buffer that lies in place."""

    sent: int
    received: int
    sent_in_place: int = 0
    received_in_place: int = 0

    @property
    def span(self) -> int:
        """Bytes from one call's part of the buffers to the next one's."""
        return max(self.sent, self.received)


def layout(pattern: Pattern, rank: int, size: int) -> Layout:
    """Where one call of a rank sends from and receives to, relative to its part of the buffers.

    A span counts what any rank needs, so that all ranks cut their buffers alike.
    """
    name, n = pattern.collective, pattern.world_size
    block = size // n
    if name in GATHERING:
        return Layout(block, size, sent_in_place=rank * block)
    if name in SCATTERING:
        return Layout(size, block, received_in_place=rank * block)
    if name == "all_to_all_v":
        item = pattern.dtype.itemsize
        counts = pattern.pair_counts()
        most = max(*map(sum, counts), *map(sum, zip(*counts, strict=True)))
        return Layout(most * item, most * item)
    return Layout(size, size)


def calls(
    nccl: Nccl, task: Task, pattern: Pattern, rank: int, send: int, receive: int, communicator: int, stream: int
) -> Calls:
    """One call of a collective from and to two addresses; several where NCCL has no such collective of its own.

    All-to-all, gather and scatter are NCCL's own since 2.28, else groups of sends and receives, as nccl-tests has it.
    """
    name, n, item = pattern.collective, pattern.world_size, pattern.dtype.itemsize
    whole, block = pattern.elements, pattern.elements // n
    kind, tail = DATATYPES[task.dtype], (communicator, stream)
    operation = REDUCTIONS[task.redop if task.reduces else "sum"]
    function = nccl.function

    def one(entry: str, *arguments: Any) -> Calls:
        return [(function(entry), (send, receive, *arguments, *tail))]

    def peer(entry: str) -> Callable[[int, int, int], tuple[Any, tuple[Any, ...]]]:
        return lambda address, count, other: (function(entry), (address, count, kind, other, *tail))

    to, of = peer("ncclSend"), peer("ncclRecv")

    def together(*each: tuple[Any, tuple[Any, ...]]) -> Calls:
        return [(function("ncclGroupStart"), ()), *each, (function("ncclGroupEnd"), ())]

    if name == "all_reduce":
        return one("ncclAllReduce", whole, kind, operation)
    if name == "reduce":
        return one("ncclReduce", whole, kind, operation, task.root)
    if name == "broadcast":
        return one("ncclBroadcast", whole, kind, task.root)
    if name == "all_gather":
        return one("ncclAllGather", block, kind)
    if name == "reduce_scatter":
        return one("ncclReduceScatter", block, kind, operation)
    step = block * item
    if name == "gather":
        if nccl.has("ncclGather"):
            return one("ncclGather", block, kind, task.root)
        arriving = [of(receive + other * step, block, other) for other in range(n)] if rank == task.root else []
        return together(to(send, block, task.root), *arriving)
    if name == "scatter":
        if nccl.has("ncclScatter"):
            return one("ncclScatter", block, kind, task.root)
        leaving = [to(send + other * step, block, other) for other in range(n)] if rank == task.root else []
        return together(*leaving, of(receive, block, task.root))
    if name == "all_to_all":
        if nccl.has("ncclAlltoAll"):
            return one("ncclAlltoAll", block, kind)
        return together(
            *(each for p in range(n) for each in (to(send + p * step, block, p), of(receive + p * step, block, p)))
        )
    if name == "send_recv":
        return together(to(send, whole, (rank + 1) % n), of(receive, whole, (rank - 1) % n))
    if name == "all_to_all_v":
        counts = pattern.pair_counts()
        pairs: list[tuple[Any, tuple[Any, ...]]] = []
        for p in range(n):
            pairs += [to(send, counts[rank][p], p), of(receive, counts[p][rank], p)]
            send, receive = send + counts[rank][p] * item, receive + counts[p][rank] * item
        return together(*pairs)
    raise KeyError(name)
