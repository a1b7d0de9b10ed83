"""The bandwidth figure: everything asked for is on it, and the same data give the same file."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from commsim.accuracy.compare import compare
from commsim.measure.records import Curve
from commsim.report.plan_tables import plot_choices
from commsim.report.plots import figure_bytes, plot_bandwidth
from commsim.report.style import size_ticks

SIZE = 2 ** np.arange(3, 34, 2, dtype=np.int64)
TIME = 2e-5 + SIZE / 2e11
PREDICTED = Curve(
    "machine", "all_reduce", 8, "predicted", SIZE, TIME, low_s=TIME * 0.9, high_s=TIME * 1.1, lower_bound_s=TIME / 2
)
MEASURED = Curve("log", "all_reduce", 8, "measured", SIZE, TIME * 1.04)


@pytest.mark.parametrize("logs", [0, 1, 2, 3])
def test_every_curve_is_named_and_the_axes_have_units(logs: int) -> None:
    measured = [replace(MEASURED, name=f"log {i}", time_s=TIME * (1 + i / 10)) for i in range(logs)]
    comparisons = [compare(PREDICTED, m) for m in measured]
    figure = plot_bandwidth([PREDICTED], measured, "title", comparisons, "commsim")
    assert len(figure.axes) == (3 if logs else 2)
    assert figure.axes[0].get_ylabel() == "bus bandwidth (GB/s)"
    assert figure.axes[0].get_title(loc="left") == "title"
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    logged = [f"measured: log {i}" for i in range(logs)]
    assert names == ["predicted: machine", *logged, "no algorithm can be faster", "shaded: band of the prediction"]
    assert figure.axes[1].get_ylabel() == "time"
    if logs:
        assert figure.axes[2].get_ylabel() == "error of time (%)"


def test_the_limit_is_inside_the_picture_and_named_once() -> None:
    other = replace(PREDICTED, name="other")
    figure = plot_bandwidth([PREDICTED, other], [], "t")
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert sorted(names) == sorted({*names})
    top = float(np.max(PREDICTED.busbw())) / 1e9
    assert figure.axes[0].get_ylim()[1] > 2 * top  # no algorithm is quicker than half the time


def test_the_band_of_ties_ends_at_the_margin() -> None:
    row = {"cluster": "one", "tokens": 1e6, "pareto": True, "tp": 1, "pp": 1, "dp": 8, "tie_margin": 1.12}
    listed = [row | {"memory_GiB": 20.0, "step_s": 10.0}, row | {"memory_GiB": 30.0, "step_s": 10.1, "tie": True}]
    figure = plot_choices(listed, "t")
    (band,) = figure.axes[0].patches
    assert band.get_extents().transformed(figure.axes[0].transData.inverted()).intervaly == pytest.approx([10.0, 11.2])
    assert "ties with the best: up to 12 % slower" in [text.get_text() for text in figure.legends[0].get_texts()]
    old = [{name: value for name, value in one.items() if name != "tie_margin"} for one in listed]
    assert not plot_choices(old, "t").axes[0].patches


def test_size_labels_are_powers_of_two() -> None:
    figure = plot_bandwidth([PREDICTED], [MEASURED], "t", [compare(PREDICTED, MEASURED)])
    figure.canvas.draw()
    labels = [label.get_text() for label in figure.axes[-1].get_xticklabels()]
    assert labels[0] == "8 B"
    assert "1 GiB" in labels


def test_an_error_beyond_the_axis_is_written_out() -> None:
    far = replace(MEASURED, time_s=TIME / 4)
    figure = plot_bandwidth([PREDICTED], [far], "t", [compare(PREDICTED, far)])
    assert any(text.get_text() == "+300 %" for text in figure.axes[2].texts)


def test_the_same_figure_is_the_same_file() -> None:
    first, second = (figure_bytes(plot_bandwidth([PREDICTED], [MEASURED], "t"), "svg") for _ in range(2))
    assert first == second
    assert figure_bytes(plot_bandwidth([PREDICTED], [], "t"), "png").startswith(b"\x89PNG")


def test_nothing_to_draw_is_an_error() -> None:
    with pytest.raises(ValueError, match="no curve"):
        plot_bandwidth([], [], "t")


@pytest.mark.parametrize(("low", "high"), [(8, 8), (8, 16), (1, 2**62), (96, 402653184), (2**30, 2**33)])
def test_ticks_are_few_and_inside(low: int, high: int) -> None:
    ticks = size_ticks(low, high)
    assert len(ticks) <= 12
    assert all(low <= tick <= high for tick in ticks)


def test_pyplot_is_not_needed() -> None:
    """It doubles the time to the first figure and holds global state."""
    code = "import sys, commsim.report.plots, matplotlib.figure; assert 'matplotlib.pyplot' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
