"""Closed forms against the engine, and against what they must be for two ranks."""

from __future__ import annotations

import pytest
from programs import on_switch

from commsim.collectives.ring import ring_all_gather, ring_all_reduce
from commsim.collectives.tree import tree_all_reduce
from commsim.engine.simulate import simulate
from commsim.network.alphabeta import ring_all_reduce_s, ring_pass_s, tree_all_reduce_s

ALPHA, BANDWIDTH = 1e-6, 50e9  # of on_switch: two hops of 0.5 us


@pytest.mark.parametrize("n", [1, 2, 5, 32])
def test_ring_is_the_simulation(n: int) -> None:
    nbytes = n * 12345
    all_reduce, one_pass = (simulate(on_switch(f(n, nbytes))) for f in (ring_all_reduce, ring_all_gather))
    assert all_reduce.makespan_s == pytest.approx(ring_all_reduce_s(n, nbytes, ALPHA, BANDWIDTH), rel=1e-9)
    assert one_pass.makespan_s == pytest.approx(ring_pass_s(n, nbytes, ALPHA, BANDWIDTH), rel=1e-9)


@pytest.mark.parametrize("n", [8, 32, 128])
@pytest.mark.parametrize(("nbytes", "chunks"), [(1 << 10, 1), (64 << 20, 64), (1 << 30, 128)])
def test_tree_is_near_the_simulation(n: int, nbytes: int, chunks: int) -> None:
    """Leading terms: the shape of the tree and queues at inner nodes are left out."""
    done = simulate(on_switch(tree_all_reduce(n, nbytes, channels=2, ranks_per_node=1, chunks=chunks)))
    assert done.makespan_s == pytest.approx(tree_all_reduce_s(n, nbytes, ALPHA, BANDWIDTH, chunks), rel=0.3)


def test_tree_of_one_rank_is_nothing_and_of_many_chunks_twice_the_message() -> None:
    assert tree_all_reduce_s(1, 1e9, ALPHA, BANDWIDTH) == 0
    assert tree_all_reduce_s(64, 1e9, 0, 1e9, chunks=10**6) == pytest.approx(2, rel=1e-4)
