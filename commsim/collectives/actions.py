"""What each rank does in a schedule: sends, receives and local moves, and what waits for what at that rank.

A row between two endpoints is a send at one and a receive at the other, a row within an endpoint a local
move. Order between ranks comes from the messages alone, so exports to formats of that kind (MSCCL, GOAL) need
only the waits within a rank, which this derives from the slots that are read and written.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import IntEnum
from graphlib import CycleError, TopologicalSorter

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Op, Schedule
from commsim.errors import ScheduleError

MOST_ROWS = 2**22


class ActionKind(IntEnum):
    """What an action is; in one step a rank sends first, then moves locally, then receives."""

    SEND = 0
    LOCAL = 1
    RECEIVE = 2


@dataclass(frozen=True, eq=False)
class Actions:
    """Actions in an order that respects all waits, columns of one length.

    ``finished[i]`` are the actions of the same rank that must have finished before action i starts,
    ``started[i]`` those that must have started: a send whose place i overwrites.
    """

    rank: npt.NDArray[np.int64]
    kind: npt.NDArray[np.int64]
    row: npt.NDArray[np.int64]
    finished: list[set[int]]
    started: list[set[int]]

    def __len__(self) -> int:
        return int(self.row.size)


def actions(schedule: Schedule, *, commute: bool) -> Actions:
    """The actions of every rank, by step.

    With ``commute``, reductions into one slot do not wait for each other; without it they are one after the
    other, for machines whose reductions are not atomic. ``after`` edges between rows that share no rank, and
    local moves that swap chunks in one step, cannot be written so and are a ScheduleError.
    """
    s = schedule
    if s.rows > MOST_ROWS:
        raise ScheduleError(f"{s.algorithm} {s.collective} has {s.rows} rows, expected at most {MOST_ROWS} to export")
    local = s.src == s.dst
    across, within = np.flatnonzero(~local), np.flatnonzero(local)
    row = np.concatenate([across, within, across])
    kind = np.repeat([ActionKind.SEND, ActionKind.LOCAL, ActionKind.RECEIVE], [across.size, within.size, across.size])
    rank = np.where(kind == ActionKind.SEND, s.src[row], s.dst[row]).astype(np.int64)
    turn = np.zeros(s.rows, np.int64)
    turn[within] = _turns(s, within)
    order = np.lexsort((row, turn[row], kind, s.step[row]))
    made = Actions(rank[order], kind[order], row[order], [set() for _ in order], [set() for _ in order])
    _add_hazards(s, made, commute)
    _add_after(s, made)
    return made


def _turns(s: Schedule, rows: npt.NDArray[np.int64]) -> list[int]:
    """Place of each local row among those of its step and rank: those that read a slot before its writer."""
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for row in rows.tolist():
        groups[int(s.step[row]), int(s.src[row])].append(row)
    turn: dict[int, int] = {}
    for (step, rank), members in groups.items():
        writers: dict[tuple[int, int], list[int]] = defaultdict(list)
        for row in members:
            writers[int(s.dst_buffer[row]), int(s.dst_chunk[row])].append(row)
        sorter: TopologicalSorter[int] = TopologicalSorter({row: [] for row in members})
        for row in members:
            for writer in writers.get((int(s.src_buffer[row]), int(s.src_chunk[row])), []):
                if writer != row:
                    sorter.add(writer, row)
        try:
            turn |= {row: place for place, row in enumerate(sorter.static_order())}
        except CycleError:
            raise ScheduleError(
                f"step {step}: rank {rank} swaps chunks with itself, which needs a third place"
            ) from None
    return [turn[row] for row in rows.tolist()]


@dataclass(slots=True)
class _Slot:
    """Who touched a slot last: what came before its newest writers, those writers, and who read them."""

    base: set[int]
    base_reads: set[int]
    writers: set[int]
    reads: set[int]
    reducing: bool


def _add_hazards(s: Schedule, made: Actions, commute: bool) -> None:
    """Read after write, write after read and write after write at each slot, in order."""
    kinds, reduces = made.kind.tolist(), (s.op[made.row] == Op.REDUCE).tolist()
    source, target = s.slots_read()[made.row].tolist(), s.slots_written()[made.row].tolist()
    slots: dict[int, _Slot] = defaultdict(lambda: _Slot(set(), set(), set(), set(), False))
    for i, kind in enumerate(kinds):
        if kind != ActionKind.RECEIVE:
            slot = slots[source[i]]
            made.finished[i] |= slot.writers
            slot.reads.add(i)
        if kind == ActionKind.SEND:
            continue
        slot = slots[target[i]]
        if not (commute and reduces[i] and slot.reducing and not slot.reads - {i}):
            slot.base, slot.base_reads = slot.writers, slot.reads - {i}
            slot.writers, slot.reads, slot.reducing = set(), set(), reduces[i]
        made.finished[i] |= slot.base
        for reader in slot.base_reads:
            (made.started if kinds[reader] == ActionKind.SEND else made.finished)[i].add(reader)
        slot.writers.add(i)


def _add_after(s: Schedule, made: Actions) -> None:
    """Write each ``after`` edge as a wait at a rank that both rows touch, at the later row's sender if it can be."""
    if not len(s.after):
        return
    leaves, lands = np.full(s.rows, -1), np.full(s.rows, -1)
    leaves[made.row[made.kind != ActionKind.RECEIVE]] = np.flatnonzero(made.kind != ActionKind.RECEIVE)
    lands[made.row[made.kind != ActionKind.SEND]] = np.flatnonzero(made.kind != ActionKind.SEND)
    for a, b in s.after.tolist():
        if s.dst[a] == s.src[b]:
            made.finished[leaves[b]].add(int(lands[a]))
        elif s.dst[a] == s.dst[b]:
            made.finished[lands[b]].add(int(lands[a]))
        else:
            raise ScheduleError(
                f"row {b} (step {s.step[b]}, {s.src[b]} -> {s.dst[b]}) waits for row {a} ({s.src[a]} -> {s.dst[a]}), "
                "which ends elsewhere: that order cannot be written"
            )
