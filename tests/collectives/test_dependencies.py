"""Derived dependences: by hand, against arithmetic, and by running rows in any order that they allow."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives.chain import chain_broadcast, chain_reduce
from commsim.collectives.check import check
from commsim.collectives.dependencies import derive
from commsim.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from commsim.collectives.schedule import Buffer, Op, Schedule
from commsim.collectives.semantics import postcondition, precondition
from commsim.collectives.tree import tree_all_reduce

COPY, REDUCE = Op.COPY, Op.REDUCE


def edges(s: Schedule) -> list[tuple[int, int]]:
    ptr, idx = s.dependencies()
    return [(i, int(j)) for i in range(s.rows) for j in idx[ptr[i] : ptr[i + 1]]]


def on_slots(rows: Sequence[tuple[int, int, int, int]], after: Any = ()) -> list[tuple[int, int]]:
    """Derived edges of rows (op, slot read, slot written, step)."""
    op, read, write, step = np.array(rows, np.int64).T
    extra = np.array(after, np.int64).reshape(-1, 2)
    ptr, idx = derive(op.astype(np.uint8), read, write, step.astype(np.int32), extra)
    return [(i, int(j)) for i in range(len(rows)) for j in idx[ptr[i] : ptr[i + 1]]]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        pytest.param([(COPY, 0, 1, 0), (COPY, 1, 2, 1)], [(0, 1)], id="read after write"),
        pytest.param([(COPY, 0, 1, 0), (COPY, 2, 0, 1)], [(0, 1)], id="write after read"),
        pytest.param([(COPY, 0, 2, 0), (COPY, 1, 2, 1)], [(0, 1)], id="write after write"),
        pytest.param([(REDUCE, 0, 2, 0), (REDUCE, 1, 2, 1)], [], id="reductions commute"),
        pytest.param([(COPY, 0, 2, 0), (REDUCE, 1, 2, 1)], [(0, 1)], id="reduction after copy"),
        pytest.param([(REDUCE, 0, 2, 0), (COPY, 1, 2, 1)], [(0, 1)], id="copy after reduction"),
        pytest.param(
            [(REDUCE, 0, 2, 0), (REDUCE, 1, 2, 1), (COPY, 2, 3, 2)], [(0, 2), (1, 2)], id="read waits for all"
        ),
        pytest.param([(COPY, 0, 1, 0), (COPY, 0, 2, 1)], [], id="two readers"),
        pytest.param([(COPY, 0, 1, 0), (COPY, 1, 0, 0)], [], id="a swap in one step does not deadlock"),
        pytest.param(
            [(COPY, 0, 1, 0), (COPY, 1, 0, 0), (COPY, 0, 2, 1), (COPY, 1, 3, 1)],
            [(0, 2), (0, 3), (1, 2), (1, 3)],
            id="after a swap both ends wait for both moves",
        ),
        pytest.param([(REDUCE, 0, 0, 0), (COPY, 0, 1, 1)], [(0, 1)], id="a row on itself"),
    ],
)
def test_by_hand(rows: list[tuple[int, int, int, int]], expected: list[tuple[int, int]]) -> None:
    assert on_slots(rows) == expected


def test_extra_edges_join_and_repeated_edges_count_once() -> None:
    rows = [(COPY, 0, 1, 0), (COPY, 1, 2, 1), (COPY, 5, 6, 1)]
    assert on_slots(rows, [[0, 1], [0, 2], [2, 0]]) == [(0, 1), (0, 2), (2, 0)]


def test_known_dependences_join_extra_edges() -> None:
    s = ring_all_reduce(3, 12).edit(after=np.array([[0, 1], [0, 3]]))
    assert edges(s)[:2] == [(0, 1), (0, 3)]
    assert len(edges(s)) == len(edges(ring_all_reduce(3, 12))) + 1


def test_slot_numbers_too_large_to_pack_give_the_same_edges() -> None:
    s = tree_all_reduce(6, 60, 2, 1, 3)
    read, write = (e.astype(np.int64) * 6 + c for e, c in ((s.src, s.src_chunk), (s.dst, s.dst_chunk)))
    small = derive(s.op, read, write, s.step, s.after)
    large = derive(s.op, read + 2**60, write + 2**60, s.step, s.after)
    assert np.array_equal(small[0], large[0])
    assert np.array_equal(small[1], large[1])


def closure(s: Schedule) -> npt.NDArray[np.bool_]:
    reach = np.zeros((s.rows, s.rows), bool)
    for i, j in edges(s):
        reach[i, j] = True
    while True:
        further = reach | (reach.astype(np.int32) @ reach.astype(np.int32) > 0)
        if (further == reach).all():
            return reach
        reach = further


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize(("channels", "pipeline"), [(1, 1), (2, 1), (1, 2)])
@pytest.mark.parametrize("build", [ring_all_reduce, ring_reduce_scatter, ring_all_gather])
def test_ring_arithmetic_gives_the_derived_order(n: int, channels: int, pipeline: int, build: Any) -> None:
    s = build(n, 60, channels, order=list(np.random.default_rng(n).permutation(n)), pipeline=pipeline)
    by_arithmetic, derived = edges(s), edges(s.edit(known_dependencies=None))
    assert set(by_arithmetic) <= set(derived)
    assert np.array_equal(closure(s), closure(s.edit(known_dependencies=None)))


@given(n=st.integers(1, 10), channels=st.integers(1, 3), chunks=st.integers(1, 4))
@settings(max_examples=30, deadline=None)
def test_every_derived_edge_leads_to_a_later_step_and_is_there_once(n: int, channels: int, chunks: int) -> None:
    for s in (tree_all_reduce(n, 50, channels, 1, chunks), chain_reduce(n, 50, channels, n - 1, chunks)):
        found = edges(s)
        assert all(s.step[i] < s.step[j] for i, j in found)
        assert len(set(found)) == len(found)


def recursive_doubling(n: int) -> Schedule:
    """In-place exchange and add with partners at distance 1, 2, 4 ...: every step swaps."""
    ranks = np.arange(n, dtype=np.int32)
    rounds = n.bit_length() - 1
    rows = n * rounds
    column = {name: np.zeros(rows, np.int32) for name in ("src_chunk", "dst_chunk", "channel")}
    return Schedule(
        collective="all_reduce",
        algorithm="recursive_doubling",
        world_size=n,
        endpoints=n,
        op=np.full(rows, Op.REDUCE),
        src=np.tile(ranks, rounds),
        dst=np.concatenate([ranks ^ (1 << k) for k in range(rounds)]),
        src_buffer=np.full(rows, Buffer.OUTPUT),
        dst_buffer=np.full(rows, Buffer.OUTPUT),
        step=np.repeat(np.arange(rounds), n),
        chunk_bytes=np.array([8]),
        **column,  # type: ignore[arg-type]
    )


def run_in_any_order(s: Schedule, seed: int) -> dict[tuple[int, int, int], int]:
    """Start and land rows in random order as dependences allow; arrivals wait for reads of their own step."""
    source = random.Random(seed)
    begin = precondition(s)
    state = {
        (int(e), int(b), int(c)): 3 ** int(d) * 1000 ** int(r)
        for e, b, c, d, r in zip(begin.endpoint, begin.buffer, begin.chunk, begin.datum, begin.rank, strict=True)
    }
    read = list(zip(s.src.tolist(), s.src_buffer.tolist(), s.src_chunk.tolist(), strict=True))
    write = list(zip(s.dst.tolist(), s.dst_buffer.tolist(), s.dst_chunk.tolist(), strict=True))
    waits = [0] * s.rows
    succ: list[list[int]] = [[] for _ in range(s.rows)]
    for i, j in edges(s):
        waits[j] += 1
        succ[i].append(j)
    startable = [i for i in range(s.rows) if not waits[i]]
    flying: dict[int, int] = {}
    held: dict[int, int] = {}
    started: set[int] = set()
    while startable or flying:
        if startable and (not flying or source.random() < 0.5):
            i = startable.pop(source.randrange(len(startable)))
            assert all(write[k] != read[i] or s.step[k] >= s.step[i] for k in held), "reads a slot too early"
            flying[i] = state[read[i]]
            started.add(i)
        else:
            i = source.choice(list(flying))
            held[i] = flying.pop(i)
            for j in succ[i]:
                waits[j] -= 1
                startable += [j] if not waits[j] else []
        for k in list(held):
            if all(j in started for j in range(s.rows) if read[j] == write[k] and s.step[j] == s.step[k]):
                value = held.pop(k)
                state[write[k]] = state.get(write[k], 0) + value if s.op[k] else value
    assert len(started) == s.rows
    return state


@pytest.mark.parametrize(
    "s",
    [
        ring_all_reduce(4, 16),
        ring_all_reduce(3, 12, 2, pipeline=2),
        tree_all_reduce(6, 12, 2, 2, 2),
        chain_broadcast(4, 8, root=1, chunks=3),
        chain_reduce(4, 8, root=1, chunks=3),
        recursive_doubling(4),
        recursive_doubling(8),
    ],
    ids=lambda s: f"{s.algorithm} {s.collective} {s.world_size}",
)
@pytest.mark.parametrize("seed", range(5))
def test_any_order_that_dependences_allow_gives_the_result(s: Schedule, seed: int) -> None:
    check(s)
    state = run_in_any_order(s.edit(known_dependencies=None) if seed % 2 else s, seed)
    goal = postcondition(s)
    for e, b, c, d, r in zip(goal.endpoint, goal.buffer, goal.chunk, goal.datum, goal.rank, strict=True):
        ranks = range(s.world_size) if r < 0 else [int(r)]
        assert state[int(e), int(b), int(c)] == sum(3 ** int(d) * 1000**k for k in ranks)


def test_a_ring_row_takes_at_most_75_bytes_with_its_dependences() -> None:
    s = ring_all_reduce(128, 1 << 20)
    ptr, idx = s.dependencies()
    columns = [v for v in vars(s).values() if isinstance(v, np.ndarray)]
    assert sum(a.nbytes for a in [*columns, ptr, idx]) <= 75 * s.rows
