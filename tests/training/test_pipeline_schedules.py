"""Pipeline schedules: complete, without deadlock, with the bubbles and the memory that their papers state."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import most_in_flight

from commsim.errors import InfeasibleError, ScheduleError
from commsim.training.pipeline import Action, Order, run
from commsim.training.pipeline_schedules import SCHEDULES, build
from commsim.training.step_time import zb_v_bubble


def check(order: Order) -> None:
    """Raise a ScheduleError unless every micro-batch passes every place once, and nothing waits for ever."""
    for stage, mine in enumerate(order.actions):
        done = {kind: sorted((a.micro_batch, a.chunk) for a in mine if a.kind == kind) for kind in "FBIW"}
        wanted = sorted((m, c) for m, route in enumerate(order.routes) for s, c in route if s == stage)
        if done["F"] != wanted or sorted(done["B"] + done["I"]) != wanted or done["W"] != done["I"]:
            raise ScheduleError(f"{order.name}: stage {stage} does not do every forward and backward once")
    run(order, lambda stage, action: 1.0)


EQUAL = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}


def equal(order: Order) -> float:
    """The bubble when every stage takes 1 for a forward and 2 for a backward."""
    share = 1.0 if order.name == "dualpipe" else 1.0 / order.chunks
    return run(order, lambda stage, action: EQUAL[action.kind] * share).bubble


stages_and_rounds = st.tuples(st.integers(1, 8), st.integers(1, 4))


@given(stages_and_rounds, st.sampled_from(sorted(SCHEDULES)), st.integers(1, 3))
def test_every_schedule_does_everything_once_and_never_waits_for_ever(
    shape: tuple[int, int], name: str, chunks: int
) -> None:
    stages, rounds = shape
    stages += stages % 2 if name == "dualpipe" else 0
    chunks = {"interleaved_1f1b": chunks, "zb_v": 2, "dualpipe_v": 2}.get(name, 1)
    order = build(name, stages, 2 * rounds * stages, chunks)
    check(order)
    for mine in order.actions:
        assert {action.chunk for action in mine} == set(range(order.chunks))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 8), (8, 32), (5, 7)])
@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_bubble_is_p_minus_1_over_m(name: str, p: int, m: int) -> None:
    assert equal(build(name, p, m)) == pytest.approx((p - 1) / m)


@pytest.mark.parametrize(("p", "m", "v"), [(2, 4, 2), (4, 8, 2), (4, 8, 3), (4, 4, 2), (8, 32, 4)])
def test_interleaving_divides_the_bubble_by_v(p: int, m: int, v: int) -> None:
    assert equal(build("interleaved_1f1b", p, m, v)) == pytest.approx((p - 1) / (v * m))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 8), (8, 8), (8, 16)])
def test_zero_bubble_h1_leaves_a_third(p: int, m: int) -> None:
    """Qi et al. 2023, table 1: (p-1)(T_F + T_B - T_W), which with equal parts is a third of 1F1B's."""
    assert equal(build("zb_h1", p, m)) == pytest.approx((p - 1) / (3 * m))


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 20), (16, 40)])
def test_dualpipe_has_its_published_bubble(p: int, m: int) -> None:
    """arXiv:2412.19437, table 2: (p/2 - 1)(F&B + B - 3W)."""
    assert equal(build("dualpipe", p, m)) * 3 * m == pytest.approx((p / 2 - 1) * (3 + 2 - 3))


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 9), (8, 20)])
def test_dualpipe_v_has_the_published_bubble_of_its_chunks(p: int, m: int) -> None:
    """deepseek-ai/DualPipe, README: (PP/2 - 1)(F&B + B - 3W) of PP chunks on PP/2 ranks, all in chunks' seconds."""
    assert equal(build("dualpipe_v", p, m, 2)) * 3 * m == pytest.approx((p - 1) * (3 + 2 - 3) / 2)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (4, 9), (8, 16)])
def test_stages_of_zb_v_are_never_idle_between_first_and_last_action(p: int, m: int) -> None:
    """Qi et al. 2024, section 4.2: no bubble where F = I = W. The last stage starts p - 1 forwards of a chunk late."""
    order = build("zb_v", p, m, 2)
    times = run(order, lambda stage, action: 1.0)
    for start, end in zip(times.start_s, times.end_s, strict=True):
        assert end[-1] - start[0] == pytest.approx(6 * m)
    assert times.makespan_s == pytest.approx(6 * m + p - 1)


def test_two_stages_of_zb_v_by_hand() -> None:
    """F0 F0 F0 F1 I1 W1 | F1 I1 W1 | ...: the second stage begins with F0 F1, where the first has sent its first F0."""
    letters = [
        " ".join(f"{a.kind}{a.micro_batch}{'dv'[a.chunk]}" for a in mine) for mine in build("zb_v", 2, 4, 2).actions
    ]
    assert letters[0].startswith("F0d F1d F2d F0v I0v W0v F1v I1v W1v F3d I0d W0d F2v I2v W2v")
    assert letters[1].startswith("F0d F0v F1d F1v I0v W0v F2d I0d W0d")
    times = run(build("zb_v", 2, 4, 2), lambda stage, action: 1.0)
    assert times.makespan_s == 4 * 6 + 1


@given(p=st.integers(1, 9), more=st.integers(0, 9), seconds=st.tuples(*[st.floats(0.05, 4.0)] * 3))
def test_the_bubble_of_zb_v_is_its_longest_path(p: int, more: int, seconds: tuple[float, float, float]) -> None:
    f, i, w = seconds
    m = 2 * p + more
    made = run(build("zb_v", p, m, 2), lambda stage, action: {"F": f, "I": i, "W": w}[action.kind])
    assert made.makespan_s - 2 * m * (f + i + w) == pytest.approx(float(zb_v_bubble(p, f, i, w)), abs=1e-9)


