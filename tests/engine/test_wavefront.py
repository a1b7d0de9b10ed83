"""The wavefront and the rules behind it: equal to the event kernel wherever both run."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import program

from commsim.collectives.ring import ring_all_gather, ring_all_reduce, ring_reduce_scatter
from commsim.engine.family import Family, hierarchical_family, ring_family
from commsim.engine.program import build_program
from commsim.engine.simulate import simulate
from commsim.engine.wavefront import last_ends, smallest_period, wavefront
from commsim.errors import ScheduleError
from commsim.topology.presets import load_preset

_BUILDERS = {
    "all_reduce": ring_all_reduce,
    "reduce_scatter": ring_reduce_scatter,
    "all_gather": ring_all_gather,
}


@pytest.mark.parametrize("collective", list(_BUILDERS))
@pytest.mark.parametrize(("channels", "pipeline"), [(1, 1), (2, 1), (1, 3), (2, 2)])
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_equals_the_event_kernel(collective: str, channels: int, pipeline: int, nodes: int) -> None:
    """Rings within a node and over nodes, where every eighth hop is longer and slower."""
    topology = load_preset("hgx-h100-ndr400", nodes=nodes, nodes_per_leaf=2)
    n = topology.world_size
    size = n * channels * pipeline << 16
    family = ring_family(collective, n, size, channels, pipeline=pipeline)
    found = wavefront(family, topology)
    full = simulate(build_program(_BUILDERS[collective](n, size, channels, pipeline=pipeline), topology))
    assert not isinstance(found, str)
    assert found.makespan_s == pytest.approx(full.makespan_s, rel=1e-9)
    assert found.messages == full.end_s.size
    assert np.array_equal(found.link_bytes, full.link_bytes[found.link])
    assert full.link_bytes.sum() == found.link_bytes.sum()
    assert found.link_busy_s == pytest.approx(full.link_busy_s[found.link], rel=1e-9)


@given(st.integers(2, 9), st.integers(1, 3), st.integers(0, 2**32 - 1), st.integers(1, 3))
def test_every_message_of_uneven_rings_equals_the_event_kernel(n: int, lanes: int, seed: int, hops: int) -> None:
    """Random bandwidths and latencies on routes of several hops: one server per route is all there is to know."""
    rng = np.random.default_rng(seed)
    bandwidth, latency = rng.uniform(1e9, 1e10, (n, hops)), rng.uniform(0, 1e-5, (n, hops))
    steps, chunk = 2 * (n - 1), int(rng.integers(1, 10**6))
    transfer = chunk / bandwidth.min(axis=1)
    every = np.concatenate([last_ends(transfer, latency.sum(axis=1), s + 1, lanes) for s in range(steps)])
    op = np.arange(steps * lanes * n)
    links = [[int(r) * hops + h for h in range(hops)] for r in op % n]
    edges = [(int(i), int((i // n + lanes) * n + (i % n + 1) % n)) for i in op[: -lanes * n]]
    p = program([chunk] * op.size, links, edges, bandwidth=list(bandwidth.ravel()), latency=list(latency.ravel()))
    assert simulate(p).end_s == pytest.approx(every.ravel(), rel=1e-9)


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        (hierarchical_family(16, 1600, 8), "has 3 phases"),
        (ring_family("all_reduce", 16, 1600, order=[0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15]), None),
        (ring_family("all_reduce", 4, 400), None),
    ],
)
def test_it_says_why_it_does_not_answer(family: Family, reason: str | None) -> None:
    found = wavefront(family, load_preset("hgx-h100-ndr400", nodes=2))
    if reason is None:
        assert not isinstance(found, str)
    else:
        assert reason in str(found)


def test_shared_links_are_noticed() -> None:
    """With one NIC per node, a ring that changes node at every hop meets itself there."""
    topology = load_preset("hgx-h100-ndr400", nodes=2, nics_per_node=1)
    family = ring_family("all_reduce", 16, 1600, order=[0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15])
    assert wavefront(family, topology) == "two routes share a link"


def test_families_are_their_schedules() -> None:
    """The rule and the builder mean the same messages: equal ends, sorted, though rows stand in another order."""
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    by_rule = simulate(ring_family("all_reduce", 16, 3200, 2).program(topology))
    built = simulate(build_program(ring_all_reduce(16, 3200, 2), topology))
    assert np.sort(by_rule.end_s) == pytest.approx(np.sort(built.end_s), rel=1e-12)
    assert np.array_equal(by_rule.link_bytes, built.link_bytes)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ring_family("all_reduce", 3, 100), "no 3 equal chunks"),
        (lambda: ring_family("all_to_all", 4, 400), "found a ring all_to_all, expected one of all_reduce"),
        (lambda: ring_family("all_reduce", 2, 400, 2, order=[[0, 1], [1, 0]]), "in different orders"),
        (lambda: hierarchical_family(10, 1000, 4), "no whole number of nodes of 4"),
        (lambda: hierarchical_family(8, 1001, 4), "no 8 equal chunks"),
        (lambda: wavefront(ring_family("all_reduce", 16, 1600), load_preset("hgx-h100")), "only 8"),
    ],
)
def test_what_is_refused(make: object, message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        make()  # type: ignore[operator]


def test_periods() -> None:
    assert smallest_period(np.arange(6.0)) == 6
    assert smallest_period(np.ones(6)) == 1
    assert smallest_period(np.tile([1.0, 2, 1], 4), np.ones(12)) == 3


def test_no_compiled_code_is_needed() -> None:
    code = (
        "import sys; from commsim.engine.wavefront import wavefront; from commsim.engine.family import ring_family;"
        "from commsim.topology.presets import load_preset;"
        "wavefront(ring_family('all_reduce', 8, 800), load_preset('hgx-h100')); sys.exit('numba' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
