"""Runs a ``trace:`` item: compute as the traces state it or by the GPU's datasheet, communication by NCCL's model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from commsim.chakra.flows import SharedLinks
from commsim.chakra.groups import Groups
from commsim.chakra.program import build
from commsim.chakra.simulate import simulate
from commsim.chakra.trace import Node
from commsim.errors import ScenarioError
from commsim.scenario.chakra_result import TraceItem
from commsim.scenario.training import accelerator_of
from commsim.scenario.training_run import comm_times
from commsim.training.accelerator import accelerator

if TYPE_CHECKING:
    from commsim.scenario.chakra import TraceFiles, TraceSpec
    from commsim.scenario.work import WorkSite
    from commsim.topology.graph import Topology


class ComputeSeconds:
    """Seconds of a node: what the trace states, else the roofline of the datasheet; counts what it did."""

    def __init__(self, spec: TraceSpec, topology: Topology) -> None:
        self._spec, self._topology = spec, topology
        self._rates: tuple[float, float] | None = None
        self.by_datasheet = self.unknown = 0

    def __call__(self, node: Node) -> float:
        """Seconds, 0 where the trace says nothing about a node."""
        if node.kind == "none":
            return 0.0
        if node.seconds is not None:
            return node.seconds * self._spec.compute_scale
        if not node.flops and not node.nbytes:
            self.unknown += node.kind != "cpu"
            return 0.0
        self.by_datasheet += 1
        peak, memory = self._datasheet()
        return max(node.flops / peak, node.nbytes / memory) * self._spec.compute_scale

    def _datasheet(self) -> tuple[float, float]:
        if self._rates is None:
            spec = self._spec
            gpu = accelerator(spec.accelerator) if spec.accelerator else accelerator_of(self._topology)
            self._rates = gpu.peak(spec.precision), gpu.memory_bytes_per_s
        return self._rates


def run_trace(site: WorkSite, spec: TraceSpec, files: TraceFiles) -> tuple[TraceItem, list[str]]:
    """(item, warnings) of traces on the scenario's machine."""
    scenario, topology = site.setting, site.topology
    places = spec.places(topology.world_size)
    axes = spec.dims or _own_axes(topology, len(places))
    groups = Groups(files.traces, files.moved, files.listed, axes)
    comm, compute = comm_times(scenario, topology), ComputeSeconds(spec, topology)
    try:
        program = build(files.traces, groups, comm, places, compute)
        shared = SharedLinks(program, comm, places) if spec.contention else None
        run = simulate(program, shared)
    except ScenarioError as error:
        raise site.error(("trace", "path"), str(error)) from None
    warnings = [*comm.warnings]
    if groups.guessed:
        names = ", ".join(sorted(groups.guessed)[:4]) + (", ..." if len(groups.guessed) > 4 else "")
        warnings.append(
            f"trace: no file says who is in the process groups {names}: taken as the ranks whose traces name them "
            "(groups: FILE says it)"
        )
    if compute.by_datasheet:
        warnings.append(
            f"trace: {compute.by_datasheet:,} nodes have num_ops or tensor_size and no duration: timed at the "
            "datasheet's peaks, which no kernel reaches (compute_scale corrects that)"
        )
    if compute.unknown:
        warnings.append(f"trace: {compute.unknown:,} nodes have neither a duration nor num_ops: they take no time")
    return TraceItem(name=scenario.name, places=places, run=run), warnings


def _own_axes(topology: Topology, count: int) -> tuple[int, ...]:
    """What ``involved_dim`` counts unless told: the GPUs of a node, then the nodes."""
    each = topology.ranks_per_node
    return (each, count // each) if count > each and count % each == 0 else (count,)
