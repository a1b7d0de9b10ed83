"""NCCL's double binary tree and everything that runs along trees."""

import doctest

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives import tree
from commsim.collectives.check import check
from commsim.collectives.double_tree import double_tree_broadcast
from commsim.collectives.tree import ATTACH, along_trees, double_binary_tree, rank_trees, tree_all_reduce
from commsim.errors import ScheduleError


def nccl_btree(n: int, r: int) -> tuple[int, int, int]:
    """Parent and children of node r, node by node as in NCCL's src/graph/trees.cc."""
    bit = 1
    while bit < n and not bit & r:
        bit <<= 1
    if r == 0:
        return -1, -1, bit >> 1 if n > 1 else -1
    up = (r ^ bit) | (bit << 1)
    if up >= n:
        up = r ^ bit
    low = bit >> 1
    down0 = r - low if low else -1
    down1 = r + low if low else -1
    while down1 >= n:
        down1 = r + low if low else -1
        low >>= 1
    return up, down0, down1


def nccl_dtree(n: int, r: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    if n % 2:
        second = [(x + 1) % n if x >= 0 else -1 for x in nccl_btree(n, (r - 1) % n)]
    else:
        second = [n - 1 - x if x >= 0 else -1 for x in nccl_btree(n, n - 1 - r)]
    return nccl_btree(n, r), (second[0], second[1], second[2])


@pytest.mark.parametrize("nodes", [*range(1, 41), 63, 64, 65, 100])
def test_shape_equals_the_rule_node_by_node(nodes: int) -> None:
    trees = double_binary_tree(nodes)
    for r in range(nodes):
        for k, expected in enumerate(nccl_dtree(nodes, r)):
            assert (int(trees.parent[k, r]), *trees.children[k, r].tolist()) == expected


@pytest.mark.parametrize("nodes", range(2, 40))
def test_no_node_but_the_ends_has_children_in_both_trees(nodes: int) -> None:
    interior = np.all(np.any(double_binary_tree(nodes).children >= 0, axis=2), axis=0)
    # The shifted tree of an odd number of nodes has its root next to the first tree's.
    assert interior[1:-1].sum() <= nodes % 2


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [(2, [1, 1]), (3, [1.5, 1, 1.5]), (4, [1, 2, 2, 1]), (8, [1, 2, 2, 2, 2, 2, 2, 1])],
)
@pytest.mark.parametrize("pattern", ATTACH)
@pytest.mark.parametrize("ppn", [1, 4])
def test_bytes_between_nodes(nodes: int, expected: list[float], pattern: str, ppn: int) -> None:
    s = tree_all_reduce(nodes * ppn, 1000, ranks_per_node=ppn, pattern=pattern)
    sender, receiver = s.src // ppn, s.dst // ppn
    out = np.zeros(nodes, np.int64)
    into = np.zeros(nodes, np.int64)
    across = sender != receiver
    np.add.at(out, sender[across], s.payload_bytes()[across])
    np.add.at(into, receiver[across], s.payload_bytes()[across])
    assert (out / 1000).tolist() == expected
    assert (into / 1000).tolist() == expected


def test_two_ranks_by_hand() -> None:
    s = tree_all_reduce(2, 10, channels=1, ranks_per_node=1)
    assert s.step.tolist() == [0, 1]
    assert s.op.tolist() == [1, 0]
    assert (s.src.tolist(), s.dst.tolist()) == ([1, 0], [0, 1])


def test_three_nodes_by_hand() -> None:
    # First tree: 1 below 2 below 0; second tree, shifted: 2 below 0 below 1.
    assert double_binary_tree(3).parent.tolist() == [[-1, 2, 0], [1, -1, 0]]


def test_one_node_is_one_chain_in_search_order() -> None:
    parent = rank_trees(4, 4, 2, chain=[2, 0, 3, 1])
    assert parent.tolist() == [[2, 3, -1, 0]] * 2


@pytest.mark.parametrize(("pattern", "places"), [("tree", {0}), ("balanced_tree", {0, 1}), ("split_tree", {1})])
def test_children_of_other_nodes_attach_where_the_pattern_says(pattern: str, places: set[int]) -> None:
    parent = rank_trees(8 * 4, 4, 2, pattern)
    channel, child = np.nonzero(parent >= 0)
    above = parent[channel, child]
    across = child // 4 != above // 4
    assert set((child[across] % 4).tolist()) == {0}
    assert set((above[across] % 4).tolist()) == places


