"""Two roads to one result: a file run step by step, in random order of thread blocks, and the schedule read from it."""

from __future__ import annotations

import os
import random
import re
from collections import defaultdict, deque
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.collectives import registry
from commsim.collectives.check import check
from commsim.collectives.msccl import COLLECTIVE_NAMES, load_msccl, parse_msccl
from commsim.collectives.msccl_export import msccl_text
from commsim.collectives.msccl_interpreter import Interpreter
from commsim.collectives.msccl_xml import Algo, ThreadBlock, read_algo
from commsim.errors import ScheduleError

_CHECKOUT = Path(__file__).resolve().parents[2]
_OWN = sorted((_CHECKOUT / "tests" / "data" / "msccl").glob("*_[23].xml"))
_SHARED = Path(os.environ.get("COMMSIM_SHARED_DATA", _CHECKOUT.parent / "shared" / "data")) / "msccl"
_PUBLISHED = sorted(_SHARED.glob("*.xml"))

Place = tuple[int, str, int]
Value = npt.NDArray[np.int64]


class HangError(Exception):
    """No thread block can go on, and not all have ended."""


def run(algo: Algo, seed: int, slots: int = 10**6) -> dict[Place, Value]:
    """What lies in every place of every GPU at the end; a value counts each chunk of each rank's input.

    A connection holds ``slots`` messages; here a step of several chunks is one, so programs have one chunk a step.
    """
    rng = random.Random(seed)
    n, chunks = algo.ngpus, algo.nchunksperloop
    name = COLLECTIVE_NAMES[algo.coll]
    block = chunks // n

    def place(gpu: int, buffer: str, offset: int) -> Place:
        if buffer == "s":
            return gpu, "s", offset
        part = name in ({"all_gather", "gather"} if buffer == "i" else {"reduce_scatter", "scatter"})
        return gpu, "o" if algo.inplace else buffer, offset + (gpu * block if part else 0)

    memory: dict[Place, Value] = defaultdict(lambda: np.full((n, chunks), -(10**6), np.int64))
    for gpu in range(n):
        own = range(gpu * block, (gpu + 1) * block) if name in {"all_gather", "gather"} else range(chunks)
        for chunk in own:
            memory[gpu, "o" if algo.inplace else "i", chunk] = np.zeros((n, chunks), np.int64)
            memory[gpu, "o" if algo.inplace else "i", chunk][gpu, chunk] = 1
    sent: dict[tuple[int, int, int], deque[list[Value]]] = defaultdict(deque)
    done: dict[tuple[int, int], int] = {(g.id, b.id): 0 for g in algo.gpus for b in g.blocks}
    waiting: list[tuple[int, ThreadBlock]] = [(g.id, b) for g in algo.gpus for b in g.blocks if b.steps]
    while waiting:
        ready = [
            (gpu, b)
            for gpu, b in waiting
            if (s := b.steps[done[gpu, b.id]]) and (s.depid < 0 or done[gpu, s.depid] > s.deps)
            if s.type not in {"r", "rcs", "rrs", "rrc", "rrcs"} or sent[b.recv, gpu, b.chan]
            if s.type not in {"s", "rcs", "rrs", "rrcs"} or len(sent[gpu, b.send, b.chan]) < slots
        ]
        if not ready:
            raise HangError
        gpu, b = rng.choice(ready)
        s = b.steps[done[gpu, b.id]]
        source = [place(gpu, s.srcbuf, s.srcoff + k) for k in range(s.cnt)] if s.srcoff >= 0 else []
        target = [place(gpu, s.dstbuf, s.dstoff + k) for k in range(s.cnt)] if s.dstoff >= 0 else []
        came = sent[b.recv, gpu, b.chan].popleft() if s.type[0] == "r" and s.type not in {"re", "ra"} else []
        if s.type in {"s", "cpy"}:
            values = [memory[p].copy() for p in source]
        elif s.type in {"rrs", "rrc", "rrcs"}:
            values = [memory[p] + v for p, v in zip(source, came, strict=True)]
        elif s.type in {"re", "ra"}:
            values = [memory[p] + memory[q] for p, q in zip(source, target, strict=True)]
        else:
            values = came
        if s.type in {"r", "rcs", "rrc", "rrcs", "cpy", "re", "ra"}:
            memory |= {p: v.copy() for p, v in zip(target, values, strict=True)}
        if s.type in {"s", "rcs", "rrs", "rrcs"}:
            sent[gpu, b.send, b.chan].append(values)
        done[gpu, b.id] += 1
        waiting = [(g, t) for g, t in waiting if done[g, t.id] < len(t.steps)]
    return memory


def wanted(algo: Algo, root: int) -> dict[Place, Value]:
    """What the collective promises, by place."""
    n, chunks = algo.ngpus, algo.nchunksperloop
    name, block = COLLECTIVE_NAMES[algo.coll], chunks // n
    goal: dict[Place, Value] = {}
    for gpu in range(n):
        for chunk in range(chunks):
            value = np.zeros((n, chunks), np.int64)
            owner, within = divmod(chunk, max(block, 1))
            if name in {"all_reduce", "reduce", "reduce_scatter"}:
                value[:, chunk] = 1
            elif name in {"all_gather", "gather"}:
                value[owner, chunk] = 1
            elif name == "all_to_all":
                value[owner, gpu * block + within] = 1
            else:
                value[root, chunk] = 1
            only_root = name in {"reduce", "gather"} and gpu != root
            only_own = name in {"reduce_scatter", "scatter"} and owner != gpu
            if not only_root and not only_own:
                goal[gpu, "o", chunk] = value
    return goal


