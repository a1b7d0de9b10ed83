"""Names at the ends of lines: beside their own line, in its order, apart."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.text import Annotation, Text

from commsim.report import style
from commsim.report.chart import Axis, Chart, Panel, Series
from commsim.report.chart_figure import draw, key_of
from commsim.report.end_names import spread

PLACES = st.lists(st.floats(0, 100), min_size=1, max_size=12)


@given(PLACES)
def test_names_are_apart_inside_and_in_order(places: list[float]) -> None:
    moved = spread(places, 8.0, 0.0, 100.0)
    order = np.argsort(places, kind="stable")
    assert np.all(np.diff(moved[order]) >= 8.0 - 1e-9)
    assert -1e-9 <= moved.min() <= moved.max() <= 100.0 + 1e-9


def test_names_with_room_stay_and_others_move_least() -> None:
    assert spread([50.0, 10.0, 52.0], 10.0, 0.0, 100.0) == pytest.approx([46.0, 10.0, 56.0])
    assert spread([3.0, 3.0, 3.0], 10.0, 0.0, 10.0) == pytest.approx([0.0, 5.0, 10.0])  # no room: closer


ENDS = {"a": 1e4, "b": 1e3, "c": 10.2, "d": 10.1, "e": 10.0}


def chart(title: str = "t", note: str = "") -> Chart:
    """Lines over four decades, the three lowest close to each other."""
    lines = tuple(Series(name, (1.0, 2.0), (y, y), "#9DD93B", named=True) for name, y in ENDS.items())
    return Chart(title, Axis("nodes"), (Panel(Axis("time", "log"), lines),) * 2, note=note)


def test_each_name_stands_at_the_end_of_its_own_line() -> None:
    figure = draw(chart())
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = {text.get_text(): Text.get_window_extent(text) for text in axes.texts}  # without leaders
        at = {name: (box.y0 + box.y1) / 2 for name, box in boxes.items()}
        assert sorted(at, key=lambda name: at[name]) == ["e", "d", "c", "b", "a"]
        assert all(abs(at[name] - axes.transData.transform((2.0, ENDS[name]))[1]) < 3.0 for name in "ab")  # pixels
        assert np.diff(sorted(at.values())).min() > 10.0
        led = [text.get_text() for text in axes.texts if isinstance(text, Annotation) and _leader(text)]
        assert led == ["c", "d"]  # e, the lowest, stays above the axis


def _leader(text: Annotation) -> bool:
    return text.arrow_patch is not None and text.arrow_patch.get_linewidth() > 0


def test_names_at_ends_are_not_repeated_in_the_key_and_notes_are_below() -> None:
    drawn = chart(note="3 more sizes are not drawn")
    figure = draw(drawn)
    assert key_of(drawn) == []
    assert figure.legends == []
    assert figure.axes[-1].get_xlabel() == "nodes"
    assert figure.axes[-1].texts[-1].get_text() == "3 more sizes are not drawn"


def test_long_titles_are_smaller_or_in_even_lines() -> None:
    short, long = "all_reduce on hgx-h100-ndr400, over nodes [1,2,3,64], 1 MiB .. 1 GiB x32", "a word " * 15 + "x32"
    assert draw(chart(short)).axes[0].get_title(loc="left") == short
    first, second = draw(chart(long)).axes[0].get_title(loc="left").split("\n")
    assert abs(len(first) - len(second)) < 10


def test_letters_are_dark_enough_on_white() -> None:
    assert style.ink_like("#112233") == "#112233"
    assert style.ink_like("#FFFF00") != "#FFFF00"
