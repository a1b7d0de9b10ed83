"""Hierarchical and torus forms: shapes, steps, and which links they use."""

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.collectives.grid import (
    hierarchical_all_reduce,
    node_grid,
    torus_all_gather,
    torus_all_reduce,
    torus_reduce_scatter,
    torus_shape,
    usual_node,
)
from commsim.collectives.rails import hierarchical_broadcast, hierarchical_reduce
from commsim.errors import ScheduleError


@pytest.mark.parametrize("n", range(1, 41))
def test_any_rank_count_is_a_torus_and_has_nodes(n: int) -> None:
    assert np.prod(torus_shape(n, 2)) == np.prod(torus_shape(n, 3)) == np.prod(node_grid(n, None, 3)) == n
    assert usual_node(n) in range(1, 9)


@pytest.mark.parametrize(("levels", "steps"), [(2, 2 * (3 + 5)), (3, 2 * (3 + 1 + 2))])
def test_hierarchical_steps_are_those_of_a_ring_per_level(levels: int, steps: int) -> None:
    s = hierarchical_all_reduce(24, 2400, 4, levels=levels)
    check(s)
    assert s.steps == steps


@pytest.mark.parametrize(("nodes", "local"), [(2, 8), (5, 3), (4, 1), (1, 4)])
def test_bytes_between_nodes_are_those_of_a_ring_of_nodes_and_stay_on_the_rail(nodes: int, local: int) -> None:
    n = nodes * local
    s = hierarchical_all_reduce(n, 100 * n, local)
    across = s.src // local != s.dst // local
    assert (s.src[across] % local == s.dst[across] % local).all()
    out = np.bincount(s.src[across] // local, s.payload_bytes()[across], nodes)
    assert out.tolist() == [2 * (nodes - 1) / nodes * 100 * n] * nodes


@pytest.mark.parametrize("dims", [(4, 4), (2, 3), (5, 1), (2, 3, 4), (3, 3, 3), (1, 1, 1), (2, 2, 2, 2)])
def test_a_torus_uses_links_between_neighbours_alone_and_all_of_them_alike(dims: tuple[int, ...]) -> None:
    n = int(np.prod(dims))
    s = torus_all_reduce(n, n * 2 * len(dims) * 10, dims)
    check(s)
    assert s.steps == 2 * sum(d - 1 for d in dims)
    place = np.stack(np.unravel_index(np.arange(n), dims), axis=1)
    hop = (place[s.dst] - place[s.src]) % np.array(dims)
    assert ((hop != 0).sum(axis=1) == 1).all()
    assert all(set(hop[:, k].tolist()) <= {0, 1, dims[k] - 1} for k in range(len(dims)))
    if len(set(dims)) == 1 and dims[0] > 2:
        links, moved = np.unique(s.src * n + s.dst, return_counts=True)
        assert len(links) == 2 * len(dims) * n
        assert len(set(moved.tolist())) == 1


def test_the_parts_of_a_torus_start_along_other_dimensions_and_directions() -> None:
    s = torus_reduce_scatter(16, 1600)
    first = s.step == 0
    hops = {c: int(((s.dst - s.src)[first & (s.channel == c)] % 16).min()) for c in range(4)}
    assert len(set(hops.values())) == 4


def test_shapes_must_hold_the_ranks() -> None:
    with pytest.raises(ScheduleError, match="a torus of 2x3 has 6 ranks, found 7"):
        torus_all_gather(7, 42, (2, 3))
    with pytest.raises(ScheduleError, match="7 ranks are no whole number of nodes of 2 ranks"):
        hierarchical_all_reduce(7, 42, 2)


@pytest.mark.parametrize("root", [0, 5, 11])
def test_a_hierarchical_broadcast_enters_each_node_once(root: int) -> None:
    for build in (hierarchical_broadcast, hierarchical_reduce):
        s = build(12, 100, root, 4)
        check(s)
        across = s.src // 4 != s.dst // 4
        assert across.sum() == 2
        assert set(s.src[across] % 4) | set(s.dst[across] % 4) == {root % 4}
