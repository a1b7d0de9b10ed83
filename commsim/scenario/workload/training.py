"""A training step: its time, its causes, its memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from commsim.document.types import KeyFaults
from commsim.scenario.training import TrainingSpec, is_processor_file, machine_faults
from commsim.scenario.work import Traced, WorkItem, WorkSite

if TYPE_CHECKING:
    from commsim.scenario.training_result import TrainingItem
    from commsim.topology.graph import Topology


class TrainingWork(WorkItem):
    """A workload item that is a training step."""

    kind: ClassVar[str] = "trainings"
    noun: ClassVar[str] = "training"
    libraries: ClassVar[tuple[str, ...]] = ("nccl", "gloo", "synthesized")

    training: TrainingSpec = Field(description="one training step")

    def place_faults(self, topology: Topology, base_dir: Path) -> KeyFaults:
        """What does not go with the machine, each at its key."""
        return [(("training", *path), text) for path, text in machine_faults(self.training, topology, base_dir)]

    def name_files(self, item: dict[str, Any], name: Callable[[str], str]) -> None:
        """The files of parameters, of the model's shape and of the processor."""
        training = item["training"]
        if "params" in training:
            training["params"] = name(training["params"])
        if training.get("model", "").endswith(".json"):
            training["model"] = name(training["model"])
        if is_processor_file(training.get("accelerator")):
            training["accelerator"] = name(training["accelerator"])

    def run(self, site: WorkSite) -> tuple[TrainingItem, list[str]]:
        """The step, simulated."""
        from commsim.scenario.training_run import kept_times, run_training

        comm = kept_times(site.cache, site.setting, site.topology)
        return run_training(site.setting, site.topology, self.training, comm=comm)

    def traced(self, site: WorkSite) -> Traced:
        """What every stage does over the step, and what it holds in memory."""
        from commsim.training.streams import STREAMS

        item, _ = self.run(site)
        memory = {stage: item.memory_over_time(stage) for stage in range(item.step.pp)}
        title = f"{item.name}: one step, {item.schedule}"
        return Traced(item.timeline, title, kind="stage", streams=STREAMS, counters=memory)
