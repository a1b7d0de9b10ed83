"""simpy processes on the simulated network: the same times as in one batch, and order in time."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Literal

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from commsim.collectives.direct import two_shot_all_reduce
from commsim.collectives.nvls import nvls_all_reduce
from commsim.collectives.ring import ring_all_reduce
from commsim.collectives.schedule import Schedule
from commsim.collectives.tree import tree_all_reduce
from commsim.engine.cosim import Environment, Template
from commsim.engine.fair import connections, simulate_fair
from commsim.engine.program import build_program
from commsim.engine.simulate import simulate
from commsim.errors import ScheduleError
from commsim.topology.presets import load_preset

_TOPOLOGY = load_preset("hgx-h100-ndr400", nodes=2, oversubscription=2.0)
_MODES = ("fifo", "fair")
Process = Generator[Any, Any, None]


@pytest.mark.parametrize("contention", _MODES)
@pytest.mark.parametrize(
    "schedule",
    [
        ring_all_reduce(16, 16 << 18, 2),
        tree_all_reduce(16, 1 << 22, ranks_per_node=8, chunks=4),
        two_shot_all_reduce(16, 1 << 20),
    ],
)
def test_one_collective_is_the_batch_run_to_the_last_bit(
    schedule: Schedule, contention: Literal["fifo", "fair"]
) -> None:
    env = Environment(_TOPOLOGY, contention)
    event = env.collective(schedule)
    env.run()
    program = build_program(schedule, _TOPOLOGY)
    batch = simulate(program) if contention == "fifo" else simulate_fair(program, connections(schedule))
    assert env.now == batch.makespan_s
    assert event.value == batch.makespan_s
    assert np.array_equal(env.network.link_bytes, batch.link_bytes)
    assert env.network.link_busy_s == pytest.approx(batch.link_busy_s, rel=1e-9)


@pytest.mark.parametrize("contention", _MODES)
def test_two_at_once_on_the_same_links_slow_each_other_but_overlap_latency(contention: Literal["fifo", "fair"]) -> None:
    ring = ring_all_reduce(16, 16 << 18)
    env = Environment(_TOPOLOGY, contention)
    ends = [env.collective(ring), env.collective(ring)]
    env.run(env.all_of(ends))
    alone = simulate(build_program(ring, _TOPOLOGY)).makespan_s
    assert 1.2 * alone < env.now <= 2 * alone * (1 + 1e-12)


@pytest.mark.parametrize("contention", _MODES)
def test_disjoint_groups_do_not_meet(contention: Literal["fifo", "fair"]) -> None:
    ring = Template.of(ring_all_reduce(8, 8 << 18))
    env = Environment(_TOPOLOGY, contention)
    ends = [env.start(ring, range(8)), env.start(ring, range(8, 16))]
    env.run(env.all_of(ends))
    alone = Environment(_TOPOLOGY, contention)
    alone.start(ring, range(8))
    alone.run()
    assert env.now == pytest.approx(alone.now, rel=1e-12)


@pytest.mark.parametrize("contention", _MODES)
def test_each_starts_when_the_one_before_has_ended(contention: Literal["fifo", "fair"]) -> None:
    env, log = Environment(_TOPOLOGY, contention), list[float]()
    ring = Template.of(ring_all_reduce(8, 8 << 10))

    def job() -> Process:
        for size in (8 << 10, 8 << 20, 8 << 10):
            took = yield env.start(ring, range(8), size)
            log.append(took)
            yield env.timeout(1e-3)

    env.process(job())
    env.run()
    assert log[0] == pytest.approx(log[2], rel=1e-9)
    assert log[1] > 5 * log[0]
    assert env.now == pytest.approx(sum(log) + 3e-3, rel=1e-12)


@pytest.mark.parametrize("contention", _MODES)
def test_one_that_starts_while_another_waits_for_its_latency_goes_first(contention: Literal["fifo", "fair"]) -> None:
    """Messages of one byte are on their way, their successors' starts are known, when other ranks begin."""
    ring, late = Template.of(ring_all_reduce(8, 8)), 100e-6
    alone = Environment(_TOPOLOGY, contention)
    alone.start(ring, range(8))
    alone.run()
    env, took = Environment(_TOPOLOGY, contention), list[float]()

    def job(wait: float, ranks: range) -> Process:
        yield env.timeout(wait)
        took.append((yield env.start(ring, ranks)))

    env.process(job(late, range(8)))
    env.process(job(late + alone.now / ring_all_reduce(8, 8).steps / 2, range(8, 16)))
    env.run()
    assert took == pytest.approx([alone.now] * 2, rel=1e-9)


