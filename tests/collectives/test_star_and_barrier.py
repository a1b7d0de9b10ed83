"""Stars, barriers and the double tree with a root."""

import numpy as np
import pytest

from commsim.collectives.barrier import dissemination_barrier, flat_barrier, ring_barrier
from commsim.collectives.check import check
from commsim.collectives.double_tree import double_tree_broadcast, double_tree_reduce
from commsim.collectives.star import flat_all_reduce, parameter_server_all_reduce
from commsim.errors import ScheduleError


def test_a_server_of_its_own_carries_one_array_more_than_one_among_the_ranks() -> None:
    own, among = parameter_server_all_reduce(5, 100), flat_all_reduce(5, 100, root=2)
    assert (own.received_bytes()[5], among.received_bytes()[2]) == (500, 400)
    assert own.endpoints == 6
    assert own.steps == among.steps == 2


@pytest.mark.parametrize("n", [1, 2, 3, 7, 8, 33])
def test_dissemination_hears_from_everybody_in_ceil_log2_steps(n: int) -> None:
    s = dissemination_barrier(n)
    check(s)
    assert s.steps == (n - 1).bit_length()
    assert s.nbytes == 0


def test_barriers_have_the_steps_of_what_they_are_made_of() -> None:
    assert flat_barrier(9, 0, root=4).steps == 2
    assert ring_barrier(9, 0, root=4).steps == 16


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 16, 31])
def test_a_double_tree_is_logarithmic_and_loads_no_rank_but_one_with_more_than_its_share(n: int) -> None:
    for root in {0, n // 2, n - 1}:
        down, up = double_tree_broadcast(n, 1000, root=root), double_tree_reduce(n, 1000, 2, root, 3)
        check(down)
        check(up)
        assert down.root == up.root == root
        assert down.steps <= 2 * n.bit_length()
        # Two children in one tree, none in the other; with an odd number of others one rank is interior twice.
        assert np.sort(down.sent_bytes())[: n - 1].max(initial=0) <= 1000


def test_a_double_tree_needs_a_root_among_the_ranks() -> None:
    with pytest.raises(ScheduleError, match=r"root 3 is not one of the ranks 0..2"):
        double_tree_broadcast(3, 8, root=3)
