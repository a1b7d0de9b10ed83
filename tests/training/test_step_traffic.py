"""What a simulated step says it sends, against the closed forms of each axis."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from steps import pipeline_bytes, step

from commsim.errors import ScenarioError
from commsim.nccl.predict import Options
from commsim.topology.presets import load_preset
from commsim.training import traffic
from commsim.training.model import model
from commsim.training.nccl_groups import NcclGroups
from commsim.training.overlap import IDEAL
from commsim.training.parameters import shipped_values
from commsim.training.pipeline_schedules import V_SHAPED
from commsim.training.precision import precision
from commsim.training.spec import StepPlan
from commsim.training.stages import chunk_weights, chunks_of
from commsim.training.step_run import mesh_of, message_bytes, step_program
from commsim.training.step_time import expert_exchange_seconds, stage_parameters, step_time
from commsim.training.step_traffic import step_traffic
from commsim.training.work import ChunkSeconds, chunk_calls, chunk_work, neighbours, sent_of_all_to_all


@pytest.mark.parametrize(("zero", "scheme"), [(0, "ddp"), (1, "zero1"), (2, "zero2"), (3, "zero3")])
@given(dp=st.sampled_from([1, 2, 4, 16]))
def test_gradients_and_parameters_are_those_of_the_papers(zero: int, scheme: traffic.Scheme, dp: int) -> None:
    one = step(dp=dp, zero_stage=zero)
    (sent,) = step_traffic(one, StepPlan())
    n = sum(chunk_weights(one, c).total for c in chunks_of(one))
    gradients, weights = n * one.precision.gradient_bytes, n * one.precision.weight_bytes
    calls = traffic.data_parallel(scheme, weights, gradients, dp, one.num_microbatches)
    assert sent.get("dp", 0.0) == pytest.approx(traffic.sent_bytes(calls))


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_shards_of_groups_move_inside_them_and_are_summed_across(zero: int) -> None:
    """HSDP with the bytes counted by hand, in the list of calls, and in what the simulated step does."""
    asked: dict[tuple[str, tuple[int, ...]], float] = {}

    def comm(name: str, nbytes: float, groups: Any) -> float:
        asked[name, tuple(groups[0].tolist())] = nbytes
        return 1e-6

    one = step(dp=32, tp=2, zero_stage=zero, shard_ranks=8, global_batch_size=32)
    plan = StepPlan(bucket_bytes=1e15)
    run = step_program(one, lambda chunk: ChunkSeconds(1.0, 1.0, 1.0), comm, optimizer_s=[0.0], plan=plan).run()
    n = chunk_weights(one, chunks_of(one)[0]).total
    gradients = n * one.precision.gradient_bytes
    within, across = tuple(range(0, 16, 2)), (0, 16, 32, 48)
    assert asked["all_reduce", across] == pytest.approx(gradients / 8)
    if zero < 3:
        assert asked["reduce_scatter", within] == pytest.approx(gradients)
        assert asked["all_gather", within] == pytest.approx(n * one.precision.weight_bytes)
        moved = run.timeline.stream == 5
        assert run.timeline.nbytes[moved].sum() == pytest.approx(
            gradients * (1 + 1 / 8) + n * one.precision.weight_bytes
        )
    (sent,) = step_traffic(one, plan)
    counts = {1: (1, 1), 2: (1, 1), 3: (2, 1)}[zero]  # one micro-batch
    inside = (counts[0] * n * one.precision.weight_bytes + counts[1] * gradients) * 7 / 8
    assert sent["dp"] == pytest.approx(inside + 2 * gradients / 8 * 3 / 4)


@pytest.mark.parametrize(("zero", "rounds"), [(1, 2), (2, 2), (3, 3)])
def test_groups_of_shards_in_the_closed_form_by_hand(zero: int, rounds: int) -> None:
    """Rounds inside a node of eight, over NVLink, and a sum of an eighth across eight nodes, by each rank's NIC."""
    values = dict(shipped_values()) | {"alpha": 0.0, "alpha_node": 0.0, "alpha_z": 0.0, "alpha_rank": 0.0}
    one = step(dp=64, zero_stage=zero, overlap_dp=False, nic_bytes_per_s=12.5e9)
    whole, same, groups = (step_time(replace(one, shard_ranks=n), values).dp for n in (0, 64, 8))
    assert whole == same
    nbytes = 2.0 * sum(stage_parameters(one))
    inside = nbytes * 7 / 8 / (one.accelerator.nvlink_bytes_per_s * values["nvlink"])
    across = 2 * nbytes / 8 * 7 / 8 / (12.5e9 * values["nic"])
    assert groups == pytest.approx(values["scale"] * (rounds * inside + across))


