"""Laws of every algorithm on simulated machines: no time below the bounds; scaling all rates scales time."""

from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives.prove import proof_bytes
from commsim.collectives.registry import build, entry, names
from commsim.engine.evaluate import evaluate
from commsim.network.bounds import lower_bound_s
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset


@cache
def machine(name: str, nodes: int) -> Topology:
    return load_preset(name, nodes=nodes)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Any, Topology]:
    name, nodes = draw(st.sampled_from([("hgx-h100", 1), ("hgx-a100-4-hdr200", 3), ("hgx-h100-ndr400", 2)]))
    topology = machine(name, nodes)
    n = topology.world_size
    collective, algorithm = draw(st.sampled_from(names()))
    root = draw(st.integers(0, n - 1)) if "root" in entry(collective, algorithm).takes else 0
    nbytes = proof_bytes(collective, n) * draw(st.sampled_from([1, 1000, 1_000_000]))
    channels, chunks = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    node = topology.ranks_per_node
    return build(collective, algorithm, n, nbytes, root, channels, chunks, ranks_per_node=node), topology


@given(run=runs())
@settings(max_examples=120)
def test_no_schedule_between_ranks_is_quicker_than_the_lower_bound(run: tuple[Any, Topology]) -> None:
    schedule, topology = run
    if schedule.endpoints > schedule.world_size:
        return  # switches of a schedule have no place on a topology of ranks
    bound = lower_bound_s(schedule.collective, schedule.nbytes, topology, root=schedule.root)
    assert evaluate(schedule, topology).makespan_s >= bound.seconds * (1 - 1e-9)


@given(run=runs(), factor=st.sampled_from([2.0, 4.0, 0.5]))
@settings(max_examples=80)
def test_all_rates_and_latencies_scaled_together_scale_the_time_exactly(
    run: tuple[Any, Topology], factor: float
) -> None:
    schedule, topology = run
    if schedule.endpoints > schedule.world_size:
        return
    slow = evaluate(schedule, topology, "event").makespan_s
    quick = evaluate(schedule, topology.scaled(bandwidth=factor, latency=1 / factor), "event").makespan_s
    assert quick == slow / factor


def test_all_reduce_by_two_shots_needs_fewer_latencies_than_a_ring() -> None:
    topology = machine("hgx-h100", 1)
    small = {a: evaluate(build("all_reduce", a, 8, 64), topology).makespan_s for a in ("ring", "direct_two_shot")}
    assert small["direct_two_shot"] < small["ring"] / 3
    large = {a: evaluate(build("all_reduce", a, 8, 1 << 30), topology).makespan_s for a in ("ring", "direct_two_shot")}
    assert large["direct_two_shot"] == pytest.approx(large["ring"], rel=0.01)
