"""Switches that add and multicast: shapes, bytes on each side, steps."""

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.collectives.collnet import (
    collnet_chain_all_reduce,
    collnet_direct_all_gather,
    collnet_direct_all_reduce,
)
from commsim.collectives.nvls import nvls_all_reduce, nvls_tree_all_reduce
from commsim.collectives.schedule import Op
from commsim.collectives.sharp import sharp_all_reduce, sharp_broadcast, sharp_reduce, switch_tree
from commsim.collectives.tree import tree_all_reduce
from commsim.errors import ScheduleError


def test_nvls_takes_four_steps_and_one_and_a_bit_arrays_each_way() -> None:
    s = nvls_all_reduce(8, 800)
    assert s.steps == 4
    assert s.sent_bytes()[:8].tolist() == s.received_bytes()[:8].tolist() == [900] * 8
    assert ((s.src == 8) | (s.dst == 8)).all()


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 9])
def test_nvls_tree_carries_between_nodes_what_the_double_tree_carries(nodes: int) -> None:
    g = 4
    s = nvls_tree_all_reduce(nodes * g, 800, g)
    check(s)
    across = (s.src < nodes * g) & (s.dst < nodes * g)
    assert (s.src[across] % g == s.dst[across] % g).all()
    sent = np.bincount(s.src[across] // g, s.payload_bytes()[across], nodes)
    assert sent.tolist() == tree_all_reduce(nodes, 800, ranks_per_node=1).sent_bytes().tolist()


def test_a_node_of_collnet_sends_the_array_once_to_the_network() -> None:
    for build in (collnet_direct_all_reduce, collnet_chain_all_reduce):
        s = build(12, 800, 4)
        out = s.dst == 12
        assert np.bincount(s.src[out] // 4, s.payload_bytes()[out]).tolist() == [800] * 3
        assert (s.op[out] == Op.REDUCE).all()


def test_collnet_direct_all_gather_multicasts_each_block_once_into_the_switch() -> None:
    s = collnet_direct_all_gather(12, 1200, 4)
    assert s.received_bytes()[12] == 1200
    assert s.sent_bytes()[12] == 3 * 1200


@pytest.mark.parametrize(
    ("n", "radix", "switches"), [(1, 8, 0), (2, 8, 1), (8, 8, 1), (9, 8, 3), (16, 2, 15), (5, 2, 6)]
)
def test_trees_of_switches_have_as_many_as_the_radix_needs(n: int, radix: int, switches: int) -> None:
    assert sharp_all_reduce(n, 100, radix).endpoints == n + switches
    levels = switch_tree(n, radix)
    assert all(np.bincount(parent).max() <= radix for _, parent in levels)
    assert sharp_all_reduce(n, 100, radix).steps == 2 * len(levels)


@pytest.mark.parametrize("radix", [2, 3, 8])
def test_sharp_with_any_radix_and_root_is_correct(radix: int) -> None:
    for n, root in ((1, 0), (2, 1), (9, 8), (20, 7)):
        check(sharp_all_reduce(n, 10, radix))
        for build in (sharp_reduce, sharp_broadcast):
            s = build(n, 10, root, radix)
            check(s)
            assert s.sent_bytes()[:n].max() <= 10


def test_a_switch_of_one_port_is_no_tree() -> None:
    with pytest.raises(ScheduleError, match="radix is 0"):
        switch_tree(4, 1)
