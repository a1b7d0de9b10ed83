"""Proof that a schedule does what its collective promises, by replay on symbols instead of data.

The replay keeps, for every slot, which datum it holds and the set of ranks whose contributions it sums (a
bit mask in 64-bit words), and runs the schedule step by step. That proves the result for every input at
once.
"""

from __future__ import annotations

from graphlib import CycleError, TopologicalSorter
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from commsim.collectives.schedule import Buffer, Int64, Op, Schedule
from commsim.collectives.semantics import ALL_RANKS, Contents, collective, postcondition, precondition
from commsim.errors import ScheduleError
from commsim.memory import require_memory

UInt64 = npt.NDArray[np.uint64]

_SLOT_BYTES, _MASK_BYTES = 56, 16
"""Of a slot, and of each word of its mask: what is held and what is compared with it at the end. Measured peaks: 184
bytes of a slot for 500 ranks, 318 for 1,000."""

_UNDEFINED, _ZERO = -1, -2
"""Data of slots that hold nothing yet: at ranks, and at switches, which start from zero."""


def require_slots(name: str, world_size: int, endpoints: int, chunks: int) -> None:
    """Raise MemoryLimitError where the proof of a schedule of so many chunks would need too much."""
    slots = endpoints * len(Buffer) * chunks
    each = _SLOT_BYTES + _MASK_BYTES * -(-world_size // 64)
    subject = f"the proof of {name} on {world_size:,} ranks, a table"
    require_memory(each * slots, slots, subject=subject, what="slots", advice="take fewer ranks, channels or chunks")


def check(schedule: Schedule) -> None:
    """Return if the schedule is correct; otherwise raise a ScheduleError that names a fault and its place.

    Faults: a value out of range, chunks of different sizes, a cycle through ``after``, two writers of one
    slot in one step (reductions of one step commute and are no race), a read of an undefined slot, a
    reduction of different data or into an undefined slot of a rank, a rank counted twice (but in a barrier,
    where it does no harm), and a result that lacks contributions, with the row that overwrote them. Two copies
    of the same value into one slot in one step are refused too. Rows that do no harm, such as a copy of what is
    there already, are not faults.
    """
    _check_ranges(schedule)
    _check_sizes(schedule)
    order, same = _write_order(schedule)
    _check_races(schedule, order, same)
    _check_order(schedule)
    _Replay(schedule).run(order, same)


def _check_ranges(s: Schedule) -> None:
    limits: dict[str, tuple[npt.NDArray[Any], int]] = {
        "op": (s.op, len(Op)),
        "src": (s.src, s.endpoints),
        "dst": (s.dst, s.endpoints),
        "src_buffer": (s.src_buffer, len(Buffer)),
        "dst_buffer": (s.dst_buffer, len(Buffer)),
        "src_chunk": (s.src_chunk, s.chunk_bytes.size),
        "dst_chunk": (s.dst_chunk, s.chunk_bytes.size),
        "step": (s.step, 2**31),
        "channel": (s.channel, 2**31),
        "after": (s.after.reshape(-1), s.rows),
    }
    for name, (column, limit) in limits.items():
        bad = np.flatnonzero((column < 0) | (column >= limit))
        if bad.size:
            i = int(bad[0])
            row, edge = (i, "") if name != "after" else (i // 2, "edge ")
            raise ScheduleError(f"{edge or 'row '}{row}: {name} is {column[i]}, expected 0..{limit - 1}")
    for side, buffer, chunk in (("src", s.src_buffer, s.src_chunk), ("dst", s.dst_buffer, s.dst_chunk)):
        bad = np.flatnonzero((buffer != Buffer.SCRATCH) & (chunk >= s.data_chunks))
        if bad.size:
            _fail(s, int(bad[0]), f"{side}_chunk {chunk[bad[0]]} exists only in scratch")


def _check_sizes(s: Schedule) -> None:
    bad = np.flatnonzero(s.chunk_bytes[s.src_chunk] != s.chunk_bytes[s.dst_chunk])
    if bad.size:
        source, target = s.src_chunk[bad[0]], s.dst_chunk[bad[0]]
        _fail(
            s,
            int(bad[0]),
            f"chunk {source} of {s.chunk_bytes[source]} bytes does not fit "
            f"chunk {target} of {s.chunk_bytes[target]} bytes",
        )


def _write_order(s: Schedule) -> tuple[Int64, npt.NDArray[np.bool_]]:
    """Rows by (step, slot written, row), and which of them write the slot that the one before writes."""
    slot = s.slots_written()
    order = np.lexsort((slot, s.step))
    same = np.r_[False, (np.diff(slot[order]) == 0) & (np.diff(s.step[order]) == 0)][: s.rows]
    return order, same


def _check_races(s: Schedule, order: Int64, same: npt.NDArray[np.bool_]) -> None:
    if not same.any():
        return
    copies = s.op[order] == Op.COPY
    race = np.flatnonzero(same[1:] & (copies[1:] | copies[:-1])) + 1
    if race.size:
        one, two = order[race[0] - 1], order[race[0]]
        _fail(
            s,
            int(two),
            f"endpoint {s.dst[two]} is written twice at {_place(s.dst_buffer[two], s.dst_chunk[two])}, "
            f"from {s.src[one]} (row {one}) and from {s.src[two]} (row {two}): a race",
        )


def _check_order(s: Schedule) -> None:
    """Refuse a cycle; derived dependences always lead to a later step, so only ``after`` can close one."""
    if (s.after[:, 0] < s.after[:, 1]).all():
        return  # rows are sorted by step, so every edge goes down the table
    ptr, idx = s.dependencies()
    sorter: TopologicalSorter[int] = TopologicalSorter()
    for row, later in zip(np.repeat(np.arange(s.rows), np.diff(ptr)).tolist(), idx.tolist(), strict=True):
        sorter.add(later, row)
    try:
        sorter.prepare()
    except CycleError as fault:
        cycle = fault.args[1]
        shown = " -> ".join(str(r) for r in (cycle if len(cycle) <= 8 else [*cycle[:4], "...", cycle[-1]]))
        _fail(s, cycle[0], f"rows wait for each other in a cycle: {shown}")


class _Replay:
    """State of the run: per slot the datum, the ranks summed, the last row that lost data.

    ``ranks`` is (slots,) for up to 64 ranks, one word each, and (slots, words) for more: most proofs are of few ranks.
    """

    def __init__(self, schedule: Schedule) -> None:
        s = self.schedule = schedule
        slots = s.endpoints * len(Buffer) * int(s.chunk_bytes.size)
        self.words = -(-s.world_size // 64)
        require_slots(f"{s.algorithm} {s.collective}", s.world_size, s.endpoints, int(s.chunk_bytes.size))
        self.datum = np.full(slots, _UNDEFINED, np.int64)
        self.datum[s.world_size * len(Buffer) * int(s.chunk_bytes.size) :] = _ZERO
        self.ranks = np.zeros(slots if self.words == 1 else (slots, self.words), np.uint64)
        self.everyone = np.bitwise_or.reduce(_mask(np.arange(s.world_size), self.words), axis=0)
        self.loss = np.full(slots, -1, np.int64)
        self.idempotent = collective(s.collective).idempotent
        start = precondition(s)
        place = s.slots(start.endpoint, start.buffer, start.chunk)
        self.datum[place] = start.datum
        self.ranks[place] = _mask(start.rank, self.words)
        self.read = s.slots_read()
        self.write = s.slots_written()
        self.reduces = s.op == Op.REDUCE

    def run(self, order: Int64, same: npt.NDArray[np.bool_]) -> None:
        s = self.schedule
        bounds = np.flatnonzero(np.r_[True, s.step[1:] != s.step[:-1], True][: s.rows + 1]) if s.rows else order
        turn = np.zeros(s.rows, np.int64)
        if same.any():
            # turn k of a step holds the k-th writer of each slot; turns are applied one after the other.
            place = np.arange(s.rows)
            turn[order] = place - np.maximum.accumulate(np.where(same, 0, place))
        turns = np.maximum.reduceat(turn, bounds[:-1]) if s.rows else turn
        for begin, end, last in zip(bounds[:-1].tolist(), bounds[1:].tolist(), turns.tolist(), strict=True):
            self._step(begin, turn[begin:end], last)
        self._finish(postcondition(s))

    def _step(self, begin: int, turn: Int64, last: int) -> None:
        now = slice(begin, begin + turn.size)
        read = self.read[now]
        datum, ranks = self.datum[read], self.ranks[read]
        if datum.min() < 0:
            row = begin + int(np.argmax(datum < 0))
            s = self.schedule
            where = _place(s.src_buffer[row], s.src_chunk[row])
            _fail(s, row, f"endpoint {s.dst[row]} reads {where} of {s.src[row]}, which holds nothing yet")
        if not last:
            self._apply(begin + np.arange(turn.size), datum, ranks)
            return
        for k in range(last + 1):
            chosen = np.flatnonzero(turn == k)
            self._apply(begin + chosen, datum[chosen], ranks[chosen])

    def _apply(self, rows: Int64, datum: Int64, ranks: UInt64) -> None:
        """Rows that write different slots."""
        target, reduces = self.write[rows], self.reduces[rows]
        held, held_ranks = self.datum[target], self.ranks[target]
        result = ranks
        if reduces.any():
            known = reduces & (held >= 0)
            self._refuse(rows, reduces & (held == _UNDEFINED), held_ranks, ranks)
            self._refuse(rows, known & (held != datum), held_ranks, ranks)
            if not self.idempotent:
                self._refuse(rows, known & self._any(held_ranks & ranks), held_ranks, ranks)
            result = np.where(reduces if self.words == 1 else reduces[:, None], held_ranks | ranks, ranks)
        if not reduces.all():
            lost = ~reduces & (held >= 0) & ((held != datum) | self._any(held_ranks & ~ranks))
            self.loss[target[lost]] = rows[lost]
        self.datum[target] = datum
        self.ranks[target] = result

    def _any(self, mask: UInt64) -> npt.NDArray[np.bool_]:
        """Whether each mask names a rank."""
        return np.asarray(mask != 0 if self.words == 1 else mask.any(axis=1), np.bool_)

    def _refuse(self, rows: Int64, wrong: npt.NDArray[np.bool_], held: UInt64, added: UInt64) -> None:
        if not wrong.any():
            return
        s, i = self.schedule, int(np.argmax(wrong))
        row = int(rows[i])
        where = _place(s.dst_buffer[row], s.dst_chunk[row])
        adds = f"endpoint {s.dst[row]} adds {where} from {s.src[row]}"
        datum = self.datum[self.write[row]]
        if datum == _UNDEFINED:
            _fail(s, row, f"{adds} to a slot that holds nothing yet")
        if datum != self.datum[self.read[row]]:
            _fail(s, row, f"{adds}, which is chunk {self.datum[self.read[row]]} of the array, to chunk {datum}")
        _fail(s, row, f"{adds} but already holds {_names(held[i] & added[i])}")

    def _finish(self, goal: Contents) -> None:
        s = self.schedule
        place = s.slots(goal.endpoint, goal.buffer, goal.chunk)
        all_ranks = goal.rank == ALL_RANKS
        need = np.where(
            all_ranks if self.words == 1 else all_ranks[:, None], self.everyone, _mask(goal.rank, self.words)
        )
        held = self.ranks[place]
        wrong = np.flatnonzero((self.datum[place] != goal.datum) | self._any(held ^ need))
        if not wrong.size:
            return
        i = wrong[0]
        datum, loss = int(self.datum[place[i]]), int(self.loss[place[i]])
        where = f"endpoint {goal.endpoint[i]} ends with {_place(goal.buffer[i], goal.chunk[i])}"
        if datum < 0:
            fault = "empty"
        elif datum != goal.datum[i]:
            fault = f"holding chunk {datum} of the array, expected chunk {goal.datum[i]}"
        else:
            missing, extra = need[i] & ~held[i], held[i] & ~need[i]
            parts = [f"without {_names(missing)}"] * bool(missing.any())
            fault = " and ".join(parts + [f"with {_names(extra)} too many"] * bool(extra.any()))
        cause = ""
        if loss >= 0:
            cause = f"; row {loss} (step {s.step[loss]}, from {s.src[loss]}) overwrote data that was there"
        more = f"; {wrong.size - 1} more slots are wrong" if wrong.size > 1 else ""
        raise ScheduleError(f"{s.algorithm} {s.collective}, after {s.steps} steps: {where} {fault}{cause}{more}")


def _mask(rank: npt.NDArray[np.integer], words: int) -> UInt64:
    """One bit per rank, (ranks,) when one word holds them and (ranks, words) otherwise; none for negative ranks."""
    bit = np.where(rank >= 0, np.uint64(1) << (rank % 64).astype(np.uint64), np.uint64(0))
    if words == 1:
        return bit
    mask = np.zeros((rank.size, words), np.uint64)
    mask[np.arange(rank.size), rank // 64 % words] = bit
    return mask


def _names(mask: UInt64) -> str:
    """'rank 3' or 'ranks 0, 1, 5' of one mask."""
    bits = np.unpackbits(np.atleast_1d(mask).astype("<u8").view(np.uint8), bitorder="little")
    ranks = np.flatnonzero(bits).tolist()
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {shown}"


def _place(buffer: int, chunk: int) -> str:
    return f"{Buffer(buffer).name.lower()} chunk {chunk}"


def _fail(s: Schedule, row: int, fault: str) -> NoReturn:
    raise ScheduleError(f"{s.algorithm} {s.collective}, step {s.step[row]}, row {row}: {fault}")
