"""By which NICs a root's messages to another node leave."""

from __future__ import annotations

import pytest

from commsim.nccl.machine import nic_rates
from commsim.nccl.p2p import busiest_rail
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset

VERSION = (2, 22, 3)


@pytest.mark.parametrize(
    ("preset", "version", "env", "share"),
    [
        ("hgx-h100-ndr400", VERSION, {}, 1 / 8),
        ("hgx-h100-ndr400", VERSION, {"NCCL_P2P_PXN_LEVEL": "1"}, 1 / 8),
        ("hgx-h100-ndr400", VERSION, {"NCCL_P2P_PXN_LEVEL": "0"}, 1),
        ("hgx-h100-ndr400", VERSION, {"NCCL_PXN_DISABLE": "1"}, 1),
        ("hgx-h100-ndr400", VERSION, {"NCCL_NET_GDR_LEVEL": "LOC"}, 1),  # no NIC reads from a GPU
        ("hgx-h100-ndr400", (2, 12, 7), {}, 1 / 8),
        ("hgx-h100-ndr400", (2, 11, 4), {}, 1),
        ("aws-p4d", VERSION, {}, 1 / 4),  # two GPUs beside each NIC
        ("polaris", VERSION, {}, 1),  # NICs at the host
        ("gh200x4-slingshot200", VERSION, {}, 1),
        ("gh200x4-slingshot200", (2, 27, 3), {}, 1 / 4),  # a NIC beyond NVLink-C2C reads from the GPU
        ("ethernet-hosts", VERSION, {}, 1),
    ],
)
def test_shares(preset: str, version: tuple[int, int, int], env: dict[str, str], share: float) -> None:
    assert busiest_rail(load_preset(preset, nodes=2), version, env) == share


def test_boards_without_nvlink_hand_nothing_over() -> None:
    topology = load_preset("rtx6000d", nodes=2, nics_per_node=8, nic_bandwidth="400 Gb/s")
    assert busiest_rail(topology, VERSION, {}) == 1


def test_one_node_has_no_rails() -> None:
    assert busiest_rail(load_preset("hgx-h100-ndr400", nodes=1), VERSION, {}) == 1


def test_a_mesh_hands_over_to_neighbours_only() -> None:
    """The first GPU of a DGX-1 has NVLink to four others; what is for the other three leaves by its own NIC."""
    topology = load_preset("dgx-1v-edr100", nodes=2)
    neighbours = [gpu for gpu in range(1, 8) if topology.pair_links(0, gpu)]
    assert len(neighbours) == 4
    own = {0, 1} & {0, *neighbours}  # two GPUs share a NIC
    assert busiest_rail(topology, VERSION, {}) == (len(own) + 3) / 8


@pytest.mark.parametrize(
    ("collective", "env", "messages"),
    [("scatter", {}, 2), ("scatter", {"NCCL_PXN_DISABLE": "1"}, 8), ("gather", {}, 8)],
)
def test_what_the_busiest_nic_carries(collective: str, env: dict[str, str], messages: int) -> None:
    """Two nodes of eight GPUs, two of them beside each NIC: of eight messages a NIC carries two, or one all."""
    model = Predictor(load_preset("aws-p4d", nodes=2), Options(VERSION, env))
    assert not any("PXN" in text for text in model.warnings)
    rate = min(one for _, one, _ in nic_rates(model.machine, model.parameters))
    times = [model.predict(collective, 16 * each).kernel_s for each in (64 << 20, 128 << 20)]
    assert times[1] - times[0] == pytest.approx(messages * (64 << 20) / rate, rel=1e-3)


def test_proxies_post_side_by_side() -> None:
    """64 messages to eight nodes cost a root with eight rails what eight cost one NIC."""
    topology = load_preset("hgx-h100-ndr400", nodes=9)
    by_all, by_one = (Predictor(topology, Options(VERSION, env)) for env in ({}, {"NCCL_PXN_DISABLE": "1"}))
    less = by_one.predict("scatter", 1).kernel_s - by_all.predict("scatter", 1).kernel_s
    network = by_all.parameters.network
    assert less == pytest.approx(56 * (network.peer_cost + network.inline_cost * (network.inline > 0)), rel=1e-3)


@pytest.mark.parametrize(
    ("nbytes", "measured"), [(256, 88.8e-6), (1 << 17, 94.2e-6), (1 << 26, 1.1e-3), (1 << 30, 12.83e-3)]
)
def test_scatter_over_two_nodes_of_p4d_as_measured(nbytes: int, measured: float) -> None:
    # validation/outside/aws_efa_n2x8_scatter_awsome, which no fit has seen; 62 ms for 1 GiB by one NIC
    env = {"FI_EFA_USE_DEVICE_RDMA": "1"}
    model = Predictor(load_preset("aws-p4d", nodes=2), Options((2, 12, 7), env))
    assert model.predict("scatter", nbytes).time_s == pytest.approx(measured, rel=0.25)
