"""Programs: what is refused, and how schedules are bound to a topology."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import program

from commsim.collectives.chain import chain_broadcast
from commsim.collectives.direct import two_shot_all_reduce
from commsim.collectives.ring import ring_all_reduce
from commsim.collectives.schedule import relabel
from commsim.engine.fair import simulate_fair
from commsim.engine.memory import estimate_bytes, require_memory
from commsim.engine.program import MAX_HOPS, build_program, dense_ids
from commsim.engine.simulate import simulate
from commsim.engine.timeline import timeline
from commsim.errors import InfeasibleError, ScheduleError
from commsim.topology.presets import load_preset


def _two() -> Any:
    return program([10, 20], [[0, 1], [1]], [(0, 1)], bandwidth=[1e9, 1e9], latency=[1e-6, 1e-6])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nbytes": np.array([10, -1])}, r"nbytes\[1\] is -1, expected 0 bytes or more"),
        ({"delay_s": np.array([np.nan, 0])}, r"delay_s\[0\] is nan"),
        ({"delay_s": np.zeros(3)}, "delay_s has 3 entries, expected one per op, 2"),
        ({"link_bandwidth": np.array([1e9, 0.0])}, r"link_bandwidth\[1\] is 0.0, expected a finite bandwidth above 0"),
        ({"link_latency": np.array([1e-6, np.inf])}, r"link_latency\[1\] is inf"),
        ({"link_latency": np.zeros(1)}, "found 1 latencies for 2 links"),
        ({"route": np.array([0, 2])}, r"route\[1\] is 2, expected one of 2 routes"),
        ({"route_link": np.array([0, 1, 7])}, r"route_link\[2\] is 7, expected one of 2 links"),
        ({"route_ptr": np.array([0, 2])}, r"route_ptr must have 2 entries from 0 to 3"),
        ({"succ_idx": np.array([5])}, r"succ_idx\[0\] is 5, expected one of 2 ops"),
        ({"succ_ptr": np.array([0, 2, 1])}, "succ_ptr decreases at entry 2"),
        ({"nbytes": np.array([0.5, 1])}, "nbytes: found float64"),
    ],
)
def test_a_program_that_would_break_the_kernel_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        dataclasses.replace(_two(), **changes)


def test_a_route_of_too_many_links_is_refused() -> None:
    links = MAX_HOPS + 1
    with pytest.raises(ScheduleError, match=f"at most {MAX_HOPS} links"):
        program([1], [range(links)], bandwidth=[1.0] * links, latency=[0.0] * links)


@given(st.lists(st.integers(0, 50), max_size=60), st.sampled_from([51, 10**9]))
def test_dense_ids_is_unique(keys: list[int], size: int) -> None:
    distinct, place = dense_ids(np.array(keys, np.int64), size)
    assert distinct.tolist() == sorted(set(keys))
    assert distinct[place].tolist() == keys


def test_rows_take_the_routes_of_the_topology() -> None:
    topology = load_preset("hgx-h100-ndr400", nodes=2)
    schedule = ring_all_reduce(16, 1 << 20)
    p = build_program(schedule, topology)
    for row in (0, 7, 8, 15, schedule.rows - 1):
        r = p.route[row]
        expected = topology.route(int(schedule.src[row]), int(schedule.dst[row]))
        assert p.route_link[p.route_ptr[r] : p.route_ptr[r + 1]].tolist() == expected.tolist()
    assert p.links == topology.link_bandwidth.size


def test_a_row_within_a_rank_uses_no_link() -> None:
    schedule = ring_all_reduce(8, 800)
    local = schedule.edit(dst=schedule.src.copy())
    assert build_program(local, load_preset("hgx-h100")).hops().max() == 0


def test_wire_bytes_replace_the_payload() -> None:
    schedule = ring_all_reduce(8, 800)
    lowered = schedule.edit(wire_bytes=schedule.payload_bytes() * 2)
    assert build_program(lowered, load_preset("hgx-h100")).nbytes.tolist() == [200] * schedule.rows


def test_more_ranks_than_the_topology_has() -> None:
    with pytest.raises(ScheduleError, match=r"has 9 ranks, the topology .* only 8"):
        build_program(ring_all_reduce(9, 900), load_preset("hgx-h100"))
    schedule = ring_all_reduce(4, 400)
    elsewhere = schedule.edit(endpoints=9, dst=np.where(schedule.dst == 0, 8, schedule.dst))
    with pytest.raises(ScheduleError, match="has 5 endpoints beside its 4 ranks, and nothing says what they are"):
        build_program(elsewhere, load_preset("hgx-h100"))


def test_building_beyond_the_memory_of_the_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commsim.memory.machine_bytes", lambda: 4096)
    with pytest.raises(InfeasibleError, match="112 chunk moves needs about"):
        build_program(ring_all_reduce(8, 800), load_preset("hgx-h100"))


@pytest.mark.parametrize(("derived", "per_row"), [(True, 265 + 76), (False, 75 + 76)])
def test_half_of_the_memory_is_taken_to_the_last_row(
    derived: bool, per_row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row takes 265 bytes where its dependences are sorted out, 75 where they are known, and 76 in the run."""
    monkeypatch.setattr("commsim.memory.machine_bytes", lambda: 2 * 1000 * per_row)
    require_memory(estimate_bytes(1000, derived=derived), 1000)
    with pytest.raises(InfeasibleError, match="1,000 moves would fit"):
        require_memory(estimate_bytes(1001, derived=derived), 1001)


