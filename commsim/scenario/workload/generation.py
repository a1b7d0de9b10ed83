"""Generation: requests that are answered by replicas of a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from commsim.document.types import KeyFaults
from commsim.scenario.generation import GenerationSpec, load_faults, machine_faults
from commsim.scenario.setting import Setting
from commsim.scenario.work import Traced, WorkItem, WorkSite

if TYPE_CHECKING:
    from commsim.scenario.generation_result import GenerationItem
    from commsim.topology.graph import Topology


class GenerationWork(WorkItem):
    """A workload item of requests that a model answers."""

    kind: ClassVar[str] = "generations"
    noun: ClassVar[str] = "generation"
    libraries: ClassVar[tuple[str, ...]] = ("nccl",)

    generation: GenerationSpec = Field(description="requests that replicas of a model answer")

    def faults(self, setting: Setting) -> KeyFaults:
        """Another library, and no load."""
        of_item = [((self.key(), *path), text) for path, text in load_faults(self.generation)]
        return [*super().faults(setting), *of_item]

    def place_faults(self, topology: Topology, base_dir: Path) -> KeyFaults:
        """What does not go with the machine, each at its key."""
        return [(("generation", *path), text) for path, text in machine_faults(self.generation, topology, base_dir)]

    def name_files(self, item: dict[str, Any], name: Callable[[str], str]) -> None:
        """The files of the model's shape and of requests."""
        generation = item["generation"]
        if generation.get("model", "").endswith(".json"):
            generation["model"] = name(generation["model"])
        if "file" in generation:
            generation["file"] = name(generation["file"])

    def run(self, site: WorkSite) -> tuple[GenerationItem, list[str]]:
        """The requests, simulated; where notes are looked for, at other loads too."""
        from commsim.scenario.generation_run import run_generation

        return run_generation(site.setting, site.topology, self.generation, loads=site.notes)

    def traced(self, site: WorkSite) -> Traced:
        """The steps of every engine, those of a prefill pool first, and its cache; equal decode steps are one."""
        from commsim.scenario.generation_result import trace_of
        from commsim.scenario.generation_run import run_generation

        item, _ = run_generation(site.setting, site.topology, self.generation, loads=False)
        timeline, caches = trace_of(item)
        return Traced(timeline, f"{item.name}: {item.said}", kind="engine", streams=("steps",), counters=caches)
