"""Sends: by which protocol inside a node; between nodes which peers share a block, what is inline, and who flushes."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.nccl.machine import MEMORY, nic_rates
from commsim.nccl.p2p import off_packs, peer_channels
from commsim.nccl.parameters import load_parameters
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset, load_topology
from commsim.topology.spec import TopologySpec

VERSION = (2, 22, 3)


@pytest.mark.parametrize(
    ("nbytes", "measured"),
    [(1 << 15, 66e-6), (1 << 17, 68e-6), (1 << 19, 95e-6), (1 << 20, 127e-6), (1 << 23, 316e-6), (1 << 26, 1698e-6)],
)
def test_all_to_all_over_two_nodes_as_measured(nbytes: int, measured: float) -> None:
    # validation/measured/sophia_dgxa100_n2x8_alltoall_r1_env1; 0.63 of 127 us without a shared block
    time = Predictor(load_preset("dgx-a100-hdr200", nodes=2), Options(VERSION)).predict("all_to_all", nbytes).time_s
    assert time == pytest.approx(measured, rel=0.13)


@pytest.mark.parametrize(
    ("version", "nodes", "each", "expected"),
    [
        # Eight GPUs with 18 NVLinks have 32 channels, of which a peer may have all; it starts with 4. Parts of LL
        # are of 8 KiB at least, those of Simple of 64. Up to 2.28 LL carries 32 * 16 KiB, later 16 KiB
        # for a channel in use.
        ((2, 28, 9), 1, 8 << 10, (1, 8 << 10, True)),
        ((2, 28, 9), 1, 16 << 10, (2, 8 << 10, True)),
        ((2, 28, 9), 1, 512 << 10, (4, 128 << 10, True)),
        ((2, 28, 9), 1, 516 << 10, (4, 129 << 10, False)),
        ((2, 29, 2), 1, 16 << 10, (1, 16 << 10, True)),
        ((2, 29, 2), 1, 20 << 10, (1, 20 << 10, False)),
        ((2, 29, 2), 1, 128 << 10, (2, 64 << 10, False)),
        ((2, 28, 9), 2, 8 << 10, (1, 8 << 10, False)),  # a network has no buffers of LL for sends
        ((2, 21, 5), 1, 8 << 10, (1, 8 << 10, False)),
    ],
)
def test_small_sends_inside_a_node_go_by_ll(
    version: tuple[int, int, int], nodes: int, each: int, expected: tuple[int, int, bool]
) -> None:
    model = Predictor(load_preset("hgx-h100-ndr400", nodes=nodes), Options(version))
    by = peer_channels(model.system, model.machine, each, 8 * nodes - 1, version)
    assert (by.channels, by.part, by.lines) == expected


@pytest.mark.parametrize(("version", "each", "channels"), [((2, 28, 9), 512 << 10, 4), ((2, 29, 2), 32 << 10, 1)])
def test_an_all_to_all_inside_a_node_by_hand(version: tuple[int, int, int], each: int, channels: int) -> None:
    model = Predictor(load_preset("hgx-h100"), Options(version))
    p, part = model.parameters, each / channels
    if version < (2, 29, 0):
        # 9 of 16 warps of LL: 9/16 of the bytes in 1/2 + 9/32 of a pass's time, 0.72 of the rate
        sent = part / (0.72 * p.block_rate.LL)
    else:
        sent = 2 * part / p.point_to_point.channel_rate + p.pause.Simple
    work = p.point_to_point.base + (7 * channels - 1) * p.channel_cost
    assert model.predict("all_to_all", 8 * each).kernel_s == pytest.approx(work + sent + each / p.copy_rate)


@pytest.mark.parametrize(("nbytes", "measured"), [(1 << 19, 13.8e-6), (1 << 20, 16.7e-6), (1 << 22, 34.8e-6)])
def test_all_to_all_on_one_board_as_measured(nbytes: int, measured: float) -> None:
    # validation/silicon/silicon_b200_sxm_x8_alltoall_half_2_27_5; 0.61 of 34.8 us by Simple
    parameters = load_parameters("blackwell", "infiniband")
    time = Predictor(load_preset("hgx-b200"), Options((2, 27, 5)), parameters).predict("all_to_all", nbytes).time_s
    assert time == pytest.approx(measured, rel=0.13)


def test_the_peers_of_a_node_share_a_block_by_hand() -> None:
    # 16 ranks: 32 KiB for each of eight remote peers are one chunk: into the block, through the NIC, out of a block.
    model = Predictor(load_preset("dgx-a100-hdr200", nodes=2), Options(VERSION))
    tiny, got = (model.predict("all_to_all", n).kernel_s for n in (16, 1 << 19))
    p = model.parameters
    copied = 8 * (32 << 10) / p.point_to_point.channel_rate
    sent = 8 * (32 << 10) / (25e9 * p.network.all_to_all_efficiency)
    assert got - tiny == pytest.approx(2 * copied + sent, rel=1e-3)
    # one peer alone has the block for itself
    alone = Predictor(load_preset("dgx-a100-hdr200", nodes=2, gpus_per_node=1), Options(VERSION))
    tiny, got = (alone.predict("all_to_all", n).kernel_s for n in (2, 1 << 16))
    assert got - tiny == pytest.approx((32 << 10) / p.network.channel_rate, rel=1e-3)


@pytest.mark.parametrize(("each", "inline"), [(1, True), (128, True), (192, True), (193, False), (256, False)])
def test_the_host_hands_the_smallest_messages_to_slingshot(each: int, inline: bool) -> None:
    # 8 nodes of 4 GPUs: 28 remote peers; 615 us where each gets 128 B, 283 us where each gets 256 B (measured).
    model = Predictor(load_preset("polaris", nodes=8), Options((2, 18, 5), {"FI_CXI_RX_MATCH_MODE": "software"}))
    network = model.parameters.network
    step = model.predict("all_to_all", 32 * each).kernel_s - model.predict("all_to_all", 32 * 256).kernel_s
    assert step == pytest.approx(28 * network.inline_cost if inline else 0.0, abs=3e-6)
    assert model.predict("all_to_all", 32 * 128).time_s == pytest.approx(615e-6, rel=0.15)
    assert model.predict("all_to_all", 32 * 256).time_s == pytest.approx(283e-6, rel=0.15)
    assert load_parameters("ampere", "infiniband").network.inline_cost == 0


@pytest.mark.parametrize(("preset", "ways"), [("dgx-a100-hdr200", 2), ("hgx-h100-ndr400", 1), ("hgx-b200-ndr400", 1)])
def test_what_arrives_before_hopper_is_flushed(preset: str, ways: int) -> None:
    model = Predictor(load_preset(preset, nodes=2), Options(VERSION))
    p = model.parameters
    got = model.predict("send_recv", 1).kernel_s
    assert got == pytest.approx(p.point_to_point.base + ways * p.network.ring_hop.Simple, rel=1e-3)


def test_larger_chunks_are_handed_over_less_often() -> None:
    """By hand: a chunk of 128 KiB is copied by its block and handed over, which takes as long for one of 2 MiB."""
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    usual = Predictor(topology, Options((2, 26, 2)))
    p = usual.parameters
    small, large = 128 << 10, 2 << 20
    handed_over = small / p.network.channel_rate - small / p.point_to_point.channel_rate
    rate = large / (large / p.point_to_point.channel_rate + handed_over)
    chunked = Predictor(topology, Options((2, 26, 2), env={"NCCL_P2P_NET_CHUNKSIZE": f"{large}"}))
    got = chunked.predict("send_recv", 1 << 28)
    assert got.busy_s == pytest.approx((1 << 27) / rate)  # two channels
    assert got.busy_s < 0.5 * usual.predict("send_recv", 1 << 28).busy_s
    same = Predictor(topology, Options((2, 26, 2), env={"NCCL_P2P_NET_CHUNKSIZE": f"{small}"}))
    assert same.predict("send_recv", 1 << 28).busy_s == usual.predict("send_recv", 1 << 28).busy_s
    assert not any("CHUNKSIZE" in text for text in chunked.warnings)


def test_a_faster_block_never_makes_an_all_to_all_slower() -> None:
    # At 256 KiB per peer block and NIC take about as long; either may be what is waited for.
    model = Predictor(load_preset("hgx-h100-ndr400", nodes=2), Options((2, 28, 7)))
    p, times = model.parameters, []
    for factor in (0.8, 1.0, 1.05, 1.1, 1.5):
        sends = p.point_to_point.model_copy(update={"channel_rate": factor * p.point_to_point.channel_rate})
        faster = Predictor(model.topology, model.options, p.model_copy(update={"point_to_point": sends}))
        times.append(faster.predict("all_to_all", 16 << 18).time_s)
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize(("version", "peers"), [((2, 22, 3), 8), ((2, 21, 5), 0)])
def test_a_block_serves_at_most_eight_peers(version: tuple[int, int, int], peers: int) -> None:
    # Two DGX-2: 16 remote peers, of which eight share a channel; before 2.22 they are taken to have one each, which
    # then hides behind the NICs.
    model = Predictor(load_preset("dgx-2-edr100", nodes=2), Options(version))
    p, times = model.parameters, []
    for factor in (1.0, 2.0):
        sends = p.point_to_point.model_copy(update={"channel_rate": p.point_to_point.channel_rate / factor})
        slower = Predictor(model.topology, model.options, p.model_copy(update={"point_to_point": sends}))
        times.append(slower.predict("all_to_all", 32 << 10).kernel_s)
    assert times[1] - times[0] == pytest.approx(2 * peers * 1024 / p.point_to_point.channel_rate)


@pytest.mark.parametrize("collective", ["gather", "scatter"])
def test_gather_and_scatter_have_a_block_for_each_peer(collective: str) -> None:
    model = Predictor(load_preset("dgx-a100-hdr200", nodes=2), Options(VERSION, {"NCCL_PXN_DISABLE": "1"}))
    p = model.parameters
    tiny, got = (model.predict(collective, n).kernel_s for n in (16, 1 << 19))
    assert got - tiny == pytest.approx(8 * (32 << 10) / (24e9 * 0.85), rel=0.15)
    assert got - tiny < 8 * (32 << 10) / p.point_to_point.channel_rate


@pytest.mark.parametrize(("collective", "posted"), [("scatter", 28), ("gather", 1), ("all_to_all", 28)])
def test_what_a_rank_posts_inline(collective: str, posted: int) -> None:
    model = Predictor(load_preset("polaris", nodes=8), Options((2, 18, 5)))
    step = model.predict(collective, 32 * 192).kernel_s - model.predict(collective, 32 * 193).kernel_s
    assert step == pytest.approx(posted * model.parameters.network.inline_cost, abs=1e-7)


@pytest.mark.parametrize(("algorithm", "hops"), [("tree", 2), ("ring", 2)])
def test_a_nic_fetches_lines_that_are_not_inline(algorithm: str, hops: int) -> None:
    # 96 B of LL are 192 on the wire. Two nodes of one GPU: up and down a tree, two steps of a ring of half the bytes.
    options = Options((2, 23, 4), {"NCCL_ALGO": algorithm, "NCCL_PROTO": "LL"})
    topology = load_preset("gh200x4-slingshot200", nodes=2, gpus_per_node=1)
    model = Predictor(topology, options)
    network = model.parameters.network.model_copy(update={"fetch": 0.0})
    without = Predictor(topology, options, model.parameters.model_copy(update={"network": network}))
    part = 2 if algorithm == "ring" else 1
    for nbytes, fetched in ((64 * part, 0), (96 * part, 0), (112 * part, hops), (256 * part, hops)):
        more = model.predict("all_reduce", nbytes).kernel_s - without.predict("all_reduce", nbytes).kernel_s
        assert more == pytest.approx(fetched * model.parameters.network.fetch), nbytes
    for protocol in ("LL128", "Simple"):
        forced = Options((2, 23, 4), {"NCCL_ALGO": algorithm, "NCCL_PROTO": protocol})
        both = (Predictor(topology, forced, m.parameters).predict("all_reduce", 1 << 16) for m in (model, without))
        assert len({got.kernel_s for got in both}) == 1
    assert model.parameters.scaled(latency=2.0).network.fetch == 2 * model.parameters.network.fetch


@pytest.mark.parametrize(
    ("collective", "each", "share"),
    [
        ("all_to_all", 16, 0.0),
        ("all_to_all", 24, 0.5),
        ("scatter", 20, 0.75),
        ("gather", 2, 0.875),
        ("all_to_all", 1, 0.9375),
        ("send_recv", 1, 0.0),  # begins where its buffer does
        ("all_to_all", 0, 0.0),
    ],
)
def test_peers_whose_parts_do_not_begin_on_packs(collective: str, each: int, share: float) -> None:
    assert off_packs(collective, 8 * each, 8) == share


def test_bytes_by_hand() -> None:
    # Seven peers have four of 32 channels each; from 16 bytes to one a block has a sixteenth of its rate.
    each = (1 << 20) + 4
    exact = Predictor(load_preset("hgx-h100"), Options((2, 26, 2), exact=True))
    p, got = exact.parameters, exact.predict("all_to_all", 8 * each)
    assert (got.channels, got.limit) == (4, "thread block")
    slow, part = p.point_to_point.channel_rate / 16, each / 4
    # The first chunk is handed over whole, and fenced.
    waits = p.point_to_point.base + 27 * p.channel_cost + part / slow + p.pause.Simple
    assert got.kernel_s == pytest.approx(waits + part / slow + each / (p.copy_rate / 16), rel=1e-3)
    rounded = Predictor(load_preset("hgx-h100"), Options((2, 26, 2))).predict("all_to_all", 8 * each)
    assert rounded.kernel_s < got.kernel_s / 5
    assert any("byte by byte" in text for text in exact.warnings)


def test_bytes_of_many_peers_pass_few_blocks() -> None:
    # 72 GPUs: 71 parts on 32 channels, a quarter of them on packs, is more than a part of its own on each.
    each = (1 << 20) + 4
    model = Predictor(load_preset("gb200-nvl72"), Options((2, 26, 2), exact=True))
    got, block = model.predict("all_to_all", 72 * each), model.parameters.point_to_point.channel_rate / 16
    assert got.busy_s == pytest.approx(71 * each * (0.75 + 0.25 / 16) / (32 * block))


@pytest.mark.parametrize("collective", ["send_recv", "all_to_all"])
def test_without_gpudirect_a_block_copies_over_its_share_of_the_port(collective: str) -> None:
    # Two channels of a peer: each copies at half of what the port gives through the host's memory.
    spec = {"preset": "a100-pcie", "nodes": 2, "gpus_per_node": 1, "nics_per_node": 1, "nic_bandwidth": "200 Gb/s"}
    blocks = {"node": {"nic": {"attach": "host"}}, "fabric": {"kind": "fat_tree", "network": "infiniband"}}
    machine = load_topology(TopologySpec.model_validate(spec | blocks), Path())
    far = {level: Predictor(machine, Options((2, 16, 5), {"NCCL_NET_GDR_LEVEL": level})) for level in ("SYS", "LOC")}
    p = far["LOC"].parameters
    ports = {kind: rate for kind, rate, _ in nic_rates(far["LOC"].machine, p)}
    small, large = 64 << 20, 192 << 20
    slope = {
        level: (model.predict(collective, large).kernel_s - model.predict(collective, small).kernel_s) / (large - small)
        for level, model in far.items()
    }
    share = min(ports[MEMORY], ports["PCIe"]) / 2
    parts = 4 if collective == "all_to_all" else 2  # of a call's bytes one channel has a part
    copied = 1 / share - 1 / p.point_to_point.channel_rate
    assert slope["LOC"] - slope["SYS"] == pytest.approx(copied / parts, rel=0.02)
