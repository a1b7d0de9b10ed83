"""Execution traces, replayed on the machine."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from commsim.document.types import KeyFaults
from commsim.errors import CommsimError, ScenarioError
from commsim.scenario.chakra import TraceFiles, TraceSpec
from commsim.scenario.work import Traced, WorkItem, WorkSite

if TYPE_CHECKING:
    from commsim.scenario.chakra_result import TraceItem
    from commsim.topology.graph import Topology


class TraceWork(WorkItem):
    """A workload item of execution traces."""

    kind: ClassVar[str] = "traces"
    noun: ClassVar[str] = "a trace"
    libraries: ClassVar[tuple[str, ...]] = ("nccl",)

    trace: TraceSpec = Field(description="execution traces of all ranks")

    def place_faults(self, topology: Topology, base_dir: Path) -> KeyFaults:
        """What is not on a machine of as many ranks."""
        spec, world_size = self.trace, topology.world_size
        there = f"expected one of the {world_size} ranks 0..{world_size - 1}"
        wrong = [rank for rank in spec.ranks or () if rank >= world_size]
        faults: KeyFaults = [(("trace", "ranks"), f"found rank {rank}, {there}") for rank in wrong[:1]]
        count = len(spec.places(world_size))
        if spec.dims is not None and math.prod(spec.dims) != count:
            shown = " * ".join(map(str, spec.dims))
            text = f"found {shown} = {math.prod(spec.dims)}, expected a product of {count}, the ranks of the trace"
            faults.append((("trace", "dims"), text))
        return faults

    def name_files(self, item: dict[str, Any], name: Callable[[str], str]) -> None:
        """The prefix of the traces and the file of groups."""
        traces = item["trace"]
        traces |= {key: name(traces[key]) for key in ("path", "groups") if key in traces}

    def read(self, site: WorkSite) -> TraceFiles:
        """What the files of all ranks hold."""
        if not site.topology.one_build:
            text = "found nodes of different kinds, expected nodes that are alike, some of which may have faults"
            raise site.setting.document.error(("topology",), text)
        try:
            return TraceFiles(self.trace, site.setting.base_dir, site.topology.world_size)
        except CommsimError as error:
            raise ScenarioError([site.fault(("trace", "path"), text) for text in str(error).split("\n")]) from None

    def run(self, site: WorkSite) -> tuple[TraceItem, list[str]]:
        """The replay: the time, what ranks spend it on, the critical path."""
        from commsim.scenario.chakra_run import run_trace

        return run_trace(site, self.trace, site.files)

    def traced(self, site: WorkSite) -> Traced:
        """What every rank does."""
        from commsim.chakra.simulate import STREAMS

        item, _ = self.run(site)
        title = f"{item.name}: {item.nodes:,} nodes of {len(item.ranks)} ranks"
        return Traced(item.timeline, title, streams=STREAMS)
