"""MSCCL algorithms as schedules.

An MSCCL file says what each thread block of each GPU does, step by step. A send and the receive that it
meets become one row per chunk; ``cpy`` and ``re`` become rows within their GPU. Waiting becomes steps and
``after`` edges: a row starts when what its sender and its receiver did before has arrived; earlier sends need
only have been sent, as on the GPU. Names and meaning of the step types: microsoft/msccl
src/graph/topo.cc and src/collectives/device/msccl_interpreter.h.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from commsim.collectives.actions import MOST_ROWS
from commsim.collectives.msccl_moves import MOST_EDGES, BufferLayout, Draft, Move, accesses, draft
from commsim.collectives.msccl_order import Slot, Wired, find_races, wire
from commsim.collectives.msccl_xml import LOCAL, RECEIVES, SENDS, Algo, Faults, read_algo
from commsim.collectives.schedule import Schedule
from commsim.collectives.semantics import DIVIDED, GATHERING, ROOTED, SCATTERING
from commsim.errors import ScheduleError

COLLECTIVE_NAMES: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
_REFUSED: Final = {
    "custom": "what it must achieve is not in the file, so nothing could be proven",
    "alltoallv": "how much goes from where to where is not in the file",
    "send": "its peers are chosen when it is called",
    "recv": "its peers are chosen when it is called",
}

_DEFAULT_BYTES: Final = 2**20
_MOST_SLOTS: Final = 2**24


def load_msccl(path: Path, nbytes: int | None = None) -> Schedule:
    """The schedule of an MSCCL file, for an array of ``nbytes`` (see ``parse_msccl``)."""
    return _schedule(read_algo(path), Faults(str(path)), nbytes)


def parse_msccl(text: str, nbytes: int | None = None, *, file: str = "<text>") -> Schedule:
    """The schedule of the text of an MSCCL file.

    ``nbytes`` must be a whole number of chunks of equal size; by default 1 MiB, moved into the range that
    the file is meant for and up to whole chunks of whole float32 elements. A ScheduleError names every fault
    found with file and line: text that is no such XML, steps that do not fit together, deadlocks, races, and
    collectives whose meaning the file does not hold. Whether the result is right is for ``check`` to say.
    """
    return _schedule(read_algo(text, file), Faults(file), nbytes)


def _schedule(algo: Algo, faults: Faults, nbytes: int | None) -> Schedule:
    collective = _collective(algo, faults)
    wired = wire(algo, faults)
    layout = _layout(algo, wired, collective, faults)
    faults.stop()
    reads, writes = accesses(wired, layout)
    overwrites = find_races(wired, reads, writes, faults)
    faults.stop()
    return _table(algo, layout, draft(wired, layout, overwrites, faults), _size(algo, nbytes, faults))


def _collective(algo: Algo, faults: Faults) -> str:
    if algo.coll in _REFUSED:
        raise ScheduleError(f"{faults.file}:{algo.line}: coll={algo.coll!r} cannot be imported: {_REFUSED[algo.coll]}")
    if algo.coll not in COLLECTIVE_NAMES:
        known = ", ".join(COLLECTIVE_NAMES)
        raise ScheduleError(f"{faults.file}:{algo.line}: coll={algo.coll[:40]!r}, expected one of {known}")
    name = COLLECTIVE_NAMES[algo.coll]
    if name in DIVIDED and algo.nchunksperloop % algo.ngpus:
        raise ScheduleError(
            f"{faults.file}:{algo.line}: {algo.coll} over {algo.ngpus} GPUs has nchunksperloop={algo.nchunksperloop}, "
            "expected a multiple"
        )
    return name


def _layout(algo: Algo, wired: Wired, collective: str, faults: Faults) -> BufferLayout:
    chunks, block = algo.nchunksperloop, algo.nchunksperloop // algo.ngpus
    for gpu in algo.gpus:
        for buffer, parts in (("i", GATHERING), ("o", SCATTERING)):
            limit = block if collective in parts else chunks
            if gpu.chunks[buffer] > limit:
                faults.add(gpu.line, f"<gpu> has {buffer}_chunks={gpu.chunks[buffer]}, expected at most {limit}")
    scratch = 0
    for step in wired.steps:
        for buffer, offset in ((step.srcbuf, step.srcoff), (step.dstbuf, step.dstoff)):
            if buffer == "s":
                scratch = max(scratch, offset + step.cnt)
    rows = sum(s.cnt * (2 if s.type in RECEIVES else 1) for s in wired.steps if s.type in RECEIVES | LOCAL)
    if 3 * algo.ngpus * max(chunks, scratch) > _MOST_SLOTS or rows > MOST_ROWS:
        raise ScheduleError(
            f"{faults.file}: {algo.ngpus} GPUs, {rows} moves of {max(chunks, scratch)} chunks: too many"
        )
    # all_to_all has no in-place form here; a file for both kinds of call is read as the other one.
    in_place = algo.inplace and not (collective == "all_to_all" and algo.outofplace)
    return BufferLayout(collective, _root(algo, wired, collective, faults), in_place, chunks, block, scratch)


def _root(algo: Algo, wired: Wired, collective: str, faults: Faults) -> int:
    """The root: as stated (an addition of commsim), or the one rank that never receives, or never sends."""
    if algo.root is not None:
        if algo.root >= algo.ngpus:
            faults.add(algo.line, f"<algo> has root={algo.root}, expected 0..{algo.ngpus - 1}")
        return algo.root
    if collective not in ROOTED:
        return 0
    from_root = collective in {"broadcast", "scatter"}
    busy = {wired.gpu[i] for i, s in enumerate(wired.steps) if s.type in (RECEIVES if from_root else SENDS)}
    idle = sorted(set(range(algo.ngpus)) - busy)
    if len(idle) == 1:
        return idle[0]
    verb = "receives" if from_root else "sends"
    faults.add(algo.line, f'{len(idle)} GPUs never have a step that {verb}, so which is the root? Add root="..."')
    return 0


def _size(algo: Algo, nbytes: int | None, faults: Faults) -> int:
    """Bytes of one chunk."""
    chunks = algo.nchunksperloop
    if nbytes is None:
        wanted = max(algo.min_bytes, min(_DEFAULT_BYTES, algo.max_bytes or _DEFAULT_BYTES))
        return 4 * max(1, -(-wanted // (4 * chunks)))  # whole float32 elements
    if nbytes < 0 or nbytes % chunks:
        near = -(-max(nbytes, 1) // chunks) * chunks
        raise ScheduleError(f"{faults.file}: {nbytes} bytes are no {chunks} equal chunks; {near} bytes would be")
    return nbytes // chunks


def _table(algo: Algo, layout: BufferLayout, drafted: Draft, chunk_bytes: int) -> Schedule:
    """The moves as rows, sorted by step, then channel, sender, receiver and place."""
    moves = drafted.moves
    size = np.array([len(m.source) for m in moves], np.int64)
    first = np.cumsum(size) - size
    edges = sum(int(size[a] * size[b]) for b, m in enumerate(moves) for a in m.after)
    if edges > MOST_EDGES:
        raise ScheduleError(f"{algo.name}: {edges} waits between rows, expected at most {MOST_EDGES}")
    each = np.repeat(np.arange(len(moves)), size)

    def column(value: Callable[[Move], int]) -> npt.NDArray[np.int64]:
        return np.array([value(m) for m in moves], np.int64)[each]

    def places(slots: Callable[[Move], Iterable[Slot]]) -> npt.NDArray[np.int64]:
        return np.array([slot for m in moves for slot in slots(m)], np.int64).reshape(-1, 2)

    source, target = places(lambda m: m.source), places(lambda m: m.target)
    columns: dict[str, Any] = {
        "op": column(lambda m: m.op),
        "src": column(lambda m: m.src),
        "dst": column(lambda m: m.dst),
        "src_buffer": source[:, 0],
        "src_chunk": source[:, 1],
        "dst_buffer": target[:, 0],
        "dst_chunk": target[:, 1],
        "step": column(lambda m: m.level),
        "channel": column(lambda m: m.channel),
    }
    keys = ("dst_chunk", "dst_buffer", "src_chunk", "src_buffer", "dst", "src", "channel", "step")
    order = np.lexsort([columns[name] for name in keys])
    place = np.empty(order.size, np.int64)
    place[order] = np.arange(order.size)
    after = [
        (place[first[a] + j], place[first[b] + k])
        for b, m in enumerate(moves)
        for a in sorted(m.after)
        for j in range(size[a])
        for k in range(size[b])
    ]
    chunks = max(layout.chunks, drafted.scratch)
    return Schedule(
        collective=layout.collective,
        algorithm=algo.name,
        world_size=algo.ngpus,
        endpoints=algo.ngpus,
        chunk_bytes=np.full(chunks, chunk_bytes),
        root=layout.root,
        in_place=layout.in_place,
        scratch_chunks=chunks - layout.chunks,
        after=np.array(after, np.int64).reshape(-1, 2),
        **{name: values[order] for name, values in columns.items()},
    )
