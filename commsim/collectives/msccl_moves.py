"""Moves of an MSCCL algorithm: which chunk goes where, in which step, after what.

A send and the receive that it meets are one move, ``cpy`` and ``re`` are moves within their GPU; a ``nop`` moves
nothing, it only waits.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from commsim.collectives.msccl_order import Slot, Wired
from commsim.collectives.msccl_xml import LOCAL, READS, RECEIVES, WRITES, Faults
from commsim.collectives.schedule import Buffer, Op
from commsim.collectives.semantics import GATHERING, SCATTERING
from commsim.errors import ScheduleError

MOST_EDGES: Final = 2**24


@dataclass(frozen=True)
class BufferLayout:
    """Where MSCCL's buffers lie in a schedule's; ``scratch`` is the number of chunks of the scratch buffer."""

    collective: str
    root: int
    in_place: bool
    chunks: int
    block: int
    scratch: int

    def slot(self, gpu: int, buffer: str, offset: int) -> Slot:
        """Buffer and chunk of a place of a GPU; in place, input and output are one buffer."""
        if buffer == "s":
            return Buffer.SCRATCH, offset
        part = self.collective in (GATHERING if buffer == "i" else SCATTERING)
        place = Buffer.OUTPUT if self.in_place or buffer == "o" else Buffer.INPUT
        return place, offset + (gpu * self.block if part else 0)


def accesses(wired: Wired, layout: BufferLayout) -> tuple[list[list[Slot]], list[list[Slot]]]:
    """The slots that each step reads and writes at its GPU; what it passes on counts as read where it lies."""
    reads: list[list[Slot]] = []
    writes: list[list[Slot]] = []
    for i, step in enumerate(wired.steps):
        source = _span(wired, layout, i, "src") if step.type in READS else []
        target = _span(wired, layout, i, "dst") if step.type in WRITES else []
        reads.append(source + target if step.type in {"rcs", "rrcs"} else source)
        writes.append(target)
    return reads, writes


def _span(wired: Wired, layout: BufferLayout, i: int, side: str) -> list[Slot]:
    step, gpu = wired.steps[i], wired.gpu[i]
    buffer, offset = (step.srcbuf, step.srcoff) if side == "src" else (step.dstbuf, step.dstoff)
    return [layout.slot(gpu, buffer, offset + k) for k in range(step.cnt)]


@dataclass(slots=True)
class Move:
    """Rows that start together: one chunk each from ``source`` to ``target``."""

    op: Op
    src: int
    dst: int
    source: list[Slot]
    target: list[Slot]
    channel: int
    level: int = 0
    after: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Draft:
    """Moves and the order between them, as (earlier, later, 1 if it must have arrived, 0 if it must have been sent).

    By step: ``entries`` are the moves that it takes part in, ``inward`` and ``outward`` those that bring it a
    chunk and that carry one away, ``first`` the one that begins to write at its GPU. ``adding`` are the moves that
    do nothing but add to a place.
    """

    entries: list[list[int]]
    moves: list[Move] = field(default_factory=list)
    edges: list[tuple[int, int, int]] = field(default_factory=list)
    inward: dict[int, int] = field(default_factory=dict)
    outward: dict[int, int] = field(default_factory=dict)
    first: dict[int, int] = field(default_factory=dict)
    adding: set[int] = field(default_factory=set)
    scratch: int = 0


def draft(wired: Wired, layout: BufferLayout, overwrites: list[tuple[int, int]], faults: Faults) -> Draft:
    """Moves with their levels; ``overwrites`` are steps that read a slot, each with the next that writes it.

    ``rrs`` passes a sum on without storing it. The move before the next one stores it where its own part lay,
    if that is overwritten before anybody looks; otherwise a place in scratch is taken.
    """
    kept: set[int] = set()
    passing = {i for i, step in enumerate(wired.steps) if step.type == "rrs"}
    for attempt in range(3):
        drafted = _moves(wired, layout, kept)
        _order(wired, drafted, overwrites, faults)
        if not _levels(drafted):
            drafted = _moves(wired, layout, kept)
            _order(wired, drafted, overwrites, faults, commute=True)
            if not _levels(drafted):
                raise ScheduleError(
                    f"{faults.file}: a GPU overwrites what it sends before its peer can take it: it relies on the "
                    "buffers of the connection, which a schedule of direct moves does not have"
                )
        wrong = _looked_at(drafted, passing - kept)
        if not wrong:
            break
        kept |= wrong if attempt == 0 else passing
    return drafted


def _moves(wired: Wired, layout: BufferLayout, kept: set[int]) -> Draft:
    drafted = Draft([[] for _ in wired.steps])
    taken: dict[int, int] = defaultdict(lambda: layout.scratch)
    held: dict[int, list[Slot]] = {}  # where the chunks that a step sends on lie

    def add(i: int, move: Move) -> int:
        drafted.moves.append(move)
        drafted.entries[i].append(len(drafted.moves) - 1)
        return len(drafted.moves) - 1

    for i in wired.order:
        step, gpu, channel = wired.steps[i], wired.gpu[i], wired.blocks[wired.block[i]].chan
        source, target = (_span(wired, layout, i, side) if step.cnt else [] for side in ("src", "dst"))
        if step.type in LOCAL:
            op = Op.COPY if step.type == "cpy" else Op.REDUCE
            drafted.inward[i] = drafted.first[i] = add(i, Move(op, gpu, gpu, source, target, channel))
        elif step.type in RECEIVES:
            a = wired.sender[i]
            reduces = step.type not in {"r", "rcs"}
            if step.type == "rrs":
                target = source
                if i in kept:
                    target = [(int(Buffer.SCRATCH), taken[gpu] + k) for k in range(step.cnt)]
                    taken[gpu] += step.cnt
            op = Op.REDUCE if reduces else Op.COPY
            came = add(i, Move(op, wired.gpu[a], gpu, held[a], target, channel))
            drafted.entries[a].append(came)
            drafted.inward[i] = drafted.outward[a] = drafted.first[i] = came
            if a in drafted.inward:
                drafted.edges.append((drafted.inward[a], came, 1))  # what is passed on must have come
            if reduces and source != target:
                drafted.first[i] = add(i, Move(Op.COPY, gpu, gpu, source, target, channel))
                drafted.edges.append((drafted.first[i], came, 1))
        held[i] = source if step.type == "s" else target
    drafted.scratch = max([layout.scratch, *taken.values()])
    return drafted


def _order(
    wired: Wired, drafted: Draft, overwrites: list[tuple[int, int]], faults: Faults, *, commute: bool = False
) -> None:
    """Edges between the moves of steps that wait for each other, and ``after`` of each move.

    ``arrived[i]`` are the moves that must have arrived before anything after step i. A step that only sends
    adds none, so later ones do not wait for its chunk to arrive, unless they overwrite what it sends.
    With ``commute``, reductions into one place that follow each other in the file may share a step: when all
    ranks add what all others send, none can receive before it has sent, and only so is there an order at all.
    """
    if commute:
        drafted.adding = {
            number
            for i, number in drafted.inward.items()
            if drafted.first[i] == number and wired.steps[i].type != "rrs" and _only_adds(drafted.moves[number])
        }
    arrived: list[frozenset[int]] = [frozenset()] * len(wired.steps)
    work = 0
    for i in wired.order:
        sets = {arrived[j] for j in (wired.before[i], wired.dependence[i]) if j >= 0 and arrived[j]}
        need: frozenset[int] = next(iter(sets)) if len(sets) == 1 else frozenset().union(*sets)
        work += (len(need) if len(sets) > 1 else 0) + len(drafted.entries[i]) * len(need)
        if work > MOST_EDGES:
            raise ScheduleError(f"{faults.file}: more than {MOST_EDGES} waits between moves")
        joined = frozenset(move for move in need if _commute(drafted, move, i))
        strict = need - joined
        for move in joined:
            drafted.edges.append((move, drafted.inward[i], 0))
            strict |= drafted.moves[move].after
        for entry in drafted.entries[i]:
            drafted.edges += [(move, entry, 1) for move in strict]
            drafted.moves[entry].after |= strict
        arrived[i] = joined | {drafted.inward[i]} if i in drafted.inward else need
    for reader, writer in overwrites:
        if reader in drafted.outward:
            drafted.edges.append((drafted.outward[reader], drafted.first[writer], 0))


def _only_adds(move: Move) -> bool:
    return move.op == Op.REDUCE and not (move.src == move.dst and set(move.source) & set(move.target))


def _commute(drafted: Draft, earlier: int, i: int) -> bool:
    """Whether step i only adds to the places to which the earlier move adds."""
    later = drafted.inward.get(i, -1)
    if not {earlier, later} <= drafted.adding:
        return False
    one, two = drafted.moves[earlier], drafted.moves[later]
    return one.dst == two.dst and one.target == two.target


def _levels(drafted: Draft) -> bool:
    """The step of each move: one more than all that must have arrived, not less than what must have been sent.

    Two GPUs that swap chunks in place are a circle of "sent before": one level for both. False if there is a
    circle with an arrival in it.
    """
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components

    count = len(drafted.moves)
    if not count:
        return True
    edges = np.array(drafted.edges, np.int64).reshape(-1, 3)
    graph = coo_array((np.ones(len(edges), np.int8), (edges[:, 0], edges[:, 1])), shape=(count, count))
    groups, label = connected_components(graph.tocsr(), directed=True, connection="strong")
    source, target, weight = label[edges[:, 0]], label[edges[:, 1]], edges[:, 2]
    if ((source == target) & (weight == 1)).any():
        return False
    outside = source != target
    level = _longest(groups, source[outside], target[outside], weight[outside])
    for move, step in zip(drafted.moves, level[label].tolist(), strict=True):
        move.level = step
    return True


def _longest(
    count: int, source: npt.NDArray[np.integer], target: npt.NDArray[np.integer], weight: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Length of the longest path to each node of a graph without circles, (count,)."""
    order = np.argsort(source, kind="stable")
    first = np.searchsorted(source[order], np.arange(count + 1)).tolist()
    after, extra = target[order].tolist(), weight[order].tolist()
    waits = np.bincount(target, minlength=count).tolist()
    longest = [0] * count
    ready = [i for i in range(count) if not waits[i]]
    for i in ready:  # grows while it is read
        for e in range(first[i], first[i + 1]):
            k = after[e]
            longest[k] = max(longest[k], longest[i] + extra[e])
            waits[k] -= 1
            if not waits[k]:
                ready.append(k)
    return np.array(longest, np.int64)


