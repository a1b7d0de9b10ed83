"""The bound of tables: nothing lies under it, it is never below the quick cuts, and it says what it is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.bounds import lower_bound_s
from commsim.collectives.registry import build, names
from commsim.collectives.semantics import NCCL_TESTS
from commsim.engine.evaluate import evaluate
from commsim.errors import CommsimError
from commsim.nccl.predict import Options, Predictor
from commsim.synthesis.bound import BoundQuestion, quick_bound, sharpened
from commsim.synthesis.limit import limit_of
from commsim.synthesis.machine import machine_network
from commsim.topology.faults import degraded
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset, load_topology
from commsim.topology.spec import FaultSpec, TopologySpec
from commsim.units import format_time

S = 1 << 30
MACHINES = [
    ("dgx-1v", 1),
    ("dgx-1v-edr100", 2),
    ("hgx-h100-ndr400", 1),
    ("hgx-h100-ndr400", 2),
    ("dgx-a100-hdr200", 2),
    ("leonardo", 4),
    ("a100-pcie", 1),
    ("h100-pcie-bridge", 1),
    ("torus-2d-example", 4),
    ("gh200x4-dragonfly200", 4),
]


@pytest.fixture(scope="module", params=MACHINES, ids=lambda machine: f"{machine[1]} x {machine[0]}")
def machine(request: pytest.FixtureRequest) -> Topology:
    name, nodes = request.param
    return load_preset(name, nodes=nodes)


def test_nccl_is_never_under_it(machine: Topology) -> None:
    model = Predictor(machine, Options(version=(2, 22, 3)))
    for collective in NCCL_TESTS:
        bound = quick_bound(machine, BoundQuestion(collective, in_network=True))
        for nbytes in (8, 1 << 20, 1 << 33):
            assert model.predict(collective, nbytes).time_s >= bound.seconds(nbytes) * (1 - 1e-9)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(MACHINES), st.sampled_from(NCCL_TESTS), st.data())
def test_no_schedule_on_ideal_links_is_under_it(machine: tuple[str, int], collective: str, data: st.DataObject) -> None:
    topology = load_preset(machine[0], nodes=machine[1])
    algorithm = data.draw(st.sampled_from([name for _, name in names(collective)]))
    nbytes = topology.world_size << data.draw(st.integers(4, 20))
    try:
        time_s = evaluate(build(collective, algorithm, topology.world_size, nbytes), topology).makespan_s
    except CommsimError:  # not applicable here
        return
    bound = quick_bound(topology, BoundQuestion(collective, in_network=True, hosts_add=True))
    assert time_s >= bound.seconds(nbytes) * (1 - 1e-9)


@pytest.mark.parametrize("collective", NCCL_TESTS)
def test_it_is_the_largest_of_all_cuts(machine: Topology, collective: str) -> None:
    bound = quick_bound(machine, BoundQuestion(collective))
    assert bound.seconds(S) >= lower_bound_s(collective, S, machine).seconds


def test_a_lost_nic_raises_it() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=8)
    hurt = degraded(topology, [FaultSpec(nic=(0, 0), failed=True)])
    whole, lost = (quick_bound(t, BoundQuestion("all_gather")).seconds(S) for t in (topology, hurt))
    assert lost > whole


@pytest.mark.parametrize(
    ("machine_of", "collective", "nbytes", "words"),
    [
        (
            ("hgx-h100", 1),
            "all_gather",
            S,
            r"exact bound: rank 0 \(node0.gpu0\) must take in 7/8 of the array over",
        ),
        (("hgx-h100", 1), "all_gather", 8, "the quickest way to the farthest rank takes 500 ns"),
        (
            ("leonardo", 4),
            "all_gather",
            S,
            r"exact bound: node 0 must take in 3/4 of the array over 4 NICs \(50 ",
        ),
        (("leonardo", 4), "reduce", S, r"exact bound: node 1 must give out all of the array over 4 NICs"),
        (
            ("leonardo", 4),
            "all_reduce",
            S,
            "each of the 4 nodes must take in 3/2 times the array, to add and",
        ),
        (("leonardo", 4), "all_to_all", S, "cut: node 0 must give out 3 times what a rank sends over 4 NICs"),
        (
            ("dgx-1v", 1),
            "all_to_all",
            S,
            "cut between the halves of the machine; an exact bound takes a linear",
        ),
        (("hgx-h100-ndr400", 200), "all_gather", S, "too large for an exact bound here"),
    ],
)
def test_it_says_what_it_is(machine_of: tuple[str, int], collective: str, nbytes: int, words: str) -> None:
    bound = quick_bound(load_preset(machine_of[0], nodes=machine_of[1]), BoundQuestion(collective))
    assert re.search(words, bound.words(nbytes)), bound.words(nbytes)


def test_an_explanation_takes_a_linear_program() -> None:
    bound = quick_bound(load_preset("dgx-1v"), BoundQuestion("all_to_all"))
    sharp = sharpened(bound)
    seconds, words = sharp.seconds(S), sharp.words(S)
    assert seconds == pytest.approx(bound.seconds(S))  # the halves are what binds
    assert words.startswith("exact bound: ")


def test_no_program_is_solved_where_the_latency_decides() -> None:
    bound = quick_bound(load_preset("hgx-h100"), BoundQuestion("all_reduce", in_network=True))
    assert sharpened(bound, 8) is bound
    assert sharpened(bound, S) is not bound
    assert sharpened(bound).seconds(8) == bound.seconds(8)


def test_of_unlike_nodes_it_says_what_all_carry_together() -> None:
    t = load_preset("hgx-h100-ndr400", nodes=4)
    bound = quick_bound(degraded(t, [FaultSpec(nic=(1, 3), failed=True)]), BoundQuestion("all_reduce"))
    assert "the 4 nodes together must take in 6 times the array" in bound.words(S)
    assert "over 31 NICs (1.55 TB/s)" in bound.words(S)
    assert bound.seconds(S) == pytest.approx(6 * S / 1.55e12)


def test_it_says_what_a_listed_rate_makes_of_it() -> None:
    fast = load_topology(
        TopologySpec.model_validate({"preset": "hgx-h100-ndr400", "nodes": 4, "nic_bandwidth": "800 Gb/s"}), Path()
    )
    bound = quick_bound(fast, BoundQuestion("all_gather"))
    listed = limit_of(machine_network(fast), "all_gather").bandwidth_s(S)  # what `commsim synthesize` calls the limit
    assert listed > 1.03 * bound.seconds(S)
    said = f"{format_time(listed)} net of PCIe's protocol (48 GB/s of 63.02 GB/s), as `synthesize` counts"
    assert said in bound.words(S)
    plain = quick_bound(load_preset("hgx-h100"), BoundQuestion("all_gather"))
    assert plain.listed(S) == (plain.seconds(S), "")
    assert "net of" not in plain.words(S)


def test_several_links_between_switches_are_called_so() -> None:
    spec = TopologySpec(preset="hgx-h100-ndr400", nodes=4, oversubscription=4, nodes_per_leaf=2)
    said = quick_bound(load_topology(spec, Path()), BoundQuestion("all_to_all")).words(S)
    assert "over 8 links between switches (200 GB/s)" in said
