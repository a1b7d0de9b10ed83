"""A ring's loop by its longest paths against the same loop stepped slice by slice, and against the event engine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.engine.loops.ring import longest_paths
from commsim.nccl import timing
from commsim.nccl.lower import Loop, RingPlan
from commsim.nccl.messages import Crossing, Turn, Wait
from commsim.nccl.ring_event import time_ring

Column = np.ndarray


def by_paths(steps: int, slices: int, service: Column, hop: Column, keep: Column, start: Column) -> Column:
    return np.asarray(longest_paths(service, hop, keep, np.unique(service), slices, steps, start))


def by_steps(steps: int, slices: int, service: Column, hop: Column, keep: Column, start: Column) -> Column:
    return timing._one_loop(steps, slices, service, hop, keep, start)[0]


def test_two_ranks_and_one_slice_by_hand() -> None:
    # One step: each rank sends for 1 s, the slice hops for 2 s, and is kept in 0.5 s.
    service, hop, keep = np.full(2, 1.0), np.full(2, 2.0), np.full(2, 0.5)
    assert by_paths(1, 1, service, hop, keep, np.zeros(2)).tolist() == [3.5, 3.5]
    # Who begins 4 s later ends what he was sent long ago after his own slice, and keeps his neighbour waiting.
    assert by_paths(1, 1, service, hop, keep, np.array([0.0, 4.0])).tolist() == [7.5, 5.5]


@settings(max_examples=300, deadline=None)
@given(
    st.integers(2, 12), st.sampled_from([1, 2]), st.integers(1, 5), st.integers(1, 4), st.booleans(),
    st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_paths_are_what_steps_give(ranks: int, passes: int, slices: int, unlike: int, keeps: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    steps = passes * (ranks - 1)
    service = random.choice(10 ** random.uniform(-6, -4, unlike), ranks)
    hop, start = 10 ** random.uniform(-7, -3, ranks), random.uniform(0, random.choice([0.0, 1e-5, 1e-2]), ranks)
    keep = random.choice([0.0, 1e-6, 1e-4], ranks) if keeps else np.zeros(ranks)
    of = (service, hop, keep, start)
    assert by_paths(steps, slices, *of) == pytest.approx(by_steps(steps, slices, *of), rel=1e-12)


shapes = st.lists(st.builds(Loop, st.integers(1, 20), st.integers(1, 5), st.integers(16, 1 << 20)), max_size=3)


def ring(ranks: int, loops: tuple[Loop, ...], rate: Column, collective: str) -> RingPlan:
    """A plan of rings with one node border in three ranks or so; what the network brings is copied to its place."""
    at = np.arange(ranks) % 3 == ranks % 3
    turns = Crossing(at, (Turn(2e-6, 0.0, 0.0),), at - 1, whole=False, wait=Wait(2.0, 1 << 40, 5e-6, 0, 0.0))
    return RingPlan(
        collective=collective,
        ranks=ranks,
        steps=2 * (ranks - 1) if collective == "all_reduce" else ranks - 1,
        loops=loops,
        rate=rate,
        hop_s=np.where(at, 9e-6, 1e-6),
        pass_bytes=8192,
        first_pass_s=0.5e-6,
        limit="NVLink",
        crossing=turns,
        block_rate=2e10,
        keep_rate=np.where(np.roll(at, 1), 2e10, np.inf),
    )


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 10), shapes, st.sampled_from(["all_reduce", "all_gather"]), st.integers(0, 2**32 - 1))
def test_whole_plans_take_as_long_by_paths_as_by_steps(
    ranks: int, loops: list[Loop], collective: str, seed: int
) -> None:
    rate = np.random.default_rng(seed).choice([1e9, 5e9, 4e10], ranks)
    plan = ring(ranks, tuple(loops), rate, collective)
    stepped = timing.ring_wavefront(plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "_MOST_STEPPED", 0)
        patch.setattr(timing, "_one_loop", None)  # nothing is stepped
        assert timing.ring_wavefront(plan) == pytest.approx(stepped, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 9), st.integers(1, 3), st.integers(1, 5), st.integers(16, 1 << 20), st.integers(0, 2**32 - 1))
def test_paths_agree_with_the_event_engine(ranks: int, count: int, slices: int, nbytes: int, seed: int) -> None:
    # Of several unlike loops the engine serves what came first first, a ring in the order of its program.
    rate = np.random.default_rng(seed).choice([1e9, 5e9, 4e10], ranks)
    plan = ring(ranks, (Loop(count, slices, nbytes),), rate, "all_reduce")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "_MOST_STEPPED", 0)
        assert time_ring(plan)[0] == pytest.approx(timing.ring_wavefront(plan)[0], rel=1e-9)


def test_what_a_loop_stages_at_its_beginning_is_stepped() -> None:
    plan = replace(ring(4, (Loop(2, 2, 65536),), np.array([1e9, 4e10, 4e10, 4e10]), "all_gather"), staging_rate=1e9)
    free = np.zeros(4)
    (loop,) = plan.loops
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "_MOST_STEPPED", 0)
        ended, last = timing.one_loop(plan, loop, plan.service_of(loop), plan.hop_of(loop), free)
    staged = timing._one_loop(
        plan.steps, 2, plan.service_of(loop), plan.hop_of(loop), plan.keep_of(loop), free, 65536 / 1e9
    )
    assert ended.tolist() == staged[0].tolist()
    assert last == ended.max()
