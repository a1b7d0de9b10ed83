"""Simulated steps: bounds and laws, sums, contention where links are shared, stragglers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import pipeline_bytes, stage_weights, step

from commsim.nccl.predict import Options
from commsim.topology.presets import load_preset
from commsim.training.communicators import CommTime, Ranks
from commsim.training.model import model
from commsim.training.nccl_groups import NcclGroups
from commsim.training.offload import Offload
from commsim.training.overlap import IDEAL, added
from commsim.training.simulate import StepRun
from commsim.training.spec import Step, StepPlan
from commsim.training.stages import Chunk
from commsim.training.step_run import message_bytes, step_program
from commsim.training.work import ChunkSeconds, ComputeTime, Exchange

times = st.floats(0.0, 1e3)


def linear(alpha: float = 1e-5, rate: float = 50e9) -> CommTime:
    def seconds(collective: str, nbytes: float, ranks: Ranks) -> float:
        n = np.shape(ranks)[-1]
        return 0.0 if n < 2 else alpha + nbytes / rate * (2 if collective == "all_reduce" else 1) * (n - 1) / n

    return seconds


def per_layer(seconds: float = 1e-3) -> ComputeTime:
    def compute(chunk: Chunk) -> ChunkSeconds:
        f = seconds * (chunk.layers + 0.5 * chunk.outputs)
        return ChunkSeconds(f, f, f, 0.2 * f)

    return compute


def simulated(one: Step, comm: CommTime | None = None, **more: Any) -> StepRun:
    seconds = more.pop("seconds", 1e-3)
    return step_program(one, per_layer(seconds), comm or linear(), optimizer_s=[0.01] * one.pp, **more).run()


@given(compute=times, comm=times, least=st.floats(0, 1))
def test_overlap_lies_between_the_longer_and_the_sum(compute: float, comm: float, least: float) -> None:
    both = compute + added(comm, compute, least, 1.0)
    assert max(compute, comm) <= both * (1 + 1e-12) + 1e-12
    assert both <= (compute + comm) * (1 + 1e-12)


@given(compute=times, comm=times, slow=st.floats(1, 3))
def test_slow_compute_never_helps(compute: float, comm: float, slow: float) -> None:
    assert added(comm, compute, 0.1, slow) >= added(comm, compute, 0.1, 1.0) - 1e-9


def test_an_exchange_without_a_window_is_exposed() -> None:
    assert Exchange("tp", 2.0).exposed() == 2.0
    assert Exchange("cp", 2.0, window=10.0, least=0.25).exposed() == pytest.approx(0.5)


@pytest.mark.parametrize("virtual_stages", [1, 2, 8])
def test_tensor_parallel_traffic_hides_however_few_layers_a_chunk_has(virtual_stages: int) -> None:
    """It hides behind the products of its own layer: the share in the open is that of the software."""
    one = step(pp=4, tp=2, virtual_stages=virtual_stages, schedule="interleaved_1f1b" if virtual_stages > 1 else "1f1b")
    plan = StepPlan(values={**IDEAL, "exposed_tp": 0.25})
    whole, hidden = (
        simulated(replace(one, overlap_tp=o), plan=plan, seconds=0.1).breakdown()["tp"] for o in (False, True)
    )
    assert hidden == pytest.approx(0.25 * whole)


def test_one_gpu_is_the_sum_of_its_passes() -> None:
    one = step(global_batch_size=4)
    run = simulated(one)
    assert run.step_s == pytest.approx(4 * 3 * (32 + 0.5) * 1e-3 + 0.01)
    assert run.breakdown()["bubble"] == pytest.approx(0.0)


CASES = [
    {"pp": 4, "dp": 2},
    {"pp": 4, "dp": 2, "virtual_stages": 4, "schedule": "interleaved_1f1b", "zero_stage": 1},
    {"pp": 2, "tp": 4, "dp": 4, "sequence_parallel": True, "zero_stage": 2},
    {"pp": 4, "schedule": "zb_h1", "dp": 2},
    {"pp": 4, "schedule": "dualpipe", "dp": 2, "zero_stage": 1},
    {"pp": 4, "schedule": "zb_v", "virtual_stages": 2, "dp": 2},
    {"pp": 4, "schedule": "dualpipe_v", "virtual_stages": 2, "dp": 2, "zero_stage": 1},
    {"pp": 4, "schedule": "gpipe"},
    {"dp": 8, "zero_stage": 3},
    {"cp": 4, "tp": 2, "overlap_dp": False},
]


@pytest.mark.parametrize("changes", CASES, ids=str)
def test_causes_add_up_to_the_step(changes: dict[str, Any]) -> None:
    run = simulated(step(**changes))
    assert sum(run.breakdown().values()) == pytest.approx(run.step_s)
    assert min(run.breakdown().values()) >= -1e-9


@pytest.mark.parametrize("changes", CASES, ids=str)
@settings(max_examples=10)
@given(factor=st.floats(1.0, 4.0))
def test_faster_everything_is_never_slower(changes: dict[str, Any], factor: float) -> None:
    one = step(**changes)
    slow = simulated(one)
    fast = step_program(
        one,
        per_layer(1e-3 / factor),
        linear(1e-5 / factor, 50e9 * factor),
        optimizer_s=[0.01 / factor] * one.pp,
    ).run()
    assert fast.step_s <= slow.step_s * (1 + 1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_bubble_of_equal_stages(schedule: str) -> None:
    def equal(chunk: Chunk) -> ChunkSeconds:
        return ChunkSeconds(1.0, 1.0, 1.0)

    one = step(pp=4, schedule=schedule, global_batch_size=16)
    run = step_program(one, equal, lambda c, n, r: 0.0, optimizer_s=[0.0] * 4).run()
    assert run.step_s == pytest.approx(3 * (16 + 3))
    assert run.bubble_s == pytest.approx(np.full(4, 9.0))


def test_gradients_hide_behind_the_backward_or_stay_exposed() -> None:
    one = step(dp=8, zero_stage=1)
    hidden, exposed = simulated(one), simulated(replace(one, overlap_dp=False))
    assert hidden.step_s < exposed.step_s
    assert hidden.breakdown()["dp"] < exposed.breakdown()["dp"]


def test_zero_2_reduces_after_every_micro_batch() -> None:
    moved = [float(simulated(step(dp=8, zero_stage=z)).timeline.nbytes.sum()) for z in (1, 2)]
    first, second = (m - 8.03e9 * 2 for m in moved)  # the parameters' way back
    assert second / first == pytest.approx(8.0, rel=0.01)


@pytest.mark.parametrize("zero_stage", [1, 2])
def test_updated_parameters_come_back_beside_the_next_forward(zero_stage: int) -> None:
    """At 50 GB/s they take 8.03e9 * 2 * 7/8 bytes over it; a forward of 32.5 ms hides so much of that."""
    one = step(dp=8, zero_stage=zero_stage)
    hidden, exposed = (simulated(replace(one, overlap_param_gather=o)) for o in (True, False))
    assert exposed.step_s - hidden.step_s == pytest.approx(32.5e-3)
    assert simulated(replace(one, overlap_dp=False)).step_s > exposed.step_s


def test_zero_2_in_a_pipeline_reduces_once() -> None:
    first, second = (simulated(step(pp=2, dp=4, zero_stage=z)) for z in (1, 2))
    assert second.step_s == pytest.approx(first.step_s)


def test_a_straggler_holds_the_others_up() -> None:
    one = step(pp=4, dp=2)
    assert simulated(one, plan=StepPlan(stragglers={2: 1.5})).step_s > 1.2 * simulated(one).step_s
    assert simulated(one, plan=StepPlan(stragglers={2: 1.0})).step_s == pytest.approx(simulated(one).step_s)
    alone = step(global_batch_size=8)
    slow, usual = simulated(alone, plan=StepPlan(stragglers={0: 1.5})), simulated(alone)
    assert slow.compute_s == pytest.approx(1.5 * usual.compute_s)


def test_the_timeline_is_in_order_and_stages_do_one_thing_at_a_time() -> None:
    timeline = simulated(step(pp=4, dp=2, zero_stage=1)).timeline
    assert (np.diff(timeline.start_s) >= 0).all()
    for stage in range(4):
        mine = (timeline.endpoint == stage) & (timeline.stream == 0)
        assert (timeline.start_s[mine][1:] >= timeline.end_s[mine][:-1] - 1e-12).all()


def test_weight_gradients_do_not_wait_for_what_is_sent() -> None:
    """Of the last stage's split backward the second half begins while the first half's result is still under way."""
    timeline = simulated(step(pp=2, schedule="zb_h1", global_batch_size=1), linear(alpha=1.0)).timeline
    named = np.array(timeline.names)[timeline.name_code]
    last = timeline.endpoint == 1
    assert timeline.start_s[last & (named == "W")] == pytest.approx(timeline.end_s[last & (named == "I")])


@pytest.mark.parametrize(
    ("cuts", "dense", "experts"),
    [
        ({"zero_stage": 0, "dp": 1}, 1, 1),
        ({"zero_stage": 0, "dp": 4, "ep": 2}, 1, 1 / 2),
        ({"zero_stage": 1, "dp": 4, "ep": 2}, 1 / 4, 1 / 4),
    ],
)
def test_the_host_updates_what_a_rank_owns(cuts: dict[str, Any], dense: float, experts: float) -> None:
    """28 bytes of host memory per parameter at 14 GB/s: 2 ns; its gradient and weight over PCIe at 1 GB/s."""
    one = step(model=model("mixtral-8x7b"), **cuts)
    plan = StepPlan(offload=Offload(update_bytes_per_s=14e9), pcie_bytes_per_s=1e9)
    (seconds,) = step_program(one, per_layer(), linear(), optimizer_s=[9.0], plan=plan).machine.optimizer_s
    routed = 32 * one.model.routed_parameters
    owned = (one.model.parameters() - routed) * dense + routed * experts
    crossing = one.precision.gradient_bytes + one.precision.weight_bytes
    assert seconds == pytest.approx(owned * (2e-9 + crossing * 1e-9))


# -- contention ---------------------------------


@pytest.fixture(scope="module")
def calls() -> NcclGroups:
    return nccl(8)


def nccl(nodes: int) -> NcclGroups:
    """NCCL's calls on nodes of eight H100."""
    return NcclGroups(load_preset("hgx-h100-ndr400", nodes=nodes), Options(version=(2, 26, 2), mode="single"))


