"""What the links inside a node carry, against the engine's count of every channel's bytes and a linear programme."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from commsim.bounds import lower_bound_s
from commsim.collectives.tree import along_trees
from commsim.engine.evaluate import evaluate
from commsim.nccl.channels import Call, Split
from commsim.nccl.lower import tree_share
from commsim.nccl.machine import MEMORY, Ways, nic_rates, staged_rate
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.protocols import PROTOCOLS
from commsim.topology.graph import Topology
from commsim.topology.presets import load_preset

VERSION = (2, 26, 2)
MESHES = ["dgx-1v", "aws-p3dn", "abci-v100", "hgx-a100-4", "polaris", "leonardo", "gh200x4", "hgx-h100-4", "gb200-nvl4"]


def test_rates_by_hand() -> None:
    """Two channels meet on link 1, at different hops; one of link 2's 30 is what the slower link leaves a channel."""
    ways = Ways((((0,), (1,)), ((1,), (2,))), {0: 40.0, 1: 50.0, 2: 30.0})
    assert (ways.rate(1), ways.rate(2), ways.rate(4)) == (40.0, 25.0, 12.5)
    assert (ways.hop_rate(1), ways.hop_rate(2)) == (40.0, 30.0)


def model(preset: str, algorithm: str, **knobs: int) -> Predictor:
    return Predictor(load_preset(preset, **knobs), Options(VERSION, algorithm=algorithm, protocol="Simple"))


@pytest.mark.parametrize("preset", MESHES)
def test_trees_take_as_long_as_the_busiest_link_of_the_engine(preset: str) -> None:
    """Every channel's chain in NCCL's order on the topology itself: bytes by link, counted by the engine."""
    predictor = model(preset, "tree")
    got = predictor.predict("all_reduce", 9 << 28)
    orders = predictor.system.tree.orders
    parent = np.full((got.channels, predictor.system.ranks), -1, np.int32)
    for channel in range(got.channels):
        for above, below in pairwise(orders[channel % len(orders)]):
            parent[channel, below] = above
    busy = evaluate(along_trees("all_reduce", "tree", parent, 9 << 28), predictor.topology).link_busy_s.max()
    share = predictor.parameters.efficiency.nvlink_direct
    assert got.bottleneck == "NVLink"
    assert got.kernel_s == pytest.approx(busy / share, rel=0.05)
    assert got.kernel_s > busy / share * (1 - 1e-9)


def share(predictor: Predictor, pieces: int, channels: int) -> float:
    """Nominal GB/s of a hop of one of so many channels."""
    call = Call("all_reduce", 1 << 30, "tree", PROTOCOLS["Simple"], Split(channels, 1 << 30, 640), 1 << 22)
    got = tree_share(predictor.system, predictor.machine, predictor.parameters, call, pieces)
    return got / predictor.parameters.efficiency.nvlink_direct / 1e9


@pytest.mark.parametrize("preset", ["dgx-1v", "hgx-a100-4"])
def test_trees_of_unknown_orders_load_all_links_alike(preset: str) -> None:
    predictor = model(preset, "tree")
    n = predictor.system.ranks
    (kind,) = predictor.nodes.kinds
    kind = replace(kind, machine=replace(kind.machine, tree_ways=None))
    predictor.nodes = replace(predictor.nodes, kinds=(kind,))
    whole = predictor.machine.intra_bandwidth / 1e9
    # 24 channels over all links: at one hop each GPU sends for as many as there are; busy chains have 2 (n - 1) hops.
    assert share(predictor, 1, 24) == pytest.approx(whole / 24)
    assert share(predictor, 99, 24) == pytest.approx(whole / 24 * n / (2 * (n - 1)))
    nbytes = 9 << 28
    assert (
        predictor.predict("all_reduce", nbytes).time_s > lower_bound_s("all_reduce", nbytes, predictor.topology).seconds
    )


