"""Several jobs at once on one network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from commsim.document.types import KeyFaults
from commsim.nccl.environment import ALGORITHM_NAMES
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
    libraries: ClassVar[tuple[str, ...]] = ("none", "gloo", "nccl")
    of_parts: ClassVar[bool] = True
    by_events: ClassVar[bool] = True

    def faults(self, setting: Setting) -> KeyFaults:
        """Libraries whose jobs are not simulated, and what a library chooses itself."""
        name = setting.library.name
        groups = f"found a mesh with library {name}, whose jobs are one communicator each; expected library nccl"
        faults: KeyFaults = [
            (("jobs", i, "mesh"), groups) for i, job in enumerate(self.jobs) if job.mesh is not None and name != "nccl"
        ]
        if name == "none":
            return faults
        if name == "nccl":
            return faults + [
                (("jobs", i, "algorithm"), f"found {job.algorithm}, expected one of {', '.join(ALGORITHM_NAMES)}")
                for i, job in enumerate(self.jobs)
                if job.algorithm is not None and job.algorithm not in ALGORITHM_NAMES
            ]
        own = "found {} with library gloo, which chooses itself"
        faults += [
            (("jobs", i, key), own.format(key))
            for i, job in enumerate(self.jobs)
            for key in ("algorithm", "channels")
            if getattr(job, key) is not None
        ]
        text = "found background with library gloo, expected it only with library none or nccl"
        return faults + ([(("background",), text)] if self.background else [])

    def place_faults(self, topology: Topology, base_dir: Path) -> KeyFaults:
        """Ranks that are not on the machine."""
        return self.rank_faults(topology.world_size)

    def run(self, site: WorkSite) -> tuple[JobsItem, list[str]]:
        """A row per job, and where both views of contention differ."""
        from commsim.scenario.together import run_jobs

        return run_jobs(site, self)
