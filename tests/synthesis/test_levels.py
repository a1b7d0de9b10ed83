"""Plans by levels: proven, near the limit of the whole, the same folded; with dead NICs and thin links."""

from __future__ import annotations

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.errors import InfeasibleError
from commsim.synthesis.by_levels import ring_shares
from commsim.synthesis.level_search import COLLECTIVES_BY_LEVELS, LevelPlan, plan_by_levels
from commsim.synthesis.levels import levels_of, turns_of
from commsim.synthesis.node_rings import Chains
from commsim.topology.faults import degraded
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset
from commsim.topology.spec import FaultSpec

S = 1 << 30


def machine(nodes: int, *faults: FaultSpec, **changes: object) -> Topology:
    return degraded(load_preset("hgx-h100-ndr400", nodes=nodes, **changes), faults)


def proven(plan: LevelPlan) -> LevelPlan:
    assert plan.laid is not None
    check(plan.laid.schedule)
    assert plan.seconds >= plan.limit_s
    return plan


@pytest.mark.parametrize("collective", COLLECTIVES_BY_LEVELS)
@pytest.mark.parametrize(
    "topology",
    [
        machine(3),
        machine(4, FaultSpec(nic=(1, 3), failed=True)),
        machine(4, FaultSpec(nic=(1, 3), failed=True), FaultSpec(nic=(2, 0), failed=True)),
        machine(4, FaultSpec(nic=(0, 1), bandwidth_factor=0.5), nodes_per_leaf=2, oversubscription=2),
        load_preset("leonardo", nodes=5),
        load_preset("dgx-1v-edr100", nodes=2),
        load_preset("torus-2d-example", nodes=4),
    ],
    ids=["three nodes", "a dead NIC", "two dead NICs", "a slow NIC", "four rails", "fewer NICs", "a torus"],
)
def test_plans_are_proven(topology: Topology, collective: str) -> None:
    proven(plan_by_levels(topology, collective, 1 << 26, budget_s=1.0))


@pytest.mark.parametrize("collective", COLLECTIVES_BY_LEVELS)
def test_plans_of_healthy_machines_are_near_the_limit(collective: str) -> None:
    plan = proven(plan_by_levels(machine(16), collective, 4 * S))
    assert plan.ratio < 1.03


@pytest.mark.slow  # half a million rows
@pytest.mark.parametrize("collective", COLLECTIVES_BY_LEVELS)
def test_plans_with_a_dead_nic_are_near_the_limit(collective: str) -> None:
    topology = machine(24, FaultSpec(nic=(5, 3), failed=True), nodes_per_leaf=12, oversubscription=2)
    assert proven(plan_by_levels(topology, collective, 4 * S)).ratio < 1.03


@pytest.mark.parametrize("collective", COLLECTIVES_BY_LEVELS)
def test_folded_is_as_whole(collective: str) -> None:
    """Of a size that all plans cut evenly: a byte more here and there changes the order of what waits for a link."""
    topology = machine(8, nodes_per_leaf=4)
    whole, folded = (plan_by_levels(topology, collective, 3 << 28, fold=fold) for fold in (False, True))
    assert folded.period == 4
    assert folded.laid is None
    assert folded.rows * 2 == whole.rows
    assert folded.seconds == pytest.approx(whole.seconds, rel=1e-6)


def test_a_weak_node_is_beside_the_ring_for_a_share_that_evens_all_nodes() -> None:
    """A node of a ring of n sends 2 (n - 1) / n, a node beside it 1: some of both for a node with 7 of 8 NICs."""
    levels = levels_of(machine(8, FaultSpec(nic=(1, 3), failed=True)))
    shares = ring_shares(levels)
    assert sum(shares.values()) == pytest.approx(1.0)
    weak = shares[0] * 2 * 7 / 8 + shares[1]
    others = shares[0] * 2 * 7 / 8 + shares[1] * (2 * 6 / 7 + 1 / 7)
    assert weak / others == pytest.approx(7 / 8)


@pytest.mark.parametrize(("m", "heads"), [(2, 1), (9, 1), (9, 2), (9, 4), (9, 50)])
def test_chains_reach_every_distance_over_what_was_reached_before(m: int, heads: int) -> None:
    chains = Chains.of(m, heads)
    assert (chains.above[1:] < np.arange(1, m)).all()
    assert (chains.order[1:] > chains.order[chains.above[1:]]).all()
    assert (chains.above == 0).sum() == min(heads, m - 1)


def test_rails_take_turns_as_their_shares() -> None:
    turns = turns_of(np.array([1.0, 0.0, 3.0]))
    assert np.bincount(turns[:8], minlength=3).tolist() == [2, 0, 6]


@pytest.mark.parametrize(
    ("topology", "collective", "message"),
    [
        (load_preset("hgx-h100"), "all_gather", "needs two nodes or more, found 1"),
        (machine(2), "broadcast", "found no plan by levels, expected all_gather"),
        (
            machine(1024, FaultSpec(nic=(5, 3), failed=True)),
            "all_reduce",
            "no shift of nodes maps the machine onto itself",
        ),
    ],
)
def test_machines_without_a_plan(topology: Topology, collective: str, message: str) -> None:
    with pytest.raises(InfeasibleError, match=message):
        plan_by_levels(topology, collective, S)
