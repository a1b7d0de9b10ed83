"""Timelines made of rows."""

from __future__ import annotations

from commsim.engine.timeline import Timeline


def test_a_timeline_may_have_more_names_than_a_byte_counts() -> None:
    names = tuple(f"kernel {i}" for i in range(300))
    rows = [(float(i), i + 1.0, 0, 0, i, 8) for i in reversed(range(300))]
    timeline = Timeline.from_rows(rows, names)
    assert list(timeline.name) == list(names)
    assert (timeline.start_s[1:] >= timeline.start_s[:-1]).all()
    assert Timeline.from_rows([], names).rows == 0
