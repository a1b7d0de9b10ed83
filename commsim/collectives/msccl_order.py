"""Order in an MSCCL algorithm: which send meets which receive, what precedes what, and races left open.

Sends and receives of a connection (sender, receiver, channel) meet in the order of their thread blocks. What
a step waits for is the step before it in its thread block, the step named by depid and deps, and, when it
receives, the send that it meets. Sends never wait for their receiver here; where the few messages that a real
connection holds are too few is for ``msccl_interpreter`` to say.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter

from commsim.collectives.msccl_xml import READS, RECEIVES, SENDS, WRITES, Algo, Faults, MscclGpu, MscclStep, ThreadBlock
from commsim.errors import ScheduleError

Slot = tuple[int, int]
"""Buffer and chunk at one GPU."""

_MOST_CLOCKS = 2**26
_MOST_VISITS = 5_000_000


@dataclass(slots=True)
class Wired:
    """Every step of the file in one list, with the steps it is tied to by their place in that list (-1: none)."""

    steps: list[MscclStep] = field(default_factory=list)
    gpu: list[int] = field(default_factory=list)
    block: list[int] = field(default_factory=list)
    blocks: list[ThreadBlock] = field(default_factory=list)
    block_gpu: list[int] = field(default_factory=list)
    before: list[int] = field(default_factory=list)
    dependence: list[int] = field(default_factory=list)
    sender: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)

    def waits_for(self, i: int) -> tuple[int, ...]:
        """The steps that step i waits for."""
        return tuple(j for j in (self.before[i], self.dependence[i], self.sender[i]) if j >= 0)


def wire(algo: Algo, faults: Faults) -> Wired:
    """The steps with their ties, in an order that respects them; faults end the reading."""
    _check_gpus(algo, faults)
    faults.stop()
    wired = Wired()
    for gpu in sorted(algo.gpus, key=lambda g: g.id):
        _add_gpu(algo, gpu, wired, faults)
    faults.stop()
    _meet(wired, faults)
    faults.stop()
    _sort(wired, faults)
    faults.stop()
    return wired


def _check_gpus(algo: Algo, faults: Faults) -> None:
    if len(algo.gpus) != algo.ngpus:
        faults.add(algo.line, f"<algo> has ngpus={algo.ngpus}, but {len(algo.gpus)} <gpu> follow")
    seen: dict[int, int] = {}
    for gpu in algo.gpus:
        if gpu.id >= algo.ngpus:
            faults.add(gpu.line, f"<gpu> has id={gpu.id}, expected 0..{algo.ngpus - 1}")
        elif gpu.id in seen:
            faults.add(gpu.line, f"<gpu> has id={gpu.id}, as the one of line {seen[gpu.id]}")
        seen.setdefault(gpu.id, gpu.line)


def _add_gpu(algo: Algo, gpu: MscclGpu, wired: Wired, faults: Faults) -> None:
    blocks: dict[int, ThreadBlock] = {}
    places: dict[tuple[int, int], int] = {}
    for block in gpu.blocks:
        if block.id in blocks:
            faults.add(block.line, f"<tb> has id={block.id}, as the one of line {blocks[block.id].line}")
        blocks.setdefault(block.id, block)
        for name, peer in (("send", block.send), ("recv", block.recv)):
            if peer >= algo.ngpus or peer == gpu.id:
                faults.add(block.line, f"<tb> has {name}={peer}, expected another GPU of 0..{algo.ngpus - 1}, or -1")
        if block.chan >= algo.nchannels:
            faults.add(block.line, f"<tb> has chan={block.chan}, expected 0..{algo.nchannels - 1}")
        for number, step in enumerate(block.steps):
            if step.s != number:
                faults.add(step.line, f"<step> has s={step.s}, expected {number}: steps count from 0 in order")
            places[block.id, number] = len(wired.steps)
            wired.before.append(len(wired.steps) - 1 if number else -1)
            wired.dependence.append(-1)
            wired.sender.append(-1)
            wired.steps.append(step)
            wired.gpu.append(gpu.id)
            wired.block.append(len(wired.blocks))
            _check_step(step, block, gpu, faults)
        wired.blocks.append(block)
        wired.block_gpu.append(gpu.id)
    for block in gpu.blocks:
        for number, step in enumerate(block.steps):
            if step.depid < 0:
                continue
            target = places.get((step.depid, step.deps))
            if target is None:
                faults.add(step.line, f"waits for step {step.deps} of thread block {step.depid}, which is not there")
            elif not wired.steps[target].hasdep:
                faults.add(
                    step.line, f"waits for line {wired.steps[target].line}, which has no hasdep=1: it never tells"
                )
            else:
                wired.dependence[places[block.id, number]] = target


def _check_step(step: MscclStep, block: ThreadBlock, gpu: MscclGpu, faults: Faults) -> None:
    if step.type in SENDS and block.send < 0:
        faults.add(step.line, f"type {step.type} sends, but the thread block has send=-1")
    if step.type in RECEIVES and block.recv < 0:
        faults.add(step.line, f"type {step.type} receives, but the thread block has recv=-1")
    ends = (("src", READS, step.srcbuf, step.srcoff), ("dst", WRITES, step.dstbuf, step.dstoff))
    for side, users, buffer, offset in ends:
        if step.type in users and (offset < 0 or offset + step.cnt > gpu.chunks[buffer]):
            faults.add(
                step.line,
                f"{side}off={offset} with cnt={step.cnt} leaves buffer {buffer} of {gpu.chunks[buffer]} chunks",
            )


def _meet(wired: Wired, faults: Faults) -> None:
    """Pair the sends and receives of each connection."""
    sends: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    receives: dict[tuple[int, int, int], list[int]] = defaultdict(list)
    owner: dict[tuple[str, tuple[int, int, int]], ThreadBlock] = {}
    for i, step in enumerate(wired.steps):
        block, gpu = wired.blocks[wired.block[i]], wired.gpu[i]
        out, into = (gpu, block.send, block.chan), (block.recv, gpu, block.chan)
        for uses, name, key, steps in ((SENDS, "send", out, sends), (RECEIVES, "receive", into, receives)):
            if step.type not in uses:
                continue
            if owner.setdefault((name, key), block) is not block:
                other = owner[name, key].line
                faults.add(
                    step.line, f"a second thread block {name}s on {_connection(key)}, after that of line {other}"
                )
            steps[key].append(i)
    for key in sorted(sends.keys() | receives.keys()):
        out_steps, in_steps = sends.get(key, []), receives.get(key, [])
        for a, b in zip(out_steps, in_steps, strict=False):
            wired.sender[b] = a
            if wired.steps[a].cnt != wired.steps[b].cnt:
                one, two = wired.steps[a], wired.steps[b]
                faults.add(
                    two.line, f"receives {two.cnt} chunks on {_connection(key)}, line {one.line} sends {one.cnt}"
                )
        extra = out_steps[len(in_steps) :] or in_steps[len(out_steps) :]
        if extra:
            fault = "sent is never received" if len(out_steps) > len(in_steps) else "received is never sent"
            faults.add(
                wired.steps[extra[0]].line,
                f"what is {fault}: {_connection(key)} has {len(out_steps)} sends and {len(in_steps)} receives",
            )


def _connection(key: tuple[int, int, int]) -> str:
    return f"the connection {key[0]} -> {key[1]} of channel {key[2]}"


def _sort(wired: Wired, faults: Faults) -> None:
    """Fill ``order``: every step after all that it waits for; a deadlock is a fault that names its lines."""
    sorter: TopologicalSorter[int] = TopologicalSorter(dict.fromkeys(range(len(wired.steps)), ()))
    for i in range(len(wired.steps)):
        sorter.add(i, *wired.waits_for(i))
    try:
        wired.order = list(sorter.static_order())
    except CycleError as fault:
        circle = fault.args[1][:0:-1]  # each step before the one that it waits for
        first = circle.index(min(circle))
        lines = [str(wired.steps[i].line) for i in [*circle[first:], *circle[: first + 1]]]
        shown = " for line ".join(lines if len(lines) <= 8 else [*lines[:4], "...", lines[-1]])
        faults.add(wired.steps[min(circle)].line, f"a deadlock: line {shown} wait for each other")


def find_races(
    wired: Wired, reads: list[list[Slot]], writes: list[list[Slot]], faults: Faults
) -> list[tuple[int, int]]:
    """Steps that read a slot, each with the next that writes it; faults for every pair of steps in no given order.

    ``reads`` and ``writes`` are the slots of each step. Real GPUs run thread blocks concurrently, so what
    such a file computes depends on luck.
    """
    return _Races(wired, faults).run(reads, writes)


class _Races:
    """Vector clocks over the thread blocks of each GPU; the few pairs they leave open are searched for."""

    def __init__(self, wired: Wired, faults: Faults) -> None:
        self.wired, self.faults = wired, faults
        self.width = Counter(wired.block_gpu)
        seen: Counter[int] = Counter()
        self.local: list[int] = []
        for gpu in wired.block_gpu:
            self.local.append(seen[gpu])
            seen[gpu] += 1
        if sum(self.width[wired.gpu[i]] for i, step in enumerate(wired.steps) if step.hasdep) > _MOST_CLOCKS:
            raise ScheduleError(f"{faults.file}: too many thread blocks and dependences to prove that there is no race")
        self.visits = 0
        self.rank = {i: place for place, i in enumerate(wired.order)}

    def run(self, reads: list[list[Slot]], writes: list[list[Slot]]) -> list[tuple[int, int]]:
        w = self.wired
        clocks: dict[int, list[int]] = {}
        kept: dict[int, list[int]] = {}
        written: dict[tuple[int, Slot], int] = {}
        read: dict[tuple[int, Slot], dict[int, int]] = defaultdict(dict)
        overwrites = []
        for i in w.order:
            gpu, block = w.gpu[i], w.block[i]
            clock = clocks.setdefault(block, [-1] * self.width[gpu])
            if w.dependence[i] >= 0:
                clock[:] = map(max, clock, kept[w.dependence[i]])
            clock[self.local[block]] = w.steps[i].s
            if w.steps[i].hasdep:
                kept[i] = clock.copy()
            for slot in writes[i]:
                self._ordered(written.get((gpu, slot), -1), i, clock)
                for other in read.pop((gpu, slot), {}).values():
                    self._ordered(other, i, clock)
                    overwrites.append((other, i))
                written[gpu, slot] = i
            for slot in reads[i]:
                self._ordered(written.get((gpu, slot), -1), i, clock)
                read[gpu, slot][block] = i
        return overwrites

    def _ordered(self, first: int, second: int, clock: list[int]) -> None:
        w = self.wired
        if first < 0 or first == second or clock[self.local[w.block[first]]] >= w.steps[first].s:
            return
        if not self._reaches(first, second):
            one, two = w.steps[first], w.steps[second]
            self.faults.add(two.line, f"a race: nothing orders it and line {one.line}, which touches the same chunk")

    def _reaches(self, first: int, second: int) -> bool:
        """Whether ``second`` follows ``first`` by way of other GPUs."""
        seen, front = {second}, [second]
        while front:
            i = front.pop()
            self.visits += 1
            if self.visits > _MOST_VISITS:
                raise ScheduleError(f"{self.faults.file}: too many steps to prove that there is no race")
            for j in self.wired.waits_for(i):
                if j == first:
                    return True
                if j not in seen and self.rank[j] > self.rank[first]:
                    seen.add(j)
                    front.append(j)
        return False
