"""Folding by translation: every message and every link as in the full run, or a reason why not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from commsim.engine.fair import simulate_fair
from commsim.engine.family import Family, Phase, Totals, hierarchical_family, ring_family
from commsim.engine.fold import Folded, fold, run_folded
from commsim.engine.simulate import simulate
from commsim.errors import ScheduleError
from commsim.topology.faults import degraded
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset
from commsim.topology.spec import FaultSpec

_TOPOLOGIES = {
    "node": lambda: load_preset("hgx-h100"),
    "one leaf": lambda: load_preset("hgx-h100-ndr400", nodes=4),
    "rails 4:1": lambda: load_preset("hgx-h100-ndr400", nodes=8, nodes_per_leaf=2, oversubscription=4.0),
    "fat tree 4:1": lambda: load_preset(
        "hgx-h100-ndr400", nodes=8, nodes_per_leaf=2, oversubscription=4.0, fabric={"kind": "fat_tree", "spines": 3}
    ),
}


def folded_totals(family: Family, topology: Topology) -> Totals | str:
    """The Totals by folding, or the reason why not."""
    folded = fold(family, topology)
    return folded if isinstance(folded, str) else run_folded(folded)


def _families(n: int) -> list[Family]:
    return [
        ring_family("all_reduce", n, n * 12 << 14, 3, pipeline=2),
        ring_family("all_gather", n, n << 10),
        hierarchical_family(n, n * 2 << 14, 8, 2),
    ]


@pytest.mark.parametrize("name", list(_TOPOLOGIES))
@pytest.mark.parametrize("which", [0, 1, 2])
def test_folded_is_full_for_every_message_and_link(name: str, which: int) -> None:
    topology = _TOPOLOGIES[name]()
    n = topology.world_size
    family = _families(n)[which]
    folded = fold(family, topology)
    assert isinstance(folded, Folded), folded
    assert folded.senders < n
    for run in (simulate, simulate_fair):
        full, part = run(family.program(topology)), run(folded.program())
        shape = (family.steps, family.lanes, -1)
        spread = part.end_s.reshape(shape)[:, :, np.arange(n) % folded.period // folded.rail]
        assert full.end_s.reshape(shape) == pytest.approx(spread, rel=1e-12 if run is simulate_fair else 0)
        assert np.array_equal(full.link_bytes[folded.link], part.link_bytes)
        assert np.array_equal(part.link_bytes, folded.link_bytes())
    total = run_folded(folded)
    full = simulate(family.program(topology))
    assert total.makespan_s == full.makespan_s
    assert total.link_busy_s == pytest.approx(full.link_busy_s[folded.link], rel=1e-12)
    assert np.array_equal(total.link_bytes, full.link_bytes[folded.link])


def test_hierarchical_all_reduce_on_1024_gpus_is_the_full_run() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=128, oversubscription=4.0)
    family = hierarchical_family(1024, 1024 << 12, 8)
    total = folded_totals(family, topology)
    assert not isinstance(total, str)
    assert total.part == "32 of 1024 ranks"
    assert total.makespan_s == simulate(family.program(topology)).makespan_s


def test_hierarchical_all_reduce_on_102400_gpus() -> None:
    """2.6 billion messages; the bar on its time stands in the benchmarks. Every block goes round all nodes, and so
    pays the mean latency of a hop, of which one in 32 crosses a spine; bytes per rank hardly change with the nodes."""
    spent, hop_s = [], 0.0
    for nodes in (6_400, 12_800):
        topology = load_preset("hgx-h100-ndr400", nodes=nodes, oversubscription=4.0)
        total = folded_totals(hierarchical_family(8 * nodes, 102_400 << 10, 8), topology)
        assert not isinstance(total, str)
        assert total.messages == (14 + 2 * (nodes - 1)) * 8 * nodes
        spent.append(total.makespan_s)
        hop_s = np.mean([topology.link_latency[topology.route(8 * r, 8 * r + 8)].sum() for r in range(32)])
    assert spent[1] - spent[0] == pytest.approx(2 * 6_400 * hop_s, rel=0.01)


def _crooked() -> Topology:
    topology = load_preset("hgx-h100-ndr400", nodes=4)
    latency = topology.link_latency.copy()
    latency[topology.route(8, 9)] *= 2
    return dataclasses.replace(topology, link_latency=latency)


@pytest.mark.parametrize(
    ("family", "topology", "period", "reason"),
    [
        (ring_family("all_reduce", 32, 3200), _crooked(), 8, "not the images of those of the next"),
        (
            ring_family("all_reduce", 32, 3200),
            load_preset("hgx-h100-ndr400", nodes=4),
            12,
            "no whole number of periods",
        ),
        (
            ring_family("all_reduce", 32, 3200),
            load_preset("hgx-h100-ndr400", nodes=4),
            32,
            "no whole number of periods",
        ),
        (ring_family("all_reduce", 16, 1600), load_preset("hgx-h100-ndr400", nodes=4), None, "16 of the 32 ranks"),
        (
            ring_family("all_reduce", 32, 3200, order=list(np.random.default_rng(1).permutation(32))),
            load_preset("hgx-h100-ndr400", nodes=4),
            None,
            "does not send alike",
        ),
        (
            ring_family("all_reduce", 64, 6400),
            load_preset("hgx-h100-ndr400", nodes=8, nodes_per_leaf=2, fabric={"kind": "fat_tree"}),
            8,
            "not the images",
        ),
    ],
)
def test_it_says_why_it_does_not_fold(family: Family, topology: Topology, period: int | None, reason: str) -> None:
    found = fold(family, topology, period)
    assert isinstance(found, str)
    assert reason in found


def test_the_order_of_numbers_is_checked_and_events_take_over() -> None:
    """Lanes that a slow crossing delays come late on a link which others use: the heap answers, as in the full run."""
    topology = load_preset("hgx-h100-ndr400", nodes=8, nodes_per_leaf=2, nics_per_node=1)
    family = hierarchical_family(64, 64 << 14, 8, 2)
    total = folded_totals(family, topology)
    if isinstance(total, str):
        assert "share one link" in total or "images" in total
    else:
        assert total.makespan_s == pytest.approx(simulate(family.program(topology)).makespan_s, rel=1e-12)


def test_the_period_is_the_topologys() -> None:
    """One leaf group of 2 nodes; none with a slow link, and then there is no folding."""
    topology = load_preset("hgx-h100-ndr400", nodes=8, nodes_per_leaf=2)
    found = fold(ring_family("all_reduce", 64, 64 << 10), topology)
    assert isinstance(found, Folded)
    assert found.period == topology.period_ranks == 16
    slow = degraded(topology, [FaultSpec(nic=(3, 0), bandwidth_factor=0.5)])
    assert fold(ring_family("all_reduce", 64, 64 << 10), slow) == (
        "hgx-h100-ndr400 does not repeat after any number of ranks"
    )


@pytest.mark.parametrize("all_ranks", [64, 63])
@pytest.mark.parametrize(("reach", "known"), [(8, True), (-8, True), (9, False), (16, False), (-16, False)])
def test_of_many_ranks_only_neighbours_of_a_period_are_folded(
    all_ranks: int, reach: int, known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not all periods are looked at, a message may go as far as the next one, and no further."""
    monkeypatch.setattr("commsim.engine.fold.CHECK_ALL_RANKS", all_ranks)
    topology = load_preset("hgx-h100-ndr400", nodes=8)
    ranks = np.arange(64)
    to = (ranks + reach) % 64 if reach % 8 == 0 else (ranks + 8) // 8 * 8 % 64 + (ranks + 1) % 8
    shift = Family("send_recv", "shift", 64, 64 << 10, (Phase(to, 1, 1 << 10),))
    folded = fold(shift, topology, 8)
    if known or all_ranks == 64:
        assert isinstance(folded, Folded), folded
    else:
        assert isinstance(folded, str)
        assert folded.startswith("the family reaches beyond the next period, which is only checked up to 63 ranks")


