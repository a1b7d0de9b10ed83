"""What each collective promises: contents of slots before and after; what ``nbytes`` and busbw mean.

The value of a slot is *the sum over a set of ranks of their datum d*: datum d of rank r is the d-th chunk
of r's array. A precondition says which (datum, rank) every slot holds at the start; a postcondition which
datum and which ranks it must hold at the end. Slots not named start undefined (at switches: zero) and may
end as anything.

``nbytes`` is the nccl-tests *size* column: the array of one rank for all_reduce, broadcast and reduce; the
whole array over all ranks for all_gather, reduce_scatter, gather and scatter; what one rank sends to all
for all_to_all. Source: nccl-tests doc/PERFORMANCE.md and src/*.cu (v2.19.6).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Buffer, Schedule
from commsim.errors import ScheduleError

Int64 = npt.NDArray[np.int64]

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
    """What holds before, what must hold after, and nccl-tests' busbw = algbw * factor(ranks)."""

    name: str
    before: Callable[[Schedule], Contents]
    after: Callable[[Schedule], Contents]
    factor: Callable[[int], float]
    rooted: bool = False
    blocks: bool = False
    in_place_possible: bool = True


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


def precondition(schedule: Schedule) -> Contents:
    """What the slots hold before the schedule runs."""
    return _checked(schedule).before(schedule)


def postcondition(schedule: Schedule) -> Contents:
    """What the slots must hold when it has run."""
    return _checked(schedule).after(schedule)


def _checked(schedule: Schedule) -> Collective:
    kind = collective(schedule.collective)
    if kind.blocks and schedule.data_chunks % schedule.world_size:
        raise ScheduleError(
            f"{kind.name} of {schedule.world_size} ranks has {schedule.data_chunks} chunks, "
            "expected a multiple of the ranks"
        )
    if schedule.in_place and not kind.in_place_possible:
        raise ScheduleError(f"{kind.name} cannot work in place")
    return kind


def _contents(
    schedule: Schedule,
    endpoint: npt.NDArray[np.integer],
    chunk: npt.NDArray[np.integer],
    rank: npt.NDArray[np.integer] | int,
    *,
    buffer: Buffer | None = None,
    datum: npt.NDArray[np.integer] | None = None,
) -> Contents:
    """Contents; by default in the buffer of the contribution, the datum numbered as the slot."""
    place = buffer if buffer is not None else Buffer.OUTPUT if schedule.in_place else Buffer.INPUT
    columns = np.broadcast_arrays(endpoint, int(place), chunk, chunk if datum is None else datum, rank)
    return Contents(*(np.asarray(c, np.int64).reshape(-1) for c in columns))


def _grid(s: Schedule) -> tuple[Int64, Int64]:
    return np.arange(s.world_size)[:, None], np.arange(s.data_chunks)[None, :]


def _blocks(s: Schedule) -> tuple[Int64, Int64]:
    """Rank r against the chunks of block r."""
    ranks = np.arange(s.world_size)[:, None]
    per_block = s.data_chunks // s.world_size
    return ranks, ranks * per_block + np.arange(per_block)


def _own_array(s: Schedule) -> Contents:
    ranks, chunks = _grid(s)
    return _contents(s, ranks, chunks, ranks)


def _sum_everywhere(s: Schedule) -> Contents:
    ranks, chunks = _grid(s)
    return _contents(s, ranks, chunks, ALL_RANKS, buffer=Buffer.OUTPUT)


def _sum_at_root(s: Schedule) -> Contents:
    return _contents(s, np.asarray(s.root), np.arange(s.data_chunks), ALL_RANKS, buffer=Buffer.OUTPUT)


def _sum_of_own_block(s: Schedule) -> Contents:
    ranks, chunks = _blocks(s)
    return _contents(s, ranks, chunks, ALL_RANKS, buffer=Buffer.OUTPUT)


def _own_block(s: Schedule) -> Contents:
    ranks, chunks = _blocks(s)
    return _contents(s, ranks, chunks, ranks)


def _every_block(s: Schedule) -> Contents:
    owners, chunks = _blocks(s)
    ranks = np.arange(s.world_size)[:, None, None]
    return _contents(s, ranks, chunks, owners, buffer=Buffer.OUTPUT)


def _every_block_at_root(s: Schedule) -> Contents:
    owners, chunks = _blocks(s)
    return _contents(s, np.asarray(s.root), chunks, owners, buffer=Buffer.OUTPUT)


def _array_at_root(s: Schedule) -> Contents:
    return _contents(s, np.asarray(s.root), np.arange(s.data_chunks), s.root)


def _root_array_everywhere(s: Schedule) -> Contents:
    ranks, chunks = _grid(s)
    return _contents(s, ranks, chunks, s.root, buffer=Buffer.OUTPUT)


def _root_block_everywhere(s: Schedule) -> Contents:
    ranks, chunks = _blocks(s)
    return _contents(s, ranks, chunks, s.root, buffer=Buffer.OUTPUT)


def _block_from_everyone(s: Schedule) -> Contents:
    """All-to-all: block p of rank r's result is block r of rank p's array."""
    receivers, datum = _blocks(s)
    senders = np.arange(s.world_size)[:, None, None]
    per_block = s.data_chunks // s.world_size
    slot = senders * per_block + np.arange(per_block)
    return _contents(s, receivers, slot, senders, buffer=Buffer.OUTPUT, datum=datum)


def _share(n: int) -> float:
    return (n - 1) / n


COLLECTIVES: dict[str, Collective] = {
    c.name: c
    for c in (
        Collective("all_reduce", _own_array, _sum_everywhere, lambda n: 2 * _share(n)),
        Collective("reduce_scatter", _own_array, _sum_of_own_block, _share, blocks=True),
        Collective("all_gather", _own_block, _every_block, _share, blocks=True),
        Collective("broadcast", _array_at_root, _root_array_everywhere, lambda _: 1.0, rooted=True),
        Collective("reduce", _own_array, _sum_at_root, lambda _: 1.0, rooted=True),
        Collective("scatter", _array_at_root, _root_block_everywhere, _share, rooted=True, blocks=True),
        Collective("gather", _own_block, _every_block_at_root, _share, rooted=True, blocks=True),
        Collective("all_to_all", _own_array, _block_from_everyone, _share, blocks=True, in_place_possible=False),
    )
}
