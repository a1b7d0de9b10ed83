"""Laws of every algorithm on simulated machines: no time below the bounds; scaling all rates scales time."""

from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from commsim.bounds import lower_bound_s
from commsim.collectives.prove import proof_bytes
from commsim.collectives.registry import build, entry, names
from commsim.engine.evaluate import evaluate
from commsim.engine.least import least
from commsim.engine.placement import place
from commsim.engine.program import build_program
from commsim.engine.simulate import simulate
from commsim.errors import ScheduleError, TopologyError
from commsim.topology.aggregation import SwitchTree
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset

MACHINES = [("hgx-h100", 1), ("hgx-a100-4-hdr200", 3), ("hgx-h100-ndr400", 2)]


@cache
def machine(name: str, nodes: int) -> Topology:
    return load_preset(name, nodes=nodes)


@st.composite
def runs(draw: st.DrawFn) -> tuple[Any, Topology]:
    name, nodes = draw(st.sampled_from(MACHINES))
    topology = machine(name, nodes)
    n = topology.world_size
    collective, algorithm = draw(st.sampled_from(names()))
    root = draw(st.integers(0, n - 1)) if "root" in entry(collective, algorithm).takes else 0
    nbytes = proof_bytes(collective, n) * draw(st.sampled_from([1, 1000, 1_000_000]))
    channels, chunks = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    node = topology.ranks_per_node
    switches = None
    if entry(collective, algorithm).adds_in == "network" and topology.nodes > 1 and draw(st.booleans()):
        with suppress(TopologyError):  # rails without spines have no switch above all ranks
            SwitchTree(topology)(np.arange(n))
            switches = SwitchTree(topology)
    schedule = build(
        collective, algorithm, n, nbytes, root, channels=channels, chunks=chunks, ranks_per_node=node, switches=switches
    )
    try:
        place(schedule, topology)
    except ScheduleError:  # no such switch here
        assume(False)
    return schedule, topology


@given(run=runs())
@settings(max_examples=120)
def test_no_schedule_is_quicker_than_the_lower_bound(run: tuple[Any, Topology]) -> None:
    schedule, topology = run
    adds = schedule.endpoints > schedule.world_size
    bound = lower_bound_s(schedule.collective, schedule.nbytes, topology, in_network=adds, root=schedule.root)
    assert evaluate(schedule, topology).makespan_s >= bound.seconds * (1 - 1e-9)


@given(run=runs(), factor=st.sampled_from([2.0, 4.0, 0.5]))
@settings(max_examples=80)
def test_all_rates_and_latencies_scaled_together_scale_the_time_exactly(
    run: tuple[Any, Topology], factor: float
) -> None:
    schedule, topology = run
    slow = evaluate(schedule, topology, "event").makespan_s
    quick = evaluate(schedule, topology.scaled(bandwidth=factor, latency=1 / factor), "event").makespan_s
    assert quick == slow / factor


@given(run=runs(), joined=st.sampled_from([1, 4, 1024]))
@settings(max_examples=60)
def test_joins_change_no_time(run: tuple[Any, Topology], joined: int) -> None:
    schedule, topology = run
    plain = simulate(build_program(schedule, topology))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("commsim.collectives.dependencies._JOINED", joined)
        program = build_program(schedule, topology, joins=True)
    with_joins = simulate(program)
    assert np.array_equal(plain.end_s, with_joins.end_s[: schedule.rows])
    assert np.array_equal(plain.start_s, with_joins.start_s[: schedule.rows])


@pytest.mark.parametrize(("collective", "algorithm"), names())
@pytest.mark.parametrize(("name", "nodes"), MACHINES)
def test_no_simulation_stays_below_the_least(
    collective: str, algorithm: str, name: str, nodes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only some chunks are followed; and rows depend on the number of pieces, not on the size."""
    monkeypatch.setattr("commsim.engine.least._ROWS", 40)
    topology = machine(name, nodes)
    n, node = topology.world_size, topology.ranks_per_node
    large = build(collective, algorithm, n, 4 * n * n << 24, itemsize=4, ranks_per_node=node)
    try:
        bound = least(large, topology, 4)
    except ScheduleError:  # no such switch here
        return
    for nbytes in (0, 4 * n * n, 4 * n * n * 1009):
        schedule = build(collective, algorithm, n, nbytes, itemsize=4, ranks_per_node=node)
        assert np.array_equal(schedule.src_chunk, large.src_chunk)
        assert np.array_equal(schedule.dst, large.dst)
        assert evaluate(schedule, topology).makespan_s >= bound.seconds(nbytes) * (1 - 1e-9)
    pieces = build(collective, algorithm, n, 4 * n * n * 1009, chunks=3, itemsize=4, ranks_per_node=node)
    assert evaluate(pieces, topology).makespan_s >= bound.seconds(pieces.nbytes) * (1 - 1e-9)


def test_all_reduce_by_two_shots_needs_fewer_latencies_than_a_ring() -> None:
    topology = machine("hgx-h100", 1)
    small = {a: evaluate(build("all_reduce", a, 8, 64), topology).makespan_s for a in ("ring", "direct_two_shot")}
    assert small["direct_two_shot"] < small["ring"] / 3
    large = {a: evaluate(build("all_reduce", a, 8, 1 << 30), topology).makespan_s for a in ("ring", "direct_two_shot")}
    assert large["direct_two_shot"] == pytest.approx(large["ring"], rel=0.01)
