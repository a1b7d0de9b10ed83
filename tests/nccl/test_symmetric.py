"""NCCL's choice among its kernels on symmetric memory against what NCCL computes, and what each release asks for."""

from __future__ import annotations

import csv
from dataclasses import replace
from math import exp, log1p
from pathlib import Path
from typing import Any

import pytest

from commsim.nccl.operation import SUM, Operation
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.symmetric import Domain, Kernel, domain_of, kernels, why_not
from commsim.nccl.symmetric_choice import SymmetricChoice, cost, counted_bytes, held_bytes, pick
from commsim.nccl.system import System
from commsim.nccl.version import Version, parse_version
from commsim.topology.presets import load_preset
from commsim.units import GIB

CHOICES = Path(__file__).parents[1] / "data" / "nccl_symmetric" / "choices.csv"
WHOLE = Domain(peers=True, nvlink=True)
NEW: Version = (2, 30, 7)
BF16 = Operation("bfloat16")


def system(preset: str = "hgx-h100", **other: Any) -> System:
    return replace(Predictor(load_preset(preset), Options(NEW)).system, **other)


def short(got: SymmetricChoice | None) -> str:
    return "" if got is None else got.kernel.short


def test_choices_are_those_that_nccl_computes() -> None:
    """Kernel, thread blocks and expected time, to NCCL's single precision, of four releases."""
    own, compared = system(), 0
    with CHOICES.open() as file:
        for row in csv.DictReader(file):
            ranks, held, collective = int(row["ranks"]), int(row["held_bytes"]), row["collective"]
            one = replace(own, ranks=ranks, sm=int(row["sm"]), nvls=own.nvls if row["switch"] == "1" else None)
            nbytes = held if collective == "all_reduce" else held * ranks
            for release in row["releases"].split():
                got = pick(one, parse_version(release), {}, collective, nbytes, SUM)
                assert got is not None, row
                assert (got.kernel.name, got.blocks) == (row["kernel"], int(row["blocks"])), row
                assert got.time_us == pytest.approx(float(row["us"]), rel=1e-5), row
                compared += 1
    assert compared == 1988


def test_a_cost_by_hand() -> None:
    """Two Hopper GPUs, 1 KiB, LL with one block: 4.5 us and a soft maximum of 0 and bytes over rate less 1."""
    bus, block, peak = 2 * 1024 * 9, 65 * GIB / 1e6, 320 * GIB / 1e6
    rate = peak - block * log1p((exp(peak / block) - 1) * exp(-block / block))
    kernel = Kernel("AllReduce_AGxLL_R", "all_reduce", "direct_one_shot", lines=True)
    time, blocks = cost(kernel, system(ranks=2), 1024, {"NCCL_SYM_CTAS": "1"})
    assert blocks == 1
    assert time == pytest.approx(4.5 + log1p(exp(bus / rate - 1)), rel=1e-6)


@pytest.mark.parametrize(
    ("env", "blocks"),
    [({}, 2), ({"NCCL_SYM_CTAS": "5"}, 5), ({"NCCL_SYM_CTAS": "99"}, 64), ({"NCCL_MAX_CTAS": "1"}, 1)],
)
def test_thread_blocks_are_bounded_by_the_environment(env: dict[str, str], blocks: int) -> None:
    got = pick(system(), NEW, env, "all_reduce", 1 << 30, SUM)
    assert got is not None
    assert (got.kernel.short, got.blocks) == ("RSxLDMC_AGxSTMC", blocks)


@pytest.mark.parametrize(
    ("said", "version", "preset", "ranks", "collective", "held", "kernel", "blocks"),
    [
        ("pytorch/pytorch 177111", NEW, "hgx-h100", 8, "reduce_scatter", 100681728, "LDMC", 2),
        ("Tencent-Hunyuan/UniRL 467: 8 H20, 2.29.7", (2, 29, 7), "h20", 8, "all_gather", 64 << 20, "STMC", 2),
        ("NVIDIA/Fuser 5837: 2 H100", (2, 28, 9), "hgx-h100", 2, "all_reduce", 64 << 20, "RSxLDMC_AGxSTMC", 5),
    ],
)
def test_choices_that_others_report(
    said: str, version: Version, preset: str, ranks: int, collective: str, held: int, kernel: str, blocks: int
) -> None:
    nbytes = held if collective == "all_reduce" else held * ranks
    got = pick(system(preset, ranks=ranks), version, {}, collective, nbytes, BF16)
    assert got is not None, said
    assert (got.kernel.short, got.blocks) == (kernel, blocks), said


def test_kernels_by_release() -> None:
    assert kernels((2, 26, 6)) == ()
    assert len(kernels((2, 27, 3))) == len(kernels((2, 29, 3))) == 11
    assert len(kernels((2, 29, 7))) == 14
    assert len(kernels((2, 30, 3))) == 18
    assert [k.short for k in kernels(NEW) if k.over_nodes] == [
        "RailRing_LsaSTMC",
        "RailA2A_LsaLD",
        "RailA2A_LsaLDMC",
    ]


def test_bytes_are_counted_by_rank_and_from_2_28_in_cells() -> None:
    assert held_bytes("all_reduce", 1000, 8) == 1000
    assert held_bytes("all_gather", 1001, 8) == 126
    assert counted_bytes(126, (2, 27, 7)) == 126
    assert counted_bytes(1025, (2, 28, 3)) == 2048


