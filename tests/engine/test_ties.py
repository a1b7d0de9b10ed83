"""Events at one time: the message number decides, whatever the order in which floats were added.

In fractions two times are equal or not, so `naive.simulate_exactly` says what a tie is. Merging links and scaling all
times add other floats for the same times.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from fractions import Fraction

import naive
import numpy as np
import pytest
from fabrics import random_machines, random_schedule
from hypothesis import given
from hypothesis import strategies as st
from programs import program

from commsim.collectives.pairwise import pairwise_all_to_all
from commsim.collectives.schedule import Schedule
from commsim.engine.cosim import Environment
from commsim.engine.program import Program, build_program, places_along
from commsim.engine.simulate import simulate
from commsim.errors import ScheduleError
from commsim.topology.presets import load_preset

Exact = tuple[Program, list[Fraction], list[Fraction], list[Fraction]]


def tied_program(seed: int) -> Exact:
    """(program, seconds per byte, latencies, delays): few different times, so that many are equal.

    With four links or more the first three are a chain that some routes begin with, so that they can be merged.
    """
    rng = np.random.default_rng(seed)
    rows, links = int(rng.integers(1, 30)), int(rng.integers(1, 7))
    number = np.arange(rows) if rng.random() < 0.5 else rng.permutation(rows)
    edges = [
        (int(number[a]), int(number[b]))
        for b in range(rows)
        for a in rng.choice(b, min(b, int(rng.integers(0, 3))), replace=False)
    ]
    routes = [rng.permutation(links)[: rng.integers(0, 4)].tolist() for _ in range(rows)]
    if links > 3:
        routes = [[0, 1, 2] * (rng.random() < 0.4) + [link for link in route if link > 2] for route in routes]
    unit = Fraction(int(rng.integers(1, 8)), int(rng.choice([3, 7, 10, 1000])) * 10**6)
    zero = [0] if rng.random() < 0.3 else []
    per_byte = [unit / 10**4 * int(k) for k in rng.choice([1, 1, 2, 3], links)]
    latency = [unit * int(k) for k in rng.choice([*zero, 1, 1, 2, 3], links)]
    delay = [unit * int(k) for k in rng.choice([0, 0, 1, 2], rows)]
    floats = program(
        (rng.choice([*zero, 1, 1, 2, 3], rows) * 10**4).tolist(),
        routes,
        edges,
        bandwidth=[float(1 / s) for s in per_byte],
        latency=[float(s) for s in latency],
        delay_s=[float(s) for s in delay],
    )
    return floats, per_byte, latency, delay


@given(st.integers(0, 2**32 - 1))
def test_every_op_ends_as_in_fractions(seed: int) -> None:
    p, *times = tied_program(seed)
    wanted = [float(end) for end in naive.simulate_exactly(p, *times)]
    for outcome in (simulate(p), simulate(p, in_order=False), simulate(p, merge=True)):
        assert outcome.end_s == pytest.approx(wanted, rel=1e-9, abs=0)


def test_the_smaller_number_goes_first_though_its_sum_is_a_bit_larger() -> None:
    """Both come to link 2 after 0.3 s, one as 0.1 + 0.2 = 0.30000000000000004."""
    p = program([0, 10], [[0, 1, 2], [3, 2]], bandwidth=[1e9, 1e9, 1.0, 1e9], latency=[0.1, 0.2, 1.0, 0.3])
    assert simulate(p).end_s == pytest.approx([1.3, 11.3], rel=1e-7, abs=0)
    q = program([10, 0], [[0, 1, 2], [3, 2]], bandwidth=[1e9, 1e9, 1.0, 1e9], latency=[0.1, 0.2, 1.0, 0.3])
    assert simulate(q).end_s == pytest.approx([11.3, 11.3], rel=1e-7, abs=0)


def test_messages_without_bytes_overtake_where_the_numbers_say_so() -> None:
    """Op 1 waits for link 0 before op 0 does, holds it for no time, and comes to link 1 with op 0: that goes first."""
    sizes, routes = [10, 0, 5], [[3, 0, 1], [0, 1], [0, 1]]
    p = program(sizes, routes, bandwidth=[1.0, 1.0, 1.0, 1e9], latency=[1.0, 1.0, 0.0, 0.5], delay_s=[1, 1, 0])
    plain, merged = simulate(p), simulate(p, merge=True)
    assert np.array_equal(plain.end_s, merged.end_s)
    assert plain.end_s == pytest.approx([17.0, 17.0, 7.0])


def scaled(p: Program, factor: float) -> Program:
    """The program with all times ``factor`` times as long."""
    return dataclasses.replace(
        p, link_bandwidth=p.link_bandwidth / factor, link_latency=p.link_latency * factor, delay_s=p.delay_s * factor
    )


def _behind_blocks(p: Program, schedule: Schedule, rate: float) -> Program:
    """The program with a link of this rate and no latency before the route of every row, one per (src, channel)."""
    channels = int(schedule.channel.max(initial=0)) + 1
    block = np.full(p.rows, -1)
    block[: schedule.rows] = schedule.src.astype(np.int64) * channels + schedule.channel
    ptr = np.append(0, np.cumsum(p.hops() + (block >= 0)))
    first = np.zeros(ptr[-1], bool)
    first[ptr[:-1][block >= 0]] = True
    links = np.empty(first.size, np.int32)
    links[first] = p.links + block[block >= 0]
    links[~first] = p.route_link[places_along(p.route_ptr, p.route)]
    blocks = schedule.endpoints * channels
    return dataclasses.replace(
        p,
        route=np.arange(p.rows, dtype=np.int32),
        route_ptr=ptr,
        route_link=links,
        link_bandwidth=np.append(p.link_bandwidth, np.full(blocks, rate)),
        link_latency=np.append(p.link_latency, np.zeros(blocks)),
    )


def random_bound_schedules(seed: int, count: int) -> Iterator[Program]:
    """Programs of random schedules on random machines, some with a thread block before their links, some with joins."""
    rng = np.random.default_rng(seed)
    for _, topology in random_machines(rng, 10**9):
        for _ in range(5):
            schedule = random_schedule(rng, topology)
            if schedule is None or not 0 < schedule.rows <= 20_000:
                continue
            block_rate = float(rng.choice([2e10, 3e10])) if rng.random() < 0.3 else None
            try:
                p = build_program(schedule, topology, joins=bool(rng.random() < 0.3))
            except ScheduleError:  # no such switch on this machine
                continue
            if block_rate is not None:
                p = _behind_blocks(p, schedule, block_rate)
            if rng.random() < 0.3:
                p = dataclasses.replace(p, delay_s=rng.choice([0.0, 3e-7, 7e-7], p.rows))
            yield p
            count -= 1
            if not count:
                return


def _assert_laws(p: Program) -> None:
    makespan = simulate(p).makespan_s
    assert simulate(p, merge=True).makespan_s == pytest.approx(makespan, rel=1e-9, abs=0)
    for factor in (2.0, 3.0, 1 / 7):
        for merge in (False, True):
            assert simulate(scaled(p, factor), merge=merge).makespan_s == pytest.approx(
                factor * makespan, rel=1e-9, abs=0
            )
    times = dataclasses.replace(scaled(p, 3.0), link_bandwidth=p.link_bandwidth, nbytes=3 * p.nbytes)
    assert simulate(times, merge=True).makespan_s == pytest.approx(3 * makespan, rel=1e-9, abs=0)


# With exact comparisons of floats seeds 1 and 3 fail.
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_merging_and_scaling_keep_makespans(seed: int) -> None:
    for p in random_bound_schedules(seed, 8):
        _assert_laws(p)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_merging_and_scaling_keep_makespans_of_2000_schedules(seed: int) -> None:
    for p in random_bound_schedules(seed, 200):
        _assert_laws(p)


@pytest.mark.parametrize("factor", [3.0, 1 / 7])
def test_scaling_scales_what_processes_see(factor: float) -> None:
    """Two collectives that start as another process's timeout ends: the network keeps the same rule."""
    ends = []
    for k in (1.0, factor):
        topology = load_preset("hgx-a100-4-hdr200", nodes=3).scaled(bandwidth=1 / k, latency=k)
        env = Environment(topology)
        schedule = pairwise_all_to_all(12, 12 * 12 << 12)

        def job(env: Environment, wait: float, schedule: object = schedule) -> Iterator[object]:
            for _ in range(3):
                yield env.timeout(wait)
                yield env.collective(schedule)  # type: ignore[arg-type]

        for part in (1, 2, 3):
            env.process(job(env, k * 1e-5 / part))
        env.run()
        ends.append(env.now / k)
    assert ends[0] == pytest.approx(ends[1], rel=1e-9, abs=0)
