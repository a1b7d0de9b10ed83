"""Charts as data and on paper: what a page gets, what an axis shows, colours of what is drawn."""

from __future__ import annotations

import json

import pytest

from commsim.report import style
from commsim.report.chart import BAND, MOST_SPANS, Axis, Chart, Mark, Panel, Series, Span, apart, beginning
from commsim.report.chart_figure import draw, key_of, reach
from commsim.report.page import plot

X = (1.0, 2.0, 4.0)


def lines(*series: Series, scale: str = "linear", marks: tuple[Mark, ...] = ()) -> Chart:
    panel = Panel(Axis("y", scale), series, marks)  # type: ignore[arg-type]
    return Chart("</script><b>", Axis("x", "log", base=2), (panel,))


def test_json_closes_no_script_and_names_kinds_of_spans_once() -> None:
    spans = tuple(Span(0, k / 3, (k + 1) / 3, "F", "#0072B2", low=0.1, high=0.9) for k in range(3))
    text = Chart("</script>", Axis("t"), rows=("a",), spans=spans).to_json()
    assert "<" not in text
    read = json.loads(text)
    assert read["kinds"] == [["F", "#0072B2", "", 0.1, 0.9]]
    assert read["spans"] == [[0, 0.0, 0.3333333, 0], [0, 0.3333333, 0.6666667, 0], [0, 0.6666667, 1.0, 0]]


def test_a_band_lengthens_the_axis_and_a_bound_at_most_doubles_it() -> None:
    line = Series("a", X, (1.0, 2.0, 3.0), "#000000", low=(0.5, 1.0, 2.0), high=(2.0, 3.0, 5.0))
    bound = Series("b", X, (9.0, 90.0, 900.0), "#000000", "dashed")
    assert reach(Panel(Axis("y"), (line,))) == pytest.approx((0.0, 5.3))
    assert reach(Panel(Axis("y"), (line, bound))) == pytest.approx((0.0, 10.6))
    low, high = reach(Panel(Axis("y", "log"), (line, bound)))
    assert 0.4 < low < 0.5
    assert 10 < high < 12


def test_the_key_names_bands_and_each_line_once() -> None:
    line = Series("a", X, X, "#000000", low=X, high=X)
    chart = lines(line, line)
    assert key_of(chart) == ["a", BAND]
    figure = draw(chart)
    assert [t.get_text() for t in figure.legends[0].get_texts()] == ["a", BAND]


def test_names_of_marks_stand_apart() -> None:
    marks = tuple(Mark(at, f"algorithm {k}") for k, at in enumerate((1.0, 1.05, 4.0)))
    figure = draw(lines(Series("a", X, X, "#000000"), marks=marks))
    figure.canvas.draw()
    boxes = [t.get_window_extent() for t in figure.axes[0].texts if t.get_text().startswith("algorithm")]
    assert len(boxes) == 3
    assert not any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i])
    assert all(box.x0 >= 0 and box.x1 <= figure.bbox.width for box in boxes)


def test_labels_that_would_lie_over_another_are_left_out() -> None:
    series = Series("a", (0.0, 0.1, 5.0), (0.0, 0.0, 0.0), "#000000", "points", labels=("one", "two", "three"))
    assert apart(series, 1.0, 1.0) == ("one", "", "three")
    crowd = Series("b", (0.5, 4.5, 7.0), (0.1, 0.1, 0.1), "#000000", "points")
    assert apart(series, 1.0, 1.0, [crowd]) == ("one", "", "")  # the first stands in any case, the last to the left
    assert apart(series, 1.0, 0.05, [crowd]) == ("one", "", "three")


def test_the_passes_of_a_pipeline_have_colours_of_their_own() -> None:
    assert len({style.PASSES[name] for name in "FBIW"}) == 4


def test_ordered_names_go_from_dark_to_light_in_their_order() -> None:
    names = ["nodes 16", "nodes 2", "nodes 4"]
    assert style.ordered(names) == [2, 0, 1]
    assert style.line_colours(names, ["#FF0000"]) == [style.sequence(3)[k] for k in (2, 0, 1)]
    assert style.ordered(["1 MiB", "512 KiB", "2 GiB"]) == [1, 0, 2]
    assert style.ordered(["tp 1, fp8", "tp 2, bf16"]) is None


def test_kinds_with_values_are_shades_of_a_colour_each() -> None:
    names = [f"{c}, {s}" for c in ("all_reduce", "all_gather") for s in ("1 MiB", "1 GiB")]
    made = dict(zip(names, style.line_colours(names, ["#FF0000"]), strict=True))
    assert len(set(made.values())) == 4
    assert made["all_reduce, 1 GiB"].lower() == style.collective_colours(["all_reduce"])["all_reduce"].lower()


def test_an_algorithm_has_one_colour_in_all_pictures() -> None:
    alone = style.algorithm_colours(["tree"])
    among = style.algorithm_colours(["ring", "nvls", "tree/Simple", "tree/LL", "rabenseifner"])
    assert among["tree/Simple"] == alone["tree"]
    assert len(set(among.values())) == 5


@pytest.mark.parametrize(("colour", "ink"), [("#0072B2", "#FFFFFF"), ("#F0E442", "#000000"), ("#DDDDDD", "#000000")])
def test_ink_can_be_read(colour: str, ink: str) -> None:
    assert style.ink_on(colour) == ink


def test_of_a_long_timeline_the_beginning_is_drawn_pass_by_pass_on_a_page_too() -> None:
    spans = tuple(Span(i % 2, float(i), i + 1.0, "FB"[i // 2 % 2], "#000000") for i in range(2 * MOST_SPANS))
    thin = Span(0, 0.0, 1.0, "send", "#000000", low=0.0, high=0.1)
    whole = Chart("t", Axis("time", unit="s", high=2.0 * MOST_SPANS), rows=("stage 0", "stage 1"), spans=(thin, *spans))
    drawn = beginning(whole)
    assert drawn.spans == spans[:MOST_SPANS]
    assert drawn.note.startswith(f"the first {MOST_SPANS // 1000}000 s of {2 * MOST_SPANS} s; sends and the like")
    assert drawn.x.high == MOST_SPANS
    assert beginning(drawn) == drawn
    shown = plot(whole, "")
    assert str(shown.data) == drawn.to_json()
