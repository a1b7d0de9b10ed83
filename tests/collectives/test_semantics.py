"""What collectives promise, on schedules of a few rows written by hand."""

import doctest
import re
from typing import Any

import numpy as np
import pytest

from commsim.collectives import semantics
from commsim.collectives.check import check
from commsim.collectives.ring import ring_all_gather
from commsim.collectives.schedule import Buffer, Op, Schedule
from commsim.collectives.semantics import (
    ALL_RANKS,
    CHAINED,
    COLLECTIVES,
    DIVIDED,
    GATHERING,
    NCCL_TESTS,
    ONE_RATE,
    PAIRWISE,
    REDUCING,
    RING_PASSES,
    ROOTED,
    SCATTERING,
    TO_ROOT,
    WHOLE,
    Contents,
    bandwidth_bytes,
    busbw_factor,
    collective,
    latency_steps,
    postcondition,
    precondition,
)
from commsim.errors import ScheduleError

I, O, X = Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH  # noqa: E741
Rows = list[tuple[int, int, int, int, int, int, int, int]]


def by_hand(name: str, n: int, rows: Rows, chunk_bytes: list[int], **fields: Any) -> Schedule:
    """A schedule from rows (op, src, src_buffer, src_chunk, dst, dst_buffer, dst_chunk, step)."""
    columns = np.array(rows, np.int64).reshape(-1, 8).T
    names = ("op", "src", "src_buffer", "src_chunk", "dst", "dst_buffer", "dst_chunk", "step")
    given: dict[str, Any] = dict(zip(names, columns, strict=True)) | {"channel": np.zeros(len(rows))}
    frame: dict[str, Any] = {"collective": name, "algorithm": "hand", "world_size": n, "endpoints": n}
    return Schedule(**given | frame | {"chunk_bytes": np.array(chunk_bytes)} | fields)


def copies(moves: list[tuple[int, int, int]], step: int = 0) -> Rows:
    return [(Op.COPY, a, O, c, b, O, c, step) for a, b, c in moves]


@pytest.mark.parametrize(
    ("name", "n", "factor"),
    [
        ("all_reduce", 8, 1.75),
        ("all_reduce", 1, 0.0),
        ("reduce_scatter", 4, 0.75),
        ("all_gather", 4, 0.75),
        ("all_to_all", 2, 0.5),
        ("scatter", 2, 0.5),
        ("gather", 2, 0.5),
        ("broadcast", 8, 1.0),
        ("reduce", 8, 1.0),
        ("send_recv", 8, 1.0),
        ("all_to_all_v", 4, 3 / 16),
        ("barrier", 8, 0.0),
    ],
)
def test_busbw_factors_are_those_of_nccl_tests(name: str, n: int, factor: float) -> None:
    assert busbw_factor(name, n) == factor


def test_an_unknown_collective_names_the_known_ones() -> None:
    with pytest.raises(ScheduleError, match="unknown collective 'allreduce', expected one of all_reduce"):
        collective("allreduce")


def test_scatter_and_gather_by_hand() -> None:
    out = [(1, r, r) for r in (0, 2)]
    check(by_hand("scatter", 3, copies(out), [4, 4, 4], root=1))
    check(by_hand("gather", 3, copies([(b, a, c) for a, b, c in out]), [4, 4, 4], root=1))
    with pytest.raises(ScheduleError, match="ends with output chunk 0 empty"):
        check(by_hand("scatter", 3, copies(out[1:]), [4, 4, 4], root=1))


def test_all_to_all_by_hand_transposes_blocks() -> None:
    rows: Rows = [(Op.COPY, a, I, b, b, O, a, 0) for a in range(3) for b in range(3)]
    check(by_hand("all_to_all", 3, rows, [4, 4, 4], in_place=False))
    with pytest.raises(ScheduleError, match="expected chunk 1"):
        check(by_hand("all_to_all", 3, [(*r[:3], r[0], *r[4:]) for r in rows], [4, 4, 4], in_place=False))
    with pytest.raises(ScheduleError, match="cannot work in place"):
        check(by_hand("all_to_all", 3, rows, [4, 4, 4]))


