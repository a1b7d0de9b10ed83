"""Ranks over time: what waits, what is transferred, who never came."""

from __future__ import annotations

from pathlib import Path

import pytest

from commsim.accuracy.diagnosis import diagnose
from commsim.report import dump_chart as module
from commsim.report.chart import Chart
from commsim.report.dump_chart import dump_chart
from commsim.report.dumps import dump_page
from commsim.report.page import Plot, Table


def _chart(checkout: Path, name: str) -> Chart:
    chart = dump_chart(diagnose(sorted((checkout / "tests" / "data" / "dumps" / name).glob("trace*"))))
    assert chart is not None
    return chart


def test_the_last_rank_waits_least_and_all_transfer_together(checkout: Path) -> None:
    chart = _chart(checkout, "gloo-late")
    assert chart.rows == tuple(f"rank {rank}" for rank in range(4))
    of = {span.row: span for span in chart.spans if span.note.startswith("all_reduce #2 ") and span.text == "transfer"}
    assert len({(round(span.start, 9), round(span.end, 9)) for span in of.values()}) == 1
    waited = {span.row for span in chart.spans if span.note.startswith("all_reduce #2 ") and span.text == "waiting"}
    assert waited == {0, 1, 2}  # rank 3 came last
    assert all(span.start < span.end for span in chart.spans)


def test_a_rank_that_never_came_is_marked_from_when_the_others_waited(checkout: Path) -> None:
    job = diagnose(sorted((checkout / "tests" / "data" / "dumps" / "gloo-missing").glob("flight*")))
    chart = dump_chart(job)
    assert chart is not None
    (missing,) = [span for span in chart.spans if span.text == "did not enter"]
    assert (chart.rows[missing.row], missing.note) == ("rank 2", "all_reduce #9")
    assert "did not enter" in dict(chart.key)
    (part,) = dump_page(job).sections[0].parts
    assert isinstance(part, Plot)
    # Ranks waited for seconds in the barrier in which the recording starts: it is left out, and what comes after shows.
    assert max(span.end for span in chart.spans) < 1.0


def test_columns_without_a_value_are_left_out(checkout: Path) -> None:
    """Recorders of gloo have no ends, so that no transfer is known; nothing was expected of a machine."""
    job = diagnose(sorted((checkout / "tests" / "data" / "dumps" / "gloo-missing").glob("flight*")))
    calls, ranks = (section.parts[0] for section in dump_page(job).sections[1:3])
    assert isinstance(calls, Table)
    assert isinstance(ranks, Table)
    assert [column.name.partition(" (")[0] for column in calls.columns] == [
        "collective", "group", "ranks", "size", "type", "calls", "waiting",
    ]  # fmt: skip
    assert "transfer (us)" not in [column.name for column in ranks.columns]


def test_of_many_calls_the_costliest_are_drawn_and_it_is_said(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_SPANS", 24)
    chart = _chart(checkout, "gloo-late")
    assert chart.note == "of 11 calls the 2 costliest; not drawn: 1 in which the recording starts"
    assert "all_reduce #1" not in {span.note.partition(" of ")[0] for span in chart.spans}
