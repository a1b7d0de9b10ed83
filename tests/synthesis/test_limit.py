"""Limits by hand, and on random networks the same as plain linear programs over every pair of ranks."""

from __future__ import annotations

import numpy as np
import pytest
from flow_networks import all_gather_rate, all_reduce_rate, broadcast_rate, exchange_rate, networks
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.bounds import lower_bound_s
from commsim.collectives.semantics import COLLECTIVES
from commsim.errors import ScheduleError
from commsim.synthesis.limit import limit_of
from commsim.synthesis.machine import machine_network
from commsim.synthesis.network import FlowNetwork, network_of
from commsim.synthesis.programs import passed_on_limit, reduce_spread_limit
from commsim.synthesis.tree_limit import spread_limit
from commsim.topology.presets import load_preset

S = 1 << 30
NEAR = 1e-9


@pytest.mark.slow  # 200 networks, two programs of up to a thousand unknowns each
@settings(max_examples=200, deadline=None)
@given(networks())
def test_all_gather_and_reduce_scatter_are_what_trees_of_every_rank_take(network: FlowNetwork) -> None:
    for name, on in (("all_gather", network), ("reduce_scatter", network.reversed())):
        limit = limit_of(network, name)
        assert limit.by != "cut"
        assert float(1 / limit.per_byte_s) == pytest.approx(all_gather_rate(on) * network.n, rel=NEAR)


@settings(max_examples=50, deadline=None)
@given(networks(acting=True))
def test_no_schedule_of_copying_switches_is_below_the_cut(network: FlowNetwork) -> None:
    limit = limit_of(network, "all_gather")
    assert float(1 / limit.per_byte_s) >= all_gather_rate(network) * network.n * (1 - NEAR)


@settings(max_examples=30, deadline=None)
@given(networks(), st.data())
def test_broadcast_and_reduce_are_what_trees_of_one_rank_take(network: FlowNetwork, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, network.n - 1))
    for name, on in (("broadcast", network), ("reduce", network.reversed())):
        limit = limit_of(network, name, root=root)
        assert float(1 / limit.per_byte_s) == pytest.approx(broadcast_rate(on, root), rel=NEAR)


@settings(max_examples=30, deadline=None)
@given(st.booleans().flatmap(lambda both_ways: networks(4, both_ways=both_ways)))
def test_all_reduce_is_what_trees_into_and_out_of_every_rank_take(network: FlowNetwork) -> None:
    limit = limit_of(network, "all_reduce")
    assert limit.by != "cut"
    assert float(1 / limit.per_byte_s) == pytest.approx(all_reduce_rate(network), rel=NEAR)
    quick = limit_of(network, "all_reduce", effort="flow")
    assert quick.per_byte_s <= limit.per_byte_s * (1 + NEAR)


@settings(max_examples=40, deadline=None)
@given(networks(5), st.data())
def test_exchanges_are_what_flows_of_every_pair_take(network: FlowNetwork, data: st.DataObject) -> None:
    n = network.n
    cells = data.draw(st.lists(st.integers(0, 3), min_size=n * n, max_size=n * n))
    demand = np.array(cells, np.float64).reshape(n, n) + np.roll(np.eye(n), 1, axis=1)
    limit = limit_of(network, "send_recv", demand=demand)
    assert limit.by == "program"
    assert 1 / float(limit.per_byte_s) == pytest.approx(exchange_rate(network, demand), rel=NEAR)
    quick = limit_of(network, "send_recv", demand=demand, effort="flow")
    assert quick.per_byte_s <= limit.per_byte_s * (1 + NEAR)


@settings(max_examples=40, deadline=None)
@given(networks(24, both_ways=True))
def test_flows_and_the_program_agree_on_larger_networks(network: FlowNetwork) -> None:
    weights = list(range(1, network.n + 1))
    by_flow, by_program = spread_limit(network, weights), passed_on_limit(network, weights, range(network.n))
    assert float(by_flow.rate) == pytest.approx(by_program.rate, rel=NEAR)
    cut = by_flow.cut
    assert cut is not None
    crossing = sum(int(network.capacity[e]) for e in cut.edges)
    assert by_flow.rate * cut.share == crossing


@settings(max_examples=40, deadline=None)
@given(networks(8), st.data())
def test_gather_and_scatter_take_in_what_one_rank_can(network: FlowNetwork, data: st.DataObject) -> None:
    root = data.draw(st.integers(0, network.n - 1))
    demand = np.zeros((network.n, network.n))
    demand[:, root] = 1 / network.n
    for name, wanted in (("gather", demand), ("scatter", demand.T)):
        limit = limit_of(network, name, root=root)
        same = limit_of(network, "send_recv", demand=wanted)
        assert float(limit.per_byte_s) == pytest.approx(float(same.per_byte_s), rel=NEAR)


