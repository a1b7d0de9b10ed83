"""Maps, scaling, heat, choices and validations, from rows by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commsim.report.crossover import plot_map, winners_of
from commsim.report.kinds import _who, kinds_of, pictures
from commsim.report.plots import figure_bytes
from commsim.report.saved import Saved
from commsim.report.scaling import scalings
from commsim.report.steps import StepFigures, plot_breakdown, plot_memory
from commsim.report.topology_plot import plot_topology
from commsim.report.topology_shapes import IDLE, heat_of, node_heat
from commsim.report.validation_chart import plot_validation
from commsim.topology.presets import load_preset


def _row(size: int, ranks: int, algorithm: str, time: float) -> dict[str, Any]:
    return {"size_bytes": size, "n_ranks": ranks, "algorithm": algorithm, "protocol": "LL", "time_us": time}


def test_the_quickest_wins_each_field() -> None:
    rows = [_row(8, 2, "ring", 3.0), _row(8, 2, "tree", 2.0), _row(16, 2, "ring", 1.0), _row(8, 4, "ring", 9.0)]
    found = winners_of([*rows, {"error": "failed", "size_bytes": 8, "n_ranks": 4}])
    assert [(w.size_bytes, w.ranks, w.name) for w in found] == [
        (8, 2, "tree/LL"),
        (8, 4, "ring/LL"),
        (16, 2, "ring/LL"),
    ]
    figure = plot_map(found, "map")
    (axes,) = figure.axes
    field = axes.collections[0].get_array()
    assert field is not None
    assert np.ma.count(np.ma.asarray(field)) == 3  # of four: nothing was computed for 16 B on 4 ranks
    assert [t.get_text() for t in axes.get_yticklabels()] == ["2", "4"]


def _step(gpus: int, tokens: int, seconds: float) -> dict[str, Any]:
    each = tokens / seconds / gpus
    return {"gpus": gpus, "step_s": seconds, "tokens_per_s_per_gpu": each, "model": "m", "error": None}


def test_strong_and_weak_scaling_are_told_apart_by_their_tokens() -> None:
    rows = [_step(8, 1000, 1.0), _step(16, 1000, 0.625), _step(16, 2000, 1.25), _step(16, 1000, 0.9)]
    strong, weak = sorted(scalings(rows), key=lambda s: s.kind)
    assert (strong.kind, strong.ranks) == ("strong", (8, 16))
    assert strong.efficiency == pytest.approx((1.0, 0.8))  # the best row of 16 GPUs counts
    assert weak.kind == "weak"
    assert weak.rate == pytest.approx((1000.0, 1600.0))
    assert weak.efficiency == pytest.approx((1.0, 0.8))


def test_heat_colours_the_links_that_were_named() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    busy = {"node1.gpu3 -> node1.nvswitch": 0.9, "node0.nic0 -> leaf0.rail0": 0.5}
    heat = heat_of(topology, busy | {"nobody -> nowhere": 1.0})
    assert np.nansum(heat.share) == pytest.approx(1.4)
    drawn = node_heat(topology, heat)
    inside = slice(0, int(topology.node_first_link[1]))
    assert np.nanmax(drawn.share[inside]) == pytest.approx(0.9)  # node 0 stands for node 1
    assert np.isnan(heat.share[inside]).all()
    assert drawn.look([int(np.nanargmax(drawn.share[inside]))])["color"] != IDLE
    assert drawn.look([])["color"] == IDLE


@pytest.mark.parametrize(("name", "nodes"), [("hgx-h100-ndr400", 80), ("dgx-1v", 1), ("dgx-a100-hdr200", 4)])
def test_every_drawing_takes_heat(name: str, nodes: int) -> None:
    topology = load_preset(name, nodes=nodes)
    every = {
        f"{topology.vertex_name[a]} -> {topology.vertex_name[b]}": i / topology.link_src.size
        for i, (a, b) in enumerate(zip(topology.link_src, topology.link_dst, strict=True))
    }
    figure = plot_topology(topology, heat_of(topology, every), "hot")
    assert any("busy" in axes.get_xlabel() for axes in figure.axes)
    assert figure_bytes(figure, "png").startswith(b"\x89PNG")


STEP = StepFigures(
    "s", "1f1b", 1.0, 2, 1, 4, {"compute": 0.7, "bubble": 0.3},
    ({"weights": 2.0**30, "activations": 2.0**31, "odds": 1.0}, {"weights": 2.0**30, "logits": 2.0**30}), 2.0**32,
)  # fmt: skip


def test_bars_of_the_breakdown_add_up() -> None:
    figure = plot_breakdown([("one", STEP.causes), ("two", {"compute": 2.0})], "t")
    ends = [path.get_extents().x1 for bars in figure.axes[0].collections for path in bars.get_paths()]
    assert max(ends) == pytest.approx(2.0)
    assert [t.get_text() for t in figure.axes[0].get_yticklabels()] == ["one (1 s)", "two (2 s)"]
    assert {t.get_text() for t in figure.legends[0].get_texts()} == {"compute", "bubble"}


def test_bars_of_memory_add_up_and_small_parts_are_one() -> None:
    figure = plot_memory(STEP)
    (axes,) = figure.axes
    tops: dict[int, float] = {}
    for bars in axes.containers:
        for i, bar in enumerate(bars):
            tops[i] = max(tops.get(i, 0.0), bar.get_y() + bar.get_height())
    assert tops == pytest.approx({0: 3.0, 1: 2.0}, rel=1e-6)
    names = [t.get_text() for t in figure.legends[0].get_texts()]
    assert names == ["weights", "activations", "logits", "other", "a GPU holds 4.0 GiB"]


def test_choices_of_a_plan_are_drawn() -> None:
    choice = {
        "rank": 1, "cluster": "c", "step_s": 2.0, "tokens": 1e6, "memory_GiB": 10.0, "pareto": True, "tp": 2, "pp": 1,
        "dp": 4, "virtual_stages": 1, "micro_batch_size": 1, "causes_s": {"compute": 2.0},
    }  # fmt: skip
    other = choice | {"rank": 2, "step_s": 3.0, "memory_GiB": 5.0}
    saved = Saved("plan", "plan", Path(), choices=(choice, other))
    assert kinds_of(saved) == ["breakdown", "pareto"]
    ((_, figure),) = pictures(saved, "pareto")
    line = figure.axes[0].lines[0]
    assert [float(x) for x in np.ravel(line.get_xdata())] == pytest.approx([10.0, 5.0])
    assert [float(y) for y in np.ravel(line.get_ydata())] == pytest.approx([2.0, 3.0])


def test_validations_are_drawn() -> None:
    logs = [
        {"class": "one node", "collective": "all_reduce", "mape": m, "healthy": "yes"} for m in (3.0, 5.0, 40.0)
    ]  # fmt: skip
    figure = plot_validation({"mode": "zero-shot", "per_log": [*logs, {"mape": None}]}, "t")
    assert any(text.get_text() == "median 5.0 %" for text in figure.axes[0].texts)
    steps = [{"source": "a", "measured_s": 1.0, "predicted_s": p} for p in (1.05, 1.5)]
    figure = plot_validation({"per_row": [*steps, {"source": "b", "measured_s": 1.0, "predicted_s": None}]}, "t")
    assert any("2 steps" in t.get_text() and "50 %" in t.get_text() for t in figure.legends[0].get_texts())


@pytest.mark.parametrize(("protocols", "word"), [(["LL", "Simple"], "NCCL's choice"), (["-", "-"], "quickest")])
def test_a_map_of_a_sweep_says_who_chose(protocols: list[str], word: str) -> None:
    assert _who([{"algorithm": "ring", "protocol": p} for p in protocols]) == word