def test_contention_only_lengthens(calls: NcclGroups) -> None:
    one = step(tp=8, pp=4, dp=2, global_batch_size=8, sequence_parallel=True, zero_stage=1)
    comm = linear(1e-5, 40e9)
    alone = simulated(one, comm, calls=calls, plan=StepPlan(contention=False))
    together = simulated(one, comm, calls=calls)
    assert together.contended
    assert alone.step_s <= together.step_s * (1 + 1e-9) < 1.5 * alone.step_s


def test_what_shares_no_link_is_not_held_up(calls: NcclGroups) -> None:
    one = step(tp=8, dp=8)
    run = simulated(one, calls=calls)
    assert not run.contended
    assert run.step_s == simulated(one).step_s


def test_two_flows_over_one_card_take_what_it_needs_for_both(calls: NcclGroups) -> None:
    """A send, which asks for less than half of a card, keeps its pace; gradients have what it leaves, then all."""
    from commsim.engine.clock import EventClock
    from commsim.engine.under_way import CallsUnderWay

    one = step(tp=8, pp=2, dp=4, global_batch_size=8)
    program = step_program(one, per_layer(), calls, optimizer_s=[0.0, 0.0], calls=calls)
    send, reduce = program.machine.sends[0, 1], program.machine.reduces[0][0][0]
    assert program.machine.sharing is not None
    clock, ends = EventClock(), dict[str, float]()
    under_way = CallsUnderWay(clock, program.machine.sharing)
    for name, flow in (("send", send), ("reduce", reduce)):
        under_way.start(flow.shared, flow.seconds, lambda of: ends.update({of: clock.now}), name)
    clock.run()
    assert ends["send"] == pytest.approx(send.seconds)
    assert reduce.seconds < ends["reduce"] < send.seconds + reduce.seconds
    # Of four nodes in a ring three quarters of the array leave over each card, of a send all of it.
    on_card = (reduce.nbytes * 0.75 + send.nbytes) / (0.95 * 50e9)
    assert ends["reduce"] > on_card


