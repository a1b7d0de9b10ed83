"""Training steps on machines with faults: the slowest of the groups that meet counts, and only where its nodes are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from commsim.cli.find import find_scenario
from commsim.nccl.predict import Options, Predictor
from commsim.scenario.load import load_scenarios
from commsim.scenario.run import run
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec
from commsim.training.communicators import Ranks
from commsim.training.mesh import Mesh
from commsim.training.slow_groups import SlowGroups, unlike


def machine(*faults: dict[str, object]) -> Topology:
    """16 nodes of 8 H100 with some faults."""
    said = {"preset": "hgx-h100-ndr400", "nodes": 16, "nodes_per_leaf": 4, "faults": list(faults) or None}
    return load_topology(TopologySpec.model_validate(said), Path())


def times(topology: Topology) -> SlowGroups:
    """Of groups of tp 8, dp 8 and pp 2 that take a second each on a healthy machine."""

    def model(t: Topology, ranks: Ranks) -> Predictor:
        return Predictor(t, Options(version=(2, 26, 2), mode="single"), ranks=ranks.tolist())

    return SlowGroups(lambda *call: 1.0, Mesh(tp=8, dp=8, pp=2), topology, machine(), model)


def test_a_slow_node_slows_the_groups_of_its_stage_alone() -> None:
    mesh, slow = Mesh(tp=8, dp=8, pp=2), times(machine({"node": 12, "bandwidth_factor": 0.1}))
    first, last = (mesh.group_of(mesh.rank(pp=stage), "dp") for stage in (0, 1))
    assert slow("all_reduce", 1 << 30, first) == 1.0
    # Its NICs carry what they carried before, ten times as long; half of that time is not theirs where others limit.
    assert 5 < slow("all_reduce", 1 << 30, last) < 10.5
    assert slow("all_gather", 1 << 24, mesh.group_of(mesh.rank(pp=1), "tp")) == 1.0


def test_a_slow_nvlink_slows_the_groups_inside_its_node() -> None:
    mesh, slow = (
        Mesh(tp=8, dp=8, pp=2),
        times(machine({"link": ["node3.gpu0", "node3.nvswitch"], "bandwidth_factor": 0.5})),
    )
    assert slow("all_gather", 1 << 30, mesh.group_of(mesh.rank(pp=0), "tp")) == pytest.approx(2.0, rel=0.1)
    assert slow("all_gather", 1 << 30, mesh.group_of(mesh.rank(pp=1), "tp")) == 1.0


def test_nodes_below_a_slow_uplink_are_unlike_the_others() -> None:
    bad, state = unlike(machine({"link": ["leaf1.rail0", "spine0"], "bandwidth_factor": 0.5}))
    assert np.flatnonzero(bad).tolist() == [4, 5, 6, 7]
    assert len(set(state.tolist())) == 2
    assert not unlike(machine())[0].any()


def test_a_step_on_a_machine_with_a_slow_node_takes_longer() -> None:
    steps = []
    for faults in ("[]", "[{node: 40, bandwidth_factor: 0.1}]"):
        (scenario,) = load_scenarios(find_scenario("training/llama-3-70b-512-h100"), [f"topology.faults={faults}"])
        steps.append(run(scenario).answers[0].step_s)  # type: ignore[attr-defined]
    assert 1.02 * steps[0] < steps[1] < 10 * steps[0]
