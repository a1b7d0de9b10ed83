"""Calls that share links: by hand, and events against the sweep over all calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.engine.clock import EventClock, SimpyClock
from commsim.engine.sharing import CallTraffic, LinkLoad, Sharing, beside
from commsim.engine.under_way import CallsUnderWay


def load(*put: tuple[int, float], capacity: float = 1.0, lines: float = 1.0) -> LinkLoad:
    """Bytes on links that carry so much a second."""
    link, nbytes = (np.array(column) for column in zip(*put, strict=True))
    return LinkLoad(link, nbytes.astype(float), np.full(link.size, lines), np.full(link.size, capacity))


def call(alone_s: float, *put: tuple[int, float], start_s: float = 0.0) -> CallTraffic:
    return CallTraffic(start_s, alone_s, load(*put))


def by_events(calls: list[CallTraffic]) -> list[float]:
    """Seconds of each call from its start, as events of a clock, and the same of a simpy environment."""
    env: Any = simpy.Environment()
    sharing = Sharing(calls)
    seconds = [run_by(EventClock(), sharing, calls, lambda clock: clock.run())]
    seconds.append(run_by(SimpyClock(env), sharing, calls, lambda _: env.run()))
    assert seconds[0] == seconds[1]
    return seconds[0]


def run_by(clock: Any, sharing: Sharing, calls: list[CallTraffic], run: Callable[[Any], None]) -> list[float]:
    under_way, seconds = CallsUnderWay(clock, sharing), [0.0] * len(calls)

    def begin(number: int) -> None:
        under_way.start(number, calls[number].alone_s, end, number)

    def end(number: int) -> None:
        seconds[number] = clock.now - calls[number].start_s

    for number, one in enumerate(calls):
        clock.after(one.start_s, begin, number)
    run(clock)
    return seconds


def test_two_calls_that_fill_a_link_take_twice_as_long() -> None:
    calls = [call(1.0, (0, 1.0)), call(1.0, (0, 1.0), (1, 0.5))]
    assert beside(calls).seconds == pytest.approx((2.0, 2.0))
    assert by_events(calls) == pytest.approx([2.0, 2.0])


def test_a_call_that_begins_later_slows_what_is_left() -> None:
    """Half a second alone, then both at half the pace until the first has ended, then the second alone."""
    calls = [call(1.0, (0, 1.0)), call(1.0, (0, 1.0), start_s=0.5)]
    assert by_events(calls) == pytest.approx([1.5, 1.5])


def test_calls_that_leave_each_other_room_do_not_meet() -> None:
    calls = [call(1.0, (0, 0.5)), call(1.0, (0, 0.5)), call(1.0, (1, 1.0))]
    sharing = Sharing(calls)
    assert not any(map(sharing.meets, range(3)))
    assert by_events(calls) == [1.0, 1.0, 1.0]


def test_one_call_twice_at_once_shares_with_itself() -> None:
    calls = [call(1.0, (0, 1.0)), call(9.0, (0, 0.9))]
    clock, ends = EventClock(), list[float]()
    under_way = CallsUnderWay(clock, Sharing(calls))
    for _ in range(2):
        under_way.start(0, 1.0, lambda _: ends.append(clock.now))
    clock.run()
    assert ends == pytest.approx([2.0, 2.0])


def test_who_is_held_up_elsewhere_leaves_a_link_to_the_others() -> None:
    """The second call gets a third on link 1; on link 0 the first has what that leaves."""
    narrow = CallTraffic(0.0, 1.0, load((0, 1.0), (1, 1.0)))
    wide = [CallTraffic(0.0, 1.0, load((1, 1.0))) for _ in range(2)]
    paces, links = Sharing([call(1.0, (0, 1.0)), narrow, *wide]).pace((0, 1, 2, 3))
    assert paces == pytest.approx([2 / 3, 1 / 3, 1 / 3, 1 / 3])
    assert links.tolist() == [0, 1, 1, 1]


def test_loads_of_several_add_up() -> None:
    every = LinkLoad.joined([load((3, 1.0), (5, 2.0)), load((5, 4.0), capacity=0.5)])
    assert (every.link.tolist(), every.nbytes.tolist(), every.lines.tolist()) == ([3, 5], [1.0, 6.0], [1.0, 2.0])
    assert every.busiest_s == 12.0


@st.composite
def several_calls(draw: Any) -> list[CallTraffic]:
    """Calls on up to five links; none asks more of one than it carries."""
    calls = []
    for _ in range(draw(st.integers(1, 6))):
        links = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4, unique=True))
        alone = draw(st.sampled_from([0.5, 1.0, 3.0]))
        put = [(link, alone * draw(st.sampled_from([0.1, 0.5, 0.8, 1.0]))) for link in links]
        calls.append(call(alone, *put, start_s=draw(st.sampled_from([0.0, 0.3, 1.1, 2.0]))))
    return calls


@settings(max_examples=200, deadline=None)
@given(several_calls())
def test_events_end_when_the_sweep_says(calls: list[CallTraffic]) -> None:
    swept = beside(calls).seconds
    assert by_events(calls) == pytest.approx(list(swept), rel=1e-6)
    assert all(got >= one.alone_s * (1 - 1e-9) for got, one in zip(swept, calls, strict=True))


@settings(max_examples=50, deadline=None)
@given(several_calls())
def test_links_alike_count_once(calls: list[CallTraffic]) -> None:
    """The same loads on twice as many links."""

    def doubled(one: LinkLoad) -> LinkLoad:
        twice = [np.concatenate([column, column]) for column in (one.nbytes, one.lines, one.capacity)]
        return LinkLoad(np.concatenate([one.link, one.link + 10]), *twice)

    both = [CallTraffic(c.start_s, c.alone_s, doubled(c.load)) for c in calls]
    assert beside(both).seconds == pytest.approx(beside(calls).seconds, rel=1e-9)
    assert Sharing(both)._columns.link.size == Sharing(calls)._columns.link.size
