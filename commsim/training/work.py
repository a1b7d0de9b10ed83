"""What one stage does for one micro-batch: seconds of compute, and the communication that stands inside it.

Tensor, context and expert parallelism alternate with the operators of a layer, so a pass is two streams that the same
stage runs: they are added up here, in closed form. What stages exchange, and gradients, are simulated
(`commsim.training.simulate`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np

from commsim.training import traffic
from commsim.training.comm_sms import slowed_by
from commsim.training.communicators import CommTime, Ranks
from commsim.training.compute import FUSED_BACKWARD_FLOPS, Values, step_compute
from commsim.training.dispatch import Kind, sent_copies
from commsim.training.mesh import Mesh
from commsim.training.overlap import added
from commsim.training.parameters import shipped_values
from commsim.training.spec import Step, StepPlan
from commsim.training.stages import Chunk, chunk_weights
from commsim.training.step_time import (
    SHARD_WINDOW,
    dispatcher_of,
    exchange_of,
    expert_exchange_seconds,
    expert_slowdown,
    optimizer_seconds,
    recompute_seconds,
    shard_launch_seconds,
)


@dataclass(frozen=True)
class ChunkSeconds:
    """Compute of one chunk on one micro-batch; recomputation is part of ``backward_input``.

    ``attention``: the part of the forward that ring attention may hide behind; ``copies``: of what a forward keeps, to
    the host and back for the backward.
    """

    forward: float
    backward_input: float
    backward_weight: float
    attention: float = 0.0
    copies: float = 0.0


ComputeTime = Callable[[Chunk], ChunkSeconds]
"""chunk -> seconds of its passes on one micro-batch."""


def compute_time(step: Step, values: Values | None = None) -> ComputeTime:
    """The function that gives the seconds of a chunk's passes on one micro-batch, communication not counted."""
    values = values or shipped_values()
    work, scale = step_compute(step, values), values["scale"]

    def seconds(chunk: Chunk) -> ChunkSeconds:
        moe = chunk.moe_layers(step.model)
        passes = ((chunk.layers - moe, work.dense), (moe, work.moe), (int(chunk.outputs), work.head))
        forward = sum(n * p.forward for n, p in passes)
        weight = sum(n * p.weight for n, p in passes)
        again = sum(n * recompute_seconds(p, step) for n, p in passes[:2])
        backward = sum(n * p.backward for n, p in passes) + again - weight
        attention = sum(n * p.attention for n, p in passes)
        return ChunkSeconds(*(float(scale * s) for s in (forward, backward, weight, attention)))

    return seconds


def optimizer_time(step: Step, values: Values | None = None) -> list[float]:
    """Seconds of the update on every stage, the fullest one's for all: they are taken to be alike."""
    values = values or shipped_values()
    return [float(values["scale"] * optimizer_seconds(step, values))] * step.pp


@dataclass(frozen=True)
class Exchange:
    """Communication of an axis inside a pass: ``seconds`` alone, of which all may hide behind ``window`` seconds of
    compute but for the share ``least``; a window of 0 leaves everything exposed. ``slowdown``: its own, of
    compute, where it is not that of all (copies to the host hold no SMs)."""

    axis: str
    seconds: float
    window: float = 0.0
    least: float = 0.0
    slowdown: float | None = None

    def exposed(self, slowdown: float = 1.0) -> float:
        """Seconds by which the pass is longer; ``slowdown`` >= 1: of compute while communication runs."""
        own = slowdown if self.slowdown is None else self.slowdown
        return float(added(self.seconds, self.window, self.least, own)) if self.window else self.seconds


@dataclass(frozen=True)
class Work:
    """One pass: seconds of compute, and what it exchanges."""

    compute: float
    exchanges: tuple[Exchange, ...] = ()

    def seconds(self, slowdown: float = 1.0) -> float:
        """From start to end when nothing else runs."""
        return self.compute + sum(e.exposed(slowdown) for e in self.exchanges)


@dataclass(frozen=True)
class ChunkWork:
    """The passes of a chunk: forward F, backward B = I + W."""

    F: Work
    I: Work  # noqa: E741 - the letter of the zero-bubble paper
    W: Work

    @cached_property
    def B(self) -> Work:
        """The whole backward."""
        return Work(self.I.compute + self.W.compute, self.I.exchanges + self.W.exchanges)

    def of(self, kind: str) -> Work:
        """The pass of an `Action.kind`."""
        work: Work = getattr(self, kind)
        return work