def test_joins_follow_the_rows_and_change_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("commsim.collectives.dependencies._JOINED", 1)
    schedule, topology = two_shot_all_reduce(8, 8 << 10), load_preset("hgx-h100")
    plain, joined = build_program(schedule, topology), build_program(schedule, topology, joins=True)
    assert joined.rows == schedule.rows + joined.joins > schedule.rows
    assert joined.nbytes[schedule.rows :].tolist() == [0] * joined.joins
    assert np.array_equal(simulate(joined).end_s[: schedule.rows], simulate(plain).end_s)


def test_timeline_rows_are_the_schedule_rows() -> None:
    schedule = ring_all_reduce(8, 800)
    outcome = simulate(build_program(schedule, load_preset("hgx-h100")))
    rows = timeline(schedule, outcome)
    assert rows.rows == schedule.rows
    assert rows.name[0] == "reduce"
    assert rows.name[-1] == "copy"
    assert np.array_equal(rows.endpoint, schedule.src)
    assert rows.end_s.max() == outcome.makespan_s
    assert rows.nbytes.sum() == schedule.sent_bytes().sum()


@pytest.mark.parametrize("dimensions", [[48], [16, 16, 16]])
def test_the_long_way_across_a_torus(dimensions: list[int]) -> None:
    """Half way round every dimension: 24 links between routers, and the time of one message alone."""
    nodes = int(np.prod(dimensions))
    topology = load_preset("torus-3d-example", nodes=nodes, fabric={"dimensions": dimensions})
    far = int(np.ravel_multi_index([d // 2 for d in dimensions], dimensions)) * topology.ranks_per_node
    schedule = relabel(chain_broadcast(2, 1 << 20), [0, far], world_size=topology.world_size)
    route = topology.route(0, far)
    assert len(route) > 24
    for in_order in (True, False):
        done = simulate(build_program(schedule, topology), in_order=in_order)
        alone = topology.link_latency[route].sum() + (1 << 20) / topology.link_bandwidth[route].min()
        assert done.makespan_s == pytest.approx(alone, rel=1e-12)
        assert simulate_fair(build_program(schedule, topology)).makespan_s == pytest.approx(alone, rel=1e-12)
    assert done.critical_path().end_s[-1] == done.makespan_s
