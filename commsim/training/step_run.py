"""From a `Step` on a machine to a simulated step: schedule, passes, flows, and the figures people ask for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from commsim.errors import InfeasibleError
from commsim.training.communicators import CommTime
from commsim.training.flows import Flow, FlowBuilder
from commsim.training.mesh import Mesh
from commsim.training.pipeline import Order
from commsim.training.pipeline_schedules import build
from commsim.training.simulate import StepCosts, StepRun, simulate
from commsim.training.spec import Step, StepPlan
from commsim.training.stages import Chunk, chunk_weights, chunks_of
from commsim.training.traffic import AxisCalls
from commsim.training.work import ChunkWork, ComputeTime, chunk_calls, chunk_work

if TYPE_CHECKING:
    from commsim.topology.graph import Topology


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

    def run(self) -> StepRun:
        """Simulate it."""
        return simulate(self.order, self.works, self.machine, self.plan.stragglers)


def step_program(
    step: Step,
    compute: ComputeTime,
    comm: CommTime,
    *,
    optimizer_s: Sequence[float],
    topology: Topology | None = None,
    mesh: Mesh | None = None,
    plan: StepPlan | None = None,
) -> StepProgram:
    """What a step runs: passes with the seconds of what they exchange, sends, gradients, updates.

    Without a topology no two transfers contend.
    """
    plan, mesh = plan or StepPlan(), mesh or mesh_of(step)
    order = order_of_step(step)
    places = places_of(step, plan.layers)
    known: dict[tuple[Any, ...], ChunkWork] = {}
    works: dict[tuple[int, int], ChunkWork] = {}
    for chunk in places:
        kind = (chunk.layers, chunk.embeds, chunk.outputs, chunk.moe_layers(step.model))
        if kind not in known:
            known[kind] = chunk_work(step, mesh, chunk, compute(chunk), comm, plan)
        works[chunk.stage, chunk.chunk] = known[kind]
    builder = FlowBuilder(
        mesh, step.gpus_per_node, comm, topology if plan.contention else None, sharded=step.zero_stage == 3
    )
    machine = StepCosts(
        sends=_sends(step, builder, order),
        reduces=_reduces(step, builder, places, plan, topology),
        gathers=_gathers(step, builder, places),
        optimizer_s=_updates(step, places, plan) if plan.offload and plan.offload.optimizer else optimizer_s,
        overlap_dp=step.overlap_dp,
        overlap_pp=step.overlap_pp,
        every_micro_batch=step.zero_stage == 2,
        inside=_inside(step, builder, places, works, plan),
        slowdown=plan.slowdown,
        topology=topology,
    )
    return StepProgram(step, mesh, plan, order, places, works, machine)


def _updates(step: Step, chunks: Sequence[Chunk], plan: StepPlan) -> list[float]:
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
    builder: FlowBuilder,
    chunks: Sequence[Chunk],
    works: Mapping[tuple[int, int], ChunkWork],
    plan: StepPlan,
) -> dict[tuple[int, int, str], Flow]:
    """What passes exchange over cards, as flows beside sends and gradients; of the axis that takes longest."""
    inside: dict[tuple[int, int, str], Flow] = {}
    crossing = builder.crossing if builder.topology is not None else ()
    for chunk in chunks if crossing else ():
        calls = chunk_calls(step, chunk, plan)
        for kind, phase in (("F", "forward"), ("B", "backward"), ("I", "backward")):
            exchanges = works[chunk.stage, chunk.chunk].of(kind).exchanges
            flows = []
            for axes in crossing:
                seconds = sum(e.seconds for e in exchanges if e.axis == axes[0])
                each = builder.mesh.size(*axes) / builder.mesh.nodes_spanned(step.gpus_per_node, *axes).max()
                nbytes = sum(_over_cards(c, each) for c in calls if c.axis == axes[0] and c.phase == phase)
                if axes[0] == "dp":
                    weights = chunk_weights(step, chunk).dense * (step.shards - 1) / step.shards / each
                    scattered = step.precision.gradient_bytes if phase == "backward" else 0.0
                    nbytes = weights * (step.precision.weight_bytes + scattered)
                if nbytes and seconds:
                    flows.append(builder.inside(nbytes, seconds, chunk.stage, *axes))
            busiest = max((f for f in flows if f is not None), key=lambda f: f.seconds, default=None)
            if busiest is not None:
                inside[chunk.stage, chunk.chunk, kind] = busiest
    return inside


def _over_cards(call: AxisCalls, each: float) -> float:
    """Bytes of a call that leave a node over one rank's card; ``each`` ranks of the group on a node."""
    if call.collective == "all_to_all":
        return call.count * call.nbytes * (call.ranks - each) / call.ranks
    return call.sent_bytes / each


