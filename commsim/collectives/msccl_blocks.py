"""The thread blocks of a schedule for MSCCL: which connections share one, which steps each has and in which order.

Each connection (sender, receiver, channel) has a thread block at either end. Where a rank passes on what it receives,
both ends share a block, and a receive and the send that follows it become one step.

Connections hold few messages: blocks that all send more than fits before they receive would wait for each other for
ever. So the order of the steps of a block comes from a run with the order still open. A step goes as soon as all it
needs is done and its connection has room, the earliest of the schedule first. That run ends, and so does every other
run of the program: a step that can go is never stopped by others.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from commsim.collectives.actions import ActionKind, Actions, actions
from commsim.collectives.msccl_limits import MOST_ON_A_CHANNEL, SLOTS
from commsim.collectives.msccl_xml import RECEIVES, SENDS
from commsim.collectives.schedule import Op, Schedule
from commsim.errors import ScheduleError

FEWEST_SLOTS = min(SLOTS.values())
"""Messages on a connection for which steps are ordered, with every protocol."""

Connection = tuple[int, int, int]
"""Sender, receiver, channel."""

_FUSED = {"r": "rcs", "rrc": "rrcs"}


@dataclass(slots=True)
class MscclBlock:
    """A thread block: its peers (-1: none), its channel, its steps in order."""

    send: int
    recv: int
    channel: int
    steps: list[Unit] = field(default_factory=list)


@dataclass(slots=True)
class Unit:
    """One step: the actions it does (a send joins the receive before it), its type, its thread block."""

    done: list[int]
    kind: str
    block: MscclBlock


def program(schedule: Schedule) -> tuple[list[list[MscclBlock]], Actions]:
    """The thread blocks of every rank with their steps, and the actions that these are made of.

    A ScheduleError where connections have too little room.
    """
    s, made = schedule, actions(schedule, commute=False)
    channel = _channels(s)
    blocks, owner = _blocks(s, made, channel)
    order = _Order(_units(s, made, owner), made)
    for unit in order.run():
        unit.block.steps.append(unit)
    if order.left:
        raise ScheduleError(
            f"{s.algorithm} {s.collective} cannot be written for MSCCL: with {FEWEST_SLOTS} messages on a connection, "
            f"{order.left} of its steps would wait for each other; take more channels or fewer chunks"
        )
    return blocks, made


def _channels(s: Schedule) -> npt.NDArray[np.int64]:
    """The channel of each row; channels on which a rank would have too many thread blocks are split.

    By the distance from sender to receiver: each rank sends to and receives from one rank at each distance.
    """
    n = s.world_size
    src, dst, channel = s.src.astype(np.int64), s.dst.astype(np.int64), s.channel.astype(np.int64)
    new = np.zeros(s.rows, np.int64)
    first = 0
    for number in range(int(channel.max(initial=0)) + 1):
        rows = np.flatnonzero(channel == number)
        parts = 1
        while _most_blocks(src[rows], dst[rows], part := (dst[rows] - src[rows]) % n * parts // n) > MOST_ON_A_CHANNEL:
            parts += 1
        new[rows] = first + part
        first += parts
    return new


def _most_blocks(src: npt.NDArray[np.int64], dst: npt.NDArray[np.int64], part: npt.NDArray[np.int64]) -> int:
    """Most thread blocks of a rank on a part of a channel, if none shared one."""
    if not src.size:
        return 0
    ends = np.concatenate([np.stack([part, src, 2 * dst], axis=1), np.stack([part, dst, 2 * src + 1], axis=1)])
    ends[np.concatenate([src == dst, src == dst]), 2] = -1
    _, count = np.unique(np.unique(ends, axis=0)[:, :2], axis=0, return_counts=True)
    return int(count.max())


def _blocks(
    s: Schedule, made: Actions, channel: npt.NDArray[np.int64]
) -> tuple[list[list[MscclBlock]], list[MscclBlock]]:
    """The thread blocks of every rank, still empty, and the one that does each action."""
    shared = _shared(s, made, channel)
    passes_to = {(rank, into, on): out for (rank, out, on), into in shared.items()}
    blocks: list[dict[tuple[str, int, int], MscclBlock]] = [{} for _ in range(s.world_size)]
    owner = []
    for rank, kind, row in zip(made.rank.tolist(), made.kind.tolist(), made.row.tolist(), strict=True):
        on, src, dst = int(channel[row]), int(s.src[row]), int(s.dst[row])
        into = src if kind == ActionKind.RECEIVE else shared.get((rank, dst, on), -1)
        if kind == ActionKind.LOCAL:
            key, block = ("local", rank, on), MscclBlock(-1, -1, on)
        elif into >= 0:
            key, block = ("receive", into, on), MscclBlock(passes_to.get((rank, into, on), -1), into, on)
        else:
            key, block = ("send", dst, on), MscclBlock(dst, -1, on)
        owner.append(blocks[rank].setdefault(key, block))
    return [list(own.values()) for own in blocks], owner


def _shared(s: Schedule, made: Actions, channel: npt.NDArray[np.int64]) -> dict[tuple[int, int, int], int]:
    """By (rank, peer sent to, channel), the peer received from in the same thread block: the busiest pairs first."""
    passed: Counter[tuple[int, int, int, int]] = Counter()
    latest: dict[int, int] = {}
    read, written = s.slots_read().tolist(), s.slots_written().tolist()
    for rank, kind, row in zip(made.rank.tolist(), made.kind.tolist(), made.row.tolist(), strict=True):
        if kind == ActionKind.RECEIVE:
            latest[written[row]] = row
        elif kind == ActionKind.SEND:
            before = latest.get(read[row], -1)
            if before >= 0 and channel[before] == channel[row]:
                passed[rank, int(s.src[before]), int(s.dst[row]), int(channel[row])] += 1
    shared: dict[tuple[int, int, int], int] = {}
    taken: set[tuple[int, int, int]] = set()
    for (rank, into, out, on), _ in sorted(passed.items(), key=lambda item: (-item[1], item[0])):
        if (rank, into, on) not in taken and (rank, out, on) not in shared:
            shared[rank, out, on] = into
            taken.add((rank, into, on))
    return shared


def _units(s: Schedule, made: Actions, owner: list[MscclBlock]) -> list[Unit]:
    """The steps in the order of their first actions; a send joins the receive just before it that brings its chunk."""
    units: list[Unit] = []
    newest: dict[int, Unit] = {}
    read, written = s.slots_read(), s.slots_written()
    for i, (kind, row) in enumerate(zip(made.kind.tolist(), made.row.tolist(), strict=True)):
        block = owner[i]
        before = newest.get(id(block))
        if kind == ActionKind.SEND and before is not None and before.kind in _FUSED:
            came = int(made.row[before.done[0]])
            elsewhere = any(owner[j] is not block for j in made.finished[i] | made.started[i])
            if not elsewhere and written[came] == read[row]:
                before.done.append(i)
                before.kind = _FUSED[before.kind]
                continue
        reduces = s.op[row] == Op.REDUCE
        name = {
            ActionKind.SEND: "s",
            ActionKind.LOCAL: "re" if reduces else "cpy",
            ActionKind.RECEIVE: "rrc" if reduces else "r",
        }
        newest[id(block)] = Unit([i], name[ActionKind(kind)], block)
        units.append(newest[id(block)])
    return units


class _Order:
    """A run of the program in which the order within the blocks is still open; on each connection it is given."""

    def __init__(self, units: list[Unit], made: Actions) -> None:
        self.units = units
        self.left = len(units)
        self.rank = made.rank.tolist()
        self.waits: list[int] = []
        self.queued = [False] * len(units)
        self.followers: list[list[int]] = [[] for _ in range(len(made))]
        self.sends: dict[Connection, deque[int]] = defaultdict(deque)
        self.receives: dict[Connection, deque[int]] = defaultdict(deque)
        self.held: Counter[Connection] = Counter()
        self.ready: list[tuple[int, int]] = []  # first action and number of each step that can go
        self.halves: list[tuple[int, int]] = []  # likewise of steps that could receive, but not send
        for number, unit in enumerate(units):
            needs = set[int]().union(*(made.finished[i] | made.started[i] for i in unit.done)).difference(unit.done)
            self.waits.append(len(needs))
            for i in needs:
                self.followers[i].append(number)
            for ends, connection in ((self.sends, self._out(unit)), (self.receives, self._into(unit))):
                if connection is not None:
                    ends[connection].append(number)

    def run(self) -> Iterator[Unit]:
        """The steps as they go; ``left`` of them cannot."""
        for number in range(len(self.units)):
            self._try(number)
        while True:
            while self.ready:
                _, number = heappop(self.ready)
                self._go(number)
                yield self.units[number]
            if not self._split():
                return

    def _out(self, unit: Unit) -> Connection | None:
        return (self.rank[unit.done[0]], unit.block.send, unit.block.channel) if unit.kind in SENDS else None

    def _into(self, unit: Unit) -> Connection | None:
        return (unit.block.recv, self.rank[unit.done[0]], unit.block.channel) if unit.kind in RECEIVES else None

    def _receives(self, number: int) -> bool:
        into = self._into(self.units[number])
        if into is None:
            return True
        queue = self.receives[into]
        return bool(queue) and queue[0] == number and self.held[into] > 0

    def _try(self, number: int) -> None:
        """Put a step among those that can go, if it can; asked whenever one of the things that it waits for happens."""
        if self.queued[number] or self.waits[number] or not self._receives(number):
            return
        unit = self.units[number]
        out = self._out(unit)
        if out is None or (self.sends[out][0] == number and self.held[out] < FEWEST_SLOTS):
            heappush(self.ready, (unit.done[0], number))
            self.queued[number] = True
        elif unit.kind in RECEIVES:
            heappush(self.halves, (unit.done[0], number))

    def _go(self, number: int) -> None:
        unit = self.units[number]
        out, into = self._out(unit), self._into(unit)
        self.left -= 1
        touched = []
        if into is not None:
            self.receives[into].popleft()
            self.held[into] -= 1
            touched.append(into)
        if out is not None:
            self.sends[out].popleft()
            self.held[out] += 1
            touched.append(out)
        for connection in touched:
            for queue in (self.sends[connection], self.receives[connection]):
                if queue:
                    self._try(queue[0])
        for i in unit.done:
            for follower in self.followers[i]:
                self.waits[follower] -= 1
                if not self.waits[follower]:
                    self._try(follower)

    def _split(self) -> bool:
        """Part a step that receives and sends, and can only receive as there is no room; False if there is none."""
        while self.halves:
            _, number = heappop(self.halves)
            unit = self.units[number]
            if len(unit.done) == 1 or not self._receives(number):
                continue
            out, sent = self._out(unit), unit.done.pop()
            assert out is not None
            unit.kind = next(apart for apart, fused in _FUSED.items() if fused == unit.kind)
            self.units.append(Unit([sent], "s", unit.block))
            self.left += 1
            queue = self.sends[out]
            queue[queue.index(number)] = len(self.units) - 1
            self.waits.append(1)
            self.followers[unit.done[0]].append(len(self.units) - 1)
            heappush(self.ready, (unit.done[0], number))
            self.queued[number] = True
            self.queued.append(False)
            return True
        return False
