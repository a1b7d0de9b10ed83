"""Simulated steps: bounds and laws, sums, contention where links are shared, stragglers, speed."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import pipeline_bytes, stage_weights, step

from commsim.topology.presets import load_preset
from commsim.training.communicators import CommTime, Ranks, nccl_times, shape
from commsim.training.flows import FlowBuilder
from commsim.training.mesh import Mesh
from commsim.training.model import model
from commsim.training.offload import Offload
from commsim.training.simulate import StepRun
from commsim.training.spec import Step, StepPlan
from commsim.training.stages import Chunk
from commsim.training.step_run import mesh_of, message_bytes, step_program
from commsim.training.work import ChunkSeconds, ComputeTime, Exchange, overlap

times = st.floats(0.0, 1e3)


def linear(alpha: float = 1e-5, rate: float = 50e9) -> CommTime:
    def seconds(collective: str, nbytes: float, ranks: Ranks) -> float:
        n = len(ranks)
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


@given(compute=times, comm=times, pieces=st.integers(1, 100))
def test_overlap_lies_between_the_longer_and_the_sum(compute: float, comm: float, pieces: int) -> None:
    both = overlap(compute, comm, pieces)
    assert max(compute, comm) <= both * (1 + 1e-12) + 1e-12
    assert both <= (compute + comm) * (1 + 1e-12)


@given(compute=times, comm=times, slow=st.floats(1, 3))
def test_slow_compute_never_helps(compute: float, comm: float, slow: float) -> None:
    assert overlap(compute, comm, 10, slow) >= overlap(compute, comm, 10) - 1e-9


def test_an_exchange_without_a_window_is_exposed() -> None:
    assert Exchange("tp", 2.0, window=0.0, pieces=4).exposed() == 2.0
    assert Exchange("cp", 2.0, window=10.0, pieces=4).exposed() == pytest.approx(0.5)


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
def topology() -> Any:
    return load_preset("hgx-h100-ndr400", nodes=8)


def test_contention_only_lengthens(topology: Any) -> None:
    one = step(tp=8, pp=4, dp=2, global_batch_size=8, sequence_parallel=True, zero_stage=1)
    comm = linear(1e-5, 40e9)
    alone = simulated(one, comm, topology=topology, plan=StepPlan(contention=False))
    together = simulated(one, comm, topology=topology)
    assert together.contended
    assert alone.step_s <= together.step_s * (1 + 1e-9) < 1.5 * alone.step_s


def test_what_shares_no_link_is_not_put_on_the_network(topology: Any) -> None:
    one = step(tp=8, dp=8)
    run = simulated(one, topology=topology)
    assert not run.contended
    assert run.step_s == simulated(one).step_s


def test_two_flows_over_one_card_take_the_sum(topology: Any) -> None:
    from commsim.engine.cosim import Environment

    one = step(tp=8, pp=2, dp=4, global_batch_size=8)
    builder = FlowBuilder(mesh_of(one), 8, lambda c, n, r: n * (1 if c == "send_recv" else 0.75) / 50e9, topology)
    send = builder.send(0, 1, message_bytes(one) * 100)
    reduce = builder.collective("reduce_scatter", send.nbytes * 4 / 3, 0, "dp", "cp")
    ends = []

    def carry(flow: Any, env: Any) -> Any:
        yield from flow.carry(env)
        ends.append(env.now)

    env = Environment(topology, "fair")
    for flow in (send, reduce):
        env.process(carry(flow, env))
    env.run()
    assert max(ends) == pytest.approx(2 * send.seconds, rel=0.05)


def test_rings_leave_a_node_at_every_rank_that_the_group_has_there(topology: Any) -> None:
    builder = FlowBuilder(Mesh(tp=2, dp=16, pp=2), 8, linear(), topology)
    hops = builder._all_hops(("reduce_scatter", 0, "dp", "cp"))
    leaving = hops.src[(hops.src // 8) != (hops.dst // 8)]
    assert sorted(set(leaving.tolist())) == list(range(32))
    assert hops.share == pytest.approx(15 / 16 / 4)


def test_experts_across_nodes_meet_gradients_on_their_cards(topology: Any) -> None:
    one = step(model=model("mixtral-8x7b"), tp=2, pp=2, dp=16, ep=8, expert_tp=2, zero_stage=1, global_batch_size=64)
    builder = FlowBuilder(mesh_of(one), 8, linear(), topology)
    assert builder.crosses("ep")
    assert not builder.crosses("tp")
    assert builder.inside(1e6, 1.0, 0, "tp") is None
    hops = builder._all_hops(("inside", 0, "ep"))
    assert (hops.src // 8 != hops.dst // 8).all()
    comm = linear(1e-5, 20e9)
    alone = simulated(one, comm, topology=topology, plan=StepPlan(contention=False))
    together = simulated(one, comm, topology=topology)
    assert alone.step_s * (1 + 1e-6) < together.step_s < 1.5 * alone.step_s
    assert sum(together.breakdown().values()) == pytest.approx(together.step_s)


def test_a_pass_with_nothing_beside_it_is_not_put_on_the_network(topology: Any) -> None:
    one = step(dp=64, zero_stage=3)
    run = simulated(one, topology=topology)
    assert not run.contended
    assert run.step_s == simulated(one).step_s


def test_shapes_of_groups() -> None:
    assert shape(np.array([0, 8, 16]), 8) == (3, 1)
    assert shape(np.arange(16), 8) == (2, 8)


def _part(nodes: int, per_node: int) -> Any:
    knobs = {"nics_per_node": per_node} if nodes > 1 else {}
    preset = "hgx-h100-ndr400" if nodes > 1 else "hgx-h100"
    return load_preset(preset, nodes=nodes, gpus_per_node=per_node, **knobs)


def test_nccl_times_are_those_of_the_group() -> None:
    comm = nccl_times(8, _part, (2, 26, 2))
    assert comm("all_reduce", 1e8, np.array([3])) == 0.0
    inside, across = comm("all_reduce", 1e8, np.arange(8)), comm("all_reduce", 1e8, np.arange(0, 64, 8))
    assert 0 < inside < across  # NVLink, and one card of every node


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "bar"),
    [
        ({"model": model("llama3-70b"), "pp": 8, "dp": 8, "global_batch_size": 512, "virtual_stages": 5}, 1.0),
        ({"model": model("llama3.1-405b"), "pp": 16, "dp": 128, "global_batch_size": 2048, "virtual_stages": 8}, 5.0),
    ],
    ids=["512 GPUs", "16384 GPUs"],
)
def test_large_steps_are_quick(changes: dict[str, Any], bar: float) -> None:
    """The bars are seconds of one core; doubled here, for machines that are slower than ours."""
    one = step(tp=8, schedule="interleaved_1f1b", sequence_parallel=True, zero_stage=1, seq_len=8192, **changes)
    whole = load_preset("hgx-h100-ndr400", nodes=one.world_size // 8)
    comm = nccl_times(8, _part, (2, 26, 2))
    simulated(one, comm, topology=whole)  # compiles, and times what is asked once
    begin = time.process_time()
    run = simulated(one, comm, topology=whole)
    assert time.process_time() - begin < 2 * bar
    assert run.contended


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
        gradients = weights.total * one.precision.gradient_bytes * (m if zero == 2 else 1)
        assert timeline.nbytes[mine & (named == "reduce")].sum() == pytest.approx(gradients, rel=1e-6)
        back = weights.total * one.precision.weight_bytes if zero else 0.0
        assert timeline.nbytes[mine & (named == "gather")].sum() == pytest.approx(back, rel=1e-6)
        sent = pipeline_bytes(message_bytes(one), stage, pp, one.virtual_stages, m)
        assert timeline.nbytes[mine & (named == "send")].sum() == pytest.approx(sent, rel=1e-6)
