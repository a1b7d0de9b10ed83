"""Bands from residuals hold about eight of ten measurements of a system that they were not made from."""

from __future__ import annotations

import numpy as np
import pytest

from commsim.nccl.uncertainty import ANY, OTHER, VERBS, spread
from study.residuals import Residual, coverage, kinds


def _points(systems: int, seed: int, link: str = "infiniband", generation: str = "hopper") -> list[Residual]:
    """Systems that are off by a factor of their own, and their sizes by one more."""
    random = np.random.default_rng(seed)
    found = []
    for s in range(systems):
        own = random.normal(0, 0.3)
        for k, off in enumerate(random.normal(own, 0.15, 30)):
            found.append(Residual(generation, link, "mid", f"{link}{s}", s, 2, 2**16 + k, float(np.exp(off))))
    return found


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("systems", [6, 30])
def test_eight_of_ten_lie_inside(systems: int, seed: int) -> None:
    held = coverage(_points(systems, seed))
    assert set(held) == {(VERBS, "mid")}
    assert 0.65 < held[VERBS, "mid"]["inside"] < 0.95
    assert held[VERBS, "mid"]["systems"] == systems


def test_a_system_unlike_all_others_lies_outside() -> None:
    strange = [Residual("hopper", "roce", "mid", "strange", 99, 2, 2**16 + k, 30.0) for k in range(10)]
    held = coverage(strange + _points(8, 1))[VERBS, "mid"]
    assert held["systems"] == 9
    assert held["inside"] <= 8 / 9


def test_systems_weigh_alike_however_many_logs_they_have() -> None:
    few = [Residual("hopper", "efa", "mid", f"s{i}", i, 2, 2**16, 1.0 + i / 10) for i in range(8)]
    many = few + [Residual("hopper", "efa", "mid", "s0", 100 + i, 2, 2**16, 1.0) for i in range(500)]
    bands = [next(k for k in kinds(found) if k.generation == ANY).bands["mid"] for found in (few, many)]
    assert (bands[0].low, bands[0].high) == (bands[1].low, bands[1].high)
    assert (bands[1].n, bands[1].systems) == (508, 8)


def test_a_system_that_only_just_reaches_into_a_band_hardly_counts() -> None:
    """One size 40 times off among seven systems of thirty: the band does not reach there; of six it does."""
    rest = _points(7, 2, "efa")
    ends = []
    for count in (1, 6):
        odd = [Residual("hopper", "efa", "mid", "odd", 99, 2, 2**16 + k, 40.0) for k in range(count)]
        ends.append(next(k for k in kinds(rest + odd) if k.generation == ANY).bands["mid"].high)
    assert ends[0] < 3 < ends[1]


def test_every_link_has_a_wider_kind_to_fall_back_to() -> None:
    found = _points(4, 0) + _points(4, 1, "efa", "ampere")
    names = {(k.generation, k.link) for k in kinds(found)}
    assert {("hopper", "infiniband"), (ANY, "efa"), (ANY, OTHER), (ANY, VERBS)} <= names
    band = spread("blackwell", "slingshot", 2**16, 2, kinds(found))
    assert band is not None
    assert band.warning
