"""Values by hand and the laws that every simulation keeps."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import on_switch, program, random_programs

from commsim.collectives.ring import ring_all_reduce
from commsim.engine.critical import Record, StretchKind
from commsim.engine.memory import estimate_bytes
from commsim.engine.merging import Routes
from commsim.engine.program import Program
from commsim.engine.simulate import simulate
from commsim.errors import InfeasibleError, ScheduleError
from commsim.memory import machine_bytes


def test_a_run_that_is_not_recorded_keeps_nothing() -> None:
    assert [column.size for column in Record.none()] == [0, 0, 0, 0]


def test_one_message_over_one_link() -> None:
    done = simulate(program([1000], [[0]], bandwidth=[1e9], latency=[2e-6], delay_s=[5e-6]))
    assert done.ready_s.tolist() == [0.0]
    assert done.start_s.tolist() == [5e-6]
    assert done.end_s.tolist() == pytest.approx([8e-6], rel=1e-15)
    assert done.link_busy_s.tolist() == pytest.approx([1e-6])


def test_two_messages_on_one_link_follow_each_other() -> None:
    """The second takes up the link when the last byte of the first has left, not when it has arrived."""
    done = simulate(program([1000, 3000], [[0], [0]], bandwidth=[1e9], latency=[2e-6]))
    assert done.start_s.tolist() == pytest.approx([0, 1e-6])
    assert done.end_s.tolist() == pytest.approx([3e-6, 6e-6])


@pytest.mark.parametrize(("rates", "slowest"), [([1e9, 4e9], 1e9), ([4e9, 1e9], 1e9), ([2e9, 2e9], 2e9)])
def test_cut_through_takes_latencies_and_the_smallest_bandwidth(rates: list[float], slowest: float) -> None:
    done = simulate(program([4000], [[0, 1]], bandwidth=rates, latency=[1e-6, 2e-6]))
    assert done.makespan_s == pytest.approx(3e-6 + 4000 / slowest, rel=1e-14)


def test_store_and_forward_pays_every_link_in_full() -> None:
    p = program([4000], [[0, 1]], bandwidth=[1e9, 4e9], latency=[1e-6, 2e-6])
    assert simulate(p, store_and_forward=True).makespan_s == pytest.approx(4e-6 + 1e-6 + 1e-6 + 2e-6, rel=1e-14)


def test_a_link_fed_by_a_slower_one_is_held_until_the_tail() -> None:
    p = program([4000, 1000], [[0, 1], [1]], bandwidth=[1e9, 4e9], latency=[0, 0], delay_s=[0, 1e-7])
    done = simulate(p)
    assert done.end_s.tolist() == pytest.approx([4e-6, 4e-6 + 1000 / 4e9])
    assert done.link_busy_s.tolist() == pytest.approx([4e-6, 4e-6 + 1000 / 4e9])


def test_those_behind_a_join_wait_for_the_last_before_it() -> None:
    """Ops 0 and 1, of 1 and 2 us, before the join 4; behind it 2 and 3, on links of their own."""
    edges = [(0, 4), (1, 4), (4, 2), (4, 3)]
    p = program(
        [1000, 2000, 3000, 4000, 0], [[0], [1], [2], [3], []], edges,
        bandwidth=[1e9] * 4, latency=[0.0] * 4, delay_s=[0.0, 0.0, 0.0, 1e-6, 0.0],
    )  # fmt: skip
    done = simulate(dataclasses.replace(p, joins=1))
    assert done.end_s.tolist() == pytest.approx([1e-6, 2e-6, 5e-6, 7e-6, 2e-6])


def test_a_message_without_a_link_ends_after_its_delay() -> None:
    done = simulate(program([5, 5], [[], []], [(0, 1)], bandwidth=[1], latency=[0], delay_s=[1e-6, 2e-6]))
    assert done.end_s.tolist() == pytest.approx([1e-6, 3e-6])
    assert done.link_bytes.tolist() == [0]


def test_an_empty_program_takes_no_time() -> None:
    assert simulate(program([], [], bandwidth=[1], latency=[0])).makespan_s == 0.0


@pytest.mark.parametrize("n", [2, 3, 7, 64, 256])
@pytest.mark.parametrize("in_order", [True, False])
def test_uncontended_ring_is_the_closed_form(n: int, in_order: bool) -> None:
    done = simulate(on_switch(ring_all_reduce(n, 65536 * n)), in_order=in_order)
    assert done.makespan_s == pytest.approx(2 * (n - 1) * (1e-6 + 65536 / 50e9), rel=1e-9)


@given(st.integers(1, 20), st.integers(0, 10**6), st.integers(1, 3))
def test_a_ring_moves_its_bytes_exactly(n: int, nbytes: int, channels: int) -> None:
    schedule = ring_all_reduce(n, nbytes, channels)
    done = simulate(on_switch(schedule))
    assert done.link_bytes.dtype == np.int64
    assert done.link_bytes[:n].tolist() == schedule.sent_bytes().tolist()
    assert done.link_bytes[n:].tolist() == schedule.received_bytes().tolist()


@given(random_programs())
def test_bytes_on_links_are_bytes_times_hops(p: Program) -> None:
    done = simulate(p)
    assert done.link_bytes.sum() == (p.nbytes * p.hops()).sum()
    assert np.array_equal(done.link_bytes, p.link_bytes())


@given(random_programs())
def test_order_of_times(p: Program) -> None:
    done = simulate(p)
    before = np.repeat(np.arange(p.rows), np.diff(p.succ_ptr))
    assert (done.end_s[before] <= done.ready_s[p.succ_idx]).all()
    assert (done.ready_s + p.delay_s <= done.start_s).all()
    assert (done.start_s <= done.end_s).all()


@given(random_programs())
def test_no_link_is_busier_than_the_makespan_or_faster_than_its_bandwidth(p: Program) -> None:
    done = simulate(p)
    assert (done.link_busy_s <= done.makespan_s * (1 + 1e-12)).all()
    assert (done.link_busy_s >= done.link_bytes / p.link_bandwidth * (1 - 1e-12)).all()


@given(random_programs(), st.integers(-3, 3))
def test_scaling_rates_and_latencies_scales_time_exactly(p: Program, power: int) -> None:
    factor = 2.0**power
    faster = dataclasses.replace(
        p,
        link_bandwidth=p.link_bandwidth * factor,
        link_latency=p.link_latency / factor,
        delay_s=p.delay_s / factor,
    )
    assert np.array_equal(simulate(faster).end_s * factor, simulate(p).end_s)


def test_two_runs_are_identical() -> None:
    p = on_switch(ring_all_reduce(8, 12345, 3))
    assert np.array_equal(simulate(p).end_s, simulate(p, in_order=False).end_s)
    assert np.array_equal(simulate(p, in_order=False).link_busy_s, simulate(p, in_order=False).link_busy_s)


@given(random_programs(), st.booleans())
def test_the_critical_path_has_no_gap(p: Program, store_and_forward: bool) -> None:
    done = simulate(p, store_and_forward=store_and_forward)
    path = done.critical_path()
    assert path.start_s[0] == 0.0
    assert path.end_s[-1] == done.makespan_s
    assert np.array_equal(path.start_s[1:], path.end_s[:-1])
    assert sum(path.seconds(part) for part in StretchKind) == pytest.approx(done.makespan_s)


def test_the_bottleneck_is_the_link_that_all_wait_for() -> None:
    p = program([1000] * 5, [[0, 1], [0, 1], [0, 1], [2, 1], [2]], bandwidth=[4e9, 1e9, 4e9], latency=[1e-9] * 3)
    path = simulate(p).critical_path()
    part, link, share = path.bottleneck()
    assert (part, link) == (StretchKind.TRANSFER, 1)
    assert share > 0.99
    assert path.link_seconds(StretchKind.TRANSFER, 3).tolist() == pytest.approx([0, 4e-6, 0])


@pytest.mark.parametrize(
    ("edges", "named"),
    [
        ([(0, 1), (1, 2), (2, 1), (2, 3)], "(1 -> 2 -> 1|2 -> 1 -> 2)"),
        ([(3, 3)], "3 -> 3"),
        ([(i, (i + 1) % 12) for i in range(12)], r"0 -> 1 -> .* -> 7 -> \.\.\. -> 0"),
    ],
)
def test_a_cycle_is_named(edges: list[tuple[int, int]], named: str) -> None:
    p = program([1] * 12, [[0]] * 12, edges, bandwidth=[1], latency=[0])
    with pytest.raises(ScheduleError, match=rf"cycle: {named}.*of 12 rows never start"):
        simulate(p)


def test_a_run_beyond_the_memory_limit_is_refused_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (machine_bytes() or 2**30) > estimate_bytes(1000)
    p = program([1] * 100, [[0]] * 100, bandwidth=[1], latency=[0])
    monkeypatch.setattr("commsim.memory.machine_bytes", lambda: 2000)
    with pytest.raises(InfeasibleError, match=r"100 chunk moves needs about .* KiB, the limit is 1000 B"):
        simulate(p)


def test_closed_forms_and_bounds_do_not_import_numba() -> None:
    code = "import sys, commsim.engine.evaluate, commsim.bounds; sys.exit('numba' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@given(random_programs())
def test_leaving_out_hops_that_cannot_queue_changes_nothing(p: Program) -> None:
    a, b = simulate(p, merge=True), simulate(p)
    for name in ("ready_s", "start_s", "end_s", "link_busy_s"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-9, abs=1e-18), name
    assert np.array_equal(a.link_bytes, b.link_bytes)


@given(st.integers(0, 2**32 - 1), st.booleans())
def test_chains_of_links_are_merged_and_nothing_changes(seed: int, in_order: bool) -> None:
    """Ways of four links in a row, with bandwidths in any order, that several ways may share from some link on."""
    rng = np.random.default_rng(seed)
    ways = [[4 * w + h for h in range(4)] for w in range(3)]
    ways.append([12, *ways[0][int(rng.integers(1, 4)) :]])
    routes = [ways[int(w)] for w in rng.integers(0, len(ways), 30)]
    p = program(
        [int(v) for v in rng.integers(0, 10**6, 30)],
        routes,
        bandwidth=list(rng.choice([1e9, 2e9, 3e9], 13)),
        latency=list(rng.uniform(0, 1e-5, 13)),
        delay_s=list(rng.uniform(0, 1e-3, 30)),
    )
    a, b = simulate(p, merge=True, in_order=in_order), simulate(p, in_order=in_order)
    for name in ("start_s", "end_s", "link_busy_s"):
        assert getattr(a, name) == pytest.approx(getattr(b, name), rel=1e-9, abs=1e-18), name
    assert np.array_equal(a.link_bytes, b.link_bytes)


def test_a_private_way_is_one_hop() -> None:
    p = program([5, 7], [[0, 1, 2], [0, 1, 2]], bandwidth=[1e9, 3e9, 2e9], latency=[1e-6, 2e-6, 3e-6])
    routes = Routes.merged(p)
    assert routes.link.tolist() == [0, 0]
    assert routes.latency[0] == pytest.approx(6e-6)
    assert routes.stands_for.tolist() == [0, 0, 0]


@given(random_programs(), st.integers(0, 2**32 - 1))
def test_renumbering_ops_and_links_keeps_every_time(p: Program, seed: int) -> None:
    """Random times do not tie, so who has which number cannot matter."""
    rng = np.random.default_rng(seed)
    op, link = rng.permutation(p.rows), rng.permutation(p.links)
    place = np.argsort(op)
    pairs = [
        (int(place[a]), int(place[b])) for a in range(p.rows) for b in p.succ_idx[p.succ_ptr[a] : p.succ_ptr[a + 1]]
    ]
    ways = [p.route_link[p.route_ptr[p.route[o]] : p.route_ptr[p.route[o] + 1]] for o in op]
    where = np.argsort(link)
    other = program(
        list(p.nbytes[op]),
        [list(where[way]) for way in ways],
        pairs,
        bandwidth=list(p.link_bandwidth[link]),
        latency=list(p.link_latency[link]),
        delay_s=list(p.delay_s[op]),
    )
    assert np.array_equal(simulate(other).end_s, simulate(p).end_s[op])
    assert np.array_equal(simulate(other).link_bytes, simulate(p).link_bytes[link])
