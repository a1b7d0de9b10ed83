"""A step of reinforcement learning: rollout, scoring, update, and weights on their way to the engines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from commsim.document.types import KeyFaults
from commsim.scenario.rl import RlSpec, rl_faults
from commsim.scenario.training import is_processor_file
from commsim.scenario.work import WorkItem, WorkSite

if TYPE_CHECKING:
    from commsim.scenario.rl_result import RlItem
    from commsim.topology.graph import Topology


class RlWork(WorkItem):
    """A workload item that is a step of reinforcement learning."""

    kind: ClassVar[str] = "rl"
    noun: ClassVar[str] = "rl"
    libraries: ClassVar[tuple[str, ...]] = ("nccl",)

    rl: RlSpec = Field(description="one step of reinforcement learning")

    def place_faults(self, topology: Topology, base_dir: Path) -> KeyFaults:
        """What does not go with the machine, each at its key."""
        return [(("rl", *path), text) for path, text in rl_faults(self.rl, topology, base_dir)]

    def name_files(self, item: dict[str, Any], name: Callable[[str], str]) -> None:
        """The files of parameters, of the model's shape and of the processor."""
        training = item["rl"]["training"]
        if "params" in training:
            training["params"] = name(training["params"])
        if training.get("model", "").endswith(".json"):
            training["model"] = name(training["model"])
        if is_processor_file(training.get("accelerator")):
            training["accelerator"] = name(training["accelerator"])

    def run(self, site: WorkSite) -> tuple[RlItem, list[str]]:
        """The step."""
        from commsim.errors import InfeasibleError
        from commsim.scenario.rl_run import run_rl

        try:
            return run_rl(site.setting, site.topology, self.rl)
        except InfeasibleError as error:
            raise site.error(("rl",), str(error)) from None