def test_what_a_joint_block_made_leaves_when_all_of_it_has_ended() -> None:
    order = build("dualpipe", 4, 8)
    times = run(order, lambda stage, action: 1.0)
    ended = {
        (stage, action): end
        for stage, mine in enumerate(order.actions)
        for action, end in zip(mine, times.end_s[stage].tolist(), strict=True)
    }
    blocks = [(s, i) for s, mine in enumerate(order.actions) for i, a in enumerate(mine) if order.is_joint(s, a)]
    assert blocks
    for stage, mine in enumerate(order.actions):
        for i in range(len(mine)):
            start = float(times.start_s[stage][i])
            for number in order.needed[order.first[stage] + i]:
                other = bisect_right(order.first, number) - 1
                at = number - order.first[other]
                needed = order.actions[other][at]
                last = order.actions[other][at + 1] if order.is_joint(other, needed) and other != stage else needed
                assert start >= ended[other, last] - 1e-9


def test_naive_model_parallelism_keeps_all_but_one_stage_idle() -> None:
    assert equal(build("naive", 4, 8)) == pytest.approx(3)


@pytest.mark.parametrize(
    ("name", "v", "kept"),
    [
        ("gpipe", 1, [8, 8, 8, 8]),
        ("1f1b", 1, [4, 3, 2, 1]),
        ("interleaved_1f1b", 2, [5.5, 4.5, 3.5, 2.5]),  # stage 0: p (1 + (p-1)/(p v)), Korthikanti et al. 2022
        ("zb_h1", 1, [4, 3, 2, 1]),
        ("dualpipe", 1, [5, 5, 5, 5]),  # p + 1, arXiv:2412.19437, table 2
        ("zb_v", 2, [4, 4, 4, 4]),  # as much as the fullest stage of 1F1B
        ("dualpipe_v", 2, [4.5, 4.5, 4.5, 4.5]),  # PP + 1 chunks, deepseek-ai/DualPipe, README
        ("naive", 1, [1, 1, 1, 1]),
    ],
)
def test_activations_in_flight(name: str, v: int, kept: list[float]) -> None:
    assert most_in_flight(build(name, 4, 8, v)).tolist() == kept


@pytest.mark.parametrize(("name", "v"), [("zb_h1", 1), ("zb_v", 2)])
def test_zero_bubbles_keep_weight_inputs_up_to_1f1bs_memory(name: str, v: int) -> None:
    assert most_in_flight(build(name, 4, 8, v), weight_share=1.0).tolist() == [4, 4, 4, 4]


@given(p=st.integers(2, 6), m=st.integers(1, 8), times=st.lists(st.floats(0.1, 5), min_size=6, max_size=6))
def test_uneven_stages_wait_for_the_slowest(p: int, m: int, times: list[float]) -> None:
    one = run(build("1f1b", p, m), lambda stage, action: times[stage] * EQUAL[action.kind])
    slowest = 3 * max(times[:p])
    assert one.makespan_s >= m * slowest - 1e-9
    assert one.makespan_s <= (m - 1) * slowest + 3 * sum(times[:p]) + 1e-9


@given(p=st.integers(1, 5), rounds=st.integers(1, 3), v=st.integers(1, 3), send=st.floats(0, 2))
def test_sends_lengthen_and_more_chunks_send_more(p: int, rounds: int, v: int, send: float) -> None:
    order = build("interleaved_1f1b", p, p * rounds, v)
    seconds = {"F": 1.0 / v, "B": 2.0 / v}
    without, with_send = (run(order, lambda s, a: seconds[a.kind], t).makespan_s for t in (0.0, send))
    assert with_send >= without - 1e-9


def test_a_deadlock_is_named() -> None:
    good = build("1f1b", 2, 2)
    bad = replace(good, actions=(good.actions[0], tuple(reversed(good.actions[1]))))
    with pytest.raises(ScheduleError, match="waits for ever"):
        check(bad)


def test_a_missing_backward_is_named() -> None:
    good = build("1f1b", 2, 2)
    bad = replace(good, actions=(good.actions[0][:-1], good.actions[1]))
    with pytest.raises(ScheduleError, match="stage 0 does not do every forward and backward once"):
        check(bad)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("1f2b", 2, 2), "expected one of naive, gpipe"),
        (("1f1b", 2, 2, 3), "only with interleaved_1f1b"),
        (("interleaved_1f1b", 4, 6, 2), "expected a multiple of 4"),
        (("dualpipe", 3, 8), "expected an even number"),
        (("dualpipe", 4, 6), "at least 8 micro-batches"),
        (("zb_v", 4, 7, 2), "zb_v needs at least 8 micro-batches, found 7"),
        (("dualpipe_v", 4, 8), "virtual_stages=1 with dualpipe_v, expected 2"),
        (("gpipe", 4, 0), "at least 1"),
    ],
)
def test_impossible_schedules_say_why(arguments: tuple[str, int, int], message: str) -> None:
    with pytest.raises(InfeasibleError, match=message):
        build(*arguments)


def test_a_split_backward_answers_the_stage_before() -> None:
    order = build("zb_h1", 2, 2)
    mine, other = order.actions
    forward, split = mine.index(Action("F", 0)), len(mine) + other.index(Action("I", 0))
    assert order.needed[mine.index(Action("I", 0))] == [forward, split]
    assert np.all(np.array([len(route) for route in order.routes]) == 2)
