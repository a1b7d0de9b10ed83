"""Several jobs at once on one network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from commsim.document.types import KeyFaults
from commsim.scenario.jobs import JobsSpec
from commsim.scenario.setting import Setting
from commsim.scenario.work import WorkItem, WorkSite

if TYPE_CHECKING:
    from commsim.scenario.jobs_result import JobsItem
    from commsim.topology.graph import Topology


class JobsWork(JobsSpec, WorkItem):
    """Jobs that share the network, each beside the time it takes alone."""

    kind: ClassVar[str] = "jobs"
    noun: ClassVar[str] = "jobs"
    libraries: ClassVar[tuple[str, ...]] = ("none",)
    by_events: ClassVar[bool] = True

    def faults(self, setting: Setting) -> KeyFaults:
        """Libraries, whose times are not those of links."""
        name = setting.library.name
        if name == "none":
            return []
        text = f"found jobs with library {name}, whose times are not those of links; expected library none"
        return [(("jobs",), text)]

    def place_faults(self, topology: Topology, base_dir: Path) -> KeyFaults:
        """Ranks that are not on the machine."""
        return self.rank_faults(topology.world_size)

    def run(self, site: WorkSite) -> tuple[JobsItem, list[str]]:
        """A row per job, and where both views of contention differ."""
        from commsim.scenario.together import run_jobs

        return run_jobs(site, self)
