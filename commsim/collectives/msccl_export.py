"""Schedules as MSCCL XML."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

import numpy as np

from commsim.collectives.actions import Actions
from commsim.collectives.msccl import COLLECTIVE_NAMES
from commsim.collectives.msccl_blocks import FEWEST_SLOTS, MscclBlock, Unit, program
from commsim.collectives.msccl_interpreter import faults
from commsim.collectives.msccl_limits import MOST_FUSED, SLOTS
from commsim.collectives.msccl_xml import Algo, MscclGpu, MscclStep, ThreadBlock
from commsim.collectives.schedule import Buffer, Schedule
from commsim.collectives.semantics import GATHERING, SCATTERING
from commsim.errors import ScheduleError

_STEP_ATTRIBUTES = ("s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep")


def msccl_text(schedule: Schedule, protocol: str = "Simple") -> str:
    """The schedule as MSCCL XML, one chunk per step, once it has run in an interpreter of MSCCL.

    Steps are ordered so that two messages on a connection are room enough, with every protocol; see ``msccl_blocks``.
    The attribute ``root`` is an addition of commsim that MSCCL ignores. A ScheduleError says what MSCCL cannot
    express (switches, chunks of unequal size, collectives it does not know) and what its runtime does not take.
    """
    s = schedule
    collective = _exportable(s, protocol)
    blocks, made = program(s)
    sizes = (1 + max((block.channel for own in blocks for block in own), default=0), s.data_chunks, s.world_size)
    gpus = [_gpu(s, made, rank, own) for rank, own in enumerate(blocks)]
    calls = (s.in_place, not s.in_place)
    algo = Algo(0, f"{s.algorithm}_{s.collective}", collective, protocol, *sizes, *calls, 0, 0, s.root, gpus)
    wrong = faults(algo, s.root, FEWEST_SLOTS)
    if wrong:
        raise ScheduleError(f"{s.algorithm} {s.collective} cannot be written for MSCCL: {'; '.join(wrong)}")
    return _text(algo)


def _exportable(s: Schedule, protocol: str) -> str:
    """MSCCL's name of the collective."""
    names = {ours: theirs for theirs, ours in COLLECTIVE_NAMES.items()}
    if s.collective not in names:
        raise ScheduleError(f"MSCCL knows no {s.collective}, only {', '.join(names)}")
    if protocol not in SLOTS:
        raise ScheduleError(f"unknown protocol {protocol!r}, expected one of {', '.join(SLOTS)}")
    if s.endpoints > s.world_size:
        raise ScheduleError(
            f"{s.algorithm} {s.collective} uses more than its ranks (switches, a server): no MSCCL file can"
        )
    if np.unique(s.chunk_bytes).size > 1:
        low, high = int(s.chunk_bytes.min()), int(s.chunk_bytes.max())
        raise ScheduleError(
            f"chunks of {low} to {high} bytes: MSCCL cuts the array into equal ones, so choose a size that is "
            f"a multiple of {s.data_chunks} elements"
        )
    return names[s.collective]


def _gpu(s: Schedule, made: Actions, rank: int, blocks: list[MscclBlock]) -> MscclGpu:
    """One GPU with its steps. Waits for several steps become ``nop`` steps before the one that waits."""
    place = {i: (b, at) for b, block in enumerate(blocks) for at, unit in enumerate(block.steps) for i in unit.done}
    at: dict[tuple[int, int], int] = {}  # number of a step once the nops are in
    targets = [[_waited_for(made, unit, number, place) for unit in block.steps] for number, block in enumerate(blocks)]
    watched = {place for own in targets for waits in own for place in waits}
    for number, own in enumerate(targets):
        written = 0
        for old, waits in enumerate(own):
            written += max(len(waits), 1)
            at[number, old] = written - 1
    used = {"i": 0, "o": 0, "s": 0}
    gpu = MscclGpu(0, rank, {})
    for number, block in enumerate(blocks):
        steps: list[MscclStep] = []
        for old, unit in enumerate(block.steps):
            ends = _ends(s, made, rank, unit.done, unit.kind)
            for buffer, offset in ends:
                used[buffer] = max(used[buffer], offset + 1)
            waits = [(b, at[b, new]) for b, new in targets[number][old]] or [(-1, -1)]
            steps += [_step(len(steps) + k, "nop", (("i", -1), ("o", -1)), wait) for k, wait in enumerate(waits[:-1])]
            steps.append(_step(len(steps), unit.kind, ends, waits[-1], (number, old) in watched))
        _part_reductions(steps)
        gpu.blocks.append(ThreadBlock(0, number, block.send, block.recv, block.channel, steps))
    gpu.chunks |= _sizes(s, used)
    return gpu


