"""Chains of calls in a row: the period against a naive simulation, a case by hand, and what must hold for all."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.nccl.chain import _chains, _Flow, _period, chain_time
from commsim.nccl.channels import Split
from commsim.nccl.lower import Call
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.protocols import DEFAULT_BUFFER_BYTES, PROTOCOLS
from commsim.topology.presets import load_preset

VERSION = (2, 30, 7)


def flow(inside: float, across: float, transfer: float, held: float) -> _Flow:
    return _Flow(0.0, inside, across, 0.0, transfer, held, "")


def naive_period(
    nodes: int, orders: list[list[int]], inside: float, across: float, transfer: float, held: float
) -> float:  # fmt: skip
    """Call by call and rank by rank along each order's ring, from rank 0 on."""
    count = len(orders[0])
    chains = []
    for order in orders:
        ring = [node * count + gpu for node in range(nodes) for gpu in order]
        chains.append(ring[ring.index(0) :] + ring[: ring.index(0)])
    begun = dict.fromkeys(range(nodes * count), 0.0)
    ended = []
    for _ in range(60):
        over = dict.fromkeys(begun, 0.0)
        for chain in chains:
            hops = [inside if a // count == b // count else across for a, b in pairwise(chain)]
            first = {chain[0]: begun[chain[0]]}
            for (a, b), hop in zip(pairwise(chain), hops, strict=True):
                first[b] = max(begun[b], first[a] + hop)
            last: dict[int, float] = {}
            for i, rank in enumerate(chain):
                last[rank] = first[rank] + transfer
                if i + 1 < len(chain) and held < transfer:
                    last[rank] = max(last[rank], first[chain[i + 1]] + transfer - held)
                if i:
                    last[rank] = max(last[rank], last[chain[i - 1]] + hops[i - 1])
                over[rank] = max(over[rank], last[rank])
        begun = over
        ended.append(max(begun.values()))
    return (ended[-1] - ended[-25]) / 24


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.integers(1, 3),
    orders=st.lists(st.permutations(range(4)), min_size=2, max_size=4, unique_by=tuple),
    times=st.tuples(*(st.integers(0, 12) for _ in range(3))),
    held=st.floats(0.0, 1.0),
)
def test_the_period_is_that_of_a_naive_simulation(
    nodes: int, orders: list[list[int]], times: tuple[int, int, int], held: float
) -> None:
    inside, across, transfer = map(float, times)
    chains, near, far = _chains(nodes, tuple(map(tuple, orders)), to_root=False)
    got = _period(chains, inside * near + across * far, flow(inside, across, transfer, held * transfer))
    assert got == pytest.approx(naive_period(nodes, orders, inside, across, transfer, held * transfer), rel=0.05, abs=1)


def test_two_orders_that_cross_by_hand() -> None:
    # 0 1 | 2 3 and 0 | 3 2 | 1: rank 1 hands on to 3 (a hop between nodes, one inside), which hands on to rank 1 in
    # the other order in as long; two calls for both ways.
    chains, near, far = _chains(2, ((0, 1), (1, 0)), to_root=False)
    assert chains.tolist() == [[0, 1, 2, 3], [0, 3, 2, 1]]
    assert _period(chains, 3.0 * near + 10.0 * far, flow(3.0, 10.0, 5.0, 5.0)) == pytest.approx(18.0)


def test_orders_alike_hold_nobody_back() -> None:
    chains, near, far = _chains(4, ((2, 1, 0, 3),), to_root=False)
    assert _period(chains, 1.0 * near + 9.0 * far, flow(1.0, 9.0, 5.0, 5.0)) == 0.0


def test_chains_begin_or_end_at_the_root_and_may_come_back_to_its_node() -> None:
    down, near, far = _chains(2, ((2, 1, 0, 3),), to_root=False)
    assert down.tolist() == [[0, 3, 6, 5, 4, 7, 2, 1]]
    assert far.tolist() == [[0, 0, 1, 1, 1, 1, 2, 2]]
    assert (near + far).tolist() == [list(range(8))]
    up, _, _ = _chains(2, ((2, 1, 0, 3),), to_root=True)
    assert up.tolist() == [[3, 6, 5, 4, 7, 2, 1, 0]]


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize(("preset", "nodes"), [("dgx-a100-hdr200", 4), ("hgx-h100-ndr400", 3), ("abci-v100", 8)])
def test_calls_in_a_row_take_at_most_as_long_as_one_that_is_waited_for(
    collective: str, preset: str, nodes: int
) -> None:  # fmt: skip
    topology = load_preset(preset, nodes=nodes)
    row, alone = (Predictor(topology, Options(VERSION, mode=mode)) for mode in ("back_to_back", "single"))
    for exponent in range(3, 31, 3):
        assert row.predict(collective, 1 << exponent).time_s <= alone.predict(collective, 1 << exponent).time_s


def test_two_channels_of_many_nodes_take_half_of_the_chain() -> None:
    """128 V100 of NCCL 2.8: 512 KiB over one channel 210 us, 1 MiB over two 541 us where bytes would take 210 again."""
    model = Predictor(load_preset("abci-v100", nodes=32), Options((2, 8, 4)))
    one, two = (model.predict("broadcast", n) for n in (1 << 19, 1 << 20))
    assert (one.protocol, one.channels, two.protocol, two.channels) == ("LL", 1, "LL", 2)
    assert one.time_s == pytest.approx(210e-6, rel=0.2)
    assert two.time_s == pytest.approx(541e-6, rel=0.25)


@pytest.mark.parametrize(("threads", "share"), [(64, 2 / 9), (128, 2 / 5), (256, 2 / 3), (512, 1.0)])
def test_few_threads_of_ll_pass_on_less(threads: int, share: float) -> None:
    model = Predictor(load_preset("abci-v100"), Options(VERSION))
    rate = model.parameters.block_rate.LL

    def seconds(nbytes: int) -> float:
        call = Call(
            "broadcast", nbytes, "ring", PROTOCOLS["LL"], Split(1, nbytes, threads), DEFAULT_BUFFER_BYTES
        )  # fmt: skip
        return chain_time(model.system, model.machine, model.parameters, call, fill=False)[0]

    assert seconds(1 << 20) - seconds(1 << 19) == pytest.approx((1 << 19) / (share * rate))