@pytest.mark.parametrize("v", [1, 2])
def test_sends_between_stages_are_those_of_the_closed_form(v: int) -> None:
    one = step(pp=4, virtual_stages=v, schedule="interleaved_1f1b" if v > 1 else "1f1b")
    for stage, sent in enumerate(step_traffic(one, StepPlan())):
        assert sent["pp"] == pipeline_bytes(message_bytes(one), stage, 4, v, one.num_microbatches)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zb_h1", "zb_v", "dualpipe", "dualpipe_v"])
def test_every_pipeline_schedule_sends_what_its_timeline_shows(schedule: str) -> None:
    one = step(pp=4, schedule=schedule, virtual_stages=2 if schedule in V_SHAPED else 1)
    compute, comm = (lambda chunk: ChunkSeconds(1.0, 1.0, 1.0, 0.1)), (lambda *_: 1e-6)
    run = step_program(one, compute, comm, optimizer_s=[0.0] * 4).run()
    t = run.timeline
    for stage, sent in enumerate(step_traffic(one, StepPlan())):
        shown = t.nbytes[(t.endpoint == stage) & (t.stream == 4)].sum()
        assert sent["pp"] == pytest.approx(float(shown))


def test_micro_batches_of_tensor_parallelism_add_up() -> None:
    few, many = (step_traffic(step(tp=4, global_batch_size=b), StepPlan())[0]["tp"] for b in (8, 64))
    assert many == pytest.approx(8 * few)


def test_a_parameter_server_is_a_hot_spot_and_a_ring_is_not() -> None:
    """The server's time grows with the workers; a ring's hardly does (twice (N-1)/N of the gradients each)."""
    seconds = {}
    for nodes in (1, 4):
        topology = load_preset("hgx-h100-ndr400", nodes=nodes)
        one = step(model=model("gpt2-350m"), dp=8 * nodes, seq_len=1024)
        run = step_program(
            one,
            lambda chunk: ChunkSeconds(1e-3, 1e-3, 1e-3, 1e-4),
            lambda *_: 0.0,
            optimizer_s=[0.0],
            topology=topology,
            plan=StepPlan(parameter_server=True),
        ).run()
        seconds[nodes] = run.breakdown()["dp"]
    assert 3.0 < seconds[4] / seconds[1] < 4.5


def test_compute_is_slower_beside_gradients_and_that_is_theirs() -> None:
    one = step(dp=8)
    runs = {
        slowdown: step_program(
            one,
            lambda chunk: ChunkSeconds(1.0, 1.0, 1.0, 0.1),
            lambda *_: 1e-3,
            optimizer_s=[0.0],
            plan=StepPlan(values={**IDEAL, "slowdown": slowdown}),
        ).run()
        for slowdown in (1.0, 1.1)
    }
    plain, slowed = (runs[s].breakdown() for s in (1.0, 1.1))
    t = runs[1.0].timeline
    gradients_s = float((t.end_s - t.start_s)[t.stream == 5].sum())
    assert plain["compute"] == slowed["compute"]
    assert max(abs(plain["pp"]), abs(slowed["pp"])) < 1e-9
    extra = runs[1.1].step_s - runs[1.0].step_s
    assert 0 < extra <= 0.1 * gradients_s + 1e-9
    assert slowed["dp"] - plain["dp"] == pytest.approx(extra)


@pytest.mark.parametrize(
    ("kind", "less"), [("nccl", 1.0), ("deepep", 0.7), ("hybrid", 0.7), ("deepep_low_latency", 1.0)]
)
def test_what_experts_put_on_nics_is_what_their_dispatcher_sends(kind: str, less: float) -> None:
    """Of 8 experts for a token on 4 nodes of 8 ranks 3.6 nodes at most have one: a copy for each node is less."""
    one = step(model=model("deepseek-v3"), dp=32, ep=32, expert_dispatch=kind)
    (call, *_) = (c for c in chunk_calls(one, chunks_of(one)[0], StepPlan()) if c.axis == "ep")
    whole, nic = sent_of_all_to_all(one, call)
    assert nic <= less
    assert (whole, nic) == (1.0, 1.0) or kind in ("deepep", "hybrid")
    assert sum(stage["ep"] for stage in step_traffic(one, StepPlan())) > 0


