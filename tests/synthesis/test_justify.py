"""Rows in the order in which a run backwards asks for them: the same rows, proven still."""

from __future__ import annotations

import numpy as np
from flow_networks import networks
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives.check import check
from commsim.synthesis.aim import Aim
from commsim.synthesis.justify import justified
from commsim.synthesis.machine import machine_network
from commsim.synthesis.network import FlowNetwork, network_of
from commsim.synthesis.search import TreeSearch, laid_out
from commsim.synthesis.timing import program_of, seconds_of
from commsim.topology.presets import load_preset


@settings(max_examples=20, deadline=None)
@given(networks(5), st.sampled_from(["all_gather", "reduce_scatter", "all_reduce", "broadcast", "all_to_all"]))
def test_the_order_of_any_schedule_may_be_changed_so(network: FlowNetwork, collective: str) -> None:
    aim = Aim(network, collective, 4096)
    laid = laid_out(aim, next(TreeSearch(aim, budget_s=1).forests()), 8)
    other = justified(laid, network)
    check(other.schedule)
    for name in ("src", "dst", "src_chunk"):
        assert np.bincount(getattr(other.schedule, name)).tolist() == np.bincount(getattr(laid.schedule, name)).tolist()
    ptr, succ = other.schedule.dependencies()
    before = np.repeat(np.arange(other.schedule.rows), np.diff(ptr))
    assert (other.schedule.step[before] < other.schedule.step[succ]).all()
    program = program_of(other, network)
    assert int(program.nbytes.sum()) == int(program_of(laid, network).nbytes.sum())


def test_what_has_far_to_go_leaves_first() -> None:
    """a sends to b, which passes a piece on over a slow link; the piece that stays at b should not go first."""
    network = network_of(
        [("a", "b", 1e9, 0.0), ("b", "c", 1e8, 0.0), ("b", "a", 1e9, 0.0), ("c", "b", 1e9, 0.0)], ["a", "b", "c"]
    )
    aim = Aim(network, "scatter", 3_000_000)
    laid = laid_out(aim, next(TreeSearch(aim).forests()), 1)
    assert seconds_of(justified(laid, network), network) <= 0.0111


def test_a_pipeline_over_nodes_gains() -> None:
    network = machine_network(load_preset("hgx-h100-ndr400", nodes=2))
    aim = Aim(network, "all_gather", 1 << 20, itemsize=4)
    laid = laid_out(aim, next(TreeSearch(aim, budget_s=5).forests()), 64)
    assert seconds_of(justified(laid, network), network) < 0.95 * seconds_of(laid, network)
