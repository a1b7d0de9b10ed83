"""What decisions are scored with: bands, orders and margins on rows made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from study.plan_decisions import Pair, inside, orders, spread_of
from study.tune_decisions import Decision, margin, rules


@pytest.mark.parametrize("times", [1, 5, 50])
def test_a_source_counts_as_few_rows_however_many_it_has(times: int) -> None:
    pairs = [Pair("a", 0.1, 0.1 + e) for e in (0.01, 0.02, 0.03)]
    errors = {"a": np.repeat(np.linspace(-0.1, 0.1, 101), times), "b": np.linspace(0.2, 0.4, 101)}
    own = spread_of(errors, pairs)
    assert (math.log(own.low), math.log(own.high)) == pytest.approx((-0.06, 0.36), abs=0.01)


def test_rows_are_held_against_the_band_of_the_other_sources() -> None:
    near, far = np.linspace(-0.1, 0.1, 41), np.array([0.5, 0.6, 0.05])
    shares = inside({"a": near, "b": far})
    rows, share = shares["b"]
    assert rows == 3
    assert share == pytest.approx(1 / 3)
    assert shares["a"][0] == 41


def test_orders_are_counted_with_the_margin_of_the_others() -> None:
    others = [Pair("a", 0.05, 0.05 + e) for e in np.linspace(-0.1, 0.1, 21)]
    mine = [Pair("b", 0.3, 0.2), Pair("b", 0.3, -0.1), Pair("b", 0.01, -0.2)]
    own = orders([*others, *mine])["b"]
    assert (own["differ"], own["right"], own["ties"], own["ties_right"]) == (2, 1, 1, 0)
    assert own["worst"] == pytest.approx(math.expm1(0.1))


def decision(system: str, predicted: float, measured: float, band: float = 0.02, nbytes: int = 1) -> Decision:
    return Decision(
        system, f"{system}-seen", f"{system}-unseen", nbytes, "tree/LL", "ring/LL", predicted, measured, band
    )


def test_a_rule_gains_more_than_its_band_and_the_margin_of_other_machines() -> None:
    known = [decision("a", 0.1, 0.1 + e) for e in np.linspace(-0.2, 0.2, 41)]
    assert margin(known) == pytest.approx(math.exp(0.16), rel=0.02)
    mine = [decision("b", 0.15, 1.0), decision("b", 0.3, 0.1), decision("b", 0.3, 0.1, band=0.4)]
    assert [d for d in rules([*known, *mine]) if d.system == "b"] == [mine[1]]
