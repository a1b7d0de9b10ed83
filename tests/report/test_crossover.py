"""The crossover picture and its words."""

from __future__ import annotations

import numpy as np
import pytest

from commsim.report.crossover import crossover_lines, plot_crossover
from commsim.scenario.item import Item, Row


def row(size: int, **seconds: float) -> Row:
    ordered = sorted(seconds.items(), key=lambda item: item[1])
    (best, time), (second, behind) = ordered[0], ordered[1]
    return Row(
        size, size // 4, "float32", "sum", -1, time, size / time, size / time, best,
        runner_up=second, runner_up_s=behind, candidates=tuple(ordered),
    )  # fmt: skip


ITEM = Item(
    "x",
    "all_reduce",
    8,
    [row(1024, ring=3e-6, tree=2e-6), row(2048, ring=3e-6, tree=2.4e-6), row(4096, ring=3e-6, tree=6e-6)],
)


def test_every_stretch_is_named_with_its_runner_up() -> None:
    assert crossover_lines(ITEM) == [
        "# 1 KiB .. 2 KiB: tree (at 2 KiB ring takes 25 % longer)",
        "# 4 KiB: ring (at 4 KiB tree takes 100 % longer)",
    ]


def test_the_picture_draws_ratios_to_the_quickest() -> None:
    axes = plot_crossover(ITEM, "title").axes[0]
    lines = {line.get_label(): np.asarray(line.get_ydata()).tolist() for line in axes.get_lines()}
    assert lines["tree"] == pytest.approx([1, 1, 2])
    assert lines["ring"] == pytest.approx([1.5, 1.25, 1])


def test_rows_without_candidates_are_refused() -> None:
    with pytest.raises(ValueError, match="auto"):
        plot_crossover(Item("x", "all_reduce", 8, []), "title")


def test_an_algorithm_that_wins_nowhere_is_drawn_when_asked_for() -> None:
    rows = [row(1 << i, a=1e-6, b=2e-6, c=3e-6, d=4e-6, e=5e-6) for i in range(10, 13)]
    item = Item("x", "all_reduce", 8, rows)
    names = [[x.get_label() for x in plot_crossover(item, "t", always=more).axes[0].get_lines()] for more in ((), "e")]
    assert names == [["a", "b", "c", "d"], ["a", "e", "b", "c", "d"]]
