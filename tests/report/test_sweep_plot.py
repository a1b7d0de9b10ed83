"""Knees and curves of sweeps."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commsim.errors import CommsimError
from commsim.report.answers import Swept, head_of
from commsim.report.chart import Axis, Chart, Panel, Series
from commsim.report.chart_figure import draw
from commsim.report.page import html
from commsim.report.sweep_plot import (
    SweepCurve,
    curves,
    figure_of,
    knee,
    knee_lines,
    numeric_paths,
    plot_sweep,
    sweep_chart,
)


def points() -> list[dict[str, Any]]:
    """A bandwidth that saturates at NICs of 400 Gb/s, for two thicknesses of the fabric."""
    found: list[dict[str, Any]] = []
    for rate in (100, 200, 400, 800):
        for thin in (1, 2):
            row = {"collective": "all_reduce", "size_bytes": 2**20, "busbw_GBps": min(rate, 400) / thin}
            values = {"topology.nic_bandwidth": f"{rate} Gb/s", "topology.oversubscription": thin}
            found.append({"number": len(found), "values": values, "rows": [row], "error": None})
    return found


def test_the_knee_is_where_more_brings_nothing() -> None:
    curve = curves(points(), "topology.nic_bandwidth", "busbw_GBps")[0]
    assert curve.x == pytest.approx((12.5e9, 25e9, 50e9, 100e9))
    assert knee(curve, more_is_better=True).x == pytest.approx(50e9)
    assert knee(SweepCurve("thin", (1.0, 2.0, 4.0), (100.0, 99.0, 50.0)), more_is_better=True).x == 2.0
    assert knee(SweepCurve("time", (1.0, 2.0, 3.0), (9.0, 3.0, 2.9)), more_is_better=False).x == 2.0


@given(st.lists(st.floats(0.1, 100), min_size=2, max_size=12), st.booleans())
def test_the_knee_is_good_enough_and_nothing_before_it_would_do(y: list[float], more: bool) -> None:
    curve = SweepCurve("any", tuple(float(i) for i in range(len(y))), tuple(y))
    bend = knee(curve, more)
    assert bend.y >= 0.95 * max(y) - 1e-12 if more else bend.y <= min(y) / 0.95 + 1e-12


def test_quantities_are_numbers_and_names_are_not() -> None:
    found = points()
    assert numeric_paths(found) == ["topology.nic_bandwidth", "topology.oversubscription"]
    for point in found:
        point["values"]["workload.0.collective"] = "all_reduce" if point["number"] % 2 else "reduce"
    assert numeric_paths(found) == ["topology.nic_bandwidth", "topology.oversubscription"]


def test_a_page_has_a_picture_for_each_path_and_all_rows() -> None:
    text = html(Swept("fabric", tuple(points()), "sweep: {}").page())
    assert text.count("<figure") == 2
    assert "95 % of the best" in text
    assert knee_lines(points(), "topology.nic_bandwidth", "busbw_GBps")[0].startswith("oversubscription 1: ")
    assert plot_sweep(points(), "topology.nic_bandwidth", "busbw_GBps", "x").axes


@pytest.mark.parametrize(
    ("rates", "said"),
    [
        ((100.0, 200.0, 400.0), "topology.nodes 8, the last tried, still gains"),
        ((100.0, 398.0, 400.0), "from topology.nodes 4: bus bandwidth 398 GB/s"),
        ((400.0, 398.0, 100.0), "up to topology.nodes 4: bus bandwidth 398 GB/s"),
        ((100.0, 400.0, 100.0), "at topology.nodes 4: bus bandwidth 400 GB/s"),
    ],
)
def test_a_knee_says_on_which_side_of_it_is_good(rates: tuple[float, ...], said: str) -> None:
    rows = [
        {"number": i, "values": {"topology.nodes": n}, "error": None,
         "rows": [{"collective": "all_reduce", "size_bytes": 1 << 30, "busbw_GBps": rate}]}
        for i, (n, rate) in enumerate(zip((2, 4, 8), rates, strict=True))
    ]  # fmt: skip
    (line,) = knee_lines(rows, "topology.nodes", "busbw_GBps")
    assert line.startswith(f"all_reduce, 1 GiB: {said}")
    chart = sweep_chart(rows, "topology.nodes", "busbw_GBps", "x")
    assert (len(chart.panels[0].series) == 2) == ("still gains" not in said)  # a mark


def test_what_was_given_stands_on_the_page_and_heads_are_words() -> None:
    text = html(Swept("fabric", tuple(points()), "sweep: {}", given=("topology.nodes=2",)).page())
    assert "topology.nodes=2" in text
    assert "GBps" not in text[: text.index("<script>")].split("<h2", 1)[1].split("application/json")[0]
    assert head_of("time_us") == "time (us)"
    assert head_of("topology.link_s") == "topology.link_s"


def test_a_line_that_lies_on_another_lets_it_be_seen() -> None:
    x, y = (1.0, 2.0, 4.0), (10.0, 20.0, 40.0)
    lines = (Series("below", x, y, "#000000"), Series("above", x, y, "#ff0000"), Series("off", x, x, "#00ff00"))
    figure = draw(Chart("x", Axis("n"), (Panel(Axis("y"), lines),)))
    assert [line.get_linestyle() for line in figure.axes[0].get_lines()] == ["-", "--", "-"]


def test_what_cannot_be_drawn_is_said() -> None:
    with pytest.raises(CommsimError, match="every point of the sweep failed"):
        figure_of([{"number": 0, "values": {}, "rows": [], "error": "no"}])


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (None, r"no picture of this sweep: expected several numbers along a path \(found words along a.algo\)"),
        ("wrong", "found no point with an answer"),
    ],
)
def test_a_sweep_without_a_picture_says_why(error: str | None, why: str) -> None:
    rows = [] if error else [{"collective": "all_reduce", "size_bytes": 8, "busbw_GBps": 1.0, "time_us": 1.0}]
    points = tuple({"number": 0, "values": {"a.algo": a}, "rows": rows, "error": error} for a in ("ring", "tree"))
    with pytest.raises(CommsimError, match=f"^words: {why}"):
        Swept("words", points, "").plot()
