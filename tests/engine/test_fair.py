"""Fair sharing: values by hand, another simulator's figures, plain progressive filling, and the laws."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from typing import Any

import naive_fair
import numpy as np
import pytest
from hypothesis import given
from interpreted import interpret
from programs import all_to_all, on_switch, program, random_programs

from commsim.collectives.ring import ring_all_reduce
from commsim.collectives.tree import tree_all_reduce
from commsim.engine.fair import connections, simulate_fair
from commsim.engine.program import Program
from commsim.engine.simulate import simulate
from commsim.errors import InfeasibleError, ScheduleError


def test_two_messages_share_a_link() -> None:
    done = simulate_fair(program([1000, 3000], [[0], [0]], bandwidth=[1e9], latency=[2e-6]))
    assert done.end_s.tolist() == pytest.approx([4e-6, 6e-6], rel=1e-12)
    assert done.start_s.tolist() == [0.0, 0.0]


def test_a_flow_takes_what_another_cannot_use() -> None:
    """Bertsekas & Gallager: the flow held back at 1 GB/s elsewhere leaves 3 of 4 GB/s to its neighbour."""
    p = program([1000, 3000], [[0, 1], [1]], bandwidth=[1e9, 4e9], latency=[0, 0])
    assert simulate_fair(p).end_s.tolist() == pytest.approx([1e-6, 1e-6], rel=1e-12)


def test_messages_of_one_connection_follow_each_other() -> None:
    p = program([1000, 1000], [[0], [0]], bandwidth=[1e9], latency=[0])
    one = dataclasses.replace(p, route=np.zeros(2, np.int32))
    assert simulate_fair(one).end_s.tolist() == pytest.approx([1e-6, 2e-6])
    assert simulate_fair(one, np.arange(2, dtype=np.int32)).end_s.tolist() == pytest.approx([2e-6, 2e-6])


@pytest.mark.parametrize(("n", "us"), [(64, 291.151), (256, 1178.467), (1024, 4727.733)])
def test_rings_take_what_simgrid_says(n: int, us: float) -> None:
    """SimGrid 3.32, CM02, TCP-gamma 0, crosstraffic 0, weight-S 0: 64 KiB steps, 50 GB/s, 1 us end to end."""
    done = simulate_fair(on_switch(ring_all_reduce(n, 65536 * n)))
    assert round(done.makespan_s * 1e6, 3) == us


@pytest.mark.parametrize(("n", "us"), [(64, 1322.206), (128, 2664.383)])
def test_all_to_all_takes_what_simgrid_says(n: int, us: float) -> None:
    """As above, 1 MiB per pair."""
    assert round(simulate_fair(all_to_all(n, 1 << 20)).makespan_s * 1e6, 3) == us


@given(random_programs(20))
def test_equals_plain_progressive_filling(p: Program) -> None:
    rng = np.random.default_rng(p.rows)
    conn = rng.integers(0, 3, p.rows).astype(np.int32) * p.rows + p.route
    assert simulate_fair(p).end_s == pytest.approx(naive_fair.simulate_fair(p).end_s, rel=1e-9)
    assert simulate_fair(p, conn).end_s == pytest.approx(naive_fair.simulate_fair(p, conn).end_s, rel=1e-9)


@pytest.mark.parametrize("seed", range(12))
def test_many_flows_that_stop_and_start_equal_plain_filling(seed: int) -> None:
    """Long runs on few links, with ties and without: rates kept from before must be those found anew."""
    rng = np.random.default_rng(seed)
    links, rows = int(rng.integers(2, 9)), int(rng.integers(30, 70))
    p = program(
        rng.integers(1, 9 if seed % 3 == 0 else 10**6, rows).tolist(),
        [rng.choice(links, size=int(rng.integers(1, min(4, links) + 1)), replace=False).tolist() for _ in range(rows)],
        [(int(a), int(b)) for a, b in rng.integers(0, rows, (rows // 2, 2)) if a < b],
        bandwidth=(rng.choice([1.0, 2.0, 3.0, 5.0], links) if seed % 2 else rng.uniform(1, 5, links)).tolist(),
        latency=rng.choice([0.0, 0.5], links).tolist(),
        delay_s=rng.choice([0.0, 0.0, 1.0, 3.0], rows).tolist(),
    )
    assert simulate_fair(p).end_s == pytest.approx(naive_fair.simulate_fair(p).end_s, rel=1e-12)


@given(random_programs(12))
def test_plain_progressive_filling_is_max_min(p: Program) -> None:
    """No link above its bandwidth, every flow has a full link on which none is faster, rates add up to the bytes."""
    run, moved = naive_fair.simulate_fair(p), 0.0
    for seconds, routes, rates in run.intervals:
        load, fastest = np.zeros(p.links), np.zeros(p.links)
        for route, rate in zip(routes, rates, strict=True):
            load[route] += rate
            fastest[route] = np.maximum(fastest[route], rate)
            moved += rate * seconds
        full = load >= p.link_bandwidth * (1 - 1e-9)
        assert (load <= p.link_bandwidth * (1 + 1e-9)).all()
        for route, rate in zip(routes, rates, strict=True):
            assert any(full[link] and fastest[link] <= rate * (1 + 1e-9) for link in route)
    assert moved == pytest.approx(p.nbytes[p.hops() > 0].sum(), rel=1e-9, abs=1e-3)


@given(random_programs(15))
def test_compiled_equals_interpreted(p: Program) -> None:
    compiled = simulate_fair(p)
    with pytest.MonkeyPatch.context() as patch:
        interpret(patch)
        plain = simulate_fair(p)
    assert plain.end_s == pytest.approx(compiled.end_s, rel=1e-12)
    assert plain.method == compiled.method


@pytest.mark.parametrize("n", [2, 5, 16])
def test_equals_fifo_without_contention(n: int) -> None:
    p = on_switch(ring_all_reduce(n, 65536 * n))
    assert simulate_fair(p).end_s == pytest.approx(simulate(p).end_s, rel=1e-9)


@given(random_programs())
def test_never_faster_than_the_busiest_link(p: Program) -> None:
    done = simulate_fair(p)
    assert (done.link_bytes / p.link_bandwidth <= done.makespan_s * (1 + 1e-9)).all()
    assert np.array_equal(done.link_bytes, p.link_bytes())
    before = np.repeat(np.arange(p.rows), np.diff(p.succ_ptr))
    assert (done.end_s[before] <= done.ready_s[p.succ_idx]).all()
    assert (done.ready_s + p.delay_s <= done.start_s * (1 + 1e-12)).all()


@given(random_programs())
def test_two_runs_are_identical_and_powers_of_two_scale(p: Program) -> None:
    a = simulate_fair(p).end_s
    assert np.array_equal(a, simulate_fair(p).end_s)
    faster = dataclasses.replace(
        p, link_bandwidth=p.link_bandwidth * 4, link_latency=p.link_latency / 4, delay_s=p.delay_s / 4
    )
    assert simulate_fair(faster).end_s * 4 == pytest.approx(a, rel=1e-9)


def test_a_coarse_quantum_ends_early_and_says_that_it_is_not_exact() -> None:
    rng = np.random.default_rng(1)
    p = all_to_all(16, rng.integers(1, 1 << 20, 240))
    exact, coarse = simulate_fair(p), simulate_fair(p, quantum=1e-3)
    assert exact.exact
    assert not coarse.exact
    assert 0.99 * exact.makespan_s < coarse.makespan_s <= exact.makespan_s * (1 + 1e-12)
    with pytest.raises(ValueError, match="quantum of 1"):
        simulate_fair(p, quantum=1)


def test_trees_do_better_than_in_queues() -> None:
    """engine.md's finding that chunks of one connection must queue: else this takes five times as long."""
    schedule = tree_all_reduce(16, 16 << 20, channels=2, ranks_per_node=1, chunks=32)
    p = on_switch(schedule)
    assert simulate_fair(p, connections(schedule)).makespan_s < simulate(p).makespan_s * 1.05


def test_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    p = program([1, 1], [[0], [1]], [(0, 1), (1, 0)], bandwidth=[1, 1], latency=[0, 0])
    with pytest.raises(ScheduleError, match="cycle"):
        simulate_fair(p)
    free = program([1, 1], [[0], [1]], bandwidth=[1, 1], latency=[0, 0])
    with pytest.raises(ValueError, match="one connection on different routes"):
        simulate_fair(free, np.zeros(2, np.int32))
    with pytest.raises(InfeasibleError, match="no critical path"):
        simulate_fair(free).critical_path()
    empty: Any = simulate_fair(program([], [], bandwidth=[1], latency=[0]))
    assert empty.makespan_s == 0.0
    monkeypatch.setattr("commsim.memory.machine_bytes", lambda: 20)
    with pytest.raises(InfeasibleError, match="chunk moves needs about"):
        simulate_fair(free)


def test_the_module_does_not_import_numba() -> None:
    code = "import sys, commsim.engine.fair, commsim.engine.fold; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