@settings(max_examples=50, deadline=None)
@given(networks(6), st.sampled_from(sorted(COLLECTIVES)), st.integers(2, 9))
def test_more_bandwidth_is_as_much_less_time(network: FlowNetwork, name: str, times: int) -> None:
    links = [
        (network.vertex[a], network.vertex[b], int(c) * times, 1e-6)
        for a, b, c in zip(network.tail, network.head, network.capacity * int(network.unit), strict=True)
    ]
    quicker = network_of(links, [network.vertex[v] for v in network.ranks])
    slow, quick = (float(limit_of(on, name, effort="flow").per_byte_s) for on in (network, quicker))
    assert slow == pytest.approx(times * quick)


@pytest.mark.parametrize(
    ("preset", "nodes", "collective", "seconds"),
    [
        ("hgx-h100", 1, "all_gather", 7 / 8 * S / 450e9),
        ("hgx-h100", 1, "all_reduce", 2 * 7 / 8 * S / 450e9),
        ("hgx-h100", 1, "broadcast", S / 450e9),
        ("dgx-1v", 1, "all_gather", 7 / 8 * S / 150e9),  # SCCL: seven blocks over six lanes of 25 GB/s
        ("hgx-h100-ndr400", 4, "all_gather", 3 / 4 * S / 384e9),  # eight NICs of 48 GB/s, as NCCL rates their PCIe
        ("dgx-a100-hdr200", 2, "all_to_all", 8 / 2 * S / 192e9),
    ],
)
def test_machines_by_hand(preset: str, nodes: int, collective: str, seconds: float) -> None:
    limit = limit_of(machine_network(load_preset(preset, nodes=nodes)), collective)
    assert limit.exact
    assert limit.bandwidth_s(S) == pytest.approx(seconds)


@pytest.mark.parametrize("in_network", [False, True])
@pytest.mark.parametrize("collective", sorted(COLLECTIVES))
def test_no_limit_is_below_the_cuts_of_ports_and_nics(collective: str, in_network: bool) -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    network = machine_network(topology, in_network=in_network, at_wires=True)
    limit = limit_of(network, collective, effort="flow")
    cuts = lower_bound_s(collective, S, topology, in_network=in_network)
    assert limit.bandwidth_s(S) >= cuts.bandwidth_s * (1 - 1e-12)


def test_switches_that_add_take_half_of_an_all_reduce_in_a_node_and_not_between_nodes() -> None:
    one = machine_network(load_preset("hgx-h100"), in_network=True)
    assert limit_of(one, "all_reduce", effort="flow").bandwidth_s(S) == pytest.approx(S / 450e9)
    four = machine_network(load_preset("hgx-h100-ndr400", nodes=4), in_network=True)
    assert limit_of(four, "all_reduce", effort="flow").bandwidth_s(S) == pytest.approx(2 * 3 / 4 * S / 384e9)


def test_a_slow_rank_is_no_root() -> None:
    """A rank on a thin link gives its array once and takes the sum once, where both phases would take 3/2 of that."""
    links = [(a, b, 100 if "c" not in (a, b) else 10, 0.0) for a in "abc" for b in "abc" if a != b]
    network = network_of(links, ["a", "b", "c"])
    assert float(limit_of(network, "all_reduce").per_byte_s) == pytest.approx(1 / 20)
    phases = [spread_limit(on, [1, 1, 1]).rate for on in (network, network.reversed())]
    assert float(sum(1 / (rate * network.unit) for rate in phases)) == pytest.approx(4 / 3 / 20)
    assert reduce_spread_limit(network).rate > float(phases[0]) / 2


def test_unequal_blocks() -> None:
    network = network_of([(a, b, 10, 0.0) for a in "ab" for b in "ab" if a != b], ["a", "b"])
    limit = limit_of(network, "all_gather", blocks=[300, 100])
    assert limit.bandwidth_s(400) == pytest.approx(300 / 10)


def test_one_rank_needs_no_time() -> None:
    network = network_of([], ["a"])
    assert limit_of(network, "all_reduce").seconds(S) == 0


@pytest.mark.parametrize(
    ("collective", "options", "message"),
    [
        ("all_reduc", {}, "unknown collective 'all_reduc'"),
        ("broadcast", {"root": 8}, r"root 8 is not one of the ranks 0\.\.7"),
        ("all_gather", {"blocks": [1, 2]}, "expected 8 of 0 bytes or more"),
        ("send_recv", {"demand": np.ones((2, 2))}, "expected 8 rows of 8 numbers"),
    ],
)
def test_bad_questions(collective: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        limit_of(machine_network(load_preset("hgx-h100")), collective, **options)  # type: ignore[arg-type]
