"""NCCL's tree: its rows, its bytes over the NICs, and the two-cut time against the fine cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.collectives.schedule import Schedule
from commsim.engine.program import Program
from commsim.engine.simulate import Outcome, simulate
from commsim.fitting.fields import replaced
from commsim.nccl import tree
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.tree_rows import tree_schedule
from commsim.topology.presets import load_preset

VERSION = (2, 26, 2)


def predictor(preset: str, nodes: int, protocol: str, pieces: int = 32) -> Predictor:
    topology = load_preset(preset, nodes=nodes)
    return Predictor(topology, Options(VERSION, {"NCCL_ALGO": "Tree", "NCCL_PROTO": protocol}, tree_pieces=pieces))


def rows_of(model: Predictor, pieces: int) -> Schedule:
    counts = tuple(model.nodes.comm.counts.tolist())
    return tree_schedule(counts, model.system.tree.pattern.lower(), pieces)


@pytest.mark.parametrize(("preset", "nodes"), [("hgx-h100", 1), ("dgx-a100-hdr200", 3), ("hgx-h100-ndr400", 4)])
def test_the_rows_are_a_correct_all_reduce(preset: str, nodes: int) -> None:
    check(rows_of(predictor(preset, nodes, "LL"), 2))


@pytest.mark.parametrize(
    ("preset", "nodes", "protocol", "nbytes"),
    [
        ("dgx-a100-hdr200", 4, "LL128", 4 << 20),
        ("dgx-a100-hdr200", 4, "Simple", 1 << 30),
        ("hgx-h100-ndr400", 8, "LL128", 16 << 20),
        ("hgx-h100-ndr400", 8, "LL", 4 << 20),
        ("gh200x4-slingshot200", 8, "LL128", 32 << 20),
        ("hgx-h100", 1, "Simple", 2 << 30),
    ],
)
def test_two_coarse_cuts_give_the_time_of_the_fine_cut(preset: str, nodes: int, protocol: str, nbytes: int) -> None:
    quick = predictor(preset, nodes, protocol)
    fine = predictor(preset, nodes, protocol, pieces=1 << 30)
    a, b = quick.predict("all_reduce", nbytes), fine.predict("all_reduce", nbytes)
    assert (a.level, b.level) == ("event, two cuts", "event")
    assert a.kernel_s == pytest.approx(b.kernel_s, rel=0.025)


@pytest.mark.parametrize("preset", ["hgx-h100", "dgx-a100"])
def test_lines_run_down_a_chain_without_waiting_for_those_beside_them(preset: str) -> None:
    # One channel of eight GPUs, 14 hops: what 512 B and 4 KiB differ by is written once, not at every hop.
    model = predictor(preset, 1, "LL")
    few, many = (model.predict("all_reduce", n) for n in (512, 4096))
    assert (few.channels, many.channels) == (1, 1)
    assert many.kernel_s - few.kernel_s == pytest.approx((4096 - 512) / model.parameters.block_rate.LL)


def test_two_nodes_send_each_byte_once_over_the_nics() -> None:
    model = predictor("dgx-a100-hdr200", 2, "Simple")
    schedule = rows_of(model, 4)
    across = schedule.src // 8 != schedule.dst // 8
    sent = np.bincount(schedule.src[across] // 8, schedule.payload_bytes()[across])
    assert sent.tolist() == [schedule.nbytes, schedule.nbytes]


def test_more_nodes_are_never_faster() -> None:
    times = [predictor("dgx-a100-hdr200", n, "LL").predict("all_reduce", 4096).time_s for n in (2, 4, 8, 16)]
    assert times == sorted(times)


def test_chunks_of_simple_are_an_eighth_of_the_buffer() -> None:
    # 16 channels of 512 KiB and 1 MiB: with 8 MiB a whole megabyte is written at every hop before it goes on.
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    env = {"NCCL_ALGO": "Tree", "NCCL_PROTO": "Simple"}
    usual, large = (Predictor(topology, Options(VERSION, env | more)) for more in ({}, {"NCCL_BUFFSIZE": "8388608"}))
    assert large.predict("all_reduce", 8 << 20).kernel_s == pytest.approx(usual.predict("all_reduce", 8 << 20).kernel_s)
    block = usual.parameters.block_rate.Simple
    hops = 2 * 7 + 2  # down and up the chains of both nodes, and between them
    more = large.predict("all_reduce", 16 << 20).kernel_s - usual.predict("all_reduce", 16 << 20).kernel_s
    assert 0.8 * (hops - 1) * (512 << 10) / block < more < 1.1 * (hops + 1) * (512 << 10) / block


def test_a_block_waits_beside_the_bytes_of_each_chunk_but_the_first() -> None:
    # Two nodes of A100, 16 channels of LL128: chunks of 17,280 B, one for 64 KiB, seven for 2 MiB.
    def kernel_s(nbytes: int, pause: float) -> float:
        model = predictor("dgx-a100-hdr200", 2, "LL128")
        model.parameters = replaced(model.parameters, {"pause.LL128": pause})
        return model.predict("all_reduce", nbytes).kernel_s

    assert kernel_s(64 << 10, 2e-6) == pytest.approx(kernel_s(64 << 10, 0.0))
    longer = kernel_s(2 << 20, 2e-6) - kernel_s(2 << 20, 0.0)
    assert 6 * 2e-6 < longer < 4 * 7 * 2e-6  # a block serves two children or two directions


def test_what_is_one_program_is_simulated_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """By two models of equal machines; with other latencies it is another program."""
    ran: list[int] = []

    def counted(program: Program, **options: Any) -> Outcome:
        ran.append(program.rows)
        return simulate(program, **options)

    monkeypatch.setattr(tree, "_KNOWN", {})
    monkeypatch.setattr(tree, "simulate", counted)
    first, again = (predictor("hgx-h100-ndr400", 4, "LL").predict("all_reduce", 8192) for _ in range(2))
    assert first == again
    assert len(ran) == 1
    slower = predictor("hgx-h100-ndr400", 4, "LL")
    slower.parameters = slower.parameters.scaled(2.0)
    assert slower.predict("all_reduce", 8192).kernel_s > first.kernel_s
    assert len(ran) == 2
