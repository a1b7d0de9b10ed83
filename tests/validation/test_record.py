"""Recorded medians: what counts as worse; figures of a document; residual quantiles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from study.record import compare_medians, to_record
from study.validate import figures, medians


def _row(slug: str, mape: float | None, system: str = "s", **more: Any) -> dict[str, Any]:
    row = {
        "slug": slug,
        "collective": "all_reduce",
        "system": system,
        "class": "one node",
        "healthy": "yes",
        "mape": mape,
        "mape_small": mape,
        "mape_mid": None,
        "mape_large": mape,
        "reason": "",
    }
    return row | more


def _document(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {"modes": {"zero-shot": {"per_log": rows}}}


def test_figures_by_band() -> None:
    size = np.array([1024, 32 * 2**10, 2**20, 2**30])
    assert figures(size, np.array([0.1, 0.3, 0.5, 0.02])) == {
        "mape": 23.0,
        "mape_small": 20.0,
        "mape_mid": 50.0,
        "mape_large": 2.0,
    }


def test_a_band_without_size_is_none() -> None:
    assert figures(np.array([8]), np.array([0.1]))["mape_large"] is None


def test_medians_over_logs_and_over_systems_differ() -> None:
    rows = [*(_row(f"a{i}", 10.0, "many") for i in range(5)), _row("b", 40.0, "one"), _row("c", 50.0, "two")]
    part: Any = medians(rows)["by_class"]
    assert part["one node"]["logs"]["mape"] == 10.0
    assert part["one node"]["systems"]["mape"] == 40.0
    assert part["one node"]["n_systems"] == 3
    assert part["one node"]["logs"]["mape_mid"] is None


def test_the_same_figures_are_not_worse() -> None:
    rows = [_row("a", 10.0), _row("b", 20.0)]
    assert compare_medians(to_record(_document(rows)), _document(rows)) == []


@pytest.mark.parametrize(("now", "worse"), [(10.9, False), (11.2, True), (5.0, False)])
def test_one_point_is_the_tolerance(now: float, worse: bool) -> None:
    before = to_record(_document([_row("a", 10.0)]))
    assert bool(compare_medians(before, _document([_row("a", now)]))) is worse


def test_a_log_that_is_lost_is_worse() -> None:
    before = to_record(_document([_row("a", 10.0), _row("b", 10.0)]))
    found = compare_medians(before, _document([_row("a", 10.0), _row("b", None, reason="no model")]))
    assert found == ["zero-shot: b is not predicted: no model"]


def test_only_logs_listed_in_both_are_compared() -> None:
    before = to_record(_document([_row("a", 10.0), _row("b", 90.0)]))
    assert compare_medians(before, _document([_row("a", 10.0), _row("new", 99.0)])) == []
