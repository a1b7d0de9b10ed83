"""The machines of a plan's question: each with its topology, its setting and its space of configurations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from commsim.document import raise_faults
from commsim.document.types import Document
from commsim.errors import CommsimError, Fault, ScenarioError
from commsim.planner.question import SOFTWARE, Cluster, PlanSpec
from commsim.planner.space import Space, default_axes
from commsim.scenario.params import nccl_parameters
from commsim.scenario.setting import Setting
from commsim.scenario.training import accelerator_of
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.training.accelerator import accelerator
from commsim.training.model import model
from commsim.training.precision import Precision, precision, with_gradients
from commsim.training.spec import STOPS_EARLY
from commsim.units import GIGA


@dataclass(frozen=True, eq=False)
class ClusterSpace:
    """A cluster of the question: its topology and the space of configurations on it; as a scenario, its setting."""

    cluster: Cluster
    setting: Setting
    topology: Topology
    space: Space

    @property
    def title(self) -> str:
        """Its name in tables."""
        return self.cluster.title()


def machines(spec: PlanSpec, document: Document, base_dir: Path) -> list[ClusterSpace]:
    """The machines of a question with their spaces; faults are located at their cluster."""
    built, faults = list[ClusterSpace](), list[Fault]()
    for i, cluster in enumerate(spec.clusters):
        try:
            topology = load_topology(cluster.topology, base_dir)
            setting = _setting(cluster, document.part(("plan", "clusters", i)), base_dir)
            nccl_parameters(setting, topology)
            built.append(ClusterSpace(cluster, setting, topology, space_of(spec, cluster, topology)))
        except ScenarioError as error:
            faults += error.faults or [document.fault(("plan", "clusters", i), str(error))]
        except CommsimError as error:
            faults.append(document.fault(("plan", "clusters", i), str(error)))
    if faults:
        raise_faults(faults)
    return built


def _setting(cluster: Cluster, document: Document, base_dir: Path) -> Setting:
    setting = Setting.model_construct(name=cluster.title(), topology=cluster.topology, library=cluster.library)
    setting._document, setting._base_dir = document, base_dir
    return setting


def space_of(spec: PlanSpec, cluster: Cluster, topology: Topology) -> Space:
    """What may be chosen on a machine: all that it, the model and the framework allow, or what the question names."""
    if not topology.uniform:
        mend = "; plan without the faults, then run what is best with them" if cluster.topology.faults else ""
        raise CommsimError(f"found nodes of different kinds, expected nodes that are alike{mend}")
    architecture = model(spec.model)
    gpu = accelerator(cluster.accelerator) if cluster.accelerator else accelerator_of(topology)
    seq_lens = spec.seq_len or (architecture.seq_len,)
    axes = default_axes(
        architecture, topology.world_size, topology.ranks_per_node, tuple(spec.global_batch_size), tuple(seq_lens)
    )
    formats = {name: _formats(name, spec) for name in spec.precision}
    for one in formats.values():
        one.check(gpu)
    axes["precision"] = tuple(formats)
    offer = spec.offer
    axes = (offer.restricted(axes) if offer is not None else axes) | spec.named_axes
    share = topology.nic_bandwidth * topology.nics_per_node / topology.ranks_per_node
    return Space(
        architecture,
        gpu,
        topology.world_size,
        topology.ranks_per_node,
        share or GIGA,
        formats,
        axes,
        {name: getattr(spec, name) for name in SOFTWARE} | {"early_stop": spec.memory in STOPS_EARLY},
        sharded_pipelines=offer is not None and offer.sharded_pipelines,
    )


def _formats(name: str, spec: PlanSpec) -> Precision:
    """The precision; fp32 gradients with Megatron, as it trains."""
    formats = precision(name)
    return with_gradients(formats, 18 if spec.memory == "megatron" else 16) if formats.master else formats