def test_a_family_has_one_connection_per_route_and_channel() -> None:
    """Two channels of two pieces: four messages a step from each of 8 ranks, on 16 connections."""
    family = ring_family("all_reduce", 8, 8 * 4 << 10, 2, pipeline=2)
    program = family.program(load_preset("hgx-h100"))
    connection = family.connections(program.route, 8).reshape(family.steps, 4, 8)
    assert np.unique(connection).size == 16
    assert (connection == connection[0]).all()
    assert np.array_equal(connection[:, 0], connection[:, 1])  # the pieces of a channel follow each other
    assert np.array_equal(connection[:, 2], connection[:, 3])
    assert not np.intersect1d(connection[:, 0], connection[:, 2]).size


def test_a_family_of_more_ranks_than_the_machine_has_is_no_program() -> None:
    with pytest.raises(ScheduleError, match="the schedule has 16 ranks, the topology hgx-h100 only 8"):
        ring_family("all_reduce", 16, 16 << 20).program(load_preset("hgx-h100"))


def test_a_node_of_two_kinds_of_ranks_is_not_turned() -> None:
    """Every second GPU hears late: the ring turned by two ranks is its own image, turned by one it is not."""
    topology = load_preset("hgx-h100-ndr400", nodes=4)
    latency = topology.link_latency.copy()
    for node in range(0, 32, 8):
        for rank in range(0, 8, 2):
            latency[topology.route(node + rank + 1, node + rank)[-1]] *= 10
    uneven = dataclasses.replace(topology, link_latency=latency)
    family = hierarchical_family(32, 32 << 12, 8)
    folded = fold(family, uneven, 8)
    assert isinstance(folded, Folded)
    assert folded.senders == 8
    assert run_folded(folded).makespan_s == simulate(family.program(uneven)).makespan_s
