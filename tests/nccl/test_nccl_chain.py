"""Chains of calls in a row: the period against a naive simulation, a case by hand, and what must hold for all."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.nccl.chain import _chains, _Flow, _flow, _period, chain_time
from commsim.nccl.channels import Call, Split
from commsim.nccl.communicator import communicator
from commsim.nccl.lower import shares
from commsim.nccl.machine import nic_rates
from commsim.nccl.nodes import Nodes
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.protocols import DEFAULT_BUFFER_BYTES, PROTOCOLS
from commsim.topology.presets import load_preset

VERSION = (2, 30, 7)

Int64 = npt.NDArray[np.int64]


def flow(inside: float, across: float, transfer: float, held: float, piece: float = 0.0) -> _Flow:
    return _Flow(0.0, inside, across, piece, piece, transfer, held, "")


def chains_of(
    nodes: int, orders: tuple[tuple[int, ...], ...], *, to_root: bool
) -> tuple[Int64, Int64, Int64]:  # fmt: skip
    """Ranks of each order's chain on nodes that are alike, and the hops to each inside and between nodes."""
    comm = communicator(load_preset("dgx-a100-hdr200", nodes=nodes, gpus_per_node=len(orders[0])))
    chains, _, crosses = _chains(comm, tuple((order,) for order in orders), to_root=to_root)
    far = crosses.cumsum(axis=1)
    return chains, np.arange(chains.shape[1]) - far, far


def naive_period(
    nodes: int, orders: list[list[int]], inside: float, across: float, transfer: float, held: float, piece: float
) -> float:
    """Call by call and rank by rank along each order's ring, from rank 0 on; seconds of all bytes and of the first."""
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
            has: dict[int, float] = {}  # the last piece
            for i, rank in enumerate(chain):
                has[rank] = first[rank] + transfer - piece
                if i + 1 < len(chain) and held < transfer:
                    has[rank] = max(has[rank], first[chain[i + 1]] + transfer - held - piece)
                if i:
                    has[rank] = max(has[rank], has[chain[i - 1]] + hops[i - 1])
                over[rank] = max(over[rank], has[rank] + (piece if rank != chain[-1] else 0.0))
        begun = over
        ended.append(max(begun.values()))
    return (ended[-1] - ended[-25]) / 24


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.integers(1, 3),
    orders=st.lists(st.permutations(range(4)), min_size=2, max_size=4, unique_by=tuple),
    times=st.tuples(*(st.integers(0, 12) for _ in range(3))),
    held=st.floats(0.0, 1.0),
    piece=st.floats(0.0, 1.0),
)
def test_the_period_is_that_of_a_naive_simulation(
    nodes: int, orders: list[list[int]], times: tuple[int, int, int], held: float, piece: float
) -> None:
    latency, farther, transfer = map(float, times)
    piece *= transfer
    inside, across = latency + piece, latency + farther + piece  # a hop takes its first piece, too
    chains, near, far = chains_of(nodes, tuple(map(tuple, orders)), to_root=False)
    got = _period(chains, inside * near + across * far, flow(inside, across, transfer, held * transfer, piece))
    naive = naive_period(nodes, orders, inside, across, transfer, held * transfer, piece)
    assert got == pytest.approx(naive, rel=0.05, abs=1)


def test_two_orders_that_cross_by_hand() -> None:
    # 0 1 | 2 3 and 0 | 3 2 | 1: rank 1 hands on to 3 (a hop between nodes, one inside), which hands on to rank 1 in
    # the other order in as long; two calls for both ways.
    chains, near, far = chains_of(2, ((0, 1), (1, 0)), to_root=False)
    assert chains.tolist() == [[0, 1, 2, 3], [0, 3, 2, 1]]
    assert _period(chains, 3.0 * near + 10.0 * far, flow(3.0, 10.0, 5.0, 5.0)) == pytest.approx(18.0)


def test_orders_alike_hold_nobody_back() -> None:
    chains, near, far = chains_of(4, ((2, 1, 0, 3),), to_root=False)
    assert _period(chains, 1.0 * near + 9.0 * far, flow(1.0, 9.0, 5.0, 5.0)) == 0.0


