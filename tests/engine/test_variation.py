"""Jitter and stragglers: by hand, by their distributions, and the same for the same seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commsim.collectives.registry import build
from commsim.collectives.ring import ring_all_reduce
from commsim.engine.evaluate import evaluate
from commsim.engine.program import build_program
from commsim.engine.variation import Jitter, RepeatedTimes, Straggler, Variation, more_connections, repeated
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset

VIEWS = pytest.mark.parametrize("contention", ["fifo", "fair"])
RING = ring_all_reduce(8, 8 << 20)


@pytest.fixture(scope="module")
def node() -> Topology:
    return load_preset("hgx-h100")


def _times(node: Topology, variation: Variation, contention: Any = "fifo", schedule: Any = RING) -> list[float]:
    return [run.makespan_s for run in repeated(schedule, node, variation, contention)]


@VIEWS
def test_the_same_seed_gives_the_same_times_and_another_others(node: Topology, contention: Any) -> None:
    jitter = Jitter(1e-6)
    first = _times(node, Variation(5, 4, jitter), contention)
    assert first == _times(node, Variation(5, 4, jitter), contention)
    assert first[:2] == _times(node, Variation(5, 2, jitter), contention)
    assert len(set(first)) == 4
    assert not set(first) & set(_times(node, Variation(6, 4, jitter), contention))


@VIEWS
def test_nothing_varied_is_the_plain_run(node: Topology, contention: Any) -> None:
    plain = evaluate(RING, node, "event", contention=contention).makespan_s
    assert _times(node, Variation(), contention) == pytest.approx([plain], rel=1e-12)


@VIEWS
def test_a_slow_rank_slows_a_ring_by_its_factor(node: Topology, contention: Any) -> None:
    """The bytes of every step pass the slow rank: (alpha + 3 m / B) a step from the first step on it is in."""
    alpha, m, bandwidth = 0.5e-6, 1 << 20, 450e9
    (time,) = _times(node, Variation(stragglers=(Straggler((3,), factor=3.0),)), contention)
    plain = 14 * (alpha + m / bandwidth)
    assert plain < time < 14 * (alpha + 3 * m / bandwidth) * (1 + 1e-12)
    assert time > 13 * (3 * m / bandwidth)


@VIEWS
def test_a_late_rank_delays_a_ring_by_its_delay(node: Topology, contention: Any) -> None:
    plain = evaluate(RING, node, "event").makespan_s
    (time,) = _times(node, Variation(stragglers=(Straggler((3,), delay_s=1e-3),)), contention)
    assert time == pytest.approx(1e-3 + plain, rel=1e-9)


def test_nothing_is_sent_to_a_rank_that_has_not_come(node: Topology) -> None:
    """A leaf of a tree that comes late delays only itself; moves to it wait although their data is there."""
    schedule = build("broadcast", "binomial", 8, 1 << 20)
    leaf = int(np.setdiff1d(np.arange(8), schedule.src)[0])
    (run,) = repeated(schedule, node, Variation(stragglers=(Straggler((leaf,), delay_s=1e-3),)))
    start = run.start_s[1:]  # op 0 is the rank that comes
    assert (start[schedule.dst == leaf] >= 1e-3).all()
    assert (run.end_s[1:][schedule.dst != leaf] < 1e-3).all()


@pytest.mark.parametrize("distribution", ["exponential", "uniform", "lognormal"])
def test_draws_have_the_mean_asked_for(distribution: Any) -> None:
    draws = Jitter(3e-6, distribution, 0.5).draws(np.random.default_rng(0), 200_000)
    assert draws.min() >= 0
    assert draws.mean() == pytest.approx(3e-6, rel=0.01)
    if distribution == "uniform":
        assert draws.max() <= 6e-6


def test_jitter_adds_to_every_message_on_the_way(node: Topology) -> None:
    program = build_program(RING, node)
    varied, late = Variation(1, 1, Jitter(1e-6)).of(program, RING.src, RING.dst, node, np.random.default_rng(0))
    assert late == 0
    assert (varied.delay_s > 0).all()
    assert np.unique(varied.delay_s).size == program.rows
    assert varied.link_bandwidth is program.link_bandwidth


def test_ops_before_the_others_have_connections_of_their_own() -> None:
    connection = more_connections(np.array([0, 2, 0, 1], np.int32), 3)
    assert connection[3:].tolist() == [0, 2, 0, 1]
    assert len({*connection[:3].tolist(), 0, 1, 2}) == 6


def test_median_and_p99_are_those_of_the_runs() -> None:
    spread = RepeatedTimes(np.arange(1.0, 201.0))
    assert spread.median_s == 100.5
    assert spread.p99_s == 199.0  # of 200 runs two are as long or longer
    assert spread.typical in {99, 100}
    assert RepeatedTimes(np.array([2.0])).p99_s == 2.0


def test_more_jitter_takes_longer_on_average(node: Topology) -> None:
    medians = [
        RepeatedTimes(np.array(_times(node, Variation(0, 40, Jitter(mean))))).median_s for mean in (1e-7, 1e-6, 1e-5)
    ]
    assert medians == sorted(medians)
    assert medians[2] > 14 * 1e-5  # 14 steps, each waits for at least one draw of that mean


@VIEWS
def test_unlike_nodes_slow_a_ring_and_a_seed_repeats_them(contention: Any) -> None:
    nodes, ring = load_preset("hgx-h100-ndr400", nodes=3), ring_all_reduce(24, 24 << 20)
    plain = evaluate(ring, nodes, "event", contention=contention).makespan_s
    few, many = (Variation(4, 5, node_spread=spread) for spread in (0.01, 0.1))
    slow = _times(nodes, few, contention, ring)
    assert slow == _times(nodes, few, contention, ring)
    assert min(slow) >= plain * (1 - 1e-12)
    assert all(a <= b * (1 + 1e-12) for a, b in zip(slow, _times(nodes, many, contention, ring), strict=True))
    assert max(slow) < plain * 1.1
