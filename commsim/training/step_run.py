"""From a `Step` on a machine to a simulated step: schedule, passes, flows, and the figures people ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from commsim.errors import InfeasibleError
from commsim.training.communicators import CommTime, Ranks
from commsim.training.flows import Axes, Flow, FlowBuilder, GroupCall
from commsim.training.mesh import Mesh
from commsim.training.muon import gathered_bytes
from commsim.training.overlap import added
from commsim.training.pipeline import Order
from commsim.training.pipeline_schedules import build
from commsim.training.simulate import StepRun, simulate
from commsim.training.spec import Step, StepPlan
from commsim.training.stages import Chunk, chunk_weights, chunks_of
from commsim.training.step_costs import StepCosts
from commsim.training.step_time import reduces_often
from commsim.training.work import ChunkWork, ComputeTime, chunk_calls, chunk_work, sent_of_all_to_all, sharded_calls

if TYPE_CHECKING:
    from commsim.topology.graph import Topology
    from commsim.training.communicators import GroupCalls


def mesh_of(step: Step) -> Mesh:
    """The mesh of a step, tp innermost."""
    return Mesh(step.dp, step.pp, step.cp, step.tp, step.ep, step.expert_tp)


def order_of_step(step: Step) -> Order:
    """The pipeline schedule of a step."""
    return build(step.run_schedule, step.pp, step.num_microbatches, step.virtual_stages)


def places_of(step: Step, layers: Sequence[int] | None = None) -> list[Chunk]:
    """The chunks of every stage; under DualPipe a stage also holds, as chunk 1, the layers of the stage opposite."""
    chunks = chunks_of(step, layers)
    if step.schedule != "dualpipe":
        return chunks
    return [*chunks, *(Chunk(step.pp - 1 - c.stage, 1, c.first, c.last, c.embeds, c.outputs) for c in chunks)]


@dataclass(frozen=True)
class StepProgram:
    """A step made ready to be simulated, or exported: ``works[stage, chunk]`` are the passes of ``places``."""

    step: Step
    mesh: Mesh
    plan: StepPlan
    order: Order
    places: Sequence[Chunk]
    works: Mapping[tuple[int, int], ChunkWork]
    machine: StepCosts

    def run(self, slow: Mapping[int, float] | None = None) -> StepRun:
        """Simulate it, some stages ``slow`` by a factor on their compute."""
        return simulate(self.order, self.works, self.machine, self.plan.stragglers, slow)


def step_program(
    step: Step,
    compute: ComputeTime,
    comm: CommTime,
    *,
    optimizer_s: Sequence[float],
    calls: GroupCalls | None = None,
    topology: Topology | None = None,
    mesh: Mesh | None = None,
    plan: StepPlan | None = None,
) -> StepProgram:
    """What a step runs: passes with the seconds of what they exchange, sends, gradients, updates.

    ``calls`` say what transfers put on links; without them no two contend. A parameter server needs the `topology`.
    """
    plan, mesh = plan or StepPlan(), mesh or mesh_of(step)
    comm = _scaled(comm, plan.values["scale"])
    order = order_of_step(step)
    places = places_of(step, plan.layers)
    known: dict[tuple[Any, ...], ChunkWork] = {}
    works: dict[tuple[int, int], ChunkWork] = {}
    for chunk in places:
        kind = (chunk.stage, chunk.layers, chunk.embeds, chunk.outputs, chunk.moe_layers(step.model))
        if kind not in known:
            known[kind] = chunk_work(step, mesh, chunk, compute(chunk), comm, plan)
        works[chunk.stage, chunk.chunk] = known[kind]
    builder = FlowBuilder(comm, calls if plan.contention else None)
    machine = StepCosts(
        sends=_sends(step, mesh, builder, order),
        reduces=_reduces(step, mesh, builder, places, plan, topology),
        gathers=[
            [*momenta, *parameters]
            for momenta, parameters in zip(
                _momenta(step, mesh, builder), _gathers(step, mesh, builder, places, works, plan), strict=True
            )
        ],
        optimizer_s=host_updates(step, places, plan) if plan.offload and plan.offload.optimizer else optimizer_s,
        overlap_dp=step.overlap_dp,
        overlap_pp=step.overlap_pp,
        every_micro_batch=reduces_often(step),
        inside=_inside(step, mesh, builder, places, works, plan) if calls is not None and plan.contention else {},
        slowdown=plan.values["slowdown"],
        constant_s=plan.values["constant"] * plan.values["scale"],
        sharing=builder.sharing(),
    )
    return StepProgram(step, mesh, plan, order, places, works, machine)


def _scaled(comm: CommTime, scale: float) -> CommTime:
    """Times of calls with what a calibration makes of all predicted times."""

    def seconds(collective: str, nbytes: float, groups: Ranks) -> float:
        return scale * comm(collective, nbytes, groups)

    return comm if scale == 1.0 else seconds


def host_updates(step: Step, chunks: Sequence[Chunk], plan: StepPlan) -> list[float]:
    """Seconds of every stage's update on the host."""
    assert plan.offload is not None
    owned = [0.0] * step.pp
    for chunk in chunks:
        weights = chunk_weights(step, chunk)
        cut = (step.shards, step.expert_dp) if step.zero_stage else (1, 1)
        owned[chunk.stage] += weights.dense / cut[0] + weights.expert / cut[1]
    formats = step.precision
    return [
        plan.offload.update_seconds(n, formats.weight_bytes, formats.gradient_bytes, plan.pcie_bytes_per_s)
        for n in owned
    ]


