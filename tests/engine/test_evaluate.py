"""The ladder: the closed form answers only where it is proven, and then as the simulation does."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import on_switch

from commsim.collectives.chain import chain_broadcast
from commsim.collectives.direct import one_shot_all_reduce
from commsim.collectives.ring import ring_all_gather, ring_all_reduce
from commsim.collectives.schedule import Schedule, both
from commsim.collectives.tree import tree_all_reduce
from commsim.engine.evaluate import BothWays, evaluate, other_contention, synchronous, uniform_steps
from commsim.engine.family import Family, Totals, hierarchical_family, ring_family
from commsim.engine.simulate import Outcome, simulate
from commsim.errors import InfeasibleError, ScheduleError
from commsim.topology.presets import load_preset


@pytest.mark.parametrize("preset", ["hgx-h100", "dgx-2", "hgx-a100-4", "gb200-nvl72"])
def test_closed_form_and_simulation_agree(preset: str) -> None:
    topology = load_preset(preset)
    schedule = ring_all_reduce(topology.world_size, topology.world_size << 20)
    a, b = evaluate(schedule, topology), evaluate(schedule, topology, "event")
    assert (a.level, b.level) == ("closed_form", "event")
    for name in ("ready_s", "start_s", "end_s", "link_busy_s"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-9, abs=1e-15), name
    assert np.array_equal(a.link_bytes, b.link_bytes)
    assert a.critical_path().end_s[-1] == pytest.approx(a.makespan_s)


@given(st.integers(2, 12), st.integers(1, 1000), st.floats(1e6, 1e12), st.floats(0, 1e-3))
def test_wherever_the_conditions_hold_the_simulation_agrees(n: int, chunk: int, rate: float, latency: float) -> None:
    schedule = ring_all_gather(n, chunk * n)
    p = on_switch(schedule, bandwidth=rate, latency_s=latency)
    found = uniform_steps(p, schedule.step)
    assert isinstance(found, Outcome)
    assert found.end_s == pytest.approx(simulate(p).end_s, rel=1e-9)


def _uneven() -> Schedule:
    return ring_all_reduce(8, 801)


def _second_pass_free() -> Schedule:
    """The second pass waits for nothing: its rows would start at time 0."""
    ring = ring_all_reduce(8, 800)
    return ring.edit(known_dependencies=lambda: (np.zeros(ring.rows + 1, np.int64), np.zeros(0, np.int32)))


@pytest.mark.parametrize(
    ("schedule", "reason"),
    [
        (_uneven(), "differ in size"),
        (ring_all_reduce(8, 1600, channels=2), "one message in each step"),
        (_second_pass_free(), "does not wait for one of the step before"),
        (tree_all_reduce(8, 800, ranks_per_node=1, channels=1), "share a link|one message in each step"),
        (both([ring_all_gather(8, 800), ring_all_gather(8, 800, order=[0, 3, 6, 1, 4, 7, 2, 5])]), "share a link"),
        (ring_all_reduce(1, 800), "nothing to send"),
    ],
)
def test_the_closed_form_says_why_it_does_not_answer(schedule: Schedule, reason: str) -> None:
    topology = load_preset("hgx-h100")
    with pytest.raises(InfeasibleError, match=f"no closed form for .*({reason})"):
        evaluate(schedule, topology, "closed_form")
    assert evaluate(schedule, topology).level == "event"


def test_contention_across_nodes_is_simulated() -> None:
    """Two rings through one NIC per node share it; a closed form that ignored it would be twice too fast."""
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    assert evaluate(ring_all_reduce(16, 16 << 20), topology).level == "event"


def test_a_family_of_more_ranks_than_the_machine_has_is_refused() -> None:
    family = ring_family("all_reduce", 16, 16 << 20)
    with pytest.raises(ScheduleError, match="the schedule has 16 ranks, the topology hgx-h100 only 8"):
        synchronous(family, load_preset("hgx-h100"))


@pytest.mark.parametrize("column", ["link_latency", "link_bandwidth"])
def test_one_route_that_differs_in_latency_or_in_bandwidth_alone_is_enough_for_no_closed_form(column: str) -> None:
    topology = load_preset("hgx-h100")
    changed = getattr(topology, column).copy()
    changed[topology.route(2, 3)] *= 0.5
    family = ring_family("all_reduce", 8, 8 << 20)
    assert isinstance(synchronous(family, topology), Totals)
    uneven = dataclasses.replace(topology, **{column: changed})
    assert synchronous(family, uneven) == "the routes differ in latency or smallest bandwidth"


def test_one_message_alone_has_a_closed_form() -> None:
    """Two links of 50 GB/s and 0.5 us each."""
    schedule = chain_broadcast(2, 100_000)
    found = uniform_steps(on_switch(schedule), schedule.step)
    assert isinstance(found, Outcome)
    assert found.makespan_s == pytest.approx(1e-6 + 2e-6)


def test_unknown_engine() -> None:
    with pytest.raises(ValueError, match="unknown engine 'fast', expected auto"):
        evaluate(ring_all_reduce(8, 800), load_preset("hgx-h100"), cast(Any, "fast"))


@pytest.mark.parametrize("contention", ["fifo", "fair"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_the_levels_agree_where_they_overlap(nodes: int, contention: Any) -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=nodes, nodes_per_leaf=2, oversubscription=2.0)
    n = topology.world_size
    family = ring_family("all_reduce", n, n << 16)
    wanted = evaluate(family, topology, "event", contention=contention)
    levels = ["auto", "wavefront", "fold"] + (["closed_form"] if nodes == 1 else [])
    for level in levels:
        found = evaluate(family, topology, cast(Any, level), contention=contention)
        assert found.makespan_s == pytest.approx(wanted.makespan_s, rel=1e-9), level
        assert found.contention == contention
        assert found.exact
        assert found.link_bytes.max() == wanted.link_bytes.max()
        assert found.link_busy_s.max() == pytest.approx(wanted.link_busy_s.max(), rel=1e-9)
    assert evaluate(family, topology, contention=contention).level == ("closed_form" if nodes == 1 else "wavefront")


def test_phases_in_step_with_each_other_have_a_closed_form() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=4)
    family = hierarchical_family(32, 32 << 12, 8)
    a, b = evaluate(family, topology), evaluate(family, topology, "event")
    assert (a.level, b.level) == ("closed_form", "event")
    assert a.makespan_s == pytest.approx(b.makespan_s, rel=1e-9)
    assert dict(zip(a.link.tolist(), a.link_bytes.tolist(), strict=True)) == {
        k: v for k, v in enumerate(b.link_bytes.tolist()) if v
    }


@pytest.mark.parametrize(
    ("engine", "contention", "reason"),
    [
        ("wavefront", "fifo", "no wavefront for ring all_reduce here: it takes rings given as a family"),
        ("fold", "fifo", "no folding for ring all_reduce here: with FIFO links only a ring with equal chunks folds"),
    ],
)
def test_levels_that_rows_cannot_take(engine: Any, contention: Any, reason: str) -> None:
    with pytest.raises(InfeasibleError, match=reason):
        evaluate(ring_all_reduce(8, 800), load_preset("hgx-h100"), engine, contention=contention)


@pytest.mark.parametrize(
    ("engine", "family", "reason"),
    [
        ("closed_form", ring_family("all_reduce", 32, 3200), "differ in latency"),
        ("wavefront", hierarchical_family(32, 3200, 8), "has 3 phases"),
        ("fold", ring_family("all_reduce", 16, 1600), "16 of the 32 ranks"),
    ],
)
def test_levels_that_a_family_cannot_take(engine: Any, family: Family, reason: str) -> None:
    with pytest.raises(InfeasibleError, match=reason):
        evaluate(family, load_preset("hgx-h100-ndr400", nodes=4, nodes_per_leaf=2), engine)


def test_fair_sharing_folds_what_it_can() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=2, oversubscription=2.0)
    schedule = one_shot_all_reduce(16, 1 << 20)
    folded = evaluate(schedule, topology, contention="fair")
    full = evaluate(schedule, topology, "event", contention="fair")
    assert (folded.level, full.level) == ("fold", "fair")
    assert folded.end_s == pytest.approx(full.end_s, rel=1e-11)


def test_both_views_of_contention() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=4)
    tree = tree_all_reduce(32, 64 << 20, channels=2, ranks_per_node=8, chunks=16)
    both = other_contention(evaluate(tree, topology), tree)
    again = other_contention(evaluate(tree, topology, contention="fair"), tree)
    assert both.fifo_s == again.fifo_s
    assert both.fair_s == pytest.approx(again.fair_s, rel=1e-2)
    ring = ring_all_reduce(8, 8 << 20)
    assert not other_contention(evaluate(ring, load_preset("hgx-h100")), ring).differs
    assert BothWays(1.0, 1.2).differs
    assert not BothWays(1.0, 0.95).differs
    assert "20% apart" in str(BothWays(1.0, 1.2))


def test_unknown_contention() -> None:
    with pytest.raises(ValueError, match="unknown contention 'queue', expected fifo or fair"):
        evaluate(ring_all_reduce(8, 800), load_preset("hgx-h100"), contention=cast(Any, "queue"))