@given(
    nodes=st.integers(1, 9),
    ppn=st.integers(1, 4),
    nbytes=st.integers(0, 1000),
    shape=st.tuples(st.integers(1, 5), st.integers(1, 4)),
    pattern=st.sampled_from(sorted(ATTACH)),
)
@settings(max_examples=60, deadline=None)
def test_tree_all_reduce_is_correct(nodes: int, ppn: int, nbytes: int, shape: tuple[int, int], pattern: str) -> None:
    channels, chunks = shape
    n = nodes * ppn
    s = tree_all_reduce(n, nbytes, channels, ppn, chunks, pattern=pattern)
    check(s)
    assert s.nbytes == nbytes
    assert s.sent_bytes().sum() == s.received_bytes().sum() == 2 * (n - 1) * nbytes


@pytest.mark.parametrize("n", range(1, 41))
def test_every_rank_count_is_correct(n: int) -> None:
    check(tree_all_reduce(n, 1001, 2, 1, 3))
    check(tree_all_reduce(n, 1001, 3))


def test_pieces_follow_each_other_one_step_apart() -> None:
    one, eight = (tree_all_reduce(16, 1024, 2, 1, k).steps for k in (1, 8))
    assert eight == one + 7


@given(data=st.data(), n=st.integers(1, 20), chunks=st.integers(1, 3))
@settings(max_examples=40, deadline=None)
def test_any_tree_reduces_broadcasts_and_does_both(data: st.DataObject, n: int, chunks: int) -> None:
    labels = data.draw(st.permutations(range(n)))
    parent = np.full((1, n), -1, np.int32)
    for i in range(1, n):
        parent[0, labels[i]] = labels[data.draw(st.integers(0, i - 1))]
    for collective, passes in (("reduce", 1), ("broadcast", 1), ("all_reduce", 2)):
        s = along_trees(collective, "any tree", parent, 100, chunks)
        check(s)
        assert s.sent_bytes().sum() == passes * (n - 1) * 100


def test_impossible_trees_are_refused() -> None:
    with pytest.raises(ScheduleError, match="whole number of nodes of 3"):
        tree_all_reduce(4, 8, 2, 3)
    with pytest.raises(ScheduleError, match="unknown tree pattern 'bush', expected one of tree"):
        tree_all_reduce(4, 8, 2, 2, pattern="bush")
    with pytest.raises(ScheduleError, match="does not name each local rank"):
        tree_all_reduce(4, 8, 2, 2, chain=[0, 0])
    with pytest.raises(ScheduleError, match="chain has the shape"):
        tree_all_reduce(4, 8, 2, 2, chain=[0])
    with pytest.raises(ScheduleError, match="nodes is 0"):
        double_binary_tree(0)
    with pytest.raises(ScheduleError, match="chunks is 0"):
        tree_all_reduce(4, 8, chunks=0)
    with pytest.raises(ScheduleError, match="round in a circle"):
        along_trees("reduce", "loop", np.array([[-1, 2, 1]], np.int32), 8)
    with pytest.raises(ScheduleError, match="one root"):
        along_trees("reduce", "forest", np.array([[-1, -1, 1]], np.int32), 8)
    with pytest.raises(ScheduleError, match="no all_gather along trees"):
        along_trees("all_gather", "tree", np.array([[-1, 0]], np.int32), 8)


def test_examples_in_docstrings_run() -> None:
    assert doctest.testmod(tree).failed == 0


def test_a_broadcast_is_one_piece_on_one_channel_from_rank_0_unless_asked_otherwise() -> None:
    """Two trees, so two chunks, cut anywhere between two bytes."""
    plain, asked = double_tree_broadcast(5, 101), double_tree_broadcast(5, 101, 1, 0, 1, itemsize=1)
    assert plain.rows == asked.rows
    assert plain.chunk_bytes.tolist() == asked.chunk_bytes.tolist() == [51, 50]
    assert plain.root == 0
