"""NCCL's tree: its rows, its bytes over the NICs, and the two-cut time against the fine cut."""

from __future__ import annotations

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset

VERSION = (2, 26, 2)


def predictor(preset: str, nodes: int, protocol: str) -> Predictor:
    topology = load_preset(preset, nodes=nodes)
    return Predictor(topology, Options(VERSION, {"NCCL_ALGO": "Tree", "NCCL_PROTO": protocol}))


@pytest.mark.parametrize(("preset", "nodes"), [("hgx-h100", 1), ("dgx-a100-hdr200", 3), ("hgx-h100-ndr400", 4)])
def test_the_rows_are_a_correct_all_reduce(preset: str, nodes: int) -> None:
    check(predictor(preset, nodes, "LL")._tree_timer().schedule(2))


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
    fine = predictor(preset, nodes, protocol)
    fine._tree_timer().coarse = 1 << 30
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
    schedule = model._tree_timer().schedule(4)
    across = schedule.src // 8 != schedule.dst // 8
    sent = np.bincount(schedule.src[across] // 8, schedule.payload_bytes()[across])
    assert sent.tolist() == [schedule.nbytes, schedule.nbytes]


def test_more_nodes_are_never_faster() -> None:
    times = [predictor("dgx-a100-hdr200", n, "LL").predict("all_reduce", 4096).time_s for n in (2, 4, 8, 16)]
    assert times == sorted(times)