def _inside(
    step: Step,
    mesh: Mesh,
    builder: FlowBuilder,
    chunks: Sequence[Chunk],
    works: Mapping[tuple[int, int], ChunkWork],
    plan: StepPlan,
) -> dict[tuple[int, int, str], Flow]:
    """What passes exchange, as flows beside sends, gradients and the passes of other stages."""
    inside: dict[tuple[int, int, str], Flow] = {}
    for chunk in chunks:
        calls = [(call, mesh.groups_of(chunk.stage, call.axis)) for call in chunk_calls(step, chunk, plan)]
        own = list(sharded_calls(step, mesh, chunk)) if step.zero_stage == 3 else []
        for kind, phase in (("F", "forward"), ("B", "backward"), ("I", "backward")):
            mine = [(call, groups) for call, groups in calls if call.phase == phase]
            mine += [(call, groups) for call, groups in own if kind != "F" or call.collective == "all_gather"]
            parts = [
                GroupCall(call.count * sent_of_all_to_all(step, call)[1], call.collective, call.nbytes, groups)
                for call, groups in mine
            ]
            work = works[chunk.stage, chunk.chunk].of(kind)
            # Operators and exchanges take turns many times in a pass: others meet its mean rate.
            flow = builder.of(0.0, work.seconds(plan.values["slowdown"]), parts)
            if flow.shared >= 0:
                inside[chunk.stage, chunk.chunk, kind] = flow
    return inside


def message_bytes(step: Step) -> float:
    """Bytes that one rank sends to the next stage per micro-batch: tp ranks send a slice each (scatter/gather,
    Narayanan et al. 2021, section 4.1; with sequence parallelism they have no more)."""
    return float(step.rank_tokens * step.model.hidden * step.precision.activation_bytes / step.tp)


def _sends(step: Step, mesh: Mesh, builder: FlowBuilder, order: Order) -> dict[tuple[int, int], Flow]:
    pairs = {(a, b) for route in set(order.routes) for (a, _), (b, _) in pairwise(route) if a != b}
    nbytes, whole = message_bytes(step), message_bytes(step) * step.tp
    gathered = 0.0 if step.sequence_parallel else 1.0
    ranks = mesh.groups("tp", "cp", "dp")
    stage = {int(s): row for s, row in zip(mesh.coordinates()["pp"][ranks[:, 0]], ranks, strict=True)}
    return {
        (a, b): builder.send(
            np.stack([stage[a], stage[b]], axis=1),
            nbytes,
            gathered * builder.comm("all_gather", whole, mesh.groups_of(b, "tp")),
        )
        for x, y in sorted(pairs)
        for a, b in ((x, y), (y, x))
    }