def test_chains_begin_or_end_at_the_root_and_may_come_back_to_its_node() -> None:
    down, near, far = chains_of(2, ((2, 1, 0, 3),), to_root=False)
    assert down.tolist() == [[0, 3, 6, 5, 4, 7, 2, 1]]
    assert far.tolist() == [[0, 0, 1, 1, 1, 1, 2, 2]]
    assert (near + far).tolist() == [list(range(8))]
    up, _, _ = chains_of(2, ((2, 1, 0, 3),), to_root=True)
    assert up.tolist() == [[3, 6, 5, 4, 7, 2, 1, 0]]


@pytest.mark.parametrize("collective", ["broadcast", "reduce"])
@pytest.mark.parametrize(
    ("preset", "nodes", "protocol"),
    [
        ("dgx-a100-hdr200", 4, ""),
        ("hgx-h100-ndr400", 3, ""),
        ("abci-v100", 8, ""),
        ("dgx-spark", 2, "Simple"),
        ("dgx-1v-edr100", 3, "Simple"),
        ("hgx-a100-4-slingshot200", 2, "Simple"),
    ],
)
def test_calls_in_a_row_take_at_most_as_long_as_one_that_is_waited_for(
    collective: str, preset: str, nodes: int, protocol: str
) -> None:
    topology = load_preset(preset, nodes=nodes)
    env = {"NCCL_PROTO": protocol} if protocol else {}
    row, alone = (Predictor(topology, Options(VERSION, env, mode=mode)) for mode in ("back_to_back", "single"))
    for exponent in range(3, 34):
        one, waited_for = (model.predict(collective, 1 << exponent).kernel_s for model in (row, alone))
        assert one <= waited_for * (1 + 1e-12)


@pytest.mark.parametrize("protocol", ["LL", "LL128", "Simple"])
def test_calls_in_a_row_take_the_base_and_their_bytes(protocol: str) -> None:
    # One channel, which costs nothing beside the base; no hop between nodes, and none inside one.
    options = Options(VERSION, {"NCCL_MAX_NCHANNELS": "1", "NCCL_PROTO": protocol}, iterations=None)
    model = Predictor(load_preset("dgx-a100"), options)
    split = model._split(1, 1 << 15, "broadcast", "ring", PROTOCOLS[protocol])
    call = Call("broadcast", 1 << 15, "ring", PROTOCOLS[protocol], split, DEFAULT_BUFFER_BYTES)
    transfer = _flow(model.nodes.kinds[0], call).transfer
    assert seconds(model, call, fill=False) == transfer
    assert model.predict("broadcast", 1 << 15).kernel_s == pytest.approx(model.parameters.base.of(protocol) + transfer)


def test_a_gpu_alone_in_its_node_shows_the_hop_of_its_nic() -> None:
    model, call = prepared("dgx-spark", 2, 8)
    flow = _flow(model.nodes.kinds[0], call)
    assert flow.hop >= model.parameters.network.ring_hop.LL
    assert seconds(model, call, fill=False) == pytest.approx(flow.hop + flow.transfer)


