"""One measured log and the conditions it is predicted under."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from commsim.document import Document, validate
from commsim.errors import TopologyError
from commsim.nccl.operation import SUM, Operation
from commsim.nccl.predict import NCCL_TESTS_ITERATIONS
from commsim.nccl.version import Version
from commsim.topology.graph import Topology
from commsim.topology.presets import load_topology
from commsim.topology.spec import TopologySpec


@dataclass(frozen=True)
class Case:
    """One measured log and the conditions it is predicted under."""

    slug: str
    path: Path
    collective: str
    n_ranks: int
    nodes: int
    gpus_per_node: int
    system: str
    healthy: str
    machine: dict[str, object]  # a `topology:` description
    version: Version | None
    launch: str
    env: dict[str, str]
    notes: tuple[str, ...] = ()
    iterations: int = NCCL_TESTS_ITERATIONS  # calls timed together
    operation: Operation = SUM
    registered: str = "none"  # buffers of the calls (`commsim.nccl.registered`)
    fault: str = ""  # why no machine could be found
    row: dict[str, str] = field(default_factory=dict, compare=False)

    def topology(self) -> Topology:
        """The machine, built."""
        if self.fault:
            raise TopologyError(self.fault)
        document = Document(file=f"case {self.slug}", data=self.machine, marks={})
        return load_topology(validate(TopologySpec, document, error=TopologyError), Path())
