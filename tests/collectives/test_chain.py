"""Pipelined chains: roots, orders, bytes."""

import doctest
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives import chain
from commsim.collectives.chain import chain_broadcast, chain_reduce
from commsim.collectives.check import check
from commsim.errors import ScheduleError


@given(data=st.data(), n=st.integers(1, 40), channels=st.integers(1, 3), chunks=st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_any_root_and_order_is_correct(data: st.DataObject, n: int, channels: int, chunks: int) -> None:
    root = data.draw(st.integers(0, n - 1))
    order = [data.draw(st.permutations(range(n))) for _ in range(channels)]
    for build in (chain_broadcast, chain_reduce):
        s = build(n, 101, channels, root, chunks, order=order)
        check(s)
        assert s.root == root
        assert s.sent_bytes().sum() == (n - 1) * 101
        assert s.steps == (n - 1 + chunks - 1 if n > 1 else 0)


def test_only_the_rank_before_the_root_sends_nothing_of_a_broadcast() -> None:
    assert chain_broadcast(4, 8, root=2).sent_bytes().tolist() == [8, 0, 8, 8]
    assert chain_broadcast(4, 8, root=2).received_bytes().tolist() == [8, 8, 0, 8]


def test_only_the_rank_after_the_root_receives_nothing_of_a_reduce() -> None:
    assert chain_reduce(4, 8, root=2).received_bytes().tolist() == [8, 8, 8, 0]


@pytest.mark.parametrize("build", [chain_broadcast, chain_reduce])
def test_data_runs_round_the_ring_in_its_direction(build: Any) -> None:
    s = build(5, 10, root=3)
    assert ((s.src + 1) % 5 == s.dst).all()
    assert np.unique(s.channel).tolist() == [0]


@pytest.mark.parametrize("build", [chain_broadcast, chain_reduce])
@pytest.mark.parametrize("root", [-1, 4])
def test_a_root_that_is_no_rank_is_refused(build: Any, root: int) -> None:
    with pytest.raises(ScheduleError, match="is not one of the ranks"):
        build(4, 8, root=root)


def test_examples_in_docstrings_run() -> None:
    assert doctest.testmod(chain).failed == 0
