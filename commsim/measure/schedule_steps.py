"""A Schedule on one real rank: its rows as sends, receives and additions of torch, step by step.

The same table that is proved, simulated and run on arrays. A step posts all its sends and receives at once and waits
for them; rows of one pair of ranks whose chunks follow each other travel as one message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from commsim.collectives.schedule import Buffer, Op, Schedule
from commsim.collectives.semantics import ALL_RANKS, postcondition, precondition
from commsim.errors import ScheduleError
from commsim.measure.operations import ReadyCollective
from commsim.measure.pattern import TORCH_TYPES, Pattern, Stretch
from commsim.measure.tasks import Task

_COMBINE = {"sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum}


def load_schedule(task: Task, world_size: int, size: int) -> Schedule:
    """The schedule that a task names, for an array of `size` bytes: an algorithm of the registry, MSCCL XML or JSON.

    Raises ScheduleError where it does not fit the ranks, the type or the collective, or needs switches.
    """
    from commsim.collectives.registry import build

    name = task.schedule
    path = Path(name)
    if path.suffix.lower() == ".json":
        from commsim.collectives.json_table import load_json

        schedule = load_json(path)
    elif path.suffix.lower() == ".xml":
        from commsim.collectives.msccl import load_msccl

        schedule = load_msccl(path, size)
    else:
        schedule = build(task.collective, name, world_size, size, task.root, itemsize=task.item_bytes)
    if schedule.collective != task.collective:
        raise ScheduleError(f"{name} is a schedule of {schedule.collective}, the scenario asks for {task.collective}")
    if schedule.world_size != world_size:
        raise ScheduleError(f"{name} is a schedule of {schedule.world_size} ranks, found {world_size} ranks")
    if schedule.endpoints > world_size:
        raise ScheduleError(f"{name} reduces in switches, which real ranks have none of")
    if (schedule.chunk_bytes % task.item_bytes).any():
        raise ScheduleError(f"{name}: {size} B do not make chunks of whole elements of {task.dtype}")
    if schedule.nbytes != size:
        raise ScheduleError(f"{name} is a schedule of {schedule.nbytes} B, found {size} B")
    if task.redop not in _COMBINE:
        raise ScheduleError(f"{name}: found redop {task.redop}, expected one of {', '.join(_COMBINE)}")
    return schedule


@dataclass(frozen=True)
class _Piece:
    """Elements first..last of a buffer."""

    buffer: int
    first: int
    last: int

    def overlaps(self, other: _Piece) -> bool:
        return self.buffer == other.buffer and self.first < other.last and other.first < self.last


@dataclass
class _Step:
    """What one rank does in one step."""

    sends: list[tuple[int, _Piece]] = field(default_factory=list)
    receives: list[tuple[int, _Piece, bool]] = field(default_factory=list)  # peer, where to, whether it is added
    moves: list[tuple[_Piece, _Piece, bool]] = field(default_factory=list)  # inside the rank


def rank_steps(schedule: Schedule, rank: int, itemsize: int) -> list[_Step]:
    """The steps of a rank in order, those without anything to do left out."""
    s = schedule
    edges = np.append(0, np.cumsum(s.chunk_bytes // itemsize))
    mine = np.flatnonzero((s.src == rank) | (s.dst == rank))
    order = mine[np.lexsort((mine, s.dst[mine], s.src[mine], s.step[mine]))]
    steps: dict[int, _Step] = {}
    for rows in _messages(s, order):
        first, last = int(rows[0]), int(rows[-1])
        source = _Piece(int(s.src_buffer[first]), int(edges[s.src_chunk[first]]), int(edges[s.src_chunk[last] + 1]))
        target = _Piece(int(s.dst_buffer[first]), int(edges[s.dst_chunk[first]]), int(edges[s.dst_chunk[last] + 1]))
        if source.first == source.last:
            continue  # an empty chunk
        step = steps.setdefault(int(s.step[first]), _Step())
        reduces = bool(s.op[first] == Op.REDUCE)
        if s.src[first] == s.dst[first]:
            step.moves.append((source, target, reduces))
        elif s.src[first] == rank:
            step.sends.append((int(s.dst[first]), source))
        else:
            step.receives.append((int(s.src[first]), target, reduces))
    return [steps[number] for number in sorted(steps)]


def _messages(s: Schedule, order: Any) -> list[Any]:
    """Rows that travel together: of one step and pair, with chunks that follow each other at both ends."""
    if not order.size:
        return []
    a, b = order[:-1], order[1:]
    together = np.ones(a.size, bool)
    for name in ("step", "src", "dst", "op", "src_buffer", "dst_buffer"):
        column = getattr(s, name)
        together &= column[a] == column[b]
    for name in ("src_chunk", "dst_chunk"):
        column = getattr(s, name)
        together &= column[a] + 1 == column[b]
    return list(np.split(order, np.flatnonzero(~together) + 1))


def schedule_operation(schedule: Schedule, task: Task, rank: int, device: Any) -> ReadyCollective:
    """The schedule as an operation to time; what is right afterwards is what its collective promises."""
    dtype = TORCH_TYPES[task.dtype]
    edges = np.append(0, np.cumsum(schedule.chunk_bytes // task.item_bytes)).tolist()
    total, elements = edges[-1], edges[schedule.data_chunks]
    memory = [torch.zeros(length, dtype=dtype, device=device) for length in (elements, elements, total)]
    pattern = Pattern(task.collective, schedule.world_size, elements, dtype, task.redop, schedule.root)
    start, end = precondition(schedule), postcondition(schedule)
    steps = rank_steps(schedule, rank, task.item_bytes)

    def value(of: int, datum: int) -> Stretch:
        base = pattern.reduced() if of == ALL_RANKS else pattern.base(of)
        return Stretch(base, edges[datum], edges[datum + 1])

    def fill() -> None:
        for buffer in memory:
            buffer.zero_()
        for i in np.flatnonzero(start.endpoint == rank).tolist():
            slot = memory[start.buffer[i]][edges[start.chunk[i]] : edges[start.chunk[i] + 1]]
            pattern.write(value(int(start.rank[i]), int(start.datum[i])), slot)

    def wrong() -> int:
        faults = torch.zeros((), dtype=torch.int64, device=device)
        for i in np.flatnonzero(end.endpoint == rank).tolist():
            received = memory[end.buffer[i]][edges[end.chunk[i]] : edges[end.chunk[i] + 1]]
            faults += pattern.differing(value(int(end.rank[i]), int(end.datum[i])), received)
        return int(faults)

    return ReadyCollective(fill, lambda: _run(steps, memory, _COMBINE[task.redop]), wrong)


def _run(steps: list[_Step], memory: list[Any], combine: Any) -> None:
    def at(piece: _Piece) -> Any:
        return memory[piece.buffer][piece.first : piece.last]

    for step in steps:
        # Rows of a step read the state before it: what they write to must not be what others still read.
        read = [piece for _, piece in step.sends]
        moved = [(at(source).clone(), target, reduces) for source, target, reduces in step.moves]
        arrived = []
        calls = [dist.P2POp(dist.isend, at(piece), peer) for peer, piece in step.sends]
        for peer, target, reduces in step.receives:
            aside = reduces or any(target.overlaps(piece) for piece in read)
            place = torch.empty_like(at(target)) if aside else at(target)
            if aside:
                arrived.append((place, target, reduces))
            calls.append(dist.P2POp(dist.irecv, place, peer))
        for work in dist.batch_isend_irecv(calls) if calls else ():
            work.wait()
        for values, target, reduces in [*moved, *arrived]:
            if reduces:
                combine(at(target), values, out=at(target))
            else:
                at(target).copy_(values)


assert set(Buffer) == {0, 1, 2}  # the order of `memory`