def _waited_for(made: Actions, unit: Unit, own: int, place: Mapping[int, tuple[int, int]]) -> list[tuple[int, int]]:
    """Blocks and steps that a step waits for: of several of one block the last, of its own none."""
    newest: dict[int, int] = defaultdict(lambda: -1)
    for i in unit.done:
        for j in made.finished[i] | made.started[i]:
            number, old = place[j]
            newest[number] = max(newest[number], old)
    return sorted((number, old) for number, old in newest.items() if number != own)


Ends = tuple[tuple[str, int], tuple[str, int]]
"""Buffer and offset of source and target."""


def _step(number: int, kind: str, ends: Ends, wait: tuple[int, int], signals: bool = False) -> MscclStep:
    return MscclStep(0, number, kind, *ends[0], *ends[1], 0 if kind == "nop" else 1, *wait, signals)


def _part_reductions(steps: list[MscclStep]) -> None:
    """Let a reduction tell after as many into one place as the runtime makes one: there it ends what it joins."""
    target, length = ("", -1), 0
    for step in steps:
        length = length + 1 if step.type == "re" and (step.dstbuf, step.dstoff) == target else 1
        target = (step.dstbuf, step.dstoff) if step.type == "re" and not step.hasdep else ("", -1)
        if length == MOST_FUSED:
            step.hasdep, target = True, ("", -1)


def _text(algo: Algo) -> str:
    head = {
        "name": algo.name,
        "proto": algo.proto,
        "nchannels": algo.nchannels,
        "nchunksperloop": algo.nchunksperloop,
        "ngpus": algo.ngpus,
        "coll": algo.coll,
        "inplace": algo.inplace,
        "outofplace": algo.outofplace,
        "minBytes": algo.min_bytes,
        "maxBytes": algo.max_bytes,
        "root": algo.root,
    }
    lines = [f"<algo{_attributes(head)}>"]
    for gpu in algo.gpus:
        sizes = {"id": gpu.id} | {f"{buffer}_chunks": size for buffer, size in gpu.chunks.items()}
        lines.append(f"  <gpu{_attributes(sizes)}>")
        for block in gpu.blocks:
            lines.append(f'    <tb id="{block.id}" send="{block.send}" recv="{block.recv}" chan="{block.chan}">')
            for step in block.steps:
                shown = {name: getattr(step, name) for name in _STEP_ATTRIBUTES}
                lines.append(f"      <step{_attributes(shown)}/>")
            lines.append("    </tb>")
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>"]) + "\n"


def _ends(s: Schedule, made: Actions, rank: int, done: list[int], kind: str) -> Ends:
    """Source and target of a step at its GPU."""
    row = int(made.row[done[0]])
    read = _place(s, rank, int(s.src_buffer[row]), int(s.src_chunk[row])) if kind in {"s", "cpy", "re"} else None
    written = _place(s, rank, int(s.dst_buffer[row]), int(s.dst_chunk[row])) if kind != "s" else None
    one = read or written
    assert one is not None
    return read or one, written or one


def _place(s: Schedule, rank: int, buffer: int, chunk: int) -> tuple[str, int]:
    """MSCCL's buffer and offset of a slot; in place, the whole array has the name of the side that is whole."""
    if buffer == Buffer.SCRATCH:
        return "s", chunk
    if s.in_place:
        if buffer == Buffer.INPUT:
            raise ScheduleError(f"rank {rank} uses its input buffer in a schedule that works in place")
        return ("o" if s.collective in GATHERING | {"broadcast"} else "i"), chunk
    name, parts = ("i", GATHERING) if buffer == Buffer.INPUT else ("o", SCATTERING)
    if s.collective not in parts:
        return name, chunk
    block = s.data_chunks // s.world_size
    if not 0 <= chunk - rank * block < block:
        raise ScheduleError(f"rank {rank} uses chunk {chunk} of its {Buffer(buffer).name.lower()}, outside its block")
    return name, chunk - rank * block


def _sizes(s: Schedule, used: dict[str, int]) -> dict[str, int]:
    """Chunks of each buffer, as the collective has them; in place only the buffer that is named."""
    block = s.data_chunks // s.world_size
    whole = {
        "i": block if s.collective in GATHERING else s.data_chunks,
        "o": block if s.collective in SCATTERING else s.data_chunks,
    }
    if s.in_place:
        whole["i" if s.collective in GATHERING | {"broadcast"} else "o"] = 0
    return whole | {"s": used["s"]}


def _attributes(values: Mapping[str, object]) -> str:
    """XML attributes; truth values are 0 and 1."""
    shown = {name: str(int(value) if isinstance(value, bool) else value) for name, value in values.items()}
    return "".join(f" {name}={quoteattr(text)}" for name, text in shown.items())