def right(algo: Algo, root: int, seed: int, slots: int = 10**6) -> bool:
    memory = run(algo, seed, slots)
    return all(np.array_equal(memory[place], value) for place, value in wanted(algo, root).items())


@pytest.mark.parametrize("path", [*_OWN, *_PUBLISHED], ids=lambda p: p.stem)
def test_a_file_ends_right_in_any_order(path: Path) -> None:
    algo = read_algo(path)
    if sum(len(b.steps) for g in algo.gpus for b in g.blocks) > 1000:
        pytest.skip("too many steps to run one by one")
    assert right(algo, load_msccl(path).root, seed=1)


@given(
    st.sampled_from([key for key in registry.names() if key[0] in COLLECTIVE_NAMES.values()]),
    st.integers(1, 6),
    st.integers(1, 2),
    st.integers(0, 2**16),
)
def test_an_export_ends_right_in_any_order(key: tuple[str, str], n: int, chunks: int, seed: int) -> None:
    s = registry.build(*key, n, 240 * n * n * chunks, chunks=chunks)
    if s.endpoints > s.world_size:
        return
    assert right(read_algo(msccl_text(s)), s.root, seed, slots=2)


def shuffled(algo: Algo, rng: random.Random) -> Algo:
    """The program with two steps of some thread block changed for each other; who is waited for says so still.

    Steps that only wait keep their places: they say nothing to others.
    """
    moving = {
        (g.id, b.id): [i for i, step in enumerate(b.steps) if step.type != "nop"] for g in algo.gpus for b in g.blocks
    }
    blocks = [(g, b) for g in algo.gpus for b in g.blocks if len(moving[g.id, b.id]) > 1]
    if blocks:
        gpu, block = rng.choice(blocks)
        one, two = rng.sample(moving[gpu.id, block.id], 2)
        block.steps[one], block.steps[two] = block.steps[two], block.steps[one]
        for number, step in enumerate(block.steps):
            step.s = number
        awaited = {step.deps for b in gpu.blocks for step in b.steps if step.depid == block.id}
        for step in block.steps:
            step.hasdep = step.s in awaited
    return algo


@given(
    st.sampled_from([key for key in registry.names() if key[0] in COLLECTIVE_NAMES.values()]),
    st.integers(2, 5),
    st.integers(0, 2**16),
    st.integers(0, 4),
    st.integers(1, 3),
)
def test_the_interpreter_agrees_with_runs_in_any_order(
    key: tuple[str, str], n: int, seed: int, changes: int, slots: int
) -> None:
    """Whether a program hangs does not depend on the order; what hangs in the interpreter hangs in every run."""
    s = registry.build(*key, n, 240 * n * n)
    if s.endpoints > s.world_size:
        return
    rng = random.Random(seed)
    algo = read_algo(msccl_text(s))
    for _ in range(changes):
        shuffled(algo, rng)
    faults = Interpreter(algo, slots).run(s.root)
    try:
        ends_right = right(algo, s.root, seed, slots)
    except HangError:
        assert [fault[:8] for fault in faults] == ["it hangs"]
        return
    assert not any("hangs" in fault for fault in faults)
    if not faults and not changes:  # steps that were changed may race: right in one order, wrong in another
        assert ends_right


_TEXTS = [
    *(path.read_text(encoding="utf-8") for path in _OWN),
    *(msccl_text(registry.build("all_reduce", name, 3, 36)) for name in ("ring", "tree", "direct_two_shot")),
]


@given(st.sampled_from(_TEXTS), st.integers(0, 2**32), st.integers(1, 2))
def test_what_passes_for_a_mutated_file_ends_right_in_any_order(text: str, seed: int, changes: int) -> None:
    """The reader may refuse too much, but what it takes and ``check`` proves must be so on the machine."""
    rng = random.Random(seed)
    for _ in range(changes):
        spots = list(re.finditer(r'(type|srcoff|dstoff|srcbuf|dstbuf|depid|deps|hasdep|cnt)="([^"]*)"', text))
        spot = rng.choice(spots)
        values = {"type": ("s", "r", "rcs", "rrc", "rrs", "rrcs", "cpy", "re", "nop"), "srcbuf": "ios", "dstbuf": "ios"}
        value = rng.choice(values.get(spot[1], ("-1", "0", "1", "2")))
        text = text[: spot.start(2)] + value + text[spot.end(2) :]
    try:
        schedule = parse_msccl(text)
        check(schedule)
    except ScheduleError:
        return
    for again in range(3):
        assert right(read_algo(text), schedule.root, seed + again)


def test_what_the_interpreter_finds_wrong_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = registry.build("all_reduce", "ring", 4, 4 << 10)
    assert msccl_text(schedule).startswith("<algo")
    monkeypatch.setattr("commsim.collectives.msccl_export.faults", lambda *of: ["rank 1 waits for ever", "so does 2"])
    with pytest.raises(ScheduleError, match="ring all_reduce cannot be written for MSCCL: rank 1 waits for ever; so d"):
        msccl_text(schedule)