def test_as_many_hops_are_busy_as_there_are_pieces() -> None:
    """24 chains of four A100, 100 GB/s a pair: eight meet on a link at one hop, sixteen once all six hops are busy."""
    predictor = model("hgx-a100-4", "tree")
    ways = predictor.machine.tree_ways
    assert ways is not None
    assert (ways.hop_rate(24), ways.rate(24)) == (100e9 / 8, 100e9 / 16)
    rates = [share(predictor, pieces, 24) for pieces in (1, 2, 3, 4, 6, 100)]
    assert rates == pytest.approx([12.5, 12.5, 12.5, 9.375, 6.25, 6.25])


def test_links_that_nics_leave_idle_hold_nobody_up() -> None:
    """Two nodes of four GH200: a piece finds the links as busy as the NICs let them be, with 1 Gb/s hardly ever."""
    rates = []
    for gbps in (1, 200):
        predictor = Predictor(
            load_preset("gh200x4-slingshot200", nodes=2, nic_bandwidth=f"{gbps} Gb/s"), Options(VERSION)
        )
        ways = predictor.machine.tree_ways
        assert ways is not None
        rates.append(1e9 * share(predictor, 100, 8) / ways.hop_rate(8))
    assert rates[0] == pytest.approx(1, abs=0.02)
    assert 1 / 3 < rates[1] < 0.6


def test_a_ring_is_held_by_the_pair_of_gpus_that_most_channels_pass() -> None:
    """32 channels of six orders over 300 GB/s a pair: twelve pass the busiest; measured: 605 of 900 GB/s a GPU."""
    predictor = model("gb200-nvl4", "ring")
    got = predictor.predict("all_reduce", 8 << 30)
    assert got.channels == 32
    share = predictor.parameters.efficiency.nvlink_direct
    assert got.busy_s == pytest.approx(6 / 4 * (8 << 30) / 32 / (300e9 / 12 * share), rel=0.03)
    assert 6 / 4 * (8 << 30) / got.time_s == pytest.approx(605e9, rel=0.04)


@pytest.mark.parametrize("nbytes", [2 << 20, 4 << 20, 64 << 20, 1 << 30])
def test_chains_of_four_gh200_as_measured(nbytes: int) -> None:
    # validation/measured/alps_gh200_n2x4_allreduce_ofi19: of one chunk a channel all are at one hop, of many everywhere
    measured = {2 << 20: 129.3e-6, 4 << 20: 191.8e-6, 64 << 20: 1090.0e-6, 1 << 30: 12161.0e-6}
    env = {"NCCL_CROSS_NIC": "0", "NCCL_NET_GDR_LEVEL": "PHB", "NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"}
    topology = load_preset("gh200x4-slingshot200", nodes=2, fabric={"plugin": "none"})
    predictor = Predictor(topology, Options((2, 23, 4), env))
    assert predictor.predict("all_reduce", nbytes).time_s == pytest.approx(measured[nbytes], rel=0.12)


def _exchange_s(topology: Topology, each: float) -> float:
    """Seconds of the quickest exchange of `each` bytes between all GPUs of a node, over any ways of its links."""
    from scipy.optimize import linprog

    from commsim.bounds import _usable, wires

    every = np.arange(len(topology.link_src))
    carried, links = wires(topology, every), np.flatnonzero(_usable(topology, every))
    n, vertices = topology.world_size, len(topology.vertex_name)
    flow = np.zeros((vertices, links.size))
    flow[topology.link_dst[links], np.arange(links.size)] += 1
    flow[topology.link_src[links], np.arange(links.size)] -= 1
    # Of each source what arrives at every other GPU; the time follows the flows in the vector of unknowns.
    arrives = np.zeros((n, vertices))
    arrives[:, topology.rank_vertex] = each
    for source in range(n):
        arrives[source, topology.rank_vertex[source]] = -(n - 1) * each
    equal = np.kron(np.eye(n), flow)
    most = np.hstack([np.tile(np.eye(links.size), n), -carried[links][:, None] / 1e9])
    done = linprog(
        np.append(np.zeros(n * links.size), 1.0),
        A_ub=most,
        b_ub=np.zeros(links.size),
        A_eq=np.hstack([equal, np.zeros((equal.shape[0], 1))]),
        b_eq=arrives.ravel() / 1e9,
        method="highs",
    )
    assert done.success
    return float(done.x[-1])


