"""k-nomial trees: shape by hand, steps, runs of blocks, and what is composed of them."""

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.collectives.knomial import (
    knomial_all_reduce,
    knomial_broadcast,
    knomial_edges,
    knomial_gather,
    knomial_reduce,
    knomial_scatter,
    reduce_scatter_gather_reduce,
    scatter_all_gather_broadcast,
)
from commsim.errors import ScheduleError


def test_binomial_edges_of_six_ranks_by_hand() -> None:
    edges = [tuple(edge) for edge in knomial_edges(6, 2).tolist()]
    assert edges == [(0, 0, 4, 2), (1, 0, 2, 2), (2, 0, 1, 1), (2, 2, 3, 1), (2, 4, 5, 1)]


def test_four_nomial_edges_of_six_ranks_by_hand() -> None:
    edges = [tuple(edge) for edge in knomial_edges(6, 4).tolist()]
    assert edges == [(0, 0, 4, 2), (3, 0, 1, 1), (3, 4, 5, 1), (4, 0, 2, 1), (5, 0, 3, 1)]


@pytest.mark.parametrize("n", [1, 2, 3, 8, 9, 27, 28, 40])
@pytest.mark.parametrize("radix", [2, 3, 4, 7])
def test_every_rank_but_the_root_has_one_parent_and_no_one_sends_twice_in_a_step(n: int, radix: int) -> None:
    step, parent, child, below = knomial_edges(n, radix).T
    assert sorted(child.tolist()) == list(range(1, n))
    assert (parent < child).all()
    assert len(set(zip(step.tolist(), parent.tolist(), strict=True))) == n - 1
    levels = next(k for k in range(8) if radix**k >= n)
    assert step.max(initial=-1) < levels * (radix - 1)
    assert below.sum() == sum(bin_depth(v, radix) for v in range(n))


def bin_depth(v: int, radix: int) -> int:
    """Nonzero digits of v: the ranks above it."""
    return 0 if v == 0 else (v % radix > 0) + bin_depth(v // radix, radix)


@pytest.mark.parametrize("radix", [2, 3, 5])
def test_any_radix_and_root_is_correct(radix: int) -> None:
    for build in (knomial_broadcast, knomial_reduce, knomial_scatter, knomial_gather, knomial_all_reduce):
        for n, root in ((1, 0), (6, 5), (11, 3), (25, 24)):
            check(build(n, 101, root, radix))


def test_a_scatter_sends_a_child_the_blocks_below_it_in_one_step() -> None:
    s = knomial_scatter(8, 80, root=2)
    first = s.step == 0
    assert set(s.src[first].tolist()) == {2}
    assert set(s.dst[first].tolist()) == {6}
    assert sorted(s.src_chunk[first].tolist()) == [0, 1, 6, 7]


def test_large_broadcasts_and_reduces_send_about_twice_the_array() -> None:
    n, nbytes = 16, 1600
    assert scatter_all_gather_broadcast(n, nbytes).sent_bytes().max() == 2 * (n - 1) * 100
    assert knomial_broadcast(n, nbytes).sent_bytes().max() == 4 * nbytes
    assert reduce_scatter_gather_reduce(n, nbytes).received_bytes().max() == 2 * (n - 1) * 100


def test_a_radix_below_two_is_no_tree() -> None:
    with pytest.raises(ScheduleError, match="radix is 1, expected at least 2"):
        knomial_broadcast(4, 8, radix=1)


def test_the_reduce_is_the_broadcast_backwards() -> None:
    down, up = knomial_broadcast(7, 10, root=3), knomial_reduce(7, 10, root=3)
    assert np.array_equal(up.src[::-1], down.dst)
    assert np.array_equal(up.step[::-1], down.steps - 1 - down.step)