def test_experts_across_nodes_meet_gradients_on_their_cards(calls: NcclGroups) -> None:
    one = step(model=model("mixtral-8x7b"), tp=2, pp=2, dp=16, ep=8, expert_tp=2, zero_stage=1, global_batch_size=64)
    comm = linear(1e-5, 20e9)
    alone = simulated(one, comm, calls=calls, plan=StepPlan(contention=False))
    together = simulated(one, comm, calls=calls)
    assert alone.step_s * (1 + 1e-6) < together.step_s < 1.5 * alone.step_s
    assert sum(together.breakdown().values()) == pytest.approx(together.step_s)


def test_passes_of_one_stage_do_not_meet_each_other(calls: NcclGroups) -> None:
    """Parameters of ZeRO-3 are gathered beside compute: the next pass gathers when this one has."""
    one = step(dp=64, zero_stage=3)
    assert simulated(one, calls, calls=calls).step_s == pytest.approx(simulated(one, calls).step_s, rel=1e-12)


def test_a_second_replica_as_quick_changes_nothing(calls: NcclGroups) -> None:
    """What both send is one call on the links: a straggler of factor 1 is none."""
    one = step(tp=8, pp=4, dp=2, global_batch_size=8, sequence_parallel=True, zero_stage=1)
    comm = linear(1e-5, 40e9)
    same = simulated(one, comm, calls=calls, plan=StepPlan(stragglers={1: 1.0}))
    assert same.contended
    assert same.step_s == pytest.approx(simulated(one, comm, calls=calls).step_s, rel=1e-12)