# Some of these take seconds to search for NCCL's graphs.
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("a100-pcie", "h100-nvl", "rtx2080ti")]


@pytest.mark.parametrize("preset", ["v100-pcie-8", "a100-pcie-bridge", "dgx-1v", *SLOW])
def test_an_exchange_takes_longer_than_over_the_best_ways_there_are(preset: str) -> None:
    """All pairs at once: a linear programme is never under the bound, the prediction never under the programme."""
    predictor = Predictor(load_preset(preset), Options(VERSION))
    topology, nbytes = predictor.topology, 256 << 20
    best = _exchange_s(topology, nbytes / topology.world_size)
    assert lower_bound_s("all_to_all", nbytes, topology).bisection_s <= best * (1 + 1e-6)
    assert predictor.predict("all_to_all", nbytes).time_s > best


@pytest.mark.parametrize(
    ("preset", "gbps"),
    [
        ("hgx-h100-ndr400", 24),  # 48 GB/s of the port that a switch shares between its GPU and its NIC
        ("hgx-a100-4-hdr200", 12),
        ("dgx-1v-edr100", 6),
        ("polaris", 24),  # GPU and NIC have ports of their own on the host
    ],
)
def test_what_a_nic_gets_through_the_host(preset: str, gbps: float) -> None:
    assert staged_rate(load_preset(preset, nodes=2)) == pytest.approx(gbps * 1e9)


@pytest.mark.parametrize(
    ("preset", "env", "gbps"),
    [
        ("abci-v100", {}, 0.85 * 12),
        ("leonardo", {}, 0.62 * 24),
        ("leonardo", {"NCCL_NET_GDR_LEVEL": "PXB"}, 0.62 * 24),
        ("leonardo", {"NCCL_NET_GDR_LEVEL": "SYS"}, None),
        ("hgx-a100-4-hdr200", {}, None),  # GPU and NIC below one switch
        ("hgx-a100-4-hdr200", {"NCCL_NET_GDR_LEVEL": "LOC"}, 0.62 * 24),
        ("polaris", {}, None),  # a plugin finds its own way
        ("dgx-spark", {}, float("inf")),  # its GPU has no other memory
    ],
)
def test_without_gpudirect_a_gpu_writes_into_the_memory_of_a_host(
    preset: str, env: dict[str, str], gbps: float | None
) -> None:
    model = Predictor(load_preset(preset, nodes=2), Options(VERSION, env))
    rates = {kind: one for kind, one, _ in nic_rates(model.machine, model.parameters)}
    assert rates.get(MEMORY) == (None if gbps is None else pytest.approx(gbps * 1e9))
    told = any("meet in the root of the host" in text for text in model.warnings)
    assert told == (preset == "abci-v100")  # Leonardo's NICs carry less


@pytest.mark.parametrize(
    "preset", [pytest.param("hgx-h100-ndr400", marks=pytest.mark.slow), "hgx-a100-4-hdr200", "dgx-1v-edr100"]
)
@pytest.mark.parametrize("algorithm", ["ring", "tree"])
def test_without_gpudirect_nothing_passes_faster_than_the_ports_carry(preset: str, algorithm: str) -> None:
    topology, nbytes = load_preset(preset, nodes=2), 1 << 30
    options = Options(VERSION, {"NCCL_NET_GDR_LEVEL": "LOC"}, algorithm=algorithm, protocol="Simple")
    # Every byte leaves each of two nodes once at least.
    least = nbytes / (topology.nics_per_node * staged_rate(topology))
    assert Predictor(topology, options).predict("all_reduce", nbytes).time_s > least
