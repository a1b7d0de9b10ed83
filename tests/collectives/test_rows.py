"""The parts that builders are made of."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives.bruck import bruck_all_gather
from commsim.collectives.check import check
from commsim.collectives.ring import ring_all_gather, ring_reduce_scatter
from commsim.collectives.rows import assemble, equal_blocks, mirrored, only, rows, spread
from commsim.collectives.schedule import Buffer, Op
from commsim.collectives.star import flat_broadcast
from commsim.errors import ScheduleError


def test_rows_broadcast_their_columns() -> None:
    part = rows(np.arange(2)[:, None], 5, np.arange(3), 7, to=8, op=Op.REDUCE, src_buffer=Buffer.INPUT)
    assert part["step"].tolist() == [0, 0, 0, 1, 1, 1]
    assert part["dst"].tolist() == [0, 1, 2, 0, 1, 2]
    assert (part["src_chunk"][0], part["dst_chunk"][0], part["op"][0], part["src_buffer"][0]) == (7, 8, 1, 0)


def test_only_keeps_the_rows_that_a_mask_names() -> None:
    part = only(rows(0, np.arange(4), 9, 0), np.array([[True, False], [False, True]]))
    assert part["src"].tolist() == [0, 3]


def test_assemble_sorts_by_step_keeps_order_within_and_leaves_out_empty_steps() -> None:
    s = assemble("broadcast", "x", 3, [rows(5, 1, 2, 0), rows(2, 0, 1, 0), rows(5, 0, 2, 0)], np.array([4]))
    assert s.step.tolist() == [0, 1, 1]
    assert s.src.tolist() == [0, 1, 0]
    assert assemble("all_reduce", "x", 1, [], np.array([4])).rows == 0


def test_the_mirror_image_of_an_all_gather_is_a_reduce_scatter_and_back() -> None:
    forth = bruck_all_gather(7, 700)
    down = mirrored(forth, "reduce_scatter")
    check(down)
    assert np.array_equal(down.sent_bytes(), forth.received_bytes())
    again = mirrored(down, "all_gather", op=Op.COPY)
    check(again)
    assert sorted(zip(again.step, again.src, again.dst, again.src_chunk, strict=True)) == sorted(
        zip(forth.step, forth.src, forth.dst, forth.src_chunk, strict=True)
    )


def test_a_row_of_the_mirror_image_swaps_the_chunks_read_and_written() -> None:
    part = rows(0, 0, 1, 0, to=1, src_buffer=Buffer.INPUT)
    s = mirrored(assemble("broadcast", "x", 2, [part], np.array([4, 4])), "reduce")
    assert (s.src_chunk[0], s.dst_chunk[0], s.src_buffer[0], s.dst_buffer[0]) == (1, 0, Buffer.OUTPUT, Buffer.INPUT)


@given(n=st.integers(1, 9), nbytes=st.integers(0, 300), channels=st.integers(1, 4), chunks=st.integers(1, 4))
@settings(max_examples=40)
def test_channels_and_pieces_keep_correctness_and_bytes(n: int, nbytes: int, channels: int, chunks: int) -> None:
    base = ring_reduce_scatter(n, nbytes * 2, itemsize=2)
    s = spread(base, channels, chunks, itemsize=2)
    check(s)
    assert s.nbytes == nbytes * 2
    assert np.array_equal(s.sent_bytes(), base.sent_bytes())
    assert (s.chunk_bytes % 2 == 0).all()
    assert s.rows == base.rows * channels * chunks
    assert s.steps == (base.steps + chunks - 1 if n > 1 else 0)


def test_pieces_of_a_channel_lie_side_by_side_and_leave_one_step_apart() -> None:
    s = spread(flat_broadcast(2, 12), 2, 3)
    assert s.chunk_bytes.tolist() == [2] * 6
    table = sorted(zip(s.channel.tolist(), s.step.tolist(), s.src_chunk.tolist(), strict=True))
    assert table == [(0, 0, 0), (0, 1, 1), (0, 2, 2), (1, 0, 3), (1, 1, 4), (1, 2, 5)]


def test_one_channel_and_one_piece_change_nothing() -> None:
    s = ring_all_gather(3, 12)
    assert spread(s, 1, 1) is s


def test_unequal_blocks_are_refused_with_the_next_size_that_works() -> None:
    assert equal_blocks(24, 3, 4).tolist() == [8, 8, 8]
    with pytest.raises(ScheduleError, match="28 bytes are no 3 equal blocks of whole elements; 36 bytes would be"):
        equal_blocks(28, 3, 4)
