"""Ring builders: values by hand, bytes by formula, correctness for any rank count."""

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives import ring
from commsim.collectives.check import check
from commsim.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter, stepwise_ring_all_reduce
from commsim.errors import ScheduleError

sizes = st.integers(0, 10_000)
small = st.integers(1, 4)


def moves(s: Any) -> list[tuple[int, ...]]:
    return list(zip(s.step.tolist(), s.op.tolist(), s.src.tolist(), s.dst.tolist(), s.src_chunk.tolist(), strict=True))


def test_two_ranks_by_hand() -> None:
    # Each rank adds the half it does not own to the owner's, then the owners send the sums back.
    assert moves(ring_all_reduce(2, 8)) == [
        (0, 1, 1, 0, 0),
        (0, 1, 0, 1, 1),
        (1, 0, 0, 1, 0),
        (1, 0, 1, 0, 1),
    ]


def test_three_ranks_by_hand() -> None:
    s = ring_all_reduce(3, 12)
    block_0 = [m for m in moves(s) if m[4] == 0]
    assert block_0 == [(0, 1, 1, 2, 0), (1, 1, 2, 0, 0), (2, 0, 0, 1, 0), (3, 0, 1, 2, 0)]


def test_rank_r_owns_block_r_after_the_reduce_scatter() -> None:
    s = ring_reduce_scatter(5, 50)
    last = s.step == 3
    assert s.dst[last].tolist() == s.dst_chunk[last].tolist()


def test_one_rank_moves_nothing() -> None:
    s = ring_all_reduce(1, 100)
    assert (s.rows, s.steps, s.nbytes) == (0, 0, 100)
    assert s.sent_bytes().tolist() == [0]
    check(s)


@pytest.mark.parametrize("n", range(1, 41))
def test_every_rank_count_is_correct(n: int) -> None:
    for build in (ring_all_reduce, ring_reduce_scatter, ring_all_gather):
        check(build(n, 997, 2))


@given(n=st.integers(1, 24), count=sizes, channels=small, pipeline=small, itemsize=st.sampled_from([1, 2, 4]))
@settings(max_examples=60, deadline=None)
def test_bytes_follow_the_formula(n: int, count: int, channels: int, pipeline: int, itemsize: int) -> None:
    nbytes = count * itemsize
    s = ring_all_reduce(n, nbytes, channels, itemsize, pipeline=pipeline)
    check(s)
    assert s.nbytes == nbytes
    sent = s.sent_bytes()
    assert sent.sum() == 2 * (n - 1) * nbytes
    if count % n == 0:
        assert (sent == 2 * (n - 1) * nbytes // n).all()
    block = s.chunk_bytes.reshape(n, -1).sum(axis=1)
    assert block.max() - block.min() <= itemsize
    if n > 1:
        assert np.array_equal(sent, 2 * nbytes - block - np.roll(block, -1))
        assert np.array_equal(s.received_bytes(), np.roll(sent, 1))


@given(data=st.data(), n=st.integers(1, 12), channels=small)
@settings(max_examples=30, deadline=None)
def test_any_ring_order_per_channel_is_correct(data: st.DataObject, n: int, channels: int) -> None:
    order = [data.draw(st.permutations(range(n))) for _ in range(channels)]
    for build in (ring_all_reduce, ring_reduce_scatter, ring_all_gather):
        s = build(n, 12 * n * channels, channels, order=order)
        check(s)
        neighbours = {(c, r[i], r[(i + 1) % n]) for c, r in enumerate(order) for i in range(n)}
        assert set(zip(s.channel.tolist(), s.src.tolist(), s.dst.tolist(), strict=True)) <= neighbours
        assert len(set(s.sent_bytes().tolist())) <= 1


@pytest.mark.parametrize("build", [ring_reduce_scatter, ring_all_gather])
def test_half_a_ring_sends_all_blocks_but_one(build: Any) -> None:
    assert build(4, 4096).sent_bytes().tolist() == [3072] * 4
    assert build(4, 4099, 3).sent_bytes().sum() == 3 * 4099


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"world_size": 0, "nbytes": 8}, "ranks is 0"),
        ({"world_size": 2, "nbytes": -8}, "whole number of elements"),
        ({"world_size": 2, "nbytes": 9, "itemsize": 4}, "9 bytes with elements of 4 bytes"),
        ({"world_size": 2, "nbytes": 8, "channels": 0}, "channels is 0"),
        ({"world_size": 2, "nbytes": 8, "pipeline": 0}, "pipeline is 0"),
        ({"world_size": 3, "nbytes": 8, "order": [0, 1]}, "ring order has the shape"),
        ({"world_size": 3, "nbytes": 8, "order": [0, 1, 1]}, "channel 0 does not visit"),
    ],
)
def test_impossible_rings_are_refused(arguments: dict[str, Any], message: str) -> None:
    for build in (ring_all_reduce, ring_reduce_scatter, ring_all_gather):
        with pytest.raises(ScheduleError, match=message):
            build(**arguments)


def test_examples_in_docstrings_run() -> None:
    assert doctest.testmod(ring).failed == 0


@pytest.mark.parametrize(("n", "channels", "pipeline"), [(2, 1, 1), (5, 1, 1), (4, 2, 3)])
def test_a_stepwise_ring_waits_for_its_own_last_send(n: int, channels: int, pipeline: int) -> None:
    s = stepwise_ring_all_reduce(n, n * channels * pipeline * 4, channels, pipeline=pipeline)
    check(s)
    first, second = s.after.T
    assert (s.src[first] == s.src[second]).all()
    assert (s.channel[first] == s.channel[second]).all()
    assert (s.step[second] == s.step[first] + 1).all()
    assert len(np.unique(second)) == s.rows - n * channels * pipeline
