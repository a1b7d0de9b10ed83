"""Three roads to the time of a ring channel: closed form, wavefront, and the event engine on the explicit Schedule."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from commsim.collectives.check import check
from commsim.engine.loops.ring import stepped
from commsim.errors import InfeasibleError
from commsim.nccl import timing
from commsim.nccl.lower import Loop, RingPlan, ring_loops
from commsim.nccl.messages import Crossing, Turn, Wait
from commsim.nccl.protocols import LL, LL128, SIMPLE
from commsim.nccl.ring_event import ring_schedule, time_ring
from commsim.nccl.timing import is_uniform, ring_closed_form, ring_wavefront


def plan(
    ranks: int,
    loops: tuple[Loop, ...],
    rate: object = 10e9,
    hop: object = 2e-6,
    first: float = 0.0,
    collective: str = "all_reduce",
) -> RingPlan:
    return RingPlan(
        collective=collective,
        ranks=ranks,
        steps=2 * (ranks - 1) if collective == "all_reduce" else ranks - 1,
        loops=loops,
        rate=np.broadcast_to(np.asarray(rate, float), ranks).copy(),
        hop_s=np.broadcast_to(np.asarray(hop, float), ranks).copy(),
        pass_bytes=8192,
        first_pass_s=first,
        limit="NVLink",
    )


def test_two_ranks_one_slice_by_hand() -> None:
    # Two sends of 1,000 bytes one after the other: 2 x (100 ns + 2 us).
    assert ring_closed_form(plan(2, (Loop(1, 1, 1000),)))[0] == pytest.approx(2 * 2.1e-6)


def test_a_latency_bound_ring_waits_for_every_hop() -> None:
    # 14 steps; the slices of a step follow each other within the hop.
    t, h = 1000 / 10e9, 2e-6
    assert ring_closed_form(plan(8, (Loop(1, 4, 1000),)))[0] == pytest.approx(13 * (t + h) + 4 * t + h)


@pytest.mark.parametrize(("nbytes", "passes"), [(2048, 0.25), (8192, 1.0), (16384, 1.0)])
def test_a_hop_waits_for_its_part_of_the_first_pass_and_once_at_most(nbytes: int, passes: float) -> None:
    """A pass of a block moves 8,192 bytes."""
    p = plan(4, (Loop(1, 1, nbytes),), hop=2e-6, first=1e-6)
    assert p.hop_of(p.loops[0]) == pytest.approx(2e-6 + passes * 1e-6)


def test_a_slice_holds_its_thread_block_beyond_its_bytes() -> None:
    # Two slices of 1,000 bytes and 1 us of hand-over each: a step takes 2 x 1.1 us, longer than a slice and its hop.
    p = replace(plan(8, (Loop(1, 2, 1000),), 10e9, 1e-6), slice_s=1e-6)
    assert ring_closed_form(p)[0] == pytest.approx(13 * 2.2e-6 + 2.2e-6 + 1e-6)


def test_a_chunk_of_ll128_holds_its_thread_block_beyond_its_bytes() -> None:
    # 16 lines of a warp of 1,920 bytes at 10 GB/s, cut into 8 slices, and one pause: longer than a slice and its hop,
    # into which an eighth of the pause falls.
    p = replace(plan(8, ring_loops(8 * 30_720, 8, LL128, 640, 4 << 20), 10e9, 1e-6), chunk_s=1.2e-6)
    assert ring_closed_form(p)[0] == pytest.approx(14 * (30_720 / 10e9 + 1.2e-6) + 1e-6 - 1.2e-6 / 8)


@pytest.mark.parametrize("hop", [2e-6, 2e-5])
def test_a_pause_holds_the_block_but_no_line_on_its_way(hop: float) -> None:
    # Cut into one slice or into eight, more bytes of a chunk of LL128 never take less.
    times = [
        ring_closed_form(
            replace(plan(8, ring_loops(8 * n, 8, LL128, 640, 4 << 20), 10e9, hop), chunk_s=1.2e-6, side_by_side=38_400)
        )[0]
        for n in range(240, 40_000, 240)
    ]
    assert all(later >= sooner * (1 - 1e-3) for sooner, later in itertools.pairwise(times))


def test_a_share_of_a_pass_is_waited_for() -> None:
    # A whole pass of LL128: a step is a slice, the hop, and a third of what other warps write beside the slice.
    (loop,) = ring_loops(8 * 38_400, 8, LL128, 640, 4 << 20)
    p = replace(plan(8, (loop,), 10e9, 5e-6), side_by_side=38_400, pass_share=1 / 3)
    assert float(p.hop_of(loop)[0]) == pytest.approx(5e-6 + (38_400 - loop.slice_bytes) / 3 / 10e9)


@pytest.mark.parametrize(
    ("nbytes", "link", "held"),
    [
        (2048, 40e9, 2048 / 4e9),  # less than a pass of 4,096 bytes: as long as its bytes
        (4096, 40e9, 4096 / 4e9),
        (5120, 40e9, 2 * 4096 / 4e9),  # a quarter of a pass more takes as long as a second one
        (8192, 40e9, 2 * 4096 / 4e9),
        (5120, 2e9, 5120 / 2e9),  # links know no passes
    ],
)
def test_a_chunk_of_ll_takes_whole_passes_of_its_block(nbytes: int, link: float, held: float) -> None:
    (loop,) = ring_loops(8 * nbytes, 8, LL, 512, 4 << 20)
    p = replace(plan(8, (loop,), min(link, 4e9), 0.1e-6), side_by_side=4096, pass_share=0.0)
    p = replace(p, block_rate=4e9, whole_passes=True)
    assert loop.slices * p.service_of(loop) == pytest.approx(held)
    # 14 steps, in which the block never waits, and the hop of the last slice
    assert ring_closed_form(p)[0] == pytest.approx(14 * held + 0.1e-6)
    assert time_ring(p)[0] == pytest.approx(14 * held + 0.1e-6)


@pytest.mark.parametrize("threads", [640, 320])
def test_warps_side_by_side_hand_over_together(threads: int) -> None:
    # Up to a pass of the block a step is its bytes and a hop; of more, the rest follows while the pass hops.
    rate, hop, each = 10e9, 2e-6, LL128.pass_bytes(threads)
    for nbytes, step in (
        (each // 2, each / 2 / rate + hop),
        (each, each / rate + hop),
        (each + each // 4, each / rate + hop),
        (4 * each, 4 * each / rate),
    ):
        (loop,) = ring_loops(8 * nbytes, 8, LL128, threads, 4 << 20)
        p = replace(plan(8, (loop,), rate, hop), side_by_side=each)
        assert ring_closed_form(p)[0] / 14 == pytest.approx(step, rel=0.06)
        assert time_ring(p)[0] == pytest.approx(ring_closed_form(p)[0])


def _stepped(p: RingPlan) -> float:
    """Every loop, one after the other."""
    free, end = np.zeros(p.ranks), 0.0
    for loop in p.loops:
        for _ in range(loop.count):
            free, end = timing._one_loop(
                p.steps, loop.slices, p.service_of(loop), p.hop_of(loop), p.keep_of(loop), free
            )
    return end


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**31))
def test_loops_that_repeat_need_not_be_stepped(ranks: int, first: int, second: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    loops = (Loop(first, 2, 65536), Loop(second, 3, 1000), Loop(1, 1, 16))
    p = plan(ranks, loops, rng.uniform(1e9, 1e11, ranks), rng.choice([1e-6, 3e-6, 2e-5], ranks), 1e-6)
    assert ring_wavefront(p)[0] == pytest.approx(_stepped(p), rel=1e-11)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 5), st.booleans(), st.integers(0, 2**31))
def test_compiled_steps_of_one_node_are_those_of_all_to_the_bit(
    per_node: int, nodes: int, slices: int, staged: bool, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    service, hop, keep, start = (np.tile(rng.uniform(0, 1e-5, per_node), nodes) for _ in range(4))
    steps, staging = 2 * per_node * nodes, 1e-6 * staged
    whole = timing._stepped(service, hop, keep, slices, steps, start, staging)
    folded, end = timing._one_loop(steps, slices, service, hop, keep, start, staging)
    assert folded.tolist() == whole.tolist() == stepped(service, hop, keep, slices, steps, start, staging).tolist()
    assert end == whole.max()


def test_a_tebibyte_takes_no_longer_to_time_than_its_first_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0
    one = timing._one_loop

    def counted(*of: object) -> object:
        nonlocal calls
        calls += 1
        return one(*of)  # type: ignore[arg-type]

    monkeypatch.setattr(timing, "_one_loop", counted)
    rate = np.where(np.arange(16) % 8 == 7, 40e9, 20e9)
    end, _ = ring_wavefront(plan(16, (Loop(100_000, 2, 1 << 18),), rate, np.where(rate > 30e9, 9e-6, 1e-6)))
    assert calls < 100
    assert end > 100_000 * 30 * 2 * (1 << 18) / 40e9


loops = st.lists(
    st.builds(Loop, st.integers(1, 3), st.integers(1, 8), st.integers(16, 1 << 20)), min_size=1, max_size=2
).map(tuple)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(2, 9),
    loops,
    st.floats(1e8, 1e11),
    st.floats(0, 1e-4),
    st.floats(0, 1e-5),
    st.floats(0, 1e-5),
    st.floats(0, 1e-5),
    st.sampled_from([0.0, 2e-6]),
    st.sampled_from([(np.inf, np.inf), (1e10, np.inf), (np.inf, 1e9), (np.inf, 1e10)]),
    st.sampled_from(["all_reduce", "all_gather", "reduce_scatter"]),
)
def test_closed_form_wavefront_and_events_agree_on_uniform_rings(
    ranks: int,
    shape: tuple[Loop, ...],
    rate: float,
    hop: float,
    first: float,
    held: float,
    paused: float,
    drained: float,
    ends: tuple[float, float],
    collective: str,
) -> None:
    p = replace(plan(ranks, shape, rate, hop, first, collective), slice_s=held, chunk_s=paused)
    p = replace(p, drain_s=np.full(ranks, drained), staging_rate=ends[0], keep_rate=ends[1])
    assert is_uniform(p)
    assert not is_uniform(replace(p, staging_rate=1e10, keep_rate=1e10))
    closed, wave, event = ring_closed_form(p), ring_wavefront(p), time_ring(p)
    assert wave[0] == pytest.approx(closed[0], rel=1e-9)
    assert event[0] == pytest.approx(closed[0], rel=1e-9)
    assert wave[1] == pytest.approx(closed[1], rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), loops, st.sampled_from([0.0, 1e-6]), st.integers(0, 2**32 - 1))
def test_wavefront_and_events_agree_on_any_ring(ranks: int, shape: tuple[Loop, ...], held: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    p = plan(ranks, shape, 10 ** random.uniform(8, 11, ranks), 10 ** random.uniform(-7, -4, ranks))
    p = replace(p, slice_s=held, drain_s=np.asarray(held * (np.arange(ranks) % 2), np.float64))
    assert time_ring(p)[0] == pytest.approx(ring_wavefront(p)[0], rel=1e-9)


def crossing(at: object, message_s: float, *, whole: bool, eager: int = 1 << 40) -> Crossing:
    marks = np.asarray(at)
    return Crossing(marks, (Turn(message_s, 0.0, 0.0),), marks - 1, whole, Wait(2.0, eager, 5e-6, 0, 0.0))


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 9), loops, st.floats(0, 1e-5), st.booleans(), st.booleans(), st.integers(0, 2**32 - 1))
def test_wavefront_and_events_agree_across_nodes(
    ranks: int, shape: tuple[Loop, ...], message: float, whole: bool, keeps: bool, seed: int
) -> None:
    # Of loops with unlike hops the event engine serves a slice that came first first, the wavefront in program order.
    shape = shape[:1]
    random = np.random.default_rng(seed)
    across = crossing(random.random(ranks) < 0.5, message, whole=whole, eager=1 << 16)
    p = replace(plan(ranks, shape, 10 ** random.uniform(8, 11, ranks), 1e-6), crossing=across)
    p = replace(p, block_rate=2e10, keep_rate=2e10) if keeps else p
    assert time_ring(p)[0] == pytest.approx(ring_wavefront(p)[0], rel=1e-8)


def test_a_nic_sends_no_message_before_the_last_one_was_posted() -> None:
    # 8 ranks on 2 nodes, tiny chunks: 14 sends, of which each boundary rank posts one every 10 us.
    at = np.arange(8) % 4 == 3
    p = replace(plan(8, (Loop(1, 1, 16),), 10e9, 1e-7), crossing=crossing(at, 10e-6, whole=True))
    assert 14 * 10e-6 <= ring_wavefront(p)[0] <= 15 * 10e-6 + 14 * 2e-7


def test_a_chunk_of_flags_crosses_nodes_whole() -> None:
    # One hop of two ranks, 4 slices of 1,000 bytes at 1 GB/s: the first slice waits for the other three.
    loop = Loop(1, 4, 1000)
    p = replace(plan(2, (loop,), 1e9, 2e-6), crossing=crossing([True, True], 0.0, whole=True))
    assert p.hop_of(loop) == pytest.approx([5e-6, 5e-6])
    assert replace(p, crossing=crossing([True, True], 0.0, whole=False)).hop_of(loop) == pytest.approx([2e-6, 2e-6])


def test_what_the_network_brings_is_copied_to_its_place() -> None:
    # Two ranks on two nodes gather 2 x 2,000 bytes: a slice of 1,000 bytes is written in 0.5 us, sent in 1 us and hops
    # for 2 us; the second arrives at 4.5 us and is copied in 0.5 us.
    loop = Loop(1, 2, 1000)
    p = plan(2, (loop,), 1e9, 2e-6, collective="all_gather")
    p = replace(p, crossing=crossing([True, True], 0.0, whole=False), block_rate=2e9, keep_rate=2e9)
    assert ring_wavefront(p)[0] == pytest.approx(5e-6)
    assert time_ring(p)[0] == pytest.approx(5e-6)


def test_a_message_above_the_eager_limit_asks_first() -> None:
    # 4 kB of payload are 8 kB of LL on the wire.
    loop = Loop(1, 4, 1000)
    for eager, late in ((8000, 0.0), (7999, 5e-6)):
        p = replace(plan(2, (loop,), 1e9, 2e-6), crossing=crossing([False, True], 0.0, whole=True, eager=eager))
        assert p.hop_of(loop) == pytest.approx([2e-6, 5e-6 + late])


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_the_rows_of_a_channel_are_a_correct_all_reduce(ranks: int) -> None:
    schedule = ring_schedule(plan(ranks, (Loop(2, 2, 512), Loop(1, 2, 96))))
    check(schedule)
    steps_per_rank = 2 * (ranks - 1)
    assert schedule.sent_bytes().tolist() == [steps_per_rank * (2 * 2 * 512 + 2 * 96)] * ranks


@pytest.mark.parametrize("protocol", [LL, LL128, SIMPLE])
@given(nbytes=st.integers(1, 1 << 31), ranks=st.integers(2, 64))
def test_loops_cover_the_bytes_of_a_channel(protocol: object, nbytes: int, ranks: int) -> None:
    made = ring_loops(nbytes, ranks, protocol, 512, 4 << 20)  # type: ignore[arg-type]
    covered = sum(loop.count * loop.slices * loop.slice_bytes * ranks for loop in made)
    # Chunks are rounded up to 16 bytes, slices to whole bytes.
    assert nbytes <= covered <= nbytes + ranks * (16 + 8) * sum(loop.count for loop in made)


def test_rows_that_do_not_fit_are_refused_before_they_are_made() -> None:
    with pytest.raises(InfeasibleError, match="chunk moves"):
        ring_schedule(plan(8192, (Loop(16, 8, 4096),)))


def test_no_bytes_take_no_loops() -> None:
    assert ring_loops(0, 8, SIMPLE, 512, 4 << 20) == ()
    assert time_ring(plan(8, ())) == (0.0, 0.0)
