"""Known algorithms beside the trees: small arrays come near the quickest way between two ranks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.collectives.check import check
from commsim.collectives.msccl import parse_msccl
from commsim.synthesis.aim import Aim
from commsim.synthesis.export import for_msccl
from commsim.synthesis.known import grouped_all_reduce, known_schedules
from commsim.synthesis.machine import machine_network
from commsim.synthesis.network import network_of
from commsim.synthesis.search import Synthesis, TreeSearch
from commsim.topology.presets import load_preset


def small(machine: str) -> Synthesis:
    """All_reduce of 1 KiB on one machine."""
    return TreeSearch(Aim(machine_network(load_preset(machine)), "all_reduce", 1024)).run()


@pytest.mark.parametrize(
    ("machine", "algorithm", "most"), [("hgx-h100", "direct_one_shot", 1.05), ("dgx-1v", "grouped_4x2", 1.15)]
)
def test_a_small_all_reduce_crosses_the_machine_once(machine: str, algorithm: str, most: float) -> None:
    best = small(machine)
    check(best.laid.schedule)
    assert best.known
    assert best.laid.schedule.algorithm == algorithm
    assert 1 <= best.ratio < most
    assert best.packed_s < best.seconds


@pytest.mark.parametrize("machine", ["hgx-h100", "dgx-1v"])
def test_it_is_written_for_msccl(machine: str) -> None:
    one, text = for_msccl(small(machine))
    back = parse_msccl(text, one.question.size)
    check(back)
    assert np.array_equal(back.sent_bytes(), one.laid.schedule.sent_bytes())


@given(st.lists(st.integers(2, 4), min_size=1, max_size=3), st.integers(1, 100))
def test_groups_of_any_sizes_reduce(sizes: list[int], nbytes: int) -> None:
    ranks = int(np.prod(sizes))
    schedule = grouped_all_reduce(ranks, nbytes, tuple(sizes))
    check(schedule)
    assert schedule.steps == len(sizes)
    assert set(schedule.sent_bytes().tolist()) == {nbytes * sum(size - 1 for size in sizes)}


@pytest.mark.parametrize("collective", ["all_reduce", "broadcast", "all_to_all", "gather"])
def test_ways_pass_no_other_rank(collective: str) -> None:
    network = machine_network(load_preset("dgx-1v"))
    own = set(network.ranks.tolist())
    for laid in known_schedules(network, collective, 64, 0, 1):
        check(laid.schedule)
        s = laid.schedule
        for src, dst, way in zip(s.src.tolist(), s.dst.tolist(), laid.way.tolist(), strict=True):
            edges = laid.ways[way]
            if src == dst:
                assert not edges
                continue
            assert (network.tail[edges[0]], network.head[edges[-1]]) == (network.ranks[src], network.ranks[dst])
            assert not own & {int(network.head[edge]) for edge in edges[:-1]}


def test_a_line_has_no_direct_exchange() -> None:
    links = [(a, b, 1e9, 1e-6) for a, b in (("a", "b"), ("b", "a"), ("b", "c"), ("c", "b"))]
    names = {laid.schedule.algorithm for laid in known_schedules(network_of(links, list("abc")), "all_reduce", 8, 0, 1)}
    assert "tree" in names
    assert not names & {"direct_one_shot", "grouped_3", "ring"}
