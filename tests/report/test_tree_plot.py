"""The pictures of a synthesized schedule: links by load, and the largest trees of one rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from commsim.cli import app
from commsim.report.tree_plot import plot_load, plot_trees
from commsim.synthesis.aim import Aim
from commsim.synthesis.machine import machine_network
from commsim.synthesis.search import Synthesis, TreeSearch
from commsim.topology.presets import load_preset

MACHINE = load_preset("dgx-1v")


@pytest.fixture(scope="module")
def best() -> Synthesis:
    return TreeSearch(Aim(machine_network(MACHINE), "all_gather", 1 << 28, itemsize=4), budget_s=10).run()


def test_no_link_is_busy_longer_than_the_call(best: Synthesis) -> None:
    assert float(best.link_s.max()) == best.packed_s <= best.seconds
    # Every rank takes in what the seven others have, whatever the trees.
    network = best.question.network
    taken = best.link_s * network.capacity * float(network.unit)
    into = np.bincount(network.head, taken, network.vertices)[network.ranks]
    assert into == pytest.approx(np.full(8, (7 / 8) * (1 << 28)), rel=1e-6)


def test_the_title_says_how_near_it_comes(best: Synthesis) -> None:
    figure = plot_load(MACHINE, best)
    assert any(
        f"{best.ratio:.3f} of the limit" in text.get_text() for text in figure.findobj() if hasattr(text, "get_text")
    )


def test_a_tree_reaches_every_rank_once(best: Synthesis) -> None:
    axes = [one for one in plot_trees(best).axes if one.texts]
    assert 1 <= len(axes) <= 6
    for one in axes:
        assert sorted(int(text.get_text()) for text in one.texts) == list(range(8))
        assert len(one.lines) == 7


def test_trees_of_one_shape_are_one_panel() -> None:
    switched = TreeSearch(
        Aim(machine_network(load_preset("dgx-a100-hdr200", nodes=2)), "all_gather", 1 << 24, itemsize=4), budget_s=3
    )
    best = switched.run()
    forest = best.forest
    own = [k for k, tree in enumerate(forest.out) if tree.root == forest.out[0].root]
    doubled = replace(
        best,
        forest=replace(
            forest, out=forest.out + forest.out[: len(own)], share=np.append(forest.share, forest.share[own])
        ),
    )
    one, two = plot_trees(best), plot_trees(doubled)
    assert len([axes for axes in two.axes if axes.texts]) == len([axes for axes in one.axes if axes.texts])
    assert any("trees alike" in axes.get_title(loc="left") for axes in two.axes)


def test_the_command_writes_both(tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app,
        [
            "synthesize",
            "dgx-1v",
            "-c",
            "broadcast",
            "--bytes",
            "64MiB",
            "--budget",
            "5",
            "--draw",
            str(tmp_path / "one.png"),
        ],
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "one.png").stat().st_size > 10_000
    assert (tmp_path / "one-trees.png").stat().st_size > 10_000
