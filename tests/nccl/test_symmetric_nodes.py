"""NCCL's kernels on symmetric memory over nodes: the choice against NCCL's source, the time, what they ask for."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.bounds import lower_bound_s
from commsim.collectives.check import check
from commsim.collectives.registry import build
from commsim.collectives.traffic import traffic
from commsim.nccl.copies import copy_calls
from commsim.nccl.environment import MODELLED_ENV
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.symmetric import Kernel, kernels
from commsim.nccl.symmetric_nodes import cost_over_nodes, passes
from commsim.nccl.version import Version, parse_version
from commsim.scenario.nccl_env import KNOWN
from commsim.topology.presets import load_preset

CHOICES = Path(__file__).parents[1] / "data" / "nccl_symmetric" / "over_nodes.csv"
NEW: Version = (2, 30, 7)
WINDOW = Options(NEW, registered="window")
MIB = 1 << 20


def of(preset: str = "hgx-h100-ndr400", options: Options = WINDOW, nodes: int = 2) -> Predictor:
    return Predictor(load_preset(preset, nodes=nodes), options)


def test_choices_are_those_of_nccls_source() -> None:
    own, compared = of().system, 0
    by_name = {kernel.name: kernel for kernel in kernels(NEW)}
    with CHOICES.open() as file:
        for row in csv.DictReader(file):
            ranks, nodes = int(row["local"]) * int(row["nodes"]), int(row["nodes"])
            system = replace(own, ranks=ranks, nodes=nodes, sm=int(row["sm"]))
            for release in row["releases"].split():
                nic = float(row["nic_gbps"]) * 1e9
                version, held = parse_version(release), int(row["held_bytes"])
                us, blocks = cost_over_nodes(by_name[row["kernel"]], system, held, version, {}, nic)
                assert blocks == int(row["blocks"]), row
                assert us == pytest.approx(float(row["us"]), rel=2e-5), row
                compared += 1
    assert compared == 720


@pytest.mark.parametrize("kernel", kernels(NEW), ids=lambda kernel: kernel.name)
def test_every_kernel_moves_a_schedule_that_is_proven(kernel: Kernel) -> None:
    local = 4 if kernel.over_nodes else 8
    check(build(kernel.collective, kernel.schedule, 8, 1024, ranks_per_node=local, channels=2, chunks=3))


def test_bytes_of_the_times_are_those_of_the_schedules() -> None:
    """In units of a rank's block: what NCCL's model counts through NVLink and the network, and what the proof moved."""
    local, nodes, block = 4, 3, 12
    n = local * nodes
    system = replace(of().system, ranks=n, nodes=nodes)
    for schedule, switched in (("rail_direct", False), ("nvls_rail_direct", True)):
        s = build("reduce_scatter", schedule, n, n * block, ranks_per_node=local)
        across = (s.src < n) & (s.dst < n) & (s.src // local != s.dst // local)
        into = s.chunk_bytes[s.dst_chunk] * (s.dst == 0)
        assert into[across].sum() == passes(system, switched).across * block
        inside = into[~across & (s.src != s.dst)].sum()
        out = (s.chunk_bytes[s.src_chunk] * (s.src == 0))[~across & (s.src != s.dst)].sum()
        # A load that the switch adds is served by all: a rank gives each block to the switch once, its own too.
        assert max(inside, out) == passes(system, switched).inside * block
    sent, received = traffic("all_gather", "nvls_rail_ring", n, n * block, ranks_per_node=local)
    assert sent[0] == (nodes - 1) * block + nodes * block
    assert received[0] == (nodes - 1) * block + n * block


def test_windows_over_nodes_take_them_from_2_29_7() -> None:
    got = of().predict("all_gather", 256 * MIB)
    assert (got.algorithm, got.protocol, got.channels) == ("symmetric", "RailRing_LsaSTMC", 2)
    assert of().predict("reduce_scatter", 256 * MIB).protocol.startswith("RailA2A_Lsa")
    assert of().predict("all_reduce", 256 * MIB).algorithm != "symmetric"
    assert of(options=replace(WINDOW, version=(2, 28, 9))).predict("all_gather", 256 * MIB).algorithm != "symmetric"


@pytest.mark.parametrize(
    ("preset", "env", "words"),
    [
        ("hgx-h100-ndr400", {"NCCL_GIN_ENABLE": "0"}, "NCCL_GIN_ENABLE=0"),
        ("hgx-h100-ndr400", {"NCCL_SYM_GIN_KERNELS_ENABLE": "0"}, "NCCL_SYM_GIN_KERNELS_ENABLE=0"),
        ("hgx-h100-ndr400", {"NCCL_NET_GDR_LEVEL": "LOC"}, "GPUDirect RDMA"),
        ("aws-p5", {}, "InfiniBand and RoCE"),
    ],
)
def test_without_gpus_that_send_the_tuner_chooses_and_says_why(preset: str, env: dict[str, str], words: str) -> None:
    predictor = Predictor(load_preset(preset, nodes=2), replace(WINDOW, env=env))
    plain = Predictor(load_preset(preset, nodes=2), replace(WINDOW, env=env, registered="none"))
    got, without = predictor.predict("all_gather", 64 * MIB), plain.predict("all_gather", 64 * MIB)
    assert got.time_s == without.time_s
    assert any(words in text for text in predictor.warnings)


def test_variables_that_count_are_known_by_name() -> None:
    assert set(MODELLED_ENV) <= set(KNOWN)


@settings(max_examples=60, deadline=None)
@given(
    nodes=st.sampled_from([2, 3, 8, 64]),
    collective=st.sampled_from(["all_gather", "reduce_scatter"]),
    nbytes=st.integers(1, 1 << 33),
    preset=st.sampled_from(["hgx-h100-ndr400", "dgx-a100-hdr200"]),
)
def test_no_time_is_below_its_bound(nodes: int, collective: str, nbytes: int, preset: str) -> None:
    predictor = of(preset, nodes=nodes)
    got = predictor.predict(collective, nbytes)
    switched = predictor.topology.gpu.sm >= 90
    assert (got.algorithm == "symmetric") == (switched or collective == "reduce_scatter")
    assert got.time_s >= lower_bound_s(collective, nbytes, predictor.topology, in_network=switched).seconds


def test_large_gathers_run_at_the_rate_of_the_narrower_way() -> None:
    """8 H100 with 8 NICs of 400 Gb/s: the switch spreads all of it to every GPU, which takes longer than the rails."""
    got = of(nodes=4).predict("all_gather", 1 << 33)
    assert got.limit == "NVLink"
    assert got.busy_s == pytest.approx((1 << 33) / (450e9 * of().parameters.efficiency.nvlink_switch), rel=1e-6)


@pytest.mark.parametrize(
    ("version", "env", "collective", "copied"),
    [
        (NEW, {"NCCL_CTA_POLICY": "ZERO"}, "all_gather", True),
        (NEW, {"NCCL_CTA_POLICY": "ZERO"}, "all_to_all", True),
        (NEW, {"NCCL_CTA_POLICY": "ZERO", "NCCL_SYM_GIN_KERNELS_ENABLE": "0"}, "all_gather", True),
        (NEW, {"NCCL_CTA_POLICY": "ZERO", "NCCL_GIN_ENABLE": "0"}, "all_gather", False),
        (NEW, {"NCCL_CTA_POLICY": "ZERO"}, "gather", False),
        (NEW, {"NCCL_CTA_POLICY": "ZERO", "NCCL_NUM_RMA_CTX": "0"}, "all_to_all", False),
        (NEW, {}, "all_to_all", False),
        ((2, 30, 4), {"NCCL_CTA_POLICY": "ZERO"}, "all_to_all", False),
    ],
)
def test_copy_engines_over_nodes_by_policy(
    version: Version, env: dict[str, str], collective: str, copied: bool
) -> None:  # fmt: skip
    got = of(options=Options(version, env, registered="window"), nodes=4).predict(collective, 256 * MIB)
    assert (got.algorithm == "copy_engine") == copied
    if copied:
        least = lower_bound_s(collective, 256 * MIB, of(nodes=4).topology, in_network=True).seconds
        # Puts to all nodes end at about one time; what those of an all_gather brought is copied on after it.
        assert least <= got.kernel_s <= (2.1 if collective == "all_gather" else 1.6) * least


def test_a_gather_over_nodes_waits_for_every_put_and_copies_it_on() -> None:
    """Two of 64 MiB each from three nodes: a barrier along the rails, one in the node, puts, own copy, twelve, two."""
    system = of(nodes=4).system
    assert copy_calls(system, "all_gather", 32 * 128 * MIB) == 3 + 3 + 2 * 3 * 2
    assert copy_calls(system, "all_to_all", 32 * 128 * MIB) == 7
    assert copy_calls(of(nodes=1).system, "all_gather", 1 << 30) == 3
