"""The rings of gradient collectives, and the neighbour on the next node: by hand, and laws of every ring."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.training.flows import FlowBuilder, _next_node, rings
from commsim.training.mesh import Mesh


def test_two_rings_over_two_nodes_of_two_by_hand() -> None:
    """The first leaves its nodes at the second rank (0 1 | 2 3), the second at the first one (1 0 | 3 2)."""
    src, dst, ways = rings(np.array([[0, 1, 2, 3]]), 2)
    assert ways == 2
    assert list(zip(src.tolist(), dst.tolist(), strict=True)) == [
        (0, 1), (1, 2), (2, 3), (3, 0),
        (1, 0), (0, 3), (3, 2), (2, 1),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("group", "ranks_per_node"),
    [([0, 2, 4, 6], 8), ([0, 8, 16, 24], 8), ([0, 1, 2, 8], 8)],  # in a node; one rank on each; nodes that differ
)
def test_one_ring_in_the_order_of_the_group(group: list[int], ranks_per_node: int) -> None:
    src, dst, ways = rings(np.array([group]), ranks_per_node)
    assert (src.tolist(), dst.tolist(), ways) == (group, [*group[1:], group[0]], 1)


@given(nodes=st.integers(2, 5), per_node=st.integers(1, 4), groups=st.integers(1, 3))
def test_every_ring_visits_all_and_leaves_each_node_once(nodes: int, per_node: int, groups: int) -> None:
    """And the rings of a group leave a node at different ranks."""
    ranks_per_node = per_node * groups
    all_ranks = np.arange(nodes * ranks_per_node).reshape(nodes, per_node, groups)
    members = all_ranks.transpose(2, 0, 1).reshape(groups, -1)
    src, dst, ways = rings(members, ranks_per_node)
    assert ways == per_node
    exits = []
    for ring_src, ring_dst in zip(src.reshape(ways * groups, -1), dst.reshape(ways * groups, -1), strict=True):
        after = dict(zip(ring_src.tolist(), ring_dst.tolist(), strict=True))
        path = [int(ring_src[0])]
        while after[path[-1]] != path[0]:
            path.append(after[path[-1]])
        assert len(path) == len(set(path)) == nodes * per_node
        leaving = [r for r in path if r // ranks_per_node != after[r] // ranks_per_node]
        assert [after[r] // ranks_per_node for r in leaving] == [(r // ranks_per_node + 1) % nodes for r in leaving]
        assert len(leaving) == nodes
        exits += leaving
    assert len(exits) == len(set(exits))


def test_the_next_node_by_hand() -> None:
    groups = np.array([[0, 1, 4, 5, 8, 9], [2, 3, 6, 7, 10, 11]])  # two ranks on each of three nodes of four
    assert _next_node(groups, 4).tolist() == [[4, 5, 8, 9, 0, 1], [6, 7, 10, 11, 2, 3]]
    assert _next_node(np.array([[0, 1, 2, 3]]), 4).tolist() == [[3, 0, 1, 2]]  # all on one node: never onto itself


def hops(mesh: Mesh, ranks_per_node: int, *stream: Any, sharded: bool = False) -> list[tuple[int, int]]:
    """Sources and destinations of a stream."""
    builder = FlowBuilder(mesh, ranks_per_node, lambda collective, nbytes, ranks: 1.0, sharded=sharded)
    found = builder._all_hops(stream)
    return list(zip(found.src.tolist(), found.dst.tolist(), strict=True))


def test_the_hops_of_a_pass_are_those_that_leave_or_enter_its_own_node() -> None:
    """64 ranks on eight nodes: of the first node each rank sends to the second one, and hears from the last one."""
    out, into = [(r, r + 8) for r in range(8)], [(56 + r, r) for r in range(8)]
    assert hops(Mesh(dp=64), 8, "inside", 0, "dp", "cp", sharded=True) == out + into
    # Three ranks on one node, one on the next: what rank 1 sends to 0, and 2 to 1, takes no card.
    assert hops(Mesh(dp=4), 3, "inside", 0, "dp", "cp", sharded=True) == [(0, 3), (3, 2)]


def test_of_more_than_1024_hops_those_at_the_first_node_stand_for_all() -> None:
    around = [(r, (r + 1) % 1024) for r in range(1024)]
    assert hops(Mesh(dp=1024), 1, "reduce_scatter", 0, "dp", "cp") == around
    assert hops(Mesh(dp=1025), 1, "reduce_scatter", 0, "dp", "cp") == [(0, 1), (1024, 0)]
    # Of each of two rings over nodes of two the hop inside the first node, the one out and the one in.
    assert sorted(hops(Mesh(dp=1026), 2, "reduce_scatter", 0, "dp", "cp")) == [
        (0, 1), (0, 3), (1, 0), (1, 2), (1024, 1), (1025, 0),
    ]  # fmt: skip
