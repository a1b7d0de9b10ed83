"""PAT, and what the network's switches reduce: who chooses them, and times by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.bounds import lower_bound_s
from commsim.errors import ScenarioError
from commsim.nccl.pat import transfers
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset

SLOT = 1 << 19


@given(st.integers(2, 300), st.integers(1, 1 << 21))
def test_transfers_carry_every_other_block_once(ranks: int, block: int) -> None:
    found = transfers(ranks, block, SLOT)
    assert sum(found) == ranks - 1
    assert max(found) <= max(1, ranks // 2)
    assert len(found) >= (ranks - 1).bit_length()  # a block cannot reach all in fewer


def test_small_blocks_take_log_n_transfers_and_large_ones_all() -> None:
    assert len(transfers(64, 8, SLOT)) == 6
    assert len(transfers(64, 1 << 20, SLOT)) == 63


def _single_gpus(version: tuple[int, int, int], **options: str) -> Predictor:
    topology = load_preset("hgx-h100-ndr400", nodes=16, gpus_per_node=1)
    return Predictor(topology, Options(version, **options))  # type: ignore[arg-type]


def test_nccl_takes_pat_for_small_gathers_of_single_gpus_since_2_23() -> None:
    assert _single_gpus((2, 26, 2)).predict("all_gather", 1 << 18).algorithm == "pat"
    assert _single_gpus((2, 22, 3)).predict("all_gather", 1 << 18).algorithm == "ring"


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
def test_pat_is_quicker_than_a_ring_where_latency_counts(collective: str) -> None:
    sizes = (1 << 16, 1 << 19, 1 << 22)
    pat = [_single_gpus((2, 26, 2), algorithm="pat").predict(collective, n).kernel_s for n in sizes]
    ring = [
        _single_gpus((2, 26, 2), algorithm="ring", protocol="Simple").predict(collective, n).kernel_s for n in sizes
    ]
    assert pat == sorted(pat)
    assert all(p < r for p, r in zip(pat[:2], ring[:2], strict=True))


SHARP = {"NCCL_COLLNET_ENABLE": "1"}


@pytest.mark.parametrize("algorithm", ["collnet_direct", "collnet_chain", "nvls"])
def test_reduction_in_the_network_does_not_slow_down_with_nodes_nor_beat_the_links(algorithm: str) -> None:
    times = []
    for nodes in (2, 16):
        topology = load_preset("hgx-h100-ndr400", nodes=nodes, fabric={"in_network_reduction": True})
        found = Predictor(topology, Options((2, 26, 2), SHARP, algorithm=algorithm)).predict("all_reduce", 1 << 30)
        assert found.algorithm == algorithm
        assert found.time_s > lower_bound_s("all_reduce", 1 << 30, topology, in_network=True).seconds
        times.append(found.time_s)
    assert times[0] == pytest.approx(times[1])


def test_gpus_within_a_chain_send_to_both_neighbours() -> None:
    """With NICs to spare all bytes leave a GPU twice, up the chain and down, by its NVLinks of 450 GB/s together."""
    knobs = {"nics_per_node": 8, "nic_bandwidth": "3200 Gb/s", "fabric": {"in_network_reduction": True}}
    topology = load_preset("hgx-h100-ndr400", nodes=2, **knobs)
    model = Predictor(topology, Options((2, 26, 2), SHARP, algorithm="collnet_chain", protocol="Simple"))
    got = model.predict("all_reduce", 1 << 32)
    assert got.bottleneck == "NVLink"
    assert got.busy_s == pytest.approx(2 * (1 << 32) / (450e9 * model.parameters.efficiency.nvlink_switch))


def test_half_of_the_nics_by_hand() -> None:
    # 8 NICs of 50 GB/s, of which 0.95 (the shipped share of InfiniBand) and of that half is counted; PCIe carries 48.
    topology = load_preset("hgx-h100-ndr400", nodes=4, fabric={"in_network_reduction": True})
    predictor = Predictor(topology, Options((2, 26, 2), SHARP, algorithm="nvls"))
    share = predictor.parameters.network.efficiency
    slope = predictor.predict("all_reduce", 1 << 34).time_s - predictor.predict("all_reduce", 1 << 33).time_s
    assert slope == pytest.approx((1 << 33) / (8 * min(48e9, 50e9 * share) / 2), rel=0.01)


@pytest.mark.parametrize("collective", ["all_gather", "reduce_scatter"])
@pytest.mark.parametrize(("algorithm", "limit"), [("nvls", "NVLink"), ("collnet_direct", "NIC")])
def test_one_way_through_the_network_by_hand(collective: str, algorithm: str, limit: str) -> None:
    # The node's NICs carry the array in one direction, of which NCCL counts 0.9: 8 x 47.5 x 0.9 GB/s. By NVLS a GPU
    # takes in (gives out) all of it besides; directly what the seven others have.
    topology = load_preset("hgx-h100-ndr400", nodes=4, fabric={"in_network_reduction": True})
    model = Predictor(topology, Options((2, 28, 3), SHARP, algorithm=algorithm))
    p = model.parameters
    inside = 450e9 * (p.efficiency.nvls if algorithm == "nvls" else p.efficiency.nvlink_switch * 8 / 7)
    large, larger = (model.predict(collective, n) for n in (1 << 33, 1 << 34))
    assert (larger.algorithm, larger.limit) == (algorithm, limit)
    expected = (1 << 33) / min(0.9 * 8 * min(48e9, 50e9 * p.network.efficiency), inside)
    assert larger.time_s - large.time_s == pytest.approx(expected, rel=0.01)
    assert larger.time_s > lower_bound_s(collective, 1 << 34, topology, in_network=True).seconds
    assert larger.time_s < model.predict("all_reduce", 1 << 34).time_s


def test_without_switches_that_reduce_the_variable_is_answered() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    predictor = Predictor(topology, Options((2, 26, 2), SHARP))
    assert any("in_network_reduction" in text for text in predictor.warnings)
    assert not predictor.predict("all_reduce", 1 << 20).algorithm.startswith("collnet")
    with pytest.raises(ScenarioError, match="expected one of"):
        Predictor(topology, Options((2, 26, 2), algorithm="collnet_direct")).predict("all_reduce", 1 << 20)