def test_out_of_place_reads_input_and_leaves_output_undefined_at_first() -> None:
    mine: Rows = [(Op.COPY, r, I, 0, r, O, 0, 0) for r in range(2)]
    other: Rows = [(Op.REDUCE, 1 - r, I, 0, r, O, 0, 1) for r in range(2)]
    check(by_hand("all_reduce", 2, mine + other, [8], in_place=False))
    with pytest.raises(ScheduleError, match="adds output chunk 0 from 1 to a slot that holds nothing yet"):
        check(by_hand("all_reduce", 2, mine[1:] + other, [8], in_place=False))
    with pytest.raises(ScheduleError, match="reads input chunk 0 of 0, which holds nothing yet"):
        check(by_hand("all_reduce", 2, mine + other, [8]))


def test_a_switch_starts_from_zero_reduces_and_multicasts() -> None:
    up: Rows = [(Op.REDUCE, r, O, 0, 3, X, 0, 0) for r in range(3)]
    down: Rows = [(Op.COPY, 3, X, 0, r, O, 0, 1) for r in range(3)]
    s = by_hand("all_reduce", 3, up + down, [8], endpoints=4)
    check(s)
    assert s.sent_bytes().tolist() == [8, 8, 8, 24]
    with pytest.raises(ScheduleError, match="without rank 1"):
        check(by_hand("all_reduce", 3, up[:1] + up[2:] + down, [8], endpoints=4))


def test_scratch_only_chunks_serve_as_staging() -> None:
    rows: Rows = [(Op.COPY, 0, O, 0, 1, X, 1, 0), (Op.COPY, 1, X, 1, 1, O, 0, 1)]
    check(by_hand("broadcast", 2, rows, [8, 8], scratch_chunks=1))
    with pytest.raises(ScheduleError, match="dst_chunk 1 exists only in scratch"):
        check(by_hand("broadcast", 2, [(Op.COPY, 0, O, 0, 1, O, 1, 0)], [8, 8], scratch_chunks=1))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_conditions_name_each_slot_once_within_range(name: str) -> None:
    s = by_hand(name, 4, [], [2] * 16, root=2, in_place=name != "all_to_all")
    for contents in (precondition(s), postcondition(s)):
        slots = list(zip(contents.endpoint.tolist(), contents.buffer.tolist(), contents.chunk.tolist(), strict=True))
        assert len(set(slots)) == len(slots) > 0
        assert contents.endpoint.max() < 4
        assert contents.chunk.max() < 16
        assert contents.datum.max() < 16


def test_all_to_all_v_by_hand_sends_unequal_blocks() -> None:
    # Slot sender * 2 + receiver: rank 0 sends 3 bytes, rank 1 sends 1.
    rows: Rows = [(Op.COPY, 0, O, 1, 1, O, 1, 0), (Op.COPY, 1, O, 2, 0, O, 2, 0)]
    check(by_hand("all_to_all_v", 2, rows, [5, 3, 1, 0]))
    with pytest.raises(ScheduleError, match="endpoint 0 ends with output chunk 2 empty"):
        check(by_hand("all_to_all_v", 2, rows[:1], [5, 3, 1, 0]))
    with pytest.raises(ScheduleError, match="2 ranks has 2 chunks, expected a multiple of the pairs of ranks"):
        check(by_hand("all_to_all_v", 2, [], [5, 3]))


def test_send_recv_by_hand_goes_to_the_next_rank() -> None:
    check(by_hand("send_recv", 3, [(Op.COPY, r, O, 0, (r + 1) % 3, O, 0, 0) for r in range(3)], [8]))
    with pytest.raises(ScheduleError, match="without rank"):
        check(by_hand("send_recv", 3, [(Op.COPY, r, O, 0, (r - 1) % 3, O, 0, 0) for r in range(3)], [8]))


def test_a_barrier_may_count_a_rank_twice_but_must_hear_from_all() -> None:
    step: list[Rows] = [[(Op.REDUCE, r, O, 0, (r + d) % 3, O, 0, k) for r in range(3)] for k, d in enumerate((1, 2))]
    check(by_hand("barrier", 3, step[0] + step[1], [0]))
    with pytest.raises(ScheduleError, match="already holds rank"):
        check(by_hand("all_reduce", 3, step[0] + step[1], [0]))
    with pytest.raises(ScheduleError, match="without rank"):
        check(by_hand("barrier", 3, step[0], [0]))