def test_large_calls_leave_out_what_counts_in_32_bits() -> None:
    env = {"NCCL_SYM_KERNEL": "AllReduce_AGxLL_R"}
    assert short(pick(system(), NEW, env, "all_reduce", (2 << 30) - 1024, SUM)) == "AGxLL_R"
    assert pick(system(), NEW, env, "all_reduce", 2 << 30, SUM) is None
    assert short(pick(system(), NEW, {}, "all_reduce", 32 << 30, SUM)) == "RSxLDMC_AGxSTMC"
    assert pick(system(), NEW, {}, "all_reduce", 64 << 30, SUM) is None


@pytest.mark.parametrize(
    ("version", "other", "env", "collective", "operation", "reason"),
    [
        ((2, 26, 6), {}, {}, "all_reduce", SUM, "came with 2.27"),
        (NEW, {}, {}, "broadcast", SUM, "only all_reduce, all_gather, reduce_scatter"),
        (NEW, {}, {"NCCL_WIN_ENABLE": "0"}, "all_reduce", SUM, "NCCL_WIN_ENABLE=0"),
        (NEW, {}, {"NCCL_CUMEM_ENABLE": "0"}, "all_reduce", SUM, "NCCL_CUMEM_ENABLE=0"),
        (NEW, {}, {}, "all_reduce", Operation("float32", "max"), "no max of float32"),
        (NEW, {}, {}, "all_reduce", Operation("int32"), "no sum of int32"),
        ((2, 29, 7), {}, {}, "all_reduce", Operation("bfloat16", "avg"), "no avg of bfloat16"),
        ((2, 28, 9), {"nodes": 2}, {}, "all_gather", SUM, "inside one NVLink domain"),
        (NEW, {"nodes": 2}, {}, "all_reduce", SUM, "inside one NVLink domain"),
        (NEW, {}, {"NCCL_SYM_KERNEL": "AllGather_ST"}, "all_reduce", SUM, "names no kernel of all_reduce"),
        (NEW, {"nvls": None}, {"NCCL_SYM_KERNEL": "AllGather_STMC"}, "all_gather", SUM, "does not have"),
    ],
)
def test_calls_without_a_kernel(
    version: Version, other: dict[str, Any], env: dict[str, str], collective: str, operation: Operation, reason: str
) -> None:
    assert reason in why_not(system(**other), WHOLE, version, env, collective, operation)


def test_calls_with_a_kernel() -> None:
    for operation in (SUM, BF16, Operation("float16"), Operation("float8_e4m3"), Operation("bfloat16", "avg")):
        assert why_not(system(), WHOLE, NEW, {}, "reduce_scatter", operation) == ""
    assert why_not(system(), WHOLE, NEW, {}, "all_gather", Operation("int8")) == ""
    assert why_not(system(), WHOLE, NEW, {"NCCL_SYM_KERNEL": "^"}, "all_gather", SUM) == ""


def test_nvlink_is_asked_for_from_2_29() -> None:
    over_pcie = Domain(peers=True, nvlink=False)
    assert why_not(system(), over_pcie, (2, 28, 9), {}, "all_reduce", SUM) == ""
    assert "asks for NVLink" in why_not(system(), over_pcie, (2, 29, 2), {}, "all_reduce", SUM)
    assert "do not reach" not in why_not(system(), WHOLE, NEW, {}, "all_reduce", SUM)
    assert "each other's memory" in why_not(system(), Domain(peers=False, nvlink=False), NEW, {}, "all_reduce", SUM)


@pytest.mark.parametrize(
    ("preset", "env", "domain"),
    [
        ("hgx-h100", {}, WHOLE),
        ("dgx-a100", {}, WHOLE),
        ("hgx-h100", {"NCCL_P2P_DISABLE": "1"}, Domain(peers=False, nvlink=False)),
        ("rtx4090", {}, Domain(peers=False, nvlink=False)),
        ("dgx-1v", {}, Domain(peers=False, nvlink=False)),  # not all pairs of the cube are neighbours
    ],
)
def test_domains(preset: str, env: dict[str, str], domain: Domain) -> None:
    got = domain_of(load_preset(preset), (2, 28, 9), env)
    assert (got.peers, got.nvlink, got.no_gin) == (domain.peers, domain.nvlink, "")


def test_what_the_switch_does() -> None:
    """Two ranks use it up to 2.29.3; float8 is reduced in it from Blackwell on."""
    two = system(ranks=2)
    assert short(pick(two, (2, 29, 3), {}, "all_reduce", 1 << 26, SUM)) == "RSxLDMC_AGxSTMC"
    assert short(pick(two, (2, 29, 7), {}, "all_reduce", 1 << 26, SUM)) == "RSxLD_AGxST"
    fp8 = Operation("float8_e4m3")
    assert short(pick(system(), NEW, {}, "all_reduce", 1 << 26, fp8)) == "RSxLD_AGxST"
    assert short(pick(system("hgx-b200"), NEW, {}, "all_reduce", 1 << 26, fp8)) == "RSxLDMC_AGxSTMC"
    assert short(pick(system(), NEW, {"NCCL_NVLS_ENABLE": "0"}, "all_gather", 1 << 26, SUM)) == "ST"


def test_bulk_copies_where_they_are_asked_for() -> None:
    b200, env = system("hgx-b200"), {"NCCL_SYM_TMA_ENABLE": "1"}
    assert short(pick(b200, NEW, {}, "all_gather", 1 << 28, SUM)) == "STMC"
    assert short(pick(b200, NEW, env, "all_gather", 1 << 28, SUM)) == "TmaSTMC"
    assert short(pick(b200, (2, 29, 7), env, "all_gather", 1 << 28, SUM)) == "STMC"
    assert short(pick(system(), NEW, env, "all_gather", 1 << 28, SUM)) == "STMC"