def message_bytes(step: Step) -> float:
    """Bytes that one rank sends to the next stage per micro-batch: cut by tp with sequence parallelism."""
    return float(step.rank_tokens * step.model.hidden * step.precision.activation_bytes / step.sequence_cut)


def _sends(step: Step, builder: FlowBuilder, order: Order) -> dict[tuple[int, int], Flow]:
    pairs = {(a, b) for route in set(order.routes) for (a, _), (b, _) in pairwise(route) if a != b}
    nbytes = message_bytes(step)
    return {(a, b): builder.send(a, b, nbytes) for x, y in sorted(pairs) for a, b in ((x, y), (y, x))}


def _reduces(
    step: Step, builder: FlowBuilder, chunks: Sequence[Chunk], plan: StepPlan, topology: Topology | None
) -> list[list[list[Flow]]]:
    """Buckets of every chunk's gradients; none under ZeRO-3, whose passes carry them."""
    per_stage: list[list[list[Flow]]] = [[[] for _ in range(1 + max(c.chunk for c in chunks))] for _ in range(step.pp)]
    if step.frozen_weights:
        nbytes = plan.trainable * step.precision.gradient_bytes
        if nbytes and step.dp > 1:
            per_stage[0][0].append(builder.collective("all_reduce", nbytes, 0, "dp", "cp"))
        return per_stage
    if step.zero_stage == 3:
        return _replicated(step, builder, chunks, per_stage)
    bucket = plan.bucket_bytes or default_bucket_bytes(step)
    collective = "all_reduce" if step.zero_stage == 0 else "reduce_scatter"
    for chunk in chunks:
        for parameters, axes in _groups(step, builder.mesh, chunk):
            nbytes = parameters * step.precision.gradient_bytes
            number = max(1, round(nbytes / bucket))
            if plan.parameter_server:
                flow = _served(step, topology, nbytes / number)
            else:
                flow = builder.collective(collective, nbytes / number, chunk.stage, *axes)
            per_stage[chunk.stage][chunk.chunk] += [flow] * number
    return per_stage


def _served(step: Step, topology: Topology | None, nbytes: float) -> Flow:
    """A bucket of every worker to the one server and the new parameters back, over the bare links to its host."""
    from commsim.collectives.star import parameter_server_all_reduce
    from commsim.engine.evaluate import evaluate

    if topology is None:
        raise InfeasibleError("a parameter server is timed on links: it needs a topology")
    schedule = parameter_server_all_reduce(step.dp, max(1, round(nbytes)))
    return Flow(nbytes, evaluate(schedule, topology).makespan_s)


def _replicated(
    step: Step, builder: FlowBuilder, chunks: Sequence[Chunk], per_stage: list[list[list[Flow]]]
) -> list[list[list[Flow]]]:
    """HSDP: once per step the shards of gradients are summed over the groups; nothing where there is one group."""
    if step.shards == step.dp * step.cp:
        return per_stage
    for chunk in chunks:
        group = builder.mesh.group_of(builder.mesh.rank(pp=chunk.stage), "dp", "cp")[:: step.shards]
        nbytes = chunk_weights(step, chunk).dense * step.precision.gradient_bytes / step.shards
        seconds = builder.comm("all_reduce", nbytes, group)
        flow = Flow(nbytes, seconds, call=("all_reduce", ("dp", "cp"), step.shards))
        per_stage[chunk.stage][chunk.chunk].append(flow)
    return per_stage


def _gathers(step: Step, builder: FlowBuilder, chunks: Sequence[Chunk]) -> list[list[Flow]]:
    """ZeRO-1 and 2: the updated parameters come back, once per step."""
    per_stage: list[list[Flow]] = [[] for _ in range(step.pp)]
    if step.zero_stage not in (1, 2) or step.frozen_weights:
        return per_stage
    for chunk in chunks:
        for parameters, axes in _groups(step, builder.mesh, chunk):
            nbytes = parameters * step.precision.weight_bytes
            per_stage[chunk.stage].append(builder.collective("all_gather", nbytes, chunk.stage, *axes))
    return per_stage


def _groups(step: Step, mesh: Mesh, chunk: Chunk) -> list[tuple[float, tuple[str, ...]]]:
    """The parameters of a chunk, with the axes over which there are several copies of them."""
    weights = chunk_weights(step, chunk)
    copied = ((weights.dense, ("dp", "cp")), (weights.expert, ("edp",)))
    return [(parameters, axes) for parameters, axes in copied if parameters and mesh.size(*axes) > 1]


def default_bucket_bytes(step: Step) -> float:
    """Megatron-LM's bucket: 40 million gradients, or a million per data-parallel rank where that is more
    (megatron/core/distributed/distributed_data_parallel.py)."""
    return max(40e6, 1e6 * step.dp * step.cp) * step.precision.gradient_bytes
