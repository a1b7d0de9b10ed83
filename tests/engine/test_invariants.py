"""Laws of the engine that no other test of this folder holds by name: large rings, and where the two views agree."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import on_switch

from commsim.collectives.ring import ring_all_reduce
from commsim.collectives.schedule import relabel
from commsim.engine.evaluate import evaluate
from commsim.engine.fair import connections, simulate_fair
from commsim.engine.family import ring_family
from commsim.engine.program import build_program
from commsim.engine.simulate import simulate
from commsim.scenario.load import load_scenarios
from commsim.scenario.setting import build_topology
from commsim.topology.presets import load_preset


def test_a_ring_of_4096_is_its_closed_form(checkout: Path) -> None:
    """W1 with more hosts: 2(N-1)(c/50 GB/s + 2 us), step by step over 33.5 million messages."""
    scenario = load_scenarios(checkout / "scenarios" / "benchmarks" / "w1-ring-8.yaml", ["topology.nodes=4096"])[0]
    total = evaluate(ring_family("all_reduce", 4096, 1 << 30), build_topology(scenario), "wavefront")
    assert total.messages == 2 * 4095 * 4096
    assert total.makespan_s == pytest.approx(8190 * (2**18 / 50e9 + 2e-6), rel=1e-9)


@pytest.mark.parametrize("channels", [1, 8])
def test_rings_take_alike_in_both_views_under_contention(channels: int) -> None:
    """Eight nodes below four leaves, 4:1: rings of all channels cross the same uplinks."""
    topology = load_preset("hgx-h100-ndr400", nodes=8, nodes_per_leaf=2, oversubscription=4)
    schedule = ring_all_reduce(64, (64 << 16) * channels, channels)
    program = build_program(schedule, topology)
    fair = simulate_fair(program, connections(schedule)).makespan_s
    assert fair == pytest.approx(simulate(program).makespan_s, rel=1e-2 if channels > 1 else 5e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(3, 12), st.integers(0, 2**31))
def test_relabelling_ranks_on_a_switch_keeps_the_makespan(n: int, seed: int) -> None:
    """Sizes all different, so that nothing ties."""
    schedule = ring_all_reduce(n, n << 10)
    nbytes = np.random.default_rng(seed).integers(1 << 10, 1 << 20, schedule.rows)
    other = relabel(schedule, np.random.default_rng(seed).permutation(n))
    plain, moved = (simulate(on_switch(s, nbytes=nbytes.tolist())) for s in (schedule, other))
    assert np.array_equal(plain.end_s, moved.end_s)
