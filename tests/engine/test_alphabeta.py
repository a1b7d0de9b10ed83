"""The engine against closed forms on a uniform network: each message costs alpha and its bytes over one bandwidth."""

from __future__ import annotations

import pytest
from programs import on_switch

from commsim.collectives.ring import ring_all_gather, ring_all_reduce
from commsim.collectives.tree import tree_all_reduce
from commsim.engine.simulate import simulate

ALPHA, BANDWIDTH = 1e-6, 50e9  # of on_switch: two hops of 0.5 us


def ring_pass_s(ranks: int, nbytes: float) -> float:
    """One pass round the ring, a reduce-scatter or an all-gather: Thakur, Rabenseifner, Gropp 2005."""
    return (ranks - 1) * (ALPHA + nbytes / (ranks * BANDWIDTH))


def tree_all_reduce_s(ranks: int, nbytes: float, chunks: int) -> float:
    """The pipelined double-binary-tree all_reduce, leading terms (Sanders, Speck, Träff 2009).

    Each tree carries half the message, up and down, in pieces of m = nbytes / (2 chunks): 2 d (alpha + m/B) for the
    first, then 4 m/B for each other. A rank is an inner node of one tree, where it receives two pieces upwards and one
    downwards, and a leaf of the other, where it receives one.
    """
    depth, piece_s = (ranks - 1).bit_length(), nbytes / (2 * chunks) / BANDWIDTH
    return 2 * depth * (ALPHA + piece_s) + (chunks - 1) * 4 * piece_s


@pytest.mark.parametrize("n", [1, 2, 5, 32])
def test_ring_is_the_simulation(n: int) -> None:
    nbytes = n * 12345
    all_reduce, one_pass = (simulate(on_switch(f(n, nbytes))) for f in (ring_all_reduce, ring_all_gather))
    assert all_reduce.makespan_s == pytest.approx(2 * ring_pass_s(n, nbytes), rel=1e-9)
    assert one_pass.makespan_s == pytest.approx(ring_pass_s(n, nbytes), rel=1e-9)


@pytest.mark.parametrize("n", [8, 32, 128])
@pytest.mark.parametrize(("nbytes", "chunks"), [(1 << 10, 1), (64 << 20, 64), (1 << 30, 128)])
def test_tree_is_near_the_simulation(n: int, nbytes: int, chunks: int) -> None:
    """Leading terms: the shape of the tree and queues at inner nodes are left out."""
    done = simulate(on_switch(tree_all_reduce(n, nbytes, channels=2, ranks_per_node=1, chunks=chunks)))
    assert done.makespan_s == pytest.approx(tree_all_reduce_s(n, nbytes, chunks), rel=0.3)