@given(st.integers(0, 2**32 - 1), st.sampled_from(_MODES))
def test_random_traffic_keeps_time_and_repeats(seed: int, contention: Literal["fifo", "fair"]) -> None:
    """Random starts on random groups: all end, time never goes back, bytes add up, two runs are identical."""

    def run() -> tuple[list[tuple[float, float]], Any]:
        rng, env, seen = np.random.default_rng(seed), Environment(_TOPOLOGY, contention), list[tuple[float, float]]()
        expected = 0

        def job(size: int, group: list[int], delay: float) -> Process:
            yield env.timeout(delay)
            began = env.now
            yield env.start(template, group, size)
            assert env.now >= began
            seen.append((began, env.now))

        template = Template.of(ring_all_reduce(4, 400))
        for _ in range(8):
            size, group = 400 * int(rng.integers(1, 10**4)), rng.permutation(16)[:4].tolist()
            pairs = list(zip(group, [*group[1:], group[0]], strict=True))
            expected += sum(_TOPOLOGY.route(a, b).size for a, b in pairs) * 6 * size // 4
            env.process(job(size, group, float(rng.uniform(0, 1e-3))))
        env.run()
        assert len(seen) == 8
        assert [end for _, end in seen] == sorted(end for _, end in seen)
        assert env.network.link_bytes.sum() == expected
        return seen, env.network.link_bytes

    (a, bytes_a), (b, bytes_b) = run(), run()
    assert a == b
    assert np.array_equal(bytes_a, bytes_b)


@pytest.mark.parametrize("contention", _MODES)
def test_messages_started_at_one_moment_are_the_batch(contention: Literal["fifo", "fair"]) -> None:
    """Sends of different sizes that meet, each an event of its own, end as the rows of one schedule do."""
    schedule = two_shot_all_reduce(8, 1 << 20)
    first = schedule.take(np.flatnonzero(schedule.step == 0))
    first = first.edit(wire_bytes=np.random.default_rng(3).integers(1, 1 << 20, first.rows))
    assert first.wire_bytes is not None
    env = Environment(_TOPOLOGY, contention)
    events = [env.send(int(s), int(d), int(n)) for s, d, n in zip(first.src, first.dst, first.wire_bytes, strict=True)]
    env.run()
    program = build_program(first.edit(known_dependencies=_independent(first.rows)), _TOPOLOGY)
    batch = simulate(program) if contention == "fifo" else simulate_fair(program)
    assert [e.value for e in events] == pytest.approx(batch.end_s.tolist(), rel=1e-9)


def _independent(rows: int) -> Any:
    return lambda: (np.zeros(rows + 1, np.int64), np.zeros(0, np.int32))


def test_simpy_alone_is_untouched() -> None:
    log: list[tuple[float, str]] = []

    def ticks(env: simpy.Environment, name: str, every: float) -> Process:
        while True:
            yield env.timeout(every)
            log.append((env.now, name))

    for make in (simpy.Environment, lambda: Environment(_TOPOLOGY)):
        env = make()
        for name, every in (("a", 0.5), ("b", 0.75)):
            env.process(ticks(env, name, every))
        env.run(until=3)
    assert log[: len(log) // 2] == log[len(log) // 2 :]


@pytest.mark.parametrize("contention", _MODES)
@pytest.mark.parametrize(
    ("start", "message"),
    [
        (lambda env, ring: env.start(ring, range(4)), "group of 4 ranks for a template of 8"),
        (lambda env, ring: env.start(ring, nbytes=801), "801 bytes do not divide"),
        (lambda env, ring: env.collective(ring_all_reduce(1, 800)), "without messages"),
        (lambda env, ring: env.collective(nvls_all_reduce(8, 800)), "reduces in switches"),
        (lambda env, ring: env.start(Template.send(0), (0, 1), 5), "without bytes"),
    ],
)
def test_what_is_refused(start: Any, message: str, contention: Literal["fifo", "fair"]) -> None:
    env = Environment(_TOPOLOGY, contention)
    with pytest.raises(ScheduleError, match=message):
        start(env, Template.of(ring_all_reduce(8, 800)))
