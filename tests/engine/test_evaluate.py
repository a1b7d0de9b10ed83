"""The ladder: the closed form answers only where it is proven, and then as the simulation does."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import on_switch

from commsim.collectives.ring import ring_all_gather, ring_all_reduce
from commsim.collectives.schedule import Schedule, both
from commsim.collectives.tree import tree_all_reduce
from commsim.engine.evaluate import evaluate, uniform_steps
from commsim.engine.simulate import Outcome, simulate
from commsim.errors import InfeasibleError
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


def test_unknown_engine() -> None:
    with pytest.raises(ValueError, match="unknown engine 'fast', expected auto"):
        evaluate(ring_all_reduce(8, 800), load_preset("hgx-h100"), cast(Any, "fast"))