@pytest.mark.parametrize(("kind", "share"), [("nccl", 1.0), ("deepep", (1 + 1 / 32 + 2) / 4)])
def test_what_products_read_in_8_bit_is_dispatched_in_8_bit(kind: str, share: float) -> None:
    """fp8 with a 32-bit scale for 128 elements there, 16 bit back (DeepSeek-V3, section 3.3.3), but by NCCL."""
    wide = step(model=model("deepseek-v3"), dp=32, ep=32, expert_dispatch=kind, precision=precision("fp8"))
    narrow = replace(wide, fp8_activations=True)
    (before, after) = (step_traffic(one, StepPlan())[0]["ep"] for one in (wide, narrow))
    assert after / before == pytest.approx(share)
    (there, back), (quick, same) = (expert_exchange_seconds(one, shipped_values()) for one in (wide, narrow))
    assert (quick < there) == (kind == "deepep")
    assert back == same


def test_the_kernels_of_a_rack_reach_no_other() -> None:
    with pytest.raises(ScenarioError, match="expert_dispatch = nvlink with ep = 32, expected at most the 8 ranks"):
        step(model=model("deepseek-v3"), dp=32, ep=32, expert_dispatch="nvlink")


@pytest.mark.parametrize(("overlap", "pp"), [(False, 1), (True, 1), (False, 2)])
def test_zero2_reduces_after_every_micro_batch_in_the_closed_form(overlap: bool, pp: int) -> None:
    """All but the last hide behind the next one's passes and slow them; with a pipeline they wait for the last."""
    values = dict(shipped_values()) | {"alpha": 0.0, "alpha_node": 0.0}
    one = step(dp=8, pp=pp, zero_stage=1, global_batch_size=64, overlap_dp=overlap)
    once, often = (step_time(replace(one, zero_stage=z), values).dp for z in (1, 2))
    gradients = 2.0 * sum(stage_parameters(one)) * 7 / 8 / (one.accelerator.nvlink_bytes_per_s * values["nvlink"])
    each = gradients * (1 - 1 / values["slowdown"]) if overlap else gradients
    assert often - once == pytest.approx(values["scale"] * (7 * each if pp == 1 else 0.0))


@given(n=st.integers(2, 17))
def test_the_pairs_of_a_ring_are_disjoint_and_all_of_it(n: int) -> None:
    sets = neighbours(np.arange(3 * n).reshape(3, n))
    for pairs in sets:
        assert len(np.unique(pairs)) == pairs.size
    made = sorted(tuple(pair) for pairs in sets for pair in pairs.tolist())
    ring = {(i, (i + 1) % n) for i in range(n)} if n > 2 else {(0, 1)}
    assert made == sorted((a + n * g, b + n * g) for g in range(3) for a, b in ring)


def test_ring_attention_sends_between_pairs_that_have_channels_of_their_own() -> None:
    """Sixteen nodes, tp 8: NCCL 2.26 gives a peer of sixteen ranks one channel, a pair two, of about 7 GB/s each."""
    calls = NcclGroups(load_preset("hgx-h100-ndr400", nodes=16), Options(version=(2, 26, 2), mode="single"))
    one = step(tp=8, cp=16, seq_len=65536, global_batch_size=1, sequence_parallel=True)
    (chunk,) = chunks_of(one)
    compute = ChunkSeconds(0.0, 0.0, 0.0)
    work = chunk_work(one, mesh_of(one), chunk, compute, calls, StepPlan())
    (ring,) = [e.seconds for e in work.F.exchanges if e.axis == "cp"]
    sent = 15 * 32 * (65536 // 16) * 2 * 1024 / 8 * 2
    assert 10e9 < sent / ring < 16e9
    assert calls("send_recv", 1e9, np.arange(0, 128, 8)) > 1.8 * calls("send_recv", 1e9, np.array([0, 8]))
