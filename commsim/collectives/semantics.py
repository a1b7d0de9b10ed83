"""What each collective promises: contents of slots before and after; what ``nbytes`` and busbw mean.

The value of a slot is *the sum over a set of ranks of their datum d*: datum d of rank r is the d-th chunk
of r's array. A precondition says which (datum, rank) every slot holds at the start; a postcondition which
datum and which ranks it must hold at the end. Slots not named start undefined (at switches: zero) and may
end as anything.

``nbytes`` is the nccl-tests *size* column: the array of one rank for all_reduce, broadcast and reduce; the
whole array over all ranks for all_gather, reduce_scatter, gather and scatter; what one rank sends to all
for all_to_all; the message for send_recv, where every rank sends to the next. nccl-tests has no all_to_all_v and
no barrier: ``nbytes`` is then what all ranks send together, own blocks included, and the size of the token.
Source: nccl-tests doc/PERFORMANCE.md and src/*.cu (v2.19.6).

The bounds are those of ranks that send and receive one message at a time over a full-duplex port.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from commsim.collectives.schedule import Buffer, Int64, Schedule
from commsim.errors import ScheduleError

NcclTestsName = Literal[
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "send_recv",
    "gather",
    "scatter",
]
"""The collectives that nccl-tests measures (src/*.cu, v2.19.6)."""

NCCL_TESTS: tuple[str, ...] = get_args(NcclTestsName)

ITEM_BYTES = {
    "int8": 1,
    "uint8": 1,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "uint64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
    "float8_e4m3": 1,
    "float8_e5m2": 1,
}
"""Bytes of one element, by the names of torch."""

REDUCING = frozenset({"all_reduce", "reduce", "reduce_scatter"})
"""The collectives that combine elements: they take an operation (MPI_Op of MPI 4.1, ncclRedOp_t of nccl.h)."""

ROOTED = frozenset({"broadcast", "reduce", "gather", "scatter"})
"""One rank sends to all or receives from all (MPI 4.1, chapter 6); nccl-tests prints the root, -1 of the others."""

TO_ROOT = frozenset({"reduce", "gather"})
"""Only the root has a result (MPI 4.1, chapter 6: all-to-one)."""

GATHERING = frozenset({"all_gather", "gather"})
"""A rank gives one block, the result is all of them (nccl.h, ncclAllGather: sendcount elements of each rank)."""

SCATTERING = frozenset({"reduce_scatter", "scatter"})
"""A rank gets one block of an array (nccl.h, ncclReduceScatter: recvcount elements for each rank)."""

DIVIDED = GATHERING | SCATTERING | {"all_to_all"}
"""The array has a block of each rank: the count of nccl-tests is that of one block, its size that of all n."""

WHOLE = frozenset({"all_reduce", "broadcast", "reduce", "send_recv"})
"""The array is not divided: the count of nccl-tests is that of the whole array."""

CHAINED = ROOTED & WHOLE
"""One array from a root or to it: a ring passes it on as a chain (NCCL src/device/broadcast.h and reduce.h, 2.26.2)."""

RING_PASSES = frozenset({"reduce_scatter", "all_gather"})
"""What one pass of a ring does, and in this order the halves of an all_reduce (Patarasuk & Yuan 2009)."""

PAIRWISE = frozenset({"all_to_all", "all_to_all_v", "send_recv"})
"""A rank sends each receiver a message of its own. In place it would overwrite what it is yet to send: torch does not
offer it, and nccl-tests, which does, cannot verify it (its column #wrong is N/A; src/alltoall.cu, src/sendrecv.cu)."""

ONE_RATE = frozenset({"broadcast", "reduce", "send_recv"})
"""busbw = algbw, whatever the number of ranks (nccl-tests doc/PERFORMANCE.md)."""

ALL_RANKS = -1


@dataclass(frozen=True, eq=False)
class Contents:
    """Slots and what they hold, columns of one length; ``rank`` is one contributing rank, or ALL_RANKS."""

    endpoint: Int64
    buffer: Int64
    chunk: Int64
    datum: Int64
    rank: Int64


@dataclass(frozen=True)
class Collective:
    """What holds before, what must hold after, and nccl-tests' busbw = algbw * factor(ranks).

    The array has a multiple of n ** ``blocks`` chunks. In an ``idempotent`` collective a rank may count more than
    once. Blocks that are sent from a place and arrive at another must be ``equal_blocks``: nbytes is a multiple of n
    elements.
    """

    name: str
    before: Callable[[Schedule, Buffer], Contents]
    after: Callable[[Schedule, Buffer], Contents]
    factor: Callable[[int], float]
    blocks: int = 0
    in_place_possible: bool = True
    idempotent: bool = False
    equal_blocks: bool = False

    def load(self, n: int) -> float:
        """The least part of nbytes that the busiest of n ranks sends or receives."""
        return self.factor(n) if n > 1 else 0.0


def collective(name: str) -> Collective:
    """The collective of that name; a ScheduleError lists the valid names."""
    try:
        return COLLECTIVES[name]
    except KeyError:
        raise ScheduleError(f"unknown collective {name!r}, expected one of {', '.join(COLLECTIVES)}") from None


def busbw_factor(name: str, world_size: int) -> float:
    """busbw / algbw of a collective over ``world_size`` ranks; 0 or 1 where one rank has nobody to talk to.

    >>> busbw_factor("all_reduce", 8)
    1.75
    """
    return collective(name).factor(world_size)


def latency_steps(name: str, world_size: int, *, one_port: bool = True) -> int:
    """Fewest steps in a row that any algorithm needs: ceil(log2 n) when a rank sends one message at a time.

    With ``one_port`` false a rank may send to all others in one step. send_recv is one step.

    >>> latency_steps("all_gather", 5), latency_steps("send_recv", 5)
    (3, 1)
    """
    collective(name)
    if name == "send_recv" or not one_port:
        return int(world_size > 1)
    return (world_size - 1).bit_length()


def bandwidth_bytes(name: str, world_size: int, nbytes: int, *, in_network: bool = False) -> float:
    """Fewest bytes that the busiest rank sends, or receives, in any algorithm.

    With reduction ``in_network`` an all_reduce is bounded by nbytes instead of 2(n-1)/n * nbytes. For all_to_all_v
    the counts are taken to be equal.

    >>> bandwidth_bytes("all_reduce", 4, 1000), bandwidth_bytes("all_reduce", 4, 1000, in_network=True)
    (1500.0, 1000.0)
    """
    if in_network and name == "all_reduce":
        return float(nbytes) * (world_size > 1)
    return collective(name).load(world_size) * nbytes


def precondition(schedule: Schedule) -> Contents:
    """What the slots hold before the schedule runs."""
    return _checked(schedule).before(schedule, Buffer.OUTPUT if schedule.in_place else Buffer.INPUT)


def postcondition(schedule: Schedule) -> Contents:
    """What the slots must hold when it has run."""
    return _checked(schedule).after(schedule, Buffer.OUTPUT)


def _checked(schedule: Schedule) -> Collective:
    kind = collective(schedule.collective)
    if schedule.data_chunks % schedule.world_size**kind.blocks:
        raise ScheduleError(
            f"{kind.name} of {schedule.world_size} ranks has {schedule.data_chunks} chunks, "
            f"expected a multiple of the {'ranks' if kind.blocks == 1 else 'pairs of ranks'}"
        )
    if schedule.in_place and not kind.in_place_possible:
        raise ScheduleError(f"{kind.name} cannot work in place")
    return kind


def _contents(
    endpoint: Int64, chunk: Int64, rank: Int64 | int, *, buffer: Buffer, datum: Int64 | None = None
) -> Contents:
    """Contents; by default the datum is numbered as the slot."""
    columns = np.broadcast_arrays(endpoint, int(buffer), chunk, chunk if datum is None else datum, rank)
    return Contents(*(np.asarray(c, np.int64).reshape(-1) for c in columns))


def _held(
    where: Literal["everywhere", "root", "owner"], whose: Literal["own", "owner", "root", "previous", "all"]
) -> Callable[[Schedule, Buffer], Contents]:
    """The blocks (the whole array where there are none) at every rank, at the root or at their owner, and of whom."""

    def contents(s: Schedule, buffer: Buffer) -> Contents:
        n, count = s.world_size, s.world_size if collective(s.collective).blocks else 1
        rank, block = np.arange(n)[:, None, None], np.arange(count)[:, None]
        held = {"everywhere": rank >= 0, "root": rank == s.root, "owner": rank == block}[where]
        rank_of: dict[str, Int64 | int] = {"own": rank, "owner": block, "root": s.root, "all": ALL_RANKS}
        rank_of["previous"] = (rank - 1) % n
        where_held, *columns = np.broadcast_arrays(
            held, rank, np.arange(s.data_chunks).reshape(count, -1), rank_of[whose]
        )
        return _contents(*(column[where_held] for column in columns), buffer=buffer)

    return contents


def _block_from_everyone(s: Schedule, buffer: Buffer) -> Contents:
    """All-to-all: block p of rank r's result is block r of rank p's array."""
    block = np.arange(s.data_chunks).reshape(s.world_size, -1)
    senders = np.arange(s.world_size)[:, None, None]
    return _contents(np.arange(s.world_size)[:, None], block[:, None], senders, buffer=buffer, datum=block)


def _unequal_block_from_everyone(s: Schedule, buffer: Buffer) -> Contents:
    """All-to-all-v: rank r holds the chunks of column r of the matrix of pairs."""
    receivers, senders = np.arange(s.world_size)[:, None, None], np.arange(s.world_size)[:, None]
    chunk = np.arange(s.data_chunks).reshape(s.world_size, s.world_size, -1).swapaxes(0, 1)
    return _contents(receivers, chunk, senders, buffer=buffer)


def _share(n: int) -> float:
    return (n - 1) / n


def _one(_: int) -> float:
    return 1.0


_ARRAYS, _BLOCKS, _AT_ROOT = _held("everywhere", "own"), _held("owner", "own"), _held("root", "root")
_SUM = _held("everywhere", "all")

COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective("all_reduce", _ARRAYS, _SUM, lambda n: 2 * (n - 1) / n),
        Collective("reduce_scatter", _ARRAYS, _held("owner", "all"), _share, blocks=1),
        Collective("all_gather", _BLOCKS, _held("everywhere", "owner"), _share, blocks=1),
        Collective("broadcast", _AT_ROOT, _held("everywhere", "root"), _one),
        Collective("reduce", _ARRAYS, _held("root", "all"), _one),
        Collective("scatter", _AT_ROOT, _held("owner", "root"), _share, blocks=1),
        Collective("gather", _BLOCKS, _held("root", "owner"), _share, blocks=1),
        Collective(
            "all_to_all", _ARRAYS, _block_from_everyone, _share, blocks=1, in_place_possible=False, equal_blocks=True
        ),
        # The factor makes equal counts give the busbw of all_to_all, whose nbytes is 1/n of this one's.
        Collective("all_to_all_v", _BLOCKS, _unequal_block_from_everyone, lambda n: (n - 1) / n**2, blocks=2),
        Collective("send_recv", _ARRAYS, _held("everywhere", "previous"), _one),
        Collective("barrier", _ARRAYS, _SUM, lambda _: 0.0, idempotent=True),
    )
}