def _reduces(
    step: Step, mesh: Mesh, builder: FlowBuilder, chunks: Sequence[Chunk], plan: StepPlan, topology: Topology | None
) -> list[list[list[Flow]]]:
    """Buckets of every chunk's gradients; under ZeRO-3, whose passes carry them, sums over the groups of HSDP."""
    per_stage: list[list[list[Flow]]] = [[[] for _ in range(1 + max(c.chunk for c in chunks))] for _ in range(step.pp)]
    if step.frozen_weights:
        for chunk in chunks:
            nbytes = trained_of(step, chunk, plan) * step.precision.gradient_bytes
            if nbytes and step.dp > 1:
                flow = _collective(builder, mesh, "all_reduce", nbytes, chunk.stage, (("dp", "cp"), 0, 1))
                per_stage[chunk.stage][chunk.chunk].append(flow)
        return per_stage
    if step.zero_stage == 3:  # once per step, and only what several groups have a copy of
        for chunk in chunks:
            nbytes = chunk_weights(step, chunk).dense * step.precision.gradient_bytes
            flows = _across(mesh, builder, nbytes, chunk.stage, _shares(step, ("dp", "cp")))
            per_stage[chunk.stage][chunk.chunk] += flows
        return per_stage
    bucket = plan.bucket_bytes or default_bucket_bytes(step)
    for chunk in chunks:
        for parameters, axes in _groups(step, mesh, chunk):
            nbytes = parameters * step.precision.gradient_bytes
            number = max(1, round(nbytes / bucket))
            if plan.parameter_server:
                flows = [_served(step, topology, nbytes / number)]
            else:
                flows = _summed(step, mesh, builder, nbytes / number, chunk.stage, axes)
            per_stage[chunk.stage][chunk.chunk] += flows * number
    return per_stage


def trained_of(step: Step, chunk: Chunk, plan: StepPlan) -> float:
    """Weights beside a frozen base that a rank trains in a chunk."""
    return plan.trainable * chunk.layers / step.model.layers


def _summed(
    step: Step, mesh: Mesh, builder: FlowBuilder, nbytes: float, stage: int, axes: tuple[str, ...]
) -> list[Flow]:
    """A bucket of gradients: over all ranks, or scattered over those that share a copy, and the shards summed."""
    if step.zero_stage == 0:
        return [_collective(builder, mesh, "all_reduce", nbytes, stage, (axes, 0, 1))]
    share = _shares(step, axes)
    scattered = _collective(builder, mesh, "reduce_scatter", nbytes, stage, share)
    return [scattered, *_across(mesh, builder, nbytes, stage, share)]


def _shares(step: Step, axes: tuple[str, ...]) -> Axes:
    """The groups that share one copy: experts are sharded over all their copies."""
    return (axes, step.shards if axes == ("dp", "cp") else 0, 1)


def _across(mesh: Mesh, builder: FlowBuilder, nbytes: float, stage: int, share: Axes) -> list[Flow]:
    """Shards of gradients summed over the groups that share a copy each (HSDP); nothing where there is one group."""
    axes, ranks, _ = share
    if ranks in (0, mesh.size(*axes)):
        return []
    return [_collective(builder, mesh, "all_reduce", nbytes / ranks, stage, (axes, 0, ranks))]


def _collective(builder: FlowBuilder, mesh: Mesh, name: str, nbytes: float, stage: int, of: Axes) -> Flow:
    axes, ranks, every = of
    groups = mesh.groups_of(stage, *axes, ranks=ranks, every=every)
    return builder.collective(name, nbytes, groups, (name, of))


