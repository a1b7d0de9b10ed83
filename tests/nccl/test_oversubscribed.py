"""Thin fabrics: all_to_all pays for what leaves the leaf, rings do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.nccl.predict import Options, Predictor
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec

GIB = 2**30


def seconds(collective: str, nodes: int, oversubscription: float) -> tuple[float, str]:
    spec = TopologySpec(preset="hgx-h100-ndr400", nodes=nodes, oversubscription=oversubscription)
    found = Predictor(load_topology(spec, Path()), Options(version=(2, 26, 2))).predict(collective, GIB)
    return found.time_s, found.bottleneck


def test_all_to_all_slows_with_the_uplinks_once_they_are_the_narrowest() -> None:
    free, half, quarter = (seconds("all_to_all", 64, f) for f in (1, 2, 4))
    assert free[1] != "leaf uplinks"
    assert quarter[1] == "leaf uplinks"
    assert free[0] <= half[0] < quarter[0]
    # 32 of 63 other nodes lie beyond the leaf: at 4:1 their share takes 4 x 32/63 of what the NICs take.
    assert quarter[0] / free[0] == pytest.approx(4 * 32 / 63, rel=0.25)


def test_under_one_leaf_and_in_rings_nothing_changes() -> None:
    assert seconds("all_to_all", 32, 4) == seconds("all_to_all", 32, 1)
    assert seconds("all_gather", 64, 4) == seconds("all_gather", 64, 1)
