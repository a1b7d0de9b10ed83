"""A faster NIC is no slower, unless NCCL itself chooses otherwise for it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import pytest

from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_preset

PRESETS = (
    ("hgx-a100-4-hdr200", 4),
    ("dgx-1v-edr100", 8),
    ("dgx-a100-hdr200", 2),
    ("hgx-h100-ndr400", 2),
    ("hgx-h100-4-ndr400", 4),
    ("hgx-b200-ndr400", 2),
    ("gh200x4-ndr200", 4),
    ("leonardo", 2),
)
RATES = tuple(round(25 * 32 ** (i / 59)) for i in range(60))
"""Gb/s from 25 to 800 in steps of 6 %, of whole Gb/s as drivers tell them."""

SIZE = 16 << 20


@dataclass(frozen=True)
class Step:
    """What a rate gives: the time, and all that NCCL decides on the way to it."""

    rate: int
    time_s: float
    choice: tuple[object, ...]


def step(preset: str, nodes: int, rate: int, env: dict[str, str]) -> Step:
    model = Predictor(load_preset(preset, nodes=nodes, nic_bandwidth=f"{rate} Gb/s"), Options((2, 26, 2), env))
    made = model.predict("all_reduce", SIZE)
    graphs = (model.system.ring, model.system.tree, model.system.nvls)
    found = tuple((g.channels, g.orders, g.intra_type, g.inter_type, g.same_channels) for g in graphs if g)
    return Step(rate, made.time_s, (made.algorithm, made.protocol, made.channels, found))


def unexplained(preset: str, nodes: int, rates: tuple[int, ...], env: dict[str, str]) -> list[str]:
    """Steps to a higher rate that take over 1 % longer with the same graphs, algorithm, protocol and channels."""
    steps = [step(preset, nodes, rate, env) for rate in dict.fromkeys(rates)]
    return [
        f"{preset} x {nodes}: {a.rate} to {b.rate} Gb/s, {1e6 * a.time_s:.0f} to {1e6 * b.time_s:.0f} us"
        for a, b in pairwise(steps)
        if b.time_s > 1.01 * a.time_s and a.choice == b.choice
    ]


@pytest.mark.parametrize(("preset", "nodes"), [("hgx-a100-4-hdr200", 4)])
def test_from_399_to_400_gb_per_s_a_ring_is_no_slower(preset: str, nodes: int) -> None:
    slower, faster = (step(preset, nodes, rate, {"NCCL_ALGO": "Ring"}) for rate in (399, 400))
    assert faster.time_s <= 1.01 * slower.time_s


@pytest.mark.slow
@pytest.mark.parametrize("env", [{}, {"NCCL_ALGO": "Ring"}], ids=["own choice", "ring"])
@pytest.mark.parametrize(("preset", "nodes"), PRESETS)
def test_no_step_to_a_faster_nic_is_slower_unless_nccl_chooses_otherwise(
    preset: str, nodes: int, env: dict[str, str]
) -> None:
    assert unexplained(preset, nodes, RATES, env) == []
