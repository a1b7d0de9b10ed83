"""Schedules as MSCCL XML."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import quoteattr

import numpy as np

from commsim.collectives.actions import Actions, Kind, actions
from commsim.collectives.msccl import COLLECTIVE_NAMES
from commsim.collectives.msccl_moves import PART_IN, PART_OUT
from commsim.collectives.schedule import Buffer, Op, Schedule
from commsim.errors import ScheduleError

PROTOCOLS = ("Simple", "LL", "LL128")
MOST_STEPS = 256
"""Steps of one thread block that MSCCL's runtime takes (MSCCL_MAX_NUM_STEPS)."""

_FUSED = {"r": "rcs", "rrc": "rrcs"}


@dataclass(slots=True)
class _Block:
    """A thread block in the making; ``steps`` are (actions done by the step, its type, actions waited for)."""

    send: int
    recv: int
    channel: int
    steps: list[tuple[list[int], str, list[int]]] = field(default_factory=list)


def msccl_text(schedule: Schedule, protocol: str = "Simple") -> str:
    """The schedule as MSCCL XML, one chunk per step.

    Each connection has a thread block at either end. Where a rank passes on what it receives, both ends
    share a block and the receive and the send become one step (``rcs``, ``rrcs``). The attribute ``root`` is an
    addition of commsim that MSCCL ignores. A ScheduleError says what MSCCL cannot express: switches, chunks
    of unequal size, collectives it does not know.
    """
    s = schedule
    collective = _exportable(s, protocol)
    made = actions(s, commute=False)
    blocks = _blocks(s, made)
    place = {
        action: (number, at)
        for own in blocks
        for number, block in enumerate(own)
        for at, (done, _, _) in enumerate(block.steps)
        for action in done
    }
    bodies = [_gpu(s, made, rank, own, place) for rank, own in enumerate(blocks)]
    head = {
        "name": f"{s.algorithm}_{s.collective}",
        "proto": protocol,
        "nchannels": int(s.channel.max(initial=0)) + 1,
        "nchunksperloop": s.data_chunks,
        "ngpus": s.world_size,
        "coll": collective,
        "inplace": int(s.in_place),
        "outofplace": int(not s.in_place),
        "minBytes": 0,
        "maxBytes": 0,
        "root": s.root,
    }
    return "\n".join([f"<algo{_attributes(head)}>", *(line for body in bodies for line in body), "</algo>"]) + "\n"


def _exportable(s: Schedule, protocol: str) -> str:
    """MSCCL's name of the collective."""
    names = {ours: theirs for theirs, ours in COLLECTIVE_NAMES.items()}
    if s.collective not in names:
        raise ScheduleError(f"MSCCL knows no {s.collective}, only {', '.join(names)}")
    if protocol not in PROTOCOLS:
        raise ScheduleError(f"unknown protocol {protocol!r}, expected one of {', '.join(PROTOCOLS)}")
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


def _blocks(s: Schedule, made: Actions) -> list[list[_Block]]:
    """The thread blocks of every rank with their steps."""
    shared = _shared(s, made)
    blocks: list[dict[tuple[str, int, int], _Block]] = [{} for _ in range(s.world_size)]
    owner: dict[int, _Block] = {}
    last: dict[int, int] = {}  # by block, the receive that ended its newest step, if a send may still join it
    for i, (rank, kind, row) in enumerate(zip(made.rank.tolist(), made.kind.tolist(), made.row.tolist(), strict=True)):
        channel = int(s.channel[row])
        peer = int(s.dst[row] if kind == Kind.SEND else s.src[row])
        if kind == Kind.SEND:
            into = shared.get((rank, peer, channel), -1)
            key = ("receive", into, channel) if into >= 0 else ("send", peer, channel)
        else:
            key = ("local" if kind == Kind.LOCAL else "receive", peer, channel)
        if key not in blocks[rank]:
            send = next((p for (r, p, c), q in shared.items() if (r, q, c) == (rank, key[1], channel)), -1)
            ends = {"send": (peer, -1), "local": (-1, -1), "receive": (send, key[1])}[key[0]]
            blocks[rank][key] = _Block(*ends, channel)
        block = blocks[rank][key]
        before = last.pop(id(block), -1)
        waits = sorted(j for j in made.finished[i] | made.started[i] if owner.get(j) is not block)
        if kind == Kind.SEND and before >= 0 and not waits and _same_place(s, int(made.row[before]), row):
            done, kind_before, needs = block.steps[-1]
            block.steps[-1] = ([*done, i], _FUSED[kind_before], needs)
        else:
            block.steps.append(([i], _type(s, kind, row), waits))
            if kind == Kind.RECEIVE and block.send >= 0:
                last[id(block)] = i
        owner[i] = block
    return [list(own.values()) for own in blocks]


def _type(s: Schedule, kind: int, row: int) -> str:
    reduces = s.op[row] == Op.REDUCE
    return {
        Kind.SEND: "s",
        Kind.LOCAL: "re" if reduces else "cpy",
        Kind.RECEIVE: "rrc" if reduces else "r",
    }[Kind(kind)]