def _looked_at(drafted: Draft, passing: set[int]) -> set[int]:
    """The passing steps whose sum lies where something else may read it before it is overwritten."""
    accesses: dict[tuple[int, Slot], list[tuple[int, int, bool]]] = {}
    for i in passing:
        move = drafted.moves[drafted.inward[i]]
        accesses |= {(move.dst, slot): [] for slot in move.target}
    for number, move in enumerate(drafted.moves):
        for slot in move.source:
            if (move.src, slot) in accesses:
                accesses[move.src, slot].append((move.level, number, True))
        for slot in move.target:
            if (move.dst, slot) in accesses:
                accesses[move.dst, slot].append((move.level, number, move.op == Op.REDUCE))

    def overwritten(i: int, slot: Slot) -> bool:
        move = drafted.moves[drafted.inward[i]]
        own = {drafted.inward[i], drafted.outward[i]}
        later = [a for a in accesses[move.dst, slot] if a[0] > move.level and a[1] not in own]
        if not later:
            return slot[0] != Buffer.OUTPUT  # the result lies in OUTPUT
        soon = min(level for level, _, _ in later)
        return not any(reads for level, _, reads in later if level == soon)

    return {i for i in passing if not all(overwritten(i, s) for s in drafted.moves[drafted.inward[i]].target)}
