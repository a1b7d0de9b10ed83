"""The table: types, order, bytes, combinators."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from commsim.collectives.schedule import Buffer, Op, Schedule, both, relabel, split_evenly, then
from commsim.collectives.tree import tree_all_reduce
from commsim.errors import ScheduleError

COLUMNS = ("op", "src", "dst", "src_buffer", "src_chunk", "dst_buffer", "dst_chunk", "step", "channel")


def table(rows: list[tuple[int, ...]], chunk_bytes: list[int], **fields: Any) -> Schedule:
    """A schedule from rows (op, src, dst, src_buffer, src_chunk, dst_buffer, dst_chunk, step)."""
    columns = np.array(rows, np.int64).reshape(-1, 8).T
    names = ("op", "src", "dst", "src_buffer", "src_chunk", "dst_buffer", "dst_chunk", "step")
    given: dict[str, Any] = dict(zip(names, columns, strict=True)) | {"channel": np.zeros(len(rows))}
    defaults: dict[str, Any] = {
        "collective": "all_reduce",
        "algorithm": "by hand",
        "world_size": 2,
        "endpoints": 2,
    }
    return Schedule(**given | {"chunk_bytes": np.array(chunk_bytes)} | defaults | fields)


def same_rows(a: Schedule, b: Schedule) -> bool:
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in COLUMNS)


def test_a_row_takes_27_bytes_and_columns_are_read_only() -> None:
    s = ring_all_reduce(4, 64)
    assert sum(getattr(s, name).itemsize for name in COLUMNS) == 27
    with pytest.raises(ValueError, match="read-only"):
        s.src[0] = 3


def test_moves_within_an_endpoint_do_not_count_as_sent() -> None:
    o = Buffer.OUTPUT
    s = table([(Op.COPY, 0, 0, o, 0, o, 1, 0), (Op.COPY, 0, 1, o, 0, o, 0, 1)], [10, 10])
    assert s.sent_bytes().tolist() == [10, 0]
    assert s.received_bytes().tolist() == [0, 10]
    assert s.payload_bytes().tolist() == [10, 10]


def test_bytes_stay_exact_above_the_integers_of_a_float() -> None:
    nbytes = 2**60 + 1
    assert ring_all_reduce(2, nbytes).sent_bytes().tolist() == [nbytes, nbytes]


def test_scratch_chunks_are_no_part_of_the_message() -> None:
    s = table([], [8, 8, 4], scratch_chunks=1)
    assert (s.nbytes, s.data_chunks, s.rows, s.steps) == (16, 2, 0, 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"src": np.zeros(3, np.int32)}, "column src has the shape"),
        ({"src": np.full(12, 2**40)}, "do not fit int32"),
        ({"step": np.arange(12)[::-1]}, "row 1 has step 10 after step 11"),
        ({"root": 3}, "root 3 is not one of the ranks 0..2"),
        ({"endpoints": 2}, "3 ranks and 2 endpoints"),
        ({"after": np.zeros(4, np.int64)}, "expected .edges, 2."),
        ({"scratch_chunks": 9}, "9 scratch chunks among 3"),
        ({"wire_bytes": np.zeros(3)}, "column wire_bytes"),
    ],
)
def test_a_malformed_table_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        ring_all_reduce(3, 30).edit(**change)


def test_edit_drops_known_dependences_with_the_rows_they_rest_on() -> None:
    s = ring_all_reduce(3, 30)
    assert s.edit(wire_bytes=s.payload_bytes()).known_dependencies is not None
    assert s.edit(src=s.src).known_dependencies is None


def test_take_renumbers_after_and_drops_edges_of_lost_rows() -> None:
    s = ring_all_reduce(2, 8).edit(after=np.array([[0, 3], [1, 2]]))
    taken = s.take(np.array([0, 2, 3]))
    assert taken.after.tolist() == [[0, 2]]
    assert taken.rows == 3


def test_reduce_scatter_then_all_gather_is_the_ring_all_reduce() -> None:
    parts = ring_reduce_scatter(5, 103, 2), ring_all_gather(5, 103, 2)
    whole = then(*parts, collective="all_reduce")
    assert same_rows(whole, ring_all_reduce(5, 103, 2))
    check(whole)


def test_then_refuses_other_ranks_and_other_chunks() -> None:
    with pytest.raises(ScheduleError, match="of 3 and 4 ranks"):
        then(ring_all_reduce(3, 12), ring_all_reduce(4, 12))
    with pytest.raises(ScheduleError, match="chunk tables differ"):
        then(ring_all_reduce(3, 12), ring_all_reduce(3, 15))
    with pytest.raises(ScheduleError, match="at least one"):
        both([])


def test_then_needs_lowered_columns_on_both_sides() -> None:
    a = ring_reduce_scatter(3, 12)
    with pytest.raises(ScheduleError, match="wire_bytes"):
        then(a.edit(wire_bytes=a.payload_bytes()), ring_all_gather(3, 12))


def test_then_keeps_after_edges_of_both() -> None:
    a = ring_reduce_scatter(2, 8).edit(after=np.array([[0, 1]]))
    b = ring_all_gather(2, 8).edit(after=np.array([[1, 0]]))
    assert then(a, b).after.tolist() == [[0, 1], [3, 2]]


def test_relabel_renames_ranks_and_keeps_the_promise_of_all_reduce() -> None:
    ring = ring_all_reduce(4, 40)
    other = relabel(ring, [2, 0, 3, 1], [1, 2, 3, 0])
    check(other)
    assert not same_rows(ring, other)
    assert same_rows(other, other.edit(known_dependencies=None))


@pytest.mark.parametrize(
    ("ranks", "chunks", "message"),
    [
        ([0, 1, 1], None, "3 different endpoints"),
        ([0, 1, 5], None, "ranks must lie in 0..2"),
        ([0, 1, 2], [0, 0, 1], "3 different chunks"),
        ([0, 1, 2], [0, 1, 9], "permutation"),
    ],
)
def test_relabel_refuses_what_is_no_renaming(ranks: list[int], chunks: list[int] | None, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        relabel(ring_all_reduce(3, 12), ranks, chunks)


@pytest.mark.parametrize(("nodes", "ppn"), [(1, 4), (3, 4), (4, 2), (5, 3)])
def test_hierarchical_all_reduce_in_five_lines(nodes: int, ppn: int) -> None:
    n, nbytes = nodes * ppn, 7 * nodes * ppn
    frame: dict[str, Any] = {"world_size": n, "endpoints": n, "chunk_bytes": np.full(n, 7)}
    rank = np.arange(n).reshape(nodes, ppn)
    scatter = [relabel(ring_reduce_scatter(ppn, nbytes, pipeline=nodes), r, **frame) for r in rank]
    gather = [relabel(ring_all_gather(ppn, nbytes, pipeline=nodes), r, **frame) for r in rank]
    chunk = np.arange(n).reshape(ppn, nodes)
    rails = [relabel(ring_all_reduce(nodes, 7 * nodes), rank[:, i], chunk[i], **frame) for i in range(ppn)]
    whole = then(then(both(scatter), both(rails)), both(gather), collective="all_reduce")
    check(whole)
    assert whole.sent_bytes().tolist() == [2 * (n - 1) * 7] * n


def test_both_runs_two_halves_of_the_array_side_by_side() -> None:
    frame: dict[str, Any] = {"chunk_bytes": np.full(6, 4)}
    ring = relabel(ring_all_reduce(3, 12), range(3), [0, 1, 2], **frame)
    tree = relabel(tree_all_reduce(3, 12, 1, 1, 3), range(3), [3, 4, 5], **frame)
    s = both([ring, tree], algorithm="ring and tree")
    check(s)
    assert s.algorithm == "ring and tree"
    assert s.steps == max(ring.steps, tree.steps)


def test_split_evenly_puts_larger_shares_first_and_loses_nothing() -> None:
    shares = split_evenly(np.array([7, 0, 12]), 5)
    assert shares.tolist() == [[2, 2, 1, 1, 1], [0, 0, 0, 0, 0], [3, 3, 2, 2, 2]]


def test_schedules_compare_by_identity_so_that_equality_is_never_ambiguous() -> None:
    s = ring_all_reduce(2, 8)
    assert s == s
    assert dataclasses.replace(s) != s