@pytest.mark.parametrize(
    ("name", "n", "steps", "part"),
    [
        ("all_reduce", 8, 3, 1.75),
        ("all_gather", 5, 3, 0.8),
        ("reduce_scatter", 2, 1, 0.5),
        ("broadcast", 9, 4, 1.0),
        ("reduce", 1, 0, 0.0),
        ("scatter", 4, 2, 0.75),
        ("gather", 4, 2, 0.75),
        ("all_to_all", 4, 2, 0.75),
        ("send_recv", 9, 1, 1.0),
        ("send_recv", 1, 0, 0.0),
        ("barrier", 9, 4, 0.0),
    ],
)
def test_lower_bounds_in_steps_and_bytes(name: str, n: int, steps: int, part: float) -> None:
    assert latency_steps(name, n) == steps
    assert bandwidth_bytes(name, n, 1000) == part * 1000


def test_a_switch_that_adds_halves_the_bound_of_an_all_reduce_and_many_ports_need_one_step() -> None:
    assert bandwidth_bytes("all_reduce", 8, 1000, in_network=True) == 1000
    assert bandwidth_bytes("all_gather", 8, 1000, in_network=True) == 875
    assert latency_steps("all_reduce", 8, one_port=False) == 1
    assert latency_steps("all_reduce", 1, one_port=False) == 0


def test_blocks_need_chunks_in_multiples_of_the_ranks() -> None:
    with pytest.raises(ScheduleError, match="3 ranks has 4 chunks"):
        check(by_hand("all_gather", 3, [], [1] * 4))


@pytest.mark.parametrize("name", COLLECTIVES)
def test_one_rank_has_nothing_to_do_in_place(name: str) -> None:
    if name != "all_to_all":
        check(by_hand(name, 1, [], [8]))


def test_an_all_gather_is_no_all_reduce() -> None:
    with pytest.raises(ScheduleError, match="without rank"):
        check(ring_all_gather(3, 12).edit(collective="all_reduce"))


def test_examples_in_docstrings_run() -> None:
    assert doctest.testmod(semantics).failed == 0


def test_the_facts_about_collectives_are_those_of_their_contracts() -> None:
    def promise(name: str, root: int) -> tuple[Contents, Contents]:
        schedule = by_hand(name, 3, [], [1] * 9, root=root, in_place=False)
        return precondition(schedule), postcondition(schedule)

    def same(a: Contents, b: Contents) -> bool:
        return all(np.array_equal(getattr(a, f), getattr(b, f)) for f in ("endpoint", "chunk", "datum", "rank"))

    for name in NCCL_TESTS:
        (before, after), (_, of_another_root) = promise(name, 0), promise(name, 2)
        given, kept = (np.bincount(c.endpoint, minlength=3) for c in (before, after))
        rooted = not same(after, of_another_root)
        assert rooted == (name in ROOTED), name
        assert (np.count_nonzero(kept) == 1) == (name in TO_ROOT), name
        assert (after.rank == ALL_RANKS).any() == (name in REDUCING), name
        assert (given.max() == 3) == (name in GATHERING), name
        assert (kept.max() == 3) == (name in SCATTERING), name
        assert (COLLECTIVES[name].blocks == 1) == (name in DIVIDED) == (name not in WHOLE), name
        assert (busbw_factor(name, 2) == busbw_factor(name, 9)) == (name in ONE_RATE), name
        sent = {(r, d) for r, d in zip(after.rank.tolist(), after.datum.tolist(), strict=True)}
        apart = not rooted and name not in REDUCING and len(sent) == len(after.rank)  # nobody gets what another gets
        assert apart == (name in PAIRWISE), name
    assert {"broadcast", "reduce"} == CHAINED
    assert {name for name in NCCL_TESTS if name in GATHERING | SCATTERING and name not in ROOTED} == RING_PASSES


@pytest.mark.parametrize(("name", "nbytes"), semantics.ITEM_BYTES.items())
def test_the_name_of_a_type_says_its_bits(name: str, nbytes: int) -> None:
    bits = re.match(r"[a-z]+(\d+)", name)
    assert bits is not None
    assert 8 * nbytes == int(bits[1])