def test_transfers_of_a_slow_replica_meet_its_own_and_those_of_all(calls: NcclGroups) -> None:
    one = step(model=model("mixtral-8x7b"), tp=2, pp=2, dp=16, ep=8, expert_tp=2, zero_stage=1, global_batch_size=64)
    comm, slow = linear(1e-5, 20e9), {0: 1.3, 1: 1.3}
    apart, both = StepPlan(contention=False, stragglers=slow), StepPlan(stragglers=slow)
    alone, together = (simulated(one, comm, calls=calls, plan=plan).step_s for plan in (apart, both))
    assert together > alone * (1 + 1e-6)
    # Gradients wait for it, so that the step is that of replicas like it.
    usual = step_program(one, per_layer(1e-3), comm, optimizer_s=[0.01] * one.pp, calls=calls)
    assert together == pytest.approx(usual.run(slow).step_s, rel=1e-6)


def test_messages_to_a_stage_follow_one_another() -> None:
    """GPipe's forwards run ahead of their sends, whose bytes all go over one card before the way back begins."""
    one, rate = step(pp=2, schedule="gpipe", global_batch_size=16), 1e6
    run = simulated(one, linear(alpha=0.0, rate=rate / 2), seconds=1e-6)  # (n - 1) / n of a pair: half of it
    assert run.step_s > 2 * 16 * message_bytes(one) / rate


@settings(max_examples=15, deadline=None)
@given(
    pp=st.sampled_from([1, 2, 4]),
    dp=st.sampled_from([2, 4]),
    tp=st.sampled_from([1, 2]),
    zero=st.sampled_from([0, 1, 2]),
    v=st.sampled_from([1, 2]),
)
def test_simulated_bytes_are_those_of_the_closed_forms(pp: int, dp: int, tp: int, zero: int, v: int) -> None:
    schedule = "interleaved_1f1b" if v > 1 and pp > 1 else "1f1b"
    one = step(pp=pp, dp=dp, tp=tp, zero_stage=zero, virtual_stages=v if pp > 1 else 1, schedule=schedule)
    timeline = simulated(one).timeline
    named = np.array(timeline.names)[timeline.name_code]
    m = one.num_microbatches
    for stage, weights in enumerate(stage_weights(one)):
        mine = timeline.endpoint == stage
        gradients = weights.total * one.precision.gradient_bytes * (m if zero == 2 and pp == 1 else 1)
        assert timeline.nbytes[mine & (named == "reduce")].sum() == pytest.approx(gradients, rel=1e-6)
        back = weights.total * one.precision.weight_bytes if zero else 0.0
        assert timeline.nbytes[mine & (named == "gather")].sum() == pytest.approx(back, rel=1e-6)
        sent = pipeline_bytes(message_bytes(one), stage, pp, one.virtual_stages, m)
        assert timeline.nbytes[mine & (named == "send")].sum() == pytest.approx(sent, rel=1e-6)
