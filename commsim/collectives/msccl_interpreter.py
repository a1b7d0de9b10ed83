"""Runs an MSCCL program as MSCCL's runtime does, and says whether it would hang or end wrong.

Thread blocks run their steps in order. A step waits for the flag of another block of its GPU (depid, deps), a step that
receives for a message, and one that sends for room: a connection (sender, receiver, channel) holds only a few messages
(``msccl_limits.SLOTS``). Nothing that can go on is ever stopped by others, so one order of execution shows what all
of them show: a program that ends in one ends in each.

What a step does: microsoft/msccl 2.12.12, src/collectives/device/msccl_interpreter.h; waiting for messages and room:
waitPeer in prims_simple.h beside it. Large arrays are the hardest: each chunk of a step is a message of its own there
(mscclMaxAllowedCount = 1). That they pass several times, 4 steps of a connection each time, adds nothing: after one
pass all connections are empty. A message is moved in two slices; a step that waits for the whole of it waits longer.
"""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from commsim.collectives.msccl_limits import SLOTS, named, over_limits
from commsim.collectives.msccl_xml import READS, RECEIVES, SENDS, WRITES, Algo, MscclStep, ThreadBlock
from commsim.errors import ScheduleError

Connection = tuple[int, int, int]
"""Sender, receiver, channel."""
Event = tuple[str, Connection | tuple[int, int]]
"""``room`` or ``message`` with a connection, ``flag`` with a GPU and its thread block."""

_MASK = 2**64 - 1
_MOST_SHOWN = 6
_IN_PARTS, _OUT_PARTS = frozenset({"allgather", "gather"}), frozenset({"reducescatter", "scatter"})


def faults(algo: Algo, root: int = 0, slots: int | None = None) -> list[str]:
    """What keeps MSCCL's runtime from running the program to the right end, a line each; empty if nothing does.

    Its limits first; if they are kept, a deadlock; if there is none, what is wrong at the end. Peers, buffers and
    offsets are taken to be there, as in each program that can be read as a schedule. ``slots``: messages that a
    connection holds, by default as many as the protocol of the program leaves.
    """
    return over_limits(algo) or Interpreter(algo, slots or SLOTS[algo.proto]).run(root)


def fewest_slots(algo: Algo) -> int | None:
    """The least number of messages that each connection must hold for the program to end; None if it never does."""
    least, most = 1, max((sum(s.cnt for s in b.steps) for g in algo.gpus for b in g.blocks), default=0) + 1
    if Interpreter(algo, most).hanging():
        return None
    while least < most:
        middle = (least + most) // 2
        if Interpreter(algo, middle).hanging():
            least = middle + 1
        else:
            most = middle
    return least


@dataclass(slots=True)
class _Running:
    """A running thread block: its next step, chunks of it moved already, the last step signalled, what stopped it."""

    gpu: int
    block: ThreadBlock
    at: int = 0
    moved: int = 0
    signalled: int = -1
    stopped: tuple[MscclStep, Event] = field(init=False)

    @property
    def step(self) -> MscclStep | None:
        return self.block.steps[self.at] if self.at < len(self.block.steps) else None

    @property
    def out(self) -> Connection:
        return self.gpu, self.block.send, self.block.chan

    @property
    def into(self) -> Connection:
        return self.block.recv, self.gpu, self.block.chan


