"""Noise under NCCL: the laws of draws, and a ring and a node by hand."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import commsim as cs
from commsim.collectives.tree import double_binary_tree
from commsim.engine.variation import Jitter, Variation
from commsim.errors import ScenarioError
from commsim.nccl import noise
from commsim.nccl.lower import lower_ring
from commsim.nccl.noise import noise_of, ring_ends, rounds_end
from commsim.nccl.nvls import Rounds
from commsim.nccl.predict import Options, Prediction, Predictor
from commsim.nccl.timing import ring_wavefront
from commsim.topology.presets import load_preset

SIZES = st.sampled_from([8, 100_000, 1 << 20, 16 << 20])
_SHARP = Prediction(1 << 20, 1e-3, 1e-3, 1e-5, "collnet_chain", "Simple", 8, "NIC", "closed_form", busy_s=1e-3)
SETTINGS = settings(max_examples=25, deadline=None)


@cache
def _model(nodes: int, algorithm: str | None) -> Predictor:
    return Predictor(load_preset("hgx-h100-ndr400", nodes=nodes), Options(algorithm=algorithm))


def _later(nodes: int, algorithm: str | None, size: int, variation: Variation, collective: str = "all_reduce") -> Any:
    model = _model(nodes, algorithm)
    return noise_of(model, variation, collective, model.predict(collective, size))


@SETTINGS
@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from(["ring", "tree", "nvls_tree"]),
    SIZES,
    st.integers(0, 99),
    st.floats(1e-8, 1e-4),
)
def test_noise_never_shortens_and_a_seed_repeats_it(
    nodes: int, algorithm: str, size: int, seed: int, mean: float
) -> None:
    variation = Variation(seed, 3, Jitter(mean), node_spread=0.05)
    if nodes == 1 and algorithm != "ring":
        algorithm = "nvls"
    later = _later(nodes, algorithm, size, variation)
    assert later.shape == (3,)
    assert (later > 0).all()
    assert (later == _later(nodes, algorithm, size, variation)).all()
    assert (later != _later(nodes, algorithm, size, replace(variation, seed=seed + 100))).any()


@SETTINGS
@given(st.sampled_from([1, 2]), SIZES, st.integers(0, 99), st.floats(1e-8, 1e-4), st.floats(1.0, 100.0))
def test_more_jitter_is_never_quicker(nodes: int, size: int, seed: int, mean: float, times: float) -> None:
    less, more = (_later(nodes, "ring", size, Variation(seed, 3, Jitter(m))) for m in (mean, mean * times))
    assert (more >= less * (1 - 1e-12)).all()


@SETTINGS
@given(st.sampled_from([1, 2, 4]), SIZES, st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]))
def test_no_noise_is_the_plain_ring(nodes: int, size: int, collective: str) -> None:
    model = _model(nodes, "ring")
    got = model.predict(collective, size)
    plan = lower_ring(model.nodes, model.lowered(collective, size, "ring", got.protocol))
    end = ring_ends(plan, Variation(), np.ones((2, plan.ranks)), np.random.default_rng(0))
    assert end == pytest.approx([ring_wavefront(plan)[0]] * 2, rel=1e-9)
    assert (noise_of(model, Variation(), collective, got) == 0).all()


@pytest.mark.parametrize("algorithm", ["ring", "tree", "nvls_tree"])
def test_jitter_of_no_length_costs_nothing(algorithm: str) -> None:
    got = _model(2, algorithm).predict("all_reduce", 1 << 20)
    assert _later(2, algorithm, 1 << 20, Variation(1, 2, Jitter(1e-18))) == pytest.approx(0, abs=1e-9 * got.kernel_s)


def test_a_ring_waits_in_each_step_for_the_latest_message() -> None:
    """8 B over 8 ranks: 14 steps of 8 messages, of which the latest costs more than the mean."""
    later = _later(1, "ring", 8, Variation(1, 400, Jitter(1e-6, "uniform")))
    assert 14e-6 < np.median(later) < 14 * 2e-6


class _Fixed(Jitter):
    """Rank i of n is late by i + 1 times the mean, always."""

    def draws(self, rng: Any, count: int) -> Any:
        return np.tile(self.mean_s * np.arange(1, 9), count // 8)


@SETTINGS
@given(st.floats(1e-8, 1e-3), SIZES)
def test_messages_late_alike_are_longer_hops(mean: float, size: int) -> None:
    model = _model(1, "ring")
    got = model.predict("all_reduce", size)
    plan = lower_ring(model.nodes, model.lowered("all_reduce", size, "ring", got.protocol))
    longer = replace(plan, hop_s=plan.hop_s + mean * np.arange(1, 9))
    end = ring_ends(plan, Variation(jitter=_Fixed(mean)), np.ones((3, 8)), np.random.default_rng(0))
    assert end == pytest.approx([ring_wavefront(longer)[0]] * 3, rel=1e-9)


@SETTINGS
@given(st.integers(1, 40), st.integers(1, 9), st.floats(1e-7, 1e-3), st.floats(1e-7, 1e-3))
def test_rounds_go_up_and_down_a_tree(nodes: int, count: int, hop: float, pace: float) -> None:
    """The last of the rounds begins after the paces of those before, and goes over twice the depth of hops."""
    each, depth = Rounds(1, pace, 0.0, 0.0, hop), 0
    for parent in double_binary_tree(nodes).parent:
        depth = max(_depth(parent, node) for node in range(nodes))
        plain = (count - 1) * pace + max(2 * depth, nodes == 1) * hop
        lines = np.ones((2, nodes))
        assert rounds_end(parent, each, count, lines, None, np.random.default_rng(0)) == pytest.approx(plain)
        slow = lines.copy()
        slow[0, count % nodes] = 3.0
        late = rounds_end(parent, each, count, slow, None, np.random.default_rng(0))
        assert late[1] == pytest.approx(plain)
        assert plain * (1 - 1e-12) <= late[0] <= (plain + 2 * (count - 1) * pace) * (1 + 1e-12)


def _depth(parent: Any, node: int) -> int:
    return 0 if parent[node] < 0 else 1 + _depth(parent, parent[node])


def test_all_nodes_twice_as_slow_take_twice_the_busy_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Variation, "node_factors", lambda self, rng, shape: np.full(shape, 2.0))
    monkeypatch.setattr(Variation, "slowest", lambda self, nodes, chance: 2.0)
    model, variation = _model(2, "ring"), Variation(0, 1, node_spread=0.5)
    for algorithm, collective in ((None, "all_to_all"), ("ring", "all_reduce")):
        one = _model(2, algorithm)
        got = one.predict(collective, 1 << 30)
        assert noise_of(one, variation, collective, got)[0] == pytest.approx(got.busy_s, rel=0.05)
    # What would take too many steps has the busy part.
    monkeypatch.setattr(noise, "MOST_DRAWS", 10)
    got = model.predict("all_reduce", 1 << 30)
    assert noise_of(model, variation, "all_reduce", got) == pytest.approx(got.busy_s)


def test_what_takes_too_long_or_has_no_messages_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    jitter = Variation(0, 1000, Jitter(1e-6))
    with pytest.raises(ScenarioError, match="fewer repeats, a smaller size or a smaller machine"):
        _later(4, "ring", 8 << 30, jitter)
    with pytest.raises(ScenarioError, match="fewer repeats, a smaller size or a smaller machine"):
        _later(8, "tree", 16 << 20, jitter)
    with pytest.raises(ScenarioError, match="fewer repeats, a smaller size or a smaller machine"):
        _later(8, "nvls_tree", 8 << 30, jitter)
    with pytest.raises(ScenarioError, match=r"CollNetChain: its time is a closed form.*=Ring, Tree or NVLSTree"):
        noise_of(_model(2, None), jitter, "all_reduce", _SHARP)
    with pytest.raises(ScenarioError, match=r"found .* messages of all runs of all_to_all .* fewer repeats"):
        _later(4, None, 8 << 30, Variation(0, 100_000, Jitter(1e-6)), "all_to_all")


def _run(*changes: str, **parts: Any) -> Any:
    scenario = {
        "name": "noise",
        "topology": {"preset": "hgx-h100-ndr400", "nodes": 4},
        "library": {"name": "nccl", "version": "2.26.2"},
        "workload": [{"collective": "all_reduce", "sizes": "64 MiB"}],
        "variation": {"node_spread": "2 %", "seed": 3},
        **parts,
    }
    return cs.run({key: value for key, value in scenario.items() if value is not None}, *changes)


def test_a_row_has_the_median_and_the_percentile_and_says_what_the_slowest_node_costs() -> None:
    result = _run()
    (row,) = result.items[0].rows
    (plain,) = _run(variation=None).items[0].rows
    assert plain.p99_s is None
    assert plain.time_s < row.time_s < row.p99_s
    assert any("loses" in text and "slowest of 4 nodes" in text for text in result.warnings)
    ring = "library.env.NCCL_ALGO=Ring"
    (noisy,) = _run(ring, "variation.jitter={mean: 2 us}").items[0].rows
    assert noisy.lower_bound_s < _run(ring).items[0].rows[0].time_s < noisy.time_s < noisy.p99_s


def _two(*changes: str, variation: dict[str, Any] | None) -> Any:
    jobs = [
        {"name": "a", "ranks": "0 .. 15", "collective": "all_reduce", "size": "64 MiB"},
        {"name": "b", "ranks": "16 .. 31", "collective": "all_to_all", "size": "64 MiB"},
        {"name": "c", "mesh": {"dp": 4, "tp": 8}, "axis": "tp", "collective": "broadcast", "size": "16 MiB"},
    ]
    return _run(*changes, workload=[{"jobs": jobs}], variation=variation).jobs[0]


def test_jobs_have_noise_each_of_its_own() -> None:
    plain, noise = _two(variation=None), {"jitter": {"mean": "5 us"}, "node_spread": 0.05, "repeats": 20}
    noisy, again = _two(variation=noise), _two(variation=noise)
    assert noisy == again
    assert (plain.repeats, noisy.repeats) == (1, 20)
    for before, after in zip(plain.rows, noisy.rows, strict=True):
        assert before.p99_s is None
        assert before.alone_s < after.alone_s <= after.together_s * (1 + 1e-9)
        assert before.together_s <= after.together_s <= after.p99_s
    assert _two("variation.seed=4", variation=noise) != noisy


def test_jobs_of_no_noise_are_the_plain_ones() -> None:
    plain, noisy = _two(variation=None), _two(variation={"jitter": {"mean": "1e-9 us"}, "repeats": 2})
    for before, after in zip(plain.rows, noisy.rows, strict=True):
        assert after.together_s == pytest.approx(before.together_s, rel=1e-9)
        assert (after.meets_on, after.algorithm) == (before.meets_on, before.algorithm)


def test_too_many_runs_of_jobs_are_refused() -> None:
    with pytest.raises(ScenarioError, match=r"found 10000 runs of 6 calls.*variation.repeats=3333"):
        _two(variation={"node_spread": 0.05, "repeats": 10_000})


@pytest.mark.parametrize("spread", ["0 %", "-1 %", "200 %", "x %", "nan"])
def test_a_spread_is_a_share(spread: str) -> None:
    with pytest.raises(ScenarioError, match=r"variation\.node_spread"):
        _run(f"variation.node_spread='{spread}'")


def _tcp(nodes: str, *changes: str) -> Any:
    faults = [{"node": node, "no_rdma": True} for node in map(int, nodes)]
    topology = {"preset": "hgx-h100-ndr400", "nodes": 4, "faults": faults}
    return _run(*changes, topology=topology, variation=None)


def test_a_node_on_tcp_beside_others_does_not_start() -> None:
    with pytest.raises(ScenarioError, match=r"rank 24 takes NET/Socket, rank 0 NET/IB.*wrong socket type.*DISABLE=1"):
        _tcp("3")
    with pytest.raises(ScenarioError, match="ncclCommInitRank hangs"):
        _tcp("3", "library.version=2.12.12")
    with pytest.raises(ScenarioError, match="at all nodes"):
        _tcp("0123")
    with pytest.raises(ScenarioError, match="expected it only with library nccl"):
        _tcp("3", "library=none")
    with pytest.raises(ScenarioError, match="rank 24"):
        _tcp("3", "workload=[{jobs: [{collective: all_reduce, size: 1 MiB}]}]")


def test_a_node_on_tcp_is_no_matter_where_it_takes_no_part_or_all_are() -> None:
    healthy = _run(variation=None).items[0].rows[0].time_s
    sockets = _run("library.env.NCCL_IB_DISABLE=1", variation=None).items[0].rows[0].time_s
    assert _tcp("3", "library.env.NCCL_IB_DISABLE=1").items[0].rows[0].time_s == pytest.approx(sockets, rel=1e-9)
    assert _tcp("3", "placement={nodes: [0, 1]}").items[0].rows[0].time_s < healthy
    one = "{name: a, ranks: [24 .. 31], collective: all_reduce, size: 1 MiB}"
    two = "{name: b, ranks: [0 .. 15], collective: all_reduce, size: 1 MiB}"
    assert len(_tcp("3", f"workload=[{{jobs: [{one}, {two}]}}]").jobs[0].rows) == 2


def _training(spread: str | None, **mesh: int) -> Any:
    mesh = {"tp": 8, "pp": 1, "dp": 2} | mesh
    nodes = mesh["pp"] * mesh["dp"]
    step = {"model": "llama-3-8b", "global_batch_size": 16, "micro_batch_size": 1, "seq_len": 4096, "mesh": mesh}
    variation = None if spread is None else {"node_spread": spread}
    topology = {"preset": "hgx-h100-ndr400", "nodes": nodes}
    return _run(topology=topology, workload=[{"training": step}], variation=variation)


@pytest.mark.parametrize("mesh", [{}, {"pp": 2, "dp": 1}])
def test_a_step_says_what_it_loses_to_the_slowest_node(mesh: dict[str, int]) -> None:
    (plain,), (some,), (more,) = (_training(spread, **mesh).trainings for spread in (None, "2 %", "10 %"))
    assert plain.step_s == some.step_s == more.step_s
    assert plain.lost == ""
    shares = [float(item.lost.split("loses ")[1].split(" %")[0]) for item in (some, more)]
    assert 0 < shares[0] < shares[1] < 10
    assert "slowest of 2 nodes" in some.lost


def test_a_step_says_what_it_loses_to_late_messages() -> None:
    step = {"model": "llama-3-8b", "global_batch_size": 16, "mesh": {"tp": 8, "dp": 2}}
    shares = []
    for mean in ("1 us", "10 us"):
        change = f"variation={{jitter: {{mean: {mean}}}}}"
        (item,) = _run(
            change, topology={"preset": "hgx-h100-ndr400", "nodes": 2}, workload=[{"training": step}]
        ).trainings
        shares.append(float(item.lost.split("loses ")[1].split(" %")[0]))
        assert "late by" in item.lost
    assert 0 < shares[0] < shares[1]
    stragglers = "variation={stragglers: [{ranks: 1, delay: 1 us}]}"
    with pytest.raises(ScenarioError, match="a training step knows jitter and node_spread"):
        _run(stragglers, workload=[{"training": step}])


@pytest.mark.parametrize(
    ("variation", "said"),
    [
        ("{node_spread: 2 %}", ""),
        ("{node_spread: 2 %, seed: 3}", "seed has no effect"),
        ("{node_spread: 2 %, seed: 3, repeats: 9}", "seed and repeats have no effect"),
        ("{node_spread: 2 %, jitter: {mean: 1 us}, seed: 3}", ""),
    ],
)
def test_a_step_says_that_it_draws_no_nodes(variation: str, said: str) -> None:
    step = {"model": "llama-3-8b", "global_batch_size": 16, "mesh": {"tp": 8, "dp": 1}}
    topology = {"preset": "hgx-h100-ndr400", "nodes": 1}
    (item,) = _run(f"variation={variation}", topology=topology, workload=[{"training": step}]).trainings
    notes = [text for text in item.notes if "no effect on a training step" in text]
    assert [said in text for text in notes] == ([True] if said else [])
    assert "node_spread" not in item.lost  # one node has no slowest


def test_the_slowest_of_very_many_nodes_is_finite() -> None:
    variation = Variation(node_spread=0.1)
    assert 1 <= variation.slowest(1, 0.0) <= variation.slowest(10**9, 1.0) < 2


@SETTINGS
@given(st.integers(1, 1000), st.floats(1e-3, 0.2), st.sampled_from([0.5, 0.99]))
def test_the_slowest_of_nodes_is_an_order_statistic(nodes: int, spread: float, chance: float) -> None:
    variation = Variation(3, node_spread=spread)
    factor = variation.slowest(nodes, chance)
    assert factor >= 1.0
    assert variation.slowest(nodes + 1, chance) >= factor
    drawn = variation.node_factors(variation.generator(nodes), (2000, nodes)).max(axis=1)
    assert np.mean(drawn <= factor * (1 + 1e-12)) == pytest.approx(chance, abs=0.06)


@pytest.mark.parametrize("what_if", [False, True])
def test_explain_says_it(what_if: bool) -> None:
    from commsim.planner.explain import explain
    from commsim.report.explain import bound_words

    (collective,) = explain(_run(), what_if=what_if)
    assert any("slowest of 4 nodes" in line for line in bound_words(collective))
    (step,) = explain(_training("2 %"), what_if=False)
    assert any("This step loses" in line for line in bound_words(step))


def test_the_page_has_the_percentile_of_runs_that_vary() -> None:
    assert "p99 (us)" in repr(_run().page().sections)
    assert "p99 (us)" not in repr(_run(variation=None).page().sections)


@pytest.mark.parametrize("fault", ["{node: 1, bandwidth_factor: 0.1}", "{nic: [1, 3], failed: true}"])
@pytest.mark.parametrize("algorithm", ["Ring", "Tree", "NVLSTree"])
def test_noise_comes_on_top_of_faults(fault: str, algorithm: str) -> None:
    changes = f"topology.faults=[{fault}]", f"library.env.NCCL_ALGO={algorithm}"
    (plain,) = _run(*changes, variation=None).items[0].rows
    noise = {"repeats": 5, "jitter": {"mean": "1 us"}, "node_spread": 0.03}
    (noisy,) = _run(*changes, variation=noise).items[0].rows
    assert plain.lower_bound_s <= plain.time_s < noisy.time_s <= noisy.p99_s
