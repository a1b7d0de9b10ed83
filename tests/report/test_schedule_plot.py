"""The space-time picture: what is drawn, what is left out, and that the same schedule gives the same file."""

from __future__ import annotations

import time
from typing import Any

import pytest
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.figure import Figure

from commsim.collectives import registry
from commsim.collectives.ring import ring_all_reduce
from commsim.report.plots import figure_bytes
from commsim.report.schedule_plot import plot_schedule


def collected(figure: Figure, kind: type[Any], zorder: float = 3) -> list[Any]:
    (found,) = [c for c in figure.axes[0].collections if type(c) is kind and c.get_zorder() >= zorder]
    return list(found.get_paths())


def words(figure: Figure) -> str:
    texts = [*figure.texts, *figure.axes[0].texts]
    return "\n".join(t.get_text() for t in texts)


def test_one_arrow_per_move() -> None:
    figure = plot_schedule(ring_all_reduce(4, 4096))
    assert len(collected(figure, LineCollection)) == 24
    assert len(collected(figure, PolyCollection)) == 12  # triangles where copies arrive
    pluses = [line for line in figure.axes[0].lines if line.get_marker() == "+"]
    assert len(pluses) == 12
    assert "busiest rank sends or receives 1.5 × 4 KiB" in words(figure)


def test_ranks_go_down_and_steps_across() -> None:
    axes = plot_schedule(ring_all_reduce(4, 4096)).axes[0]
    bottom, top = axes.get_ylim()
    assert bottom > top
    assert [t.get_text() for t in axes.get_yticklabels()] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    assert [t.get_text() for t in axes.get_xticklabels()] == [str(n) for n in range(6)]
    assert axes.get_xlabel() == "step"


def test_chunks_have_their_own_colours() -> None:
    figure = plot_schedule(registry.build("all_gather", "direct", 8, 64))
    (lines,) = [c for c in figure.axes[0].collections if isinstance(c, LineCollection) and c.get_zorder() == 3]
    assert len({tuple(colour) for colour in lines.get_colors().tolist()}) == 8  # type: ignore[union-attr]


def test_moves_of_one_pair_share_an_arrow() -> None:
    figure = plot_schedule(registry.build("all_reduce", "rabenseifner", 4, 64))
    assert "2–3" in words(figure)


def test_switches_and_servers_stand_below_the_ranks() -> None:
    labels = plot_schedule(registry.build("all_reduce", "nvls", 4, 64)).axes[0].get_yticklabels()
    assert labels[-1].get_text() == "switch 0"


def test_local_moves_are_squares() -> None:
    figure = plot_schedule(registry.build("all_to_all", "pairwise", 4, 64))
    assert len([line for line in figure.axes[0].lines if line.get_marker() == "s"]) == 4


def test_above_sixteen_ranks_a_few_chunks_stand_for_all() -> None:
    figure = plot_schedule(ring_all_reduce(64, 64 * 64))
    assert "6 of 64 chunks drawn" in words(figure)
    assert len(collected(figure, LineCollection)) == 6 * 126
    assert not figure.axes[0].texts


@pytest.mark.parametrize("key", registry.names(), ids="-".join)
def test_every_algorithm_can_be_drawn(key: tuple[str, str]) -> None:
    assert plot_schedule(registry.build(*key, 3, 2700)).axes


@pytest.mark.parametrize("n", [1, 2, 16, 17, 18, 40])
def test_any_number_of_ranks_can_be_drawn(n: int) -> None:
    figure_bytes(plot_schedule(registry.build("all_reduce", "direct_two_shot", n, 4 * n)), "svg")


def test_a_large_schedule_is_drawn_quickly() -> None:
    schedule = ring_all_reduce(512, 512 * 8)
    start = time.perf_counter()
    figure_bytes(plot_schedule(schedule), "png")
    assert time.perf_counter() - start < 20


def test_the_same_schedule_is_the_same_file() -> None:
    one, two = (figure_bytes(plot_schedule(ring_all_reduce(4, 64)), "svg") for _ in range(2))
    assert one == two
    assert b"<dc:date>" not in one
