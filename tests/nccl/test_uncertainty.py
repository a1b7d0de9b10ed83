"""The band of a prediction, and what lies outside the measured."""

from __future__ import annotations

from itertools import pairwise

import pytest

from commsim.nccl import uncertainty
from commsim.nccl.uncertainty import ANY, SIZE_BANDS, MeasuredKind, Quantiles, Residuals, band_of, residuals, spread


def _kind(generation: str, link: str, **bands: Quantiles) -> MeasuredKind:
    return MeasuredKind(generation=generation, link=link, smallest=8, largest=2**30, most_nodes=4, bands=bands)


@pytest.fixture
def two_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    many, few = Quantiles(low=0.8, high=1.5, n=100, systems=4), Quantiles(low=0.99, high=1.01, n=30, systems=1)
    wide = Quantiles(low=0.5, high=2, n=500, systems=9)
    kinds = [
        _kind("hopper", "efa", small=many, mid=few),
        _kind("ampere", "efa", mid=many),
        _kind(ANY, "efa", small=many, mid=many),
        _kind(ANY, "other networks", small=wide, mid=wide),
    ]
    monkeypatch.setattr(uncertainty, "residuals", lambda: Residuals(kinds=kinds))


@pytest.mark.usefixtures("two_kinds")
def test_a_measured_kind_has_its_own_band() -> None:
    found = spread("hopper", "efa", 1024, 2)
    assert found is not None
    assert (found.low, found.high, found.warning) == (0.8, 1.5, "")


@pytest.mark.usefixtures("two_kinds")
def test_few_systems_borrow_from_other_generations() -> None:
    found = spread("hopper", "efa", 2**20, 2)
    assert found is not None
    assert (found.low, found.high, found.warning) == (0.8, 1.5, "")


@pytest.mark.usefixtures("two_kinds")
def test_a_link_never_measured_borrows_from_its_sort_and_says_so() -> None:
    found = spread("hopper", "slingshot", 1024, 2)
    assert found is not None
    assert (found.low, found.high) == (0.5, 2)
    assert "no curve of hopper over slingshot" in found.warning


@pytest.mark.usefixtures("two_kinds")
@pytest.mark.parametrize(
    ("generation", "nbytes", "nodes", "said"),
    [
        ("blackwell", 2**20, 2, "no curve of blackwell over efa"),
        ("hopper", 4, 2, "from 8 B to 1 GiB"),
        ("hopper", 1024, 5, "on up to 4 nodes"),
    ],
)
def test_outside_what_was_measured_is_said(generation: str, nbytes: int, nodes: int, said: str) -> None:
    found = spread(generation, "efa", nbytes, nodes)
    assert found is not None
    assert said in found.warning


@pytest.mark.usefixtures("two_kinds")
def test_what_nothing_was_measured_of_has_no_band() -> None:
    assert spread("hopper", "nvlink_switch", 1024, 1) is None
    assert spread("hopper", "efa", 2**30, 2) is None


def test_bands_hold_the_prediction_itself() -> None:
    for kind in residuals().kinds:
        for name, quantiles in kind.bands.items():
            assert name in {n for n, _ in SIZE_BANDS}
            assert quantiles.low <= quantiles.high


def test_size_bands_ascend() -> None:
    assert all(a < b for (_, a), (_, b) in pairwise(SIZE_BANDS))
    assert [band_of(n) for n in (0, 32 * 2**10, 32 * 2**10 + 1, 2**24, 2**24 + 1)] == [
        "small",
        "small",
        "mid",
        "mid",
        "large",
    ]
