"""The checker's messages: each kind of fault is named with its step, row, endpoint and chunk."""

import time
from typing import Any

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.collectives.ring import ring_all_reduce
from commsim.collectives.schedule import Schedule
from commsim.collectives.tree import tree_all_reduce
from commsim.errors import ScheduleError


def changed(s: Schedule, column: str, row: int, value: int) -> Schedule:
    values = getattr(s, column).copy()
    values[row] = value
    return s.edit(**{column: values})


@pytest.mark.parametrize(
    ("column", "row", "value", "message"),
    [
        ("src", 5, 0, r"step 1, row 5: endpoint 0 adds output chunk 1 from 0 but already holds rank 0"),
        ("op", 5, 0, "ends with output chunk 1 without rank 0; row 5 .step 1, from 3. overwrote data"),
        ("src_chunk", 20, 1, "ends with output chunk 0 holding chunk 1 of the array, expected chunk 0"),
        ("src_chunk", 5, 2, "adds output chunk 1 from 3, which is chunk 2 of the array, to chunk 1"),
        ("dst", 0, 1, "step 0, row 0: endpoint 1 adds output chunk 0 from 1 but already holds rank 1"),
        ("src_buffer", 0, 0, "step 0, row 0: endpoint 2 reads input chunk 0 of 1, which holds nothing yet"),
        ("src", 3, 9, "row 3: src is 9, expected 0..3"),
        ("dst", 3, -1, "row 3: dst is -1"),
        ("op", 3, 7, "row 3: op is 7, expected 0..1"),
        ("dst_buffer", 3, 3, "row 3: dst_buffer is 3"),
        ("dst_chunk", 3, 4, "row 3: dst_chunk is 4"),
    ],
)
def test_the_message_names_place_and_fault(column: str, row: int, value: int, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(changed(ring_all_reduce(4, 4096), column, row, value))


def test_two_copies_into_one_slot_in_one_step_are_a_race() -> None:
    s = ring_all_reduce(3, 12)
    twice = s.take(np.sort(np.r_[np.arange(s.rows), 7]))
    with pytest.raises(ScheduleError, match=r"step 2, row 8: .* written twice at output chunk 1, .* a race"):
        check(twice)


def test_chunks_of_different_sizes_do_not_fit() -> None:
    with pytest.raises(ScheduleError, match="chunk 1 of 3 bytes does not fit chunk 0 of 4 bytes"):
        check(changed(ring_all_reduce(3, 10), "src_chunk", 0, 1))


@pytest.mark.parametrize(
    ("after", "message"),
    [
        ([[5, 3], [3, 0], [0, 5]], r"wait for each other in a cycle: (0 -> 5 -> 3 -> 0|3 -> 0 -> 5 -> 3)"),
        ([[4, 4]], "cycle: 4 -> 4"),
        ([[4, 0]], r"cycle: (0 -> 4 -> 0|4 -> 0 -> 4)"),
        ([[0, 99]], "edge 0: after is 99"),
    ],
)
def test_edges_that_close_a_cycle_are_refused(after: list[list[int]], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(ring_all_reduce(4, 64).edit(after=np.array(after)))


def test_edges_against_the_row_order_may_be_harmless() -> None:
    check(ring_all_reduce(4, 64).edit(after=np.array([[3, 0], [9, 8]])))


def test_more_than_64_ranks_need_more_than_one_word() -> None:
    s = ring_all_reduce(70, 700)
    check(s)
    with pytest.raises(ScheduleError, match=r"(already holds|without) rank"):
        check(changed(s, "src", 4000, 69))
    with pytest.raises(ScheduleError, match=r"without ranks (\d+, ){7}\d+ and \d+ more; \d+ more slots are wrong"):
        check(s.take(np.flatnonzero((s.step > 66) | (s.dst != 69))))


@pytest.mark.parametrize("build", [ring_all_reduce, tree_all_reduce])
def test_64_ranks_are_checked_in_a_fraction_of_a_second(build: Any) -> None:
    s = build(64, 1 << 20)
    begin = time.process_time()
    check(s)
    assert time.process_time() - begin < 1.0
