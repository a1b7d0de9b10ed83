"""What MSCCL's runtime takes: how much of everything, and what it reads in another way than it stands there.

microsoft/msccl 2.12.12 (src/include/msccl.h, src/graph/topo.cc, src/graph/xml.h, src/collectives/device/
msccl_interpreter.h) and its successor Azure/msccl-executor-nccl 2.23.4 (src/include/msccl/msccl_struct.h and
msccl_parser.h, src/misc/msccl/msccl_parser.cc, src/device/msccl_kernel.cu); where they differ, the smaller one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final

from commsim.collectives.msccl_xml import RECEIVES, SENDS, Algo, MscclGpu, MscclStep, ThreadBlock

SLOTS: Final = {"Simple": 2, "LL": 8, "LL128": 8}
"""Messages that a connection holds: its 8 steps (NCCL_STEPS), of which a message takes 4 with Simple
(MSCCL_CHUNKSTEPS = NCCL_STEPS/2, msccl.h of both) and 1 with LL and LL128."""

MOST_STEPS: Final = 256
"""Steps of a thread block (MSCCL_MAX_NUM_STEPS)."""
MOST_CHANNELS: Final = 32
"""MAXCHANNELS of devcomm.h (2.12.12) and device.h (2.23.4)."""
MOST_ON_A_CHANNEL: Final = 32
"""Thread blocks of a GPU on one channel (MSCCL_MAX_NUM_THREAD_BLOCKS_PER_CHANNEL)."""
MOST_BLOCKS: Final = 216
"""Thread blocks of a GPU (MSCCL_MAX_NUM_THREAD_BLOCKS of 2.12.12; they must all be resident. 2.23.4 takes 1,024)."""
MOST_WAITED_FOR: Final = 127
"""Largest number of a thread block that another can wait for (int8_t dependentBid)."""
MOST_COUNT: Final = 71
"""Chunks of a step (topo.cc and msccl_parser.cc refuse MSCCL_MAX_COUNT = 72)."""
MOST_OFFSET: Final = 2**15 - 1
"""int16_t srcoffset and dstoffset."""
MOST_FUSED: Final = 16
"""Reductions into one place that follow each other without a flag (MSCCL_MAX_REDUCE_FUSION): the runtime makes them
one, with room for that many sources."""
MOST_ELEMENTS: Final = 2**12 - 1
"""XML elements that a GPU keeps: <algo>, every <gpu>, its own <tb> and <step> (fewer than MAX_NODES of xml.h and of
msccl_parser.h)."""


def over_limits(algo: Algo) -> list[str]:
    """What of the program the runtime does not load or would run wrongly: a line for each kind and its first place."""
    lines = []
    if algo.nchannels > MOST_CHANNELS:
        lines.append(f"it has {algo.nchannels} channels, {_TAKES} {MOST_CHANNELS}")
    if algo.proto not in SLOTS:
        lines.append(f"its protocol is {algo.proto!r}, {_TAKES} {', '.join(SLOTS)}")
    for kind in (_numbering, _blocks, _channels, _ends, _elements, _lengths, _sizes, _waits, _fused):
        places = [line for gpu in algo.gpus for line in kind(algo, gpu)]
        lines += [places[0] + (f" ({len(places)} such places)" if len(places) > 1 else "")] if places else []
    return lines


_TAKES: Final = "MSCCL's runtime takes"


def named(gpu: int, block: ThreadBlock, step: MscclStep | None = None) -> str:
    """What a message calls a thread block or one of its steps; with its line, if it was read from a file."""
    line = block.line if step is None else step.line
    place = f"GPU {gpu} thread block {block.id}" + ("" if step is None else f" step {step.s} ({step.type})")
    return f"line {line}: {place}" if line else place


def _numbering(_: Algo, gpu: MscclGpu) -> Iterator[str]:
    if sorted(b.id for b in gpu.blocks) != list(range(len(gpu.blocks))):
        yield f"the thread blocks of GPU {gpu.id} are not numbered 0, 1, 2, ..., {_TAKES} no gaps"


def _blocks(_: Algo, gpu: MscclGpu) -> Iterator[str]:
    if len(gpu.blocks) > MOST_BLOCKS:
        yield f"GPU {gpu.id} has {len(gpu.blocks)} thread blocks, {_TAKES} {MOST_BLOCKS}"


def _channels(_: Algo, gpu: MscclGpu) -> Iterator[str]:
    for channel, count in Counter(b.chan for b in gpu.blocks).items():
        if count > MOST_ON_A_CHANNEL:
            yield f"GPU {gpu.id} has {count} thread blocks on channel {channel}, {_TAKES} {MOST_ON_A_CHANNEL}"


def _ends(_: Algo, gpu: MscclGpu) -> Iterator[str]:
    for uses, verb, peer in ((SENDS, "send to", "send"), (RECEIVES, "receive from", "recv")):
        ends = Counter((getattr(b, peer), b.chan) for b in gpu.blocks if any(s.type in uses for s in b.steps))
        for (other, channel), count in ends.items():
            if count > 1:
                yield f"{count} thread blocks of GPU {gpu.id} {verb} GPU {other} on channel {channel}, {_TAKES} one"


def _elements(algo: Algo, gpu: MscclGpu) -> Iterator[str]:
    count = 1 + algo.ngpus + len(gpu.blocks) + sum(len(b.steps) for b in gpu.blocks)
    if count > MOST_ELEMENTS:
        yield f"GPU {gpu.id} has {count} XML elements to read, {_TAKES} {MOST_ELEMENTS}"


def _lengths(_: Algo, gpu: MscclGpu) -> Iterator[str]:
    for block in gpu.blocks:
        if len(block.steps) > MOST_STEPS:
            yield f"{named(gpu.id, block)} has {len(block.steps)} steps, {_TAKES} {MOST_STEPS}"


def _sizes(_: Algo, gpu: MscclGpu) -> Iterator[str]:
    for block in gpu.blocks:
        for step in block.steps:
            offset = max(step.srcoff, step.dstoff)
            if step.cnt > MOST_COUNT:
                yield f"{named(gpu.id, block, step)} moves {step.cnt} chunks, {_TAKES} {MOST_COUNT}"
            if offset > MOST_OFFSET:
                yield f"{named(gpu.id, block, step)} has offset {offset}, {_TAKES} {MOST_OFFSET}"


def _waits(_: Algo, gpu: MscclGpu) -> Iterator[str]:
    for block in gpu.blocks:
        after_nop = False
        for step in block.steps:
            for fault in _wait_faults(step, after_nop):
                yield f"{named(gpu.id, block, step)} {fault}"
            after_nop = step.type == "nop"


def _wait_faults(step: MscclStep, after_nop: bool) -> Iterator[str]:
    """Waits that the runtime loses: it hangs those of a ``nop`` on the next step, and counts steps by them."""
    if step.depid > MOST_WAITED_FOR:
        yield f"waits for thread block {step.depid}, {_TAKES} waits for 0 to {MOST_WAITED_FOR}"
    if step.type == "ra":
        yield f"is of a type at which a thread block ends, {_TAKES} 're'"
    if step.type == "nop" and step.hasdep:
        yield f"has hasdep=1, {_TAKES} flags from steps that do something only: it never tells"
    if step.type == "nop" and step.depid < 0:
        yield f"waits for nothing, {_TAKES} it for no step at all, and the flags after it are one too low"
    if step.type != "nop" and after_nop and step.depid < 0:
        yield f"follows a nop, {_TAKES} that only if it waits for a step itself"


def _fused(_: Algo, gpu: MscclGpu) -> Iterator[str]:
    """Runs of ``re`` that the runtime makes one: the same target and source buffer, no wait and no flag between."""
    for block in gpu.blocks:
        before, length = None, 0
        for step in block.steps:
            joins = (
                before is not None
                and before.type == step.type == "re"
                and (before.dstbuf, before.dstoff, before.srcbuf) == (step.dstbuf, step.dstoff, step.srcbuf)
                and step.depid < 0
                and not before.hasdep
            )
            length = length + 1 if joins else 1
            if length > MOST_FUSED:
                place = named(gpu.id, block, step)
                yield f"{place} is the {length}th reduction in a row into one place, {_TAKES} {MOST_FUSED} as one"
            if joins and before is not None and before.cnt != step.cnt:
                yield f"{named(gpu.id, block, step)} adds to the place of the step before, {_TAKES} one cnt for both"
            before = step