def chunk_calls(step: Step, chunk: Chunk, plan: StepPlan) -> tuple[traffic.AxisCalls, ...]:
    """What one rank of a chunk exchanges for one micro-batch over tp, cp, ep and etp."""
    model, width, again = step.model, step.precision.activation_bytes, step.recompute == "full"
    tokens, tp = step.rank_tokens, step.tp
    hidden = tokens * model.hidden * width
    early = bool(step.ends_early)
    calls = traffic.tensor_parallel(
        chunk.layers, hidden, tp, sequence_parallel=step.sequence_parallel, recompute=again, early=early
    )
    calls += traffic.vocabulary_parallel(hidden, tokens, tp, embeds=chunk.embeds, outputs=chunk.outputs)
    calls += traffic.adapter_parallel(chunk.layers, tokens * width, plan.adapters, tp, recompute=again)
    q_bytes, kv_bytes = (tokens * elements / tp * width for elements in (model.q_width, 2 * model.kv_width))
    calls += traffic.context_parallel(step.context_parallel, chunk.layers, q_bytes, kv_bytes, step.cp, recompute=again)
    moe = chunk.moe_layers(model)
    if not moe:
        return calls
    whole = not step.sequence_parallel and tp != step.expert_tp  # each of the tp ranks routes all tokens
    mine = tokens / step.expert_tp if whole else tokens / tp
    # The rank with most tokens sets the time; those beyond the capacity factor are dropped.
    routed = mine * model.routing.top_k * model.hidden * width * plan.load_of(step)
    return calls + traffic.expert_parallel(moe, routed, step.ep, step.expert_tp, recompute=again, early=early)


def chunk_work(
    step: Step, mesh: Mesh, chunk: Chunk, seconds: ChunkSeconds, comm: CommTime, plan: StepPlan
) -> ChunkWork:
    """The passes of a chunk with the time of what they exchange, on the replica of rank 0."""
    calls = chunk_calls(step, chunk, plan)
    backward_compute = seconds.backward_input + seconds.backward_weight
    forward = _exchanges(
        [c for c in calls if c.phase == "forward"], step, mesh, chunk, (seconds.forward, seconds.attention), comm, plan
    )
    attention = seconds.attention * FUSED_BACKWARD_FLOPS
    backward = _exchanges(
        [c for c in calls if c.phase == "backward"], step, mesh, chunk, (backward_compute, attention), comm, plan
    )
    if step.zero_stage == 3:
        gather, scatter = _sharded(step, mesh, chunk, comm, plan.values)
        hide, least = SHARD_WINDOW * step.overlap_dp, plan.values["exposed_dp"]
        forward.append(Exchange("dp", gather, hide * seconds.forward, least))
        backward.append(Exchange("dp", gather + scatter, hide * backward_compute, least))
    forward += offload_exchanges(step, chunk, seconds.forward, seconds.copies, plan)
    backward += offload_exchanges(step, chunk, backward_compute, seconds.copies, plan)
    return ChunkWork(
        F=Work(seconds.forward, tuple(forward)),
        I=Work(seconds.backward_input, tuple(backward)),
        W=Work(seconds.backward_weight),
    )


def offload_exchanges(step: Step, chunk: Chunk, window: float, copies: float, plan: StepPlan) -> list[Exchange]:
    """What a pass of a chunk moves between GPU and host behind ``window`` seconds of compute; ``copies``: seconds of
    what its forward keeps."""
    moved = [Exchange("offload", copies, window, slowdown=1.0)] if copies else []
    if plan.fetches is None:
        return moved
    weights = chunk_weights(step, chunk)
    owned = weights.dense / step.shards + weights.expert / step.expert_dp
    time = plan.fetches.fetch_seconds(owned * step.precision.weight_bytes, plan.pcie_bytes_per_s)
    alone = 1.0 / max(1, chunk.layers)  # the first layer's parameters have nothing to hide behind
    return [Exchange("offload", time, window, alone, slowdown=1.0), *moved]


def _exchanges(
    calls: Sequence[traffic.AxisCalls],
    step: Step,
    mesh: Mesh,
    chunk: Chunk,
    windows: tuple[float, float],
    comm: CommTime,
    plan: StepPlan,
) -> list[Exchange]:
    """What one pass exchanges, call by call; ``windows``: seconds of its compute, and of its attention core.

    Calls of an axis share its window by the time they take, so that together they hide as much as one call would.
    """
    seconds = [_call_seconds(c, step, mesh.groups_of(chunk.stage, c.axis), comm, plan) for c in calls]
    of_axis: dict[str, float] = {}
    for call, time in zip(calls, seconds, strict=True):
        of_axis[call.axis] = of_axis.get(call.axis, 0.0) + time
    made = []
    for call, time in zip(calls, seconds, strict=True):
        window, least = _hiding(call, step, windows, plan)
        share = time / of_axis[call.axis] if of_axis[call.axis] else 0.0
        made.append(Exchange(call.axis, time, window * share, least, _own_slowdown(call, step, mesh, chunk, plan)))
    return made


def _own_slowdown(
    call: traffic.AxisCalls, step: Step, mesh: Mesh, chunk: Chunk, plan: StepPlan
) -> float | None:  # fmt: skip
    """Of compute beside a call, where it is not that of all: by the SMs that its kernel holds."""
    if plan.held_sms is None or (call.axis == "ep" and step.expert_dispatch != "nccl"):
        return float(expert_slowdown(step, plan.values)) if call.axis == "ep" else None
    groups = mesh.groups_of(chunk.stage, call.axis)
    if call.axis == "cp" and call.collective == "send_recv":
        groups = neighbours(groups)[0]
    return slowed_by(plan.held_sms(call.collective, call.nbytes, groups), step.accelerator.sms)


