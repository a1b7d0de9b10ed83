"""What one GPU of each stage sends in a step, by axis: the bytes behind a simulated step.

What it is not: it says nothing about links or time; a call's bytes are those of `commsim.training.traffic`.
"""

from __future__ import annotations

from itertools import pairwise

from commsim.training import traffic
from commsim.training.spec import Step, StepPlan
from commsim.training.stages import Weights, chunk_weights
from commsim.training.step_run import message_bytes, momentum_calls, order_of_step, places_of, trained_of
from commsim.training.step_time import reduces_often
from commsim.training.work import chunk_calls, sent_of_all_to_all

AXES = ("tp", "cp", "ep", "etp", "dp", "pp")


def step_traffic(step: Step, plan: StepPlan) -> list[dict[str, float]]:
    """Bytes that a GPU of each stage sends per step, by axis; an axis along which nothing moves is left out."""
    sent: list[dict[str, float]] = [{} for _ in range(step.pp)]
    order = order_of_step(step)
    passes = {(c.stage, c.chunk): 0 for c in places_of(step, plan.layers)}
    for route in order.routes:
        for place in route:
            passes[place] += 1
        for (a, _), (b, _) in pairwise(route):
            if a != b:
                for stage in (a, b):  # an activation there, its gradient back
                    sent[stage]["pp"] = sent[stage].get("pp", 0.0) + message_bytes(step)
    for chunk in places_of(step, plan.layers):
        mine = sent[chunk.stage]
        inside = chunk_calls(step, chunk, plan)
        here = [(call, float(passes[chunk.stage, chunk.chunk])) for call in inside]
        trained = trained_of(step, chunk, plan)
        here += [(call, 1.0) for call in _gradient_calls(step, chunk_weights(step, chunk), plan, trained)]
        here += [(call, 1.0) for call in _momenta(step)] if chunk.chunk == 0 else []
        for call, times in here:
            if call.sent_bytes:
                sent_bytes = call.sent_bytes * sent_of_all_to_all(step, call)[0]
                mine[call.axis] = mine.get(call.axis, 0.0) + times * sent_bytes
    return [{axis: mine[axis] for axis in AXES if axis in mine} for mine in sent]


def _momenta(step: Step) -> list[traffic.AxisCalls]:
    sizes = {("dp", "cp"): step.shards, ("edp",): step.expert_dp}
    return [traffic.AxisCalls("dp", name, n, sizes[axes]) for name, n, axes in momentum_calls(step)]


def _gradient_calls(step: Step, weights: Weights, plan: StepPlan, trained: float) -> tuple[traffic.AxisCalls, ...]:
    """Gradients and parameters of a chunk in one step, dense ones over dp and cp, experts over what is left of them."""
    calls: tuple[traffic.AxisCalls, ...] = ()
    scheme = "parameter_server" if plan.parameter_server else traffic.ZERO[step.zero_stage]
    m = step.num_microbatches if step.zero_stage == 3 or reduces_often(step) else 1
    shards = step.shards if step.zero_stage else step.dp * step.cp
    cuts = (weights.dense, shards, step.dp * step.cp // shards), (weights.expert, step.expert_dp, 1)
    for parameters, shard, replicas in cuts:
        parameter_bytes = parameters * step.precision.weight_bytes
        gradient_bytes = 0.0 if step.frozen_weights else parameters * step.precision.gradient_bytes
        if not step.frozen_weights or step.zero_stage == 3:
            calls += traffic.hybrid_shard(scheme, parameter_bytes, gradient_bytes, shard, replicas, m)
    if trained:
        calls += traffic.data_parallel("ddp", 0.0, trained * step.precision.gradient_bytes, step.dp)
    return tuple(call for call in calls if call.collective != "receive")