class Interpreter:
    """All GPUs of a program; every chunk of every rank's input is a random number, sums are taken modulo 2**64."""

    def __init__(self, algo: Algo, slots: int, seed: int = 0) -> None:
        if slots < 1:
            raise ScheduleError(f"found {slots} slots of a connection, expected 1 or more")
        self.algo, self.slots = algo, slots
        self.blocks = [_Running(gpu.id, block) for gpu in algo.gpus for block in gpu.blocks]
        self.by_id = {(b.gpu, b.block.id): b for b in self.blocks}
        self.sender = {b.out: b for b in self.blocks if b.block.send >= 0}
        self.receiver = {b.into: b for b in self.blocks if b.block.recv >= 0}
        self.messages: dict[Connection, deque[int]] = defaultdict(deque)
        self._fill(random.Random(seed))

    def run(self, root: int = 0) -> list[str]:
        """Run to the end and say what is wrong there: blocks that wait for each other, messages left over, data."""
        hanging = self.hanging()
        return [self._deadlock(hanging[0], len(hanging))] if hanging else [*self._left_over(), *self._wrong(root)]

    def hanging(self) -> list[_Running]:
        """Run as far as it goes; the thread blocks that do not come to their end."""
        ready = deque(self.blocks)
        waiting: dict[Event, list[_Running]] = defaultdict(list)
        while ready:
            block = ready.popleft()
            while (step := block.step) is not None:
                cause = self._cause(block, step)
                if cause is not None:
                    block.stopped = step, cause
                    waiting[cause].append(block)
                    break
                for event in self._advance(block, step):
                    ready.extend(waiting.pop(event, ()))
        return [b for b in self.blocks if b.step is not None]

    def _cause(self, block: _Running, step: MscclStep) -> Event | None:
        """What the next move of a block waits for: a flag, a message or room; None if it can go on."""
        if step.depid >= 0 and not block.moved:
            other = self.by_id.get((block.gpu, step.depid))
            if other is None or other.signalled < step.deps:
                return "flag", (block.gpu, step.depid)
        if step.type in RECEIVES and not self.messages[block.into]:
            return "message", block.into
        if step.type in SENDS and len(self.messages[block.out]) >= self.slots:
            return "room", block.out
        return None

    def _advance(self, block: _Running, step: MscclStep) -> list[Event]:
        """Move one chunk of a step; what others may have waited for."""
        events: list[Event] = []
        if step.cnt:
            memory, k, value = self.memory[block.gpu], block.moved, 0
            if step.type in RECEIVES:
                value = self.messages[block.into].popleft()
                events.append(("room", block.into))
            if step.type in READS:
                values, base = memory[step.srcbuf]
                value += values[base + step.srcoff + k]
            if step.type in WRITES:
                values, base = memory[step.dstbuf]
                value += values[base + step.dstoff + k] if step.type in {"re", "ra"} else 0
                values[base + step.dstoff + k] = value & _MASK
            if step.type in SENDS:
                self.messages[block.out].append(value & _MASK)
                events.append(("message", block.out))
            block.moved += 1
        if block.moved >= step.cnt:
            block.at, block.moved = block.at + 1, 0
            if step.hasdep and step.type != "nop":
                block.signalled = step.s
                events.append(("flag", (block.gpu, block.block.id)))
        return events

    def _deadlock(self, at: _Running, hanging: int) -> str:
        """Which blocks wait for which: a circle of them, or the first on the way that waits for what never comes."""
        path: dict[int, _Running] = {}
        while id(at) not in path:
            path[id(at)] = at
            other = self._waited_for(at)
            if other is None or other.step is None:
                return f"it hangs: {self._waits(at)}, which never comes ({hanging} thread blocks hang)"
            at = other
        circle = list(path.values())[list(path).index(id(at)) :]
        shown = [self._waits(b) for b in (circle if len(circle) <= _MOST_SHOWN else circle[: _MOST_SHOWN - 1])]
        more = len(circle) - len(shown)
        text = "; ".join([*shown, *([f"{more} more"] if more else [])])
        return f"it hangs with {self.slots} messages on a connection, blocks wait in a circle: {text}"

    def _waited_for(self, block: _Running) -> _Running | None:
        step, cause = block.stopped
        if cause[0] == "flag":
            return self.by_id.get((block.gpu, step.depid))
        return self.sender.get(block.into) if cause[0] == "message" else self.receiver.get(block.out)

    def _waits(self, block: _Running) -> str:
        step, cause = block.stopped
        src, dst, channel = (*cause[1], 0)[:3]
        words = {
            "flag": f"step {step.deps} of thread block {step.depid}",
            "message": f"a message of GPU {src} on channel {channel}",
            "room": f"room towards GPU {dst} on channel {channel}",
        }[cause[0]]
        return f"{named(block.gpu, block.block, step)} waits for {words}"

    def _fill(self, rng: random.Random) -> None:
        """Memory before the call: the inputs where the collective has them, numbers that nobody knows elsewhere."""
        algo = self.algo
        chunks, block = algo.nchunksperloop, algo.nchunksperloop // algo.ngpus
        # all_to_all has no in-place form here; a file for both kinds of call is read as the other one.
        in_place = algo.inplace and not (algo.coll == "alltoall" and algo.outofplace)
        self.inputs = [[rng.getrandbits(64) for _ in range(chunks)] for _ in range(algo.ngpus)]
        # Of each GPU the values of every buffer and where it begins in them; in place, input and output are one list.
        self.memory: dict[int, dict[str, tuple[list[int], int]]] = {}
        for gpu in algo.gpus:
            own = slice(gpu.id * block, (gpu.id + 1) * block) if algo.coll in _IN_PARTS else slice(0, chunks)
            source = [rng.getrandbits(64) for _ in range(chunks)]
            source[own] = self.inputs[gpu.id][own]
            result = source if in_place else [rng.getrandbits(64) for _ in range(chunks)]
            scratch = [rng.getrandbits(64) for _ in range(gpu.chunks["s"])]
            out = gpu.id * block if algo.coll in _OUT_PARTS else 0
            self.memory[gpu.id] = {"i": (source, own.start), "o": (result, out), "s": (scratch, 0)}

    def _left_over(self) -> Iterator[str]:
        for (src, dst, channel), messages in self.messages.items():
            if messages:
                yield f"{len(messages)} messages of GPU {src} to GPU {dst} on channel {channel} are never received"

    def _wrong(self, root: int) -> Iterator[str]:
        wrong = [(g, chunk) for g, chunk, value in self._wanted(root) if self.memory[g]["o"][0][chunk] != value]
        if wrong:
            gpu, chunk = wrong[0]
            more = f" ({len(wrong)} such chunks)" if len(wrong) > 1 else ""
            yield f"it ends wrong: chunk {chunk} of GPU {gpu} is not what {self.algo.coll} promises{more}"

    def _wanted(self, root: int) -> Iterator[tuple[int, int, int]]:
        """What the collective promises: GPU, chunk, value."""
        n, chunks, name = self.algo.ngpus, self.algo.nchunksperloop, self.algo.coll
        block = max(chunks // n, 1)
        total = [sum(values) & _MASK for values in zip(*self.inputs, strict=True)]
        for gpu in [root] if name in {"reduce", "gather"} else range(n):
            for chunk in range(gpu * block, (gpu + 1) * block) if name in _OUT_PARTS else range(chunks):
                owner, within = divmod(chunk, block)
                if name in {"allreduce", "reduce", "reducescatter"}:
                    yield gpu, chunk, total[chunk]
                elif name == "alltoall":
                    yield gpu, chunk, self.inputs[owner][gpu * block + within]
                else:
                    yield gpu, chunk, self.inputs[owner if name in _IN_PARTS else root][chunk]
