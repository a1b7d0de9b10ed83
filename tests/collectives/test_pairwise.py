"""All-to-all in rounds: NCCL's order by hand and by its rule, unequal counts."""

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.collectives.pairwise import nccl_rounds, pairwise_all_to_all, pairwise_all_to_all_v, ring_all_to_all
from commsim.collectives.rails import hierarchical_all_to_all
from commsim.errors import ScheduleError


def test_one_node_is_one_group_of_rising_distance() -> None:
    assert nccl_rounds(5)[:, 2].tolist() == [2, 3, 4, 0, 1]


def test_nodes_follow_the_quadratic_sequence() -> None:
    # Distances of 5 groups modulo 8: 0 1 3 6 2 7 5 4, of which 0 1 3 2 4 exist.
    assert nccl_rounds(5, 1)[:, 0].tolist() == [0, 1, 3, 2, 4]
    assert nccl_rounds(8, 2)[:, 1].tolist() == [1, 0, 3, 2, 7, 6, 5, 4]


def test_groups_have_at_most_eight_ranks_of_a_node() -> None:
    to = nccl_rounds(48, 24)
    assert (to[:8, 0] // 8 == 0).all()
    assert (to[8:16, 0] // 8 == 1).all()


@pytest.mark.parametrize(("n", "node"), [(1, None), (7, None), (12, 4), (12, 3), (40, 8), (36, 12), (10, 1)])
def test_every_round_is_a_permutation_and_every_pair_meets_once(n: int, node: int | None) -> None:
    to = nccl_rounds(n, node)
    assert to.shape == (n, n)
    assert (np.sort(to, axis=0) == np.arange(n)[:, None]).all()
    assert (np.sort(to, axis=1) == np.arange(n)).all()
    assert to[0].tolist() == list(range(n))


def test_a_round_has_one_partner_each_way() -> None:
    s = pairwise_all_to_all(12, 144, 4)
    for column in (s.src, s.dst):
        assert len(set(zip(s.step.tolist(), column.tolist(), strict=True))) == s.rows


def test_a_ring_makes_all_hops_to_the_next_rank() -> None:
    s = ring_all_to_all(6, 36)
    moves = s.src != s.dst
    assert ((s.dst - s.src)[moves] % 6 == 1).all()
    assert moves.sum() == 6 * 15


def test_rails_cross_nodes_only_between_equal_local_ranks() -> None:
    s = hierarchical_all_to_all(12, 144, 4)
    across = s.src // 4 != s.dst // 4
    assert (s.src[across] % 4 == s.dst[across] % 4).all()
    # One message of g blocks from each rank to each other node, instead of g messages.
    messages = np.unique(np.stack([s.step, s.src, s.dst], axis=1)[across], axis=0)
    assert len(messages) == 12 * 2
    assert across.sum() == 12 * 2 * 4


def test_counts_may_be_zero_and_must_fit() -> None:
    check(pairwise_all_to_all_v(3, 8, counts=[[0, 0, 1], [0, 0, 0], [1, 0, 0]], itemsize=4))
    with pytest.raises(ScheduleError, match=r"counts of shape \(3, 3\) add up to 8 bytes, expected \(3, 3\) counts"):
        pairwise_all_to_all_v(3, 9, counts=[[0, 0, 1], [0, 0, 0], [1, 0, 0]], itemsize=4)
    with pytest.raises(ScheduleError, match=r"counts of shape \(2,\)"):
        pairwise_all_to_all_v(2, 2, counts=[1, 1])
    with pytest.raises(ScheduleError, match="5 ranks are no whole number of nodes of 2 ranks"):
        nccl_rounds(5, 2)