def _call_seconds(call: traffic.AxisCalls, step: Step, groups: Ranks, comm: CommTime, plan: StepPlan) -> float:
    """Seconds of the calls of one kind; tokens go to their experts by the kernels of the step's dispatcher.

    The kernels' own parameters are those that ship: they are measured for a GPU and its NIC, not for a machine.
    """
    if call.axis == "cp" and call.collective == "send_recv":
        return call.count * max(comm(call.collective, call.nbytes, pairs) for pairs in neighbours(groups))
    if call.axis != "ep" or step.expert_dispatch == "nccl":
        return call.count * comm(call.collective, call.nbytes, groups)
    loaded = replace(step, imbalance=plan.load_of(step))
    return call.count / 2.0 * float(sum(expert_exchange_seconds(loaded, plan.values))) * plan.values["scale"]


def neighbours(groups: Ranks) -> tuple[Ranks, ...]:
    """All pairs of ranks beside each other in rings (groups, n), as few sets of disjoint ones, each (pairs, 2).

    Ring attention sends to the next rank and receives from the one before by single sends (Transformer Engine,
    `flash_attn_p2p_communicate`), for each pair of which torch has a communicator of its own (`ProcessGroupNCCL.cpp`,
    `getKeySendRecv`): NCCL counts its channels as for two ranks.

    >>> [pairs.tolist() for pairs in neighbours(np.array([[0, 1, 2, 3]]))]
    [[[0, 1], [2, 3]], [[1, 2], [3, 0]]]
    """
    n = groups.shape[1]
    starts = [range(0, n - 1, 2), range(1, n, 2), range(n - 1, n)]
    sets = starts[:1] if n == 2 else starts[: 2 + n % 2]
    return tuple(np.concatenate([groups[:, [i, (i + 1) % n]] for i in some]) for some in sets)


def _hiding(call: traffic.AxisCalls, step: Step, windows: tuple[float, float], plan: StepPlan) -> tuple[float, float]:
    """Seconds of compute that a call may hide behind, and the least share of it in the open."""
    compute, attention = windows
    if call.axis == "ep":
        return compute, 0.0 if step.hides_experts else plan.values["exposed_ep"]
    if call.axis in ("tp", "etp"):
        return (compute, plan.values["exposed_tp"]) if step.overlap_tp else (0.0, 1.0)
    ring = call.axis == "cp" and call.collective == "send_recv"
    return (attention, plan.values["exposed_cp"]) if ring else (0.0, 1.0)


def sent_of_all_to_all(step: Step, call: traffic.AxisCalls) -> tuple[float, float]:
    """Of the bytes of an all_to_all of experts the shares that the step's dispatcher sends: in all, and over NICs; the
    mean of the way there and the way back."""
    if call.axis != "ep" or step.expert_dispatch == "nccl":
        return 1.0, 1.0
    exchange = exchange_of(step)
    (near, far), (all_near, all_far) = (
        sent_copies(kind, exchange) for kind in (cast("Kind", step.expert_dispatch), "nccl")
    )
    kernels = dispatcher_of(step)
    types = float(kernels.dispatch_bytes + kernels.combine_bytes) / (2.0 * step.precision.activation_bytes)
    whole, across = (near + far) / (all_near + all_far), far / all_far if all_far else near / all_near
    return types * float(whole), types * float(across)


def _sharded(step: Step, mesh: Mesh, chunk: Chunk, comm: CommTime, values: Values) -> tuple[float, float]:
    """Seconds of gathering a chunk's parameters and of scattering its gradients, layer by layer (FSDP, ZeRO-3)."""
    launch = float(shard_launch_seconds(step, values)) * chunk.layers
    gather = scatter = launch
    for call, groups in sharded_calls(step, mesh, chunk):
        seconds = call.count * comm(call.collective, call.nbytes, groups)
        if call.collective == "all_gather":
            gather += seconds
        else:
            scatter += seconds
    return gather, scatter


def sharded_calls(step: Step, mesh: Mesh, chunk: Chunk) -> Iterator[tuple[traffic.AxisCalls, Ranks]]:
    """The calls of ZeRO-3 for a chunk in one pass each, layer by layer, and the groups that share what they move."""
    weights, layers = chunk_weights(step, chunk), max(1, chunk.layers)
    dense = mesh.groups_of(chunk.stage, "dp", "cp", ranks=step.shards)
    cuts = ((weights.dense, dense), (weights.expert, mesh.groups_of(chunk.stage, "edp")))
    formats = step.precision
    for parameters, groups in cuts:
        n = groups.shape[1]
        yield traffic.AxisCalls("dp", "all_gather", parameters * formats.weight_bytes / layers, n, layers), groups
        if not step.frozen_weights:
            nbytes = parameters * formats.gradient_bytes / layers
            yield traffic.AxisCalls("dp", "reduce_scatter", nbytes, n, layers, "backward"), groups
