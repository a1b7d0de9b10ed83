"""The calls of libnccl that make up one collective: where each buffer begins, and what NCCL counts.

Offsets in place and counts are those of nccl-tests (src/*.cu, 2.19.6); `size` is the whole array, as in its table.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from commsim.collectives.semantics import GATHERING, SCATTERING
from commsim.measure.libnccl import DATATYPES, REDUCTIONS, Nccl
from commsim.measure.pattern import Pattern
from commsim.measure.tasks import Task

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
    whole, block, root = pattern.elements, pattern.elements // n, task.root
    kind, operation = DATATYPES[task.dtype], REDUCTIONS[pattern.redop]
    own: dict[str, tuple[Any, ...]] = {
        "all_reduce": ("ncclAllReduce", whole, kind, operation),
        "reduce": ("ncclReduce", whole, kind, operation, root),
        "broadcast": ("ncclBroadcast", whole, kind, root),
        "all_gather": ("ncclAllGather", block, kind),
        "reduce_scatter": ("ncclReduceScatter", block, kind, operation),
        "gather": ("ncclGather", block, kind, root),
        "scatter": ("ncclScatter", block, kind, root),
        "all_to_all": ("ncclAlltoAll", block, kind),
    }
    if name in own and nccl.has(own[name][0]):
        entry, *arguments = own[name]
        return [(nccl.function(entry), (send, receive, *arguments, communicator, stream))]

    def to(peer: int, count: int, first: int = 0) -> tuple[Any, tuple[Any, ...]]:
        return nccl.function("ncclSend"), (send + first * item, count, kind, peer, communicator, stream)

    def of(peer: int, count: int, first: int = 0) -> tuple[Any, tuple[Any, ...]]:
        return nccl.function("ncclRecv"), (receive + first * item, count, kind, peer, communicator, stream)

    if name == "gather":
        each = [to(root, block), *(of(p, block, p * block) for p in range(n) if rank == root)]
    elif name == "scatter":
        each = [*(to(p, block, p * block) for p in range(n) if rank == root), of(root, block)]
    elif name == "all_to_all":
        each = [call for p in range(n) for call in (to(p, block, p * block), of(p, block, p * block))]
    elif name == "send_recv":
        each = [to((rank + 1) % n, whole), of((rank - 1) % n, whole)]
    elif name == "all_to_all_v":
        counts = pattern.pair_counts()
        leaving, arriving = counts[rank], [row[rank] for row in counts]
        firsts = zip(accumulate(leaving, initial=0), accumulate(arriving, initial=0), strict=True)
        pairs = zip(range(n), leaving, arriving, firsts, strict=False)
        each = [call for p, out, back, (a, b) in pairs for call in (to(p, out, a), of(p, back, b))]
    else:
        raise KeyError(name)
    return [(nccl.function("ncclGroupStart"), ()), *each, (nccl.function("ncclGroupEnd"), ())]
