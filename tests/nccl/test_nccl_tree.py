"""NCCL's tree: its rows, its bytes over the NICs, and the two-cut time against the fine cut."""

from __future__ import annotations

import numpy as np
import pytest

from commsim.collectives.check import check
from commsim.nccl.parameters import load_parameters
from commsim.nccl.predict import Options, Predictor
from commsim.nccl.protocols import LL128, WARP
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


def test_a_chain_waits_for_its_share_of_a_pass_at_every_hop() -> None:
    # Half a pass of a block goes up and down a chain of eight GPUs; a line of a warp is ready when that share is.
    whole, third = (
        with_share(predictor("hgx-h100", 1, "LL128"), share).predict("all_reduce", 1 << 20) for share in (1.0, 1 / 3)
    )
    waits = 14 * (19_200 - LL128.pass_bytes(WARP)) / load_parameters("hopper").block_rate.LL128
    assert whole.kernel_s - third.kernel_s == pytest.approx(waits * 2 / 3, rel=0.02)


def with_share(model: Predictor, share: float) -> Predictor:
    model.parameters = model.parameters.model_copy(update={"pass_share": share})
    return model


def test_two_nodes_send_each_byte_once_over_the_nics() -> None:
    model = predictor("dgx-a100-hdr200", 2, "Simple")
    schedule = model._tree_timer().schedule(4)
    across = schedule.src // 8 != schedule.dst // 8
    sent = np.bincount(schedule.src[across] // 8, schedule.payload_bytes()[across])
    assert sent.tolist() == [schedule.nbytes, schedule.nbytes]


def test_more_nodes_are_never_faster() -> None:
    times = [predictor("dgx-a100-hdr200", n, "LL").predict("all_reduce", 4096).time_s for n in (2, 4, 8, 16)]
    assert times == sorted(times)