def prepared(
    preset: str, nodes: int, nbytes: int, protocol: str = "LL", *, channels: int = 1, threads: int = 512
) -> tuple[Predictor, Call]:
    """A model of NCCL 2.30 and a broadcast by rings."""
    model = Predictor(load_preset(preset, nodes=nodes), Options(VERSION, iterations=None))
    split = Split(channels, nbytes // channels, threads)
    return model, Call("broadcast", nbytes, "ring", PROTOCOLS[protocol], split, DEFAULT_BUFFER_BYTES)


def in_orders(model: Predictor, orders: tuple[tuple[int, ...], ...]) -> Nodes:
    """The nodes of a model whose rings visit the GPUs in these orders."""
    (kind,) = model.nodes.kinds
    system = replace(kind.system, ring=replace(kind.system.ring, orders=orders))
    return replace(model.nodes, kinds=(replace(kind, system=system),))


def seconds(model: Predictor, call: Call, *, fill: bool) -> float:
    return chain_time(model.nodes, call, fill=fill)[0]


def test_one_message_of_two_channels_over_one_nic_by_hand() -> None:
    """One GPU per node: both messages pass the NIC, at half of its rate each; the first bytes pass it at all of it."""
    model, call = prepared("dgx-spark", 2, 1 << 20, "Simple", channels=2)
    block = model.parameters.block_rate.model_copy(update={"Simple": 1e15})  # or it would be the slowest
    (kind,) = model.nodes.kinds
    kind = replace(kind, parameters=kind.parameters.model_copy(update={"block_rate": block}))
    model.nodes = replace(model.nodes, kinds=(kind,))
    nic = min(one for _, one, _ in nic_rates(model.machine, model.parameters))
    assert shares(kind.system, kind.machine, kind.parameters, call).inter == pytest.approx(nic / 2)
    got = _flow(kind, call)
    assert got.transfer == pytest.approx(2 * got.piece) == pytest.approx((1 << 20) / nic)
    assert seconds(model, call, fill=True) == pytest.approx(got.across + got.transfer / 2)
    assert seconds(model, call, fill=False) <= seconds(model, call, fill=True) * (1 + 1e-12)


def test_slots_hold_a_part_of_many_bytes() -> None:
    model, call = prepared("abci-v100", 2, 1 << 20)
    flow = _flow(model.nodes.kinds[0], call)
    assert flow.held == pytest.approx(flow.transfer / 4)  # eight of 32 KiB


def test_a_reduce_runs_towards_the_root() -> None:
    """Where the root's chains begin in its node in one direction, they end there in the other."""
    model, call = prepared("abci-v100", 2, 1 << 17, channels=2)
    model.nodes = in_orders(model, ((0, 1, 2, 3), (1, 2, 3, 0)))
    down, up = seconds(model, call, fill=True), seconds(model, replace(call, collective="reduce"), fill=True)
    flow = _flow(model.nodes.kinds[0], call)
    # Down: 0 | 4 and 5 6 7 | 1 2 3 of the second order cross twice; up: 1 2 3 | ... | 0 of the first does.
    assert down == pytest.approx(5 * flow.inside + 2 * flow.across + flow.transfer - flow.piece)
    model.nodes = in_orders(model, ((0, 1, 2, 3),))
    down, up = seconds(model, call, fill=True), seconds(model, replace(call, collective="reduce"), fill=True)
    assert down == pytest.approx(6 * flow.inside + 1 * flow.across + flow.transfer - flow.piece)
    assert up == pytest.approx(5 * flow.inside + 2 * flow.across + flow.transfer - flow.piece)


def test_a_few_bytes_take_the_base() -> None:
    model, _ = prepared("hgx-h100", 1, 8)
    got = model.predict("broadcast", 8)
    assert (got.protocol, got.channels) == ("LL", 1)
    assert got.kernel_s == pytest.approx(model.parameters.base.LL, rel=0.01)


def test_two_channels_of_many_nodes_take_half_of_the_chain() -> None:
    """128 V100 of NCCL 2.8: 512 KiB over one channel 210 us, 1 MiB over two 541 us where bytes would take 210 again."""
    model = Predictor(load_preset("abci-v100", nodes=32), Options((2, 8, 4)))
    one, two = (model.predict("broadcast", n) for n in (1 << 19, 1 << 20))
    assert (one.protocol, one.channels, two.protocol, two.channels) == ("LL", 1, "LL", 2)
    assert one.time_s == pytest.approx(210e-6, rel=0.2)
    assert two.time_s == pytest.approx(541e-6, rel=0.25)


@pytest.mark.parametrize(("threads", "share"), [(64, 2 / 9), (128, 2 / 5), (256, 2 / 3), (512, 1.0)])
def test_few_threads_of_ll_pass_on_less(threads: int, share: float) -> None:
    model, half = prepared("abci-v100", 1, 1 << 19, threads=threads)
    _, whole = prepared("abci-v100", 1, 1 << 20, threads=threads)
    rate = model.parameters.block_rate.LL
    more = seconds(model, whole, fill=False) - seconds(model, half, fill=False)
    assert more == pytest.approx((1 << 19) / (share * rate))


@pytest.mark.parametrize(("nodes", "nbytes"), [(2, 1 << 20), (8, 4 << 20), (32, 16 << 20)])
def test_cards_on_the_processor_leave_ll_and_simple_to_choose_from(nodes: int, nbytes: int) -> None:
    # NCCL 2.8.4 has hops of 2.7 and 28 us and channels of 5 and 20 GB/s: alike at N * 0.17 MB, which is
    # where the measured curves of all three bend.
    model = Predictor(load_preset("abci-v100", nodes=nodes), Options((2, 8, 4)))
    assert [model.choose("broadcast", n)[1] for n in (nbytes, 2 * nbytes)] == ["LL", "Simple"]