def _served(step: Step, topology: Topology | None, nbytes: float) -> Flow:
    """A bucket of every worker to the one server and the new parameters back, over the bare links to its host."""
    from commsim.collectives.star import parameter_server_all_reduce
    from commsim.engine.evaluate import evaluate

    if topology is None:
        raise InfeasibleError("a parameter server is timed on links: it needs a topology")
    schedule = parameter_server_all_reduce(step.dp, max(1, round(nbytes)))
    return Flow(nbytes, evaluate(schedule, topology).makespan_s)


def _gathers(
    step: Step,
    mesh: Mesh,
    builder: FlowBuilder,
    chunks: Sequence[Chunk],
    works: Mapping[tuple[int, int], ChunkWork],
    plan: StepPlan,
) -> list[list[Flow]]:
    """ZeRO-1 and 2: the updated parameters come back, once per step; with `overlap_param_gather` beside the next step's
    first forward of the stage, so that of each flow only what that leaves in the open counts."""
    per_stage: list[list[Flow]] = [[] for _ in range(step.pp)]
    if step.zero_stage not in (1, 2) or step.frozen_weights:
        return per_stage
    for chunk in chunks:
        for parameters, axes in _groups(step, mesh, chunk):
            nbytes = parameters * step.precision.weight_bytes
            flow = _collective(builder, mesh, "all_gather", nbytes, chunk.stage, _shares(step, axes))
            per_stage[chunk.stage].append(flow)
    return [_left_open(step, stage, flows, works, plan) for stage, flows in enumerate(per_stage)]


def momentum_calls(step: Step) -> list[tuple[str, float, tuple[str, ...]]]:
    """(collective, bytes, axes) of what a rank gathers for Muon's update of the mean stage; nothing of others."""
    if step.optimizer != "muon":
        return []
    collective = "all_to_all" if step.zero_stage == 3 else "all_gather"
    copied = zip(gathered_bytes(step), (("dp", "cp"), ("edp",)), strict=True)
    return [(collective, float(nbytes), axes) for nbytes, axes in copied if nbytes]


def _momenta(step: Step, mesh: Mesh, builder: FlowBuilder) -> list[list[Flow]]:
    calls = momentum_calls(step)
    return [
        [_collective(builder, mesh, name, nbytes, stage, _shares(step, axes)) for name, nbytes, axes in calls]
        for stage in range(step.pp)
    ]


def hides_parameters(step: Step) -> bool:
    """Whether updated parameters come back beside the next step's forward (Megatron-LM, ``--overlap-param-gather``)."""
    return step.overlap_dp and step.overlap_param_gather


def _left_open(
    step: Step, stage: int, flows: list[Flow], works: Mapping[tuple[int, int], ChunkWork], plan: StepPlan
) -> list[Flow]:
    """The flows of a stage with the seconds that stay in the open beside one forward of its chunks."""
    whole = sum(flow.seconds for flow in flows)
    if not hides_parameters(step) or not whole:
        return flows
    window = sum(work.F.compute for (of, _), work in works.items() if of == stage)
    share = float(added(whole, window, plan.values["exposed_dp"], plan.values["slowdown"])) / whole
    return [replace(flow, seconds=share * flow.seconds) for flow in flows]


def _groups(step: Step, mesh: Mesh, chunk: Chunk) -> list[tuple[float, tuple[str, ...]]]:
    """The parameters of a chunk, with the axes over which there are several copies of them."""
    weights = chunk_weights(step, chunk)
    copied = ((weights.dense, ("dp", "cp")), (weights.expert, ("edp",)))
    return [(parameters, axes) for parameters, axes in copied if parameters and mesh.size(*axes) > 1]


def default_bucket_bytes(step: Step) -> float:
    """Megatron-LM's bucket: 40 million gradients, or a million per data-parallel rank where that is more
    (megatron/core/distributed/distributed_data_parallel.py)."""
    return max(40e6, 1e6 * step.dp * step.cp) * step.precision.gradient_bytes