def _same_place(s: Schedule, received: int, sent: int) -> bool:
    return bool(s.dst_buffer[received] == s.src_buffer[sent] and s.dst_chunk[received] == s.src_chunk[sent])


def _shared(s: Schedule, made: Actions) -> dict[tuple[int, int, int], int]:
    """By (rank, peer sent to, channel), the peer received from in the same thread block: the busiest pairs first."""
    passed: Counter[tuple[int, int, int, int]] = Counter()
    latest: dict[tuple[int, int, int], int] = {}
    for rank, kind, row in zip(made.rank.tolist(), made.kind.tolist(), made.row.tolist(), strict=True):
        if kind == Kind.RECEIVE:
            latest[rank, int(s.dst_buffer[row]), int(s.dst_chunk[row])] = row
        elif kind == Kind.SEND:
            before = latest.get((rank, int(s.src_buffer[row]), int(s.src_chunk[row])), -1)
            if before >= 0 and s.channel[before] == s.channel[row]:
                passed[rank, int(s.src[before]), int(s.dst[row]), int(s.channel[row])] += 1
    shared: dict[tuple[int, int, int], int] = {}
    taken: set[tuple[int, int, int]] = set()
    for (rank, into, out, channel), _ in sorted(passed.items(), key=lambda item: (-item[1], item[0])):
        if (rank, into, channel) not in taken and (rank, out, channel) not in shared:
            shared[rank, out, channel] = into
            taken.add((rank, into, channel))
    return shared


def _gpu(s: Schedule, made: Actions, rank: int, blocks: list[_Block], place: dict[int, tuple[int, int]]) -> list[str]:
    """The lines of one GPU. Waits for several steps become ``nop`` steps before the one that waits."""
    steps: list[list[tuple[list[int], str, int]]] = []  # per block: actions, type, the step waited for or -1
    at: dict[tuple[int, int], int] = {}  # number of a step once the nops are in
    watched: set[tuple[int, int]] = set()
    for number, block in enumerate(blocks):
        own: list[tuple[list[int], str, int]] = []
        for old, (done, kind, waits) in enumerate(block.steps):
            # Of several steps of one thread block only the last needs to be waited for.
            newest: dict[int, tuple[int, int]] = defaultdict(lambda: (-1, -1))
            for j in waits:
                newest[place[j][0]] = max(newest[place[j][0]], (place[j][1], j))
            targets = [j for _, j in sorted(newest.values())]
            watched |= {place[j] for j in targets}
            own += [([], "nop", j) for j in targets[:-1]]
            at[number, old] = len(own)
            own.append((done, kind, targets[-1] if targets else -1))
        steps.append(own)
    used = {"i": 0, "o": 0, "s": 0}
    body = []
    for number, (block, own) in enumerate(zip(blocks, steps, strict=True)):
        body.append(f'    <tb id="{number}" send="{block.send}" recv="{block.recv}" chan="{block.channel}">')
        old_of = {new: old for (b, old), new in at.items() if b == number}
        for new, (done, kind, target) in enumerate(own):
            source, goal = _ends(s, made, rank, done, kind)
            for buffer, offset in (source, goal):
                used[buffer] = max(used[buffer], offset + 1)
            wait = (place[target][0], at[place[target]]) if target >= 0 else (-1, -1)
            told = new in old_of and (number, old_of[new]) in watched
            body.append(f"      <step{_attributes(_step(new, kind, source, goal, wait, told))}/>")
        body.append("    </tb>")
    sizes = {"id": rank} | {f"{buffer}_chunks": size for buffer, size in _sizes(s, used).items()}
    return [f"  <gpu{_attributes(sizes)}>", *body, "  </gpu>"]


def _step(
    number: int, kind: str, source: tuple[str, int], target: tuple[str, int], wait: tuple[int, int], told: bool
) -> dict[str, object]:
    return {
        "s": number,
        "type": kind,
        "srcbuf": source[0],
        "srcoff": source[1],
        "dstbuf": target[0],
        "dstoff": target[1],
        "cnt": 0 if kind == "nop" else 1,
        "depid": wait[0],
        "deps": wait[1],
        "hasdep": int(told),
    }


def _ends(s: Schedule, made: Actions, rank: int, done: list[int], kind: str) -> tuple[tuple[str, int], tuple[str, int]]:
    """Source and target of a step at its GPU."""
    if kind == "nop":
        return ("i", -1), ("o", -1)
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
        return ("o" if s.collective in PART_IN | {"broadcast"} else "i"), chunk
    name, parts = ("i", PART_IN) if buffer == Buffer.INPUT else ("o", PART_OUT)
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
        "i": block if s.collective in PART_IN else s.data_chunks,
        "o": block if s.collective in PART_OUT else s.data_chunks,
    }
    if s.in_place:
        whole["i" if s.collective in PART_IN | {"broadcast"} else "o"] = 0
    return whole | {"s": used["s"]}


def _attributes(values: Mapping[str, object]) -> str:
    return "".join(
        f" {name}={quoteattr(value)}" if isinstance(value, str) else f' {name}="{value}"'
        for name, value in values.items()
    )
