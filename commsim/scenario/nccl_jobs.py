"""Jobs of NCCL beside each other: each by NCCL's own choice on its ranks, over the links that their channels take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from commsim.engine.sharing import CallTraffic, beside, meetings
from commsim.errors import CommsimError
from commsim.nccl.predict import Options, Prediction, Predictor
from commsim.nccl.traffic import call_of, flow_of
from commsim.scenario.jobs_result import JobRow, JobsItem
from commsim.scenario.params import nccl_parameters
from commsim.scenario.predictors import refuse_unlike_networks, survived, varied

if TYPE_CHECKING:
    from commsim.scenario.jobs import JobsSpec
    from commsim.scenario.work import WorkSite
    from commsim.topology.graph import Topology
    from commsim.topology.kinds import Int64


@dataclass(frozen=True, eq=False)
class _Group:
    """One communicator of a job: its number of ranks, its call, and what NCCL chose for it."""

    ranks: int
    call: CallTraffic
    alone: Prediction

    @property
    def alone_s(self) -> float:
        """Seconds of its call alone, from its start, its last rank's delay included."""
        return self.call.alone_s + self.call.late_s


def run_nccl_jobs(site: WorkSite, work: JobsSpec) -> tuple[JobsItem, list[str]]:
    """The rows of one item of jobs, and what the user should know.

    A job on an axis of a mesh has a communicator for each group; its row is that of the group that ends last.
    """
    topology, warnings = varied(site.setting, site.topology), survived(site.setting)
    if topology.draws_flowlets and len(work.jobs) + len(work.background) > 1:
        warnings.append(
            "routing: flowlet: each job alone meets its own flowlets; of others it is taken to meet the mean, evenly on "
            "all equal ways"
        )
    jobs = [_groups(site, work, i, topology, warnings) for i in range(len(work.jobs))]
    flows = [flow_of(topology, f.src, f.dst, f.size, f.rate, f.start) for f in work.background]
    calls = [group.call for groups in jobs for group in groups]
    seconds = beside([*calls, *flows]).seconds
    met = meetings([*calls, *flows], seconds)
    rows, at = [], 0
    for i, (spec, groups) in enumerate(zip(work.jobs, jobs, strict=True)):
        own = range(at, at + len(groups))
        at += len(groups)
        last = max(own, key=lambda k: seconds[k])
        group, (links, link) = groups[last - own.start], met[last]
        chosen = f"{group.alone.algorithm} {group.alone.protocol}, {group.alone.channels} channels"
        rows.append(
            JobRow(
                job=work.job_name(i),
                collective=spec.collective,
                algorithm=chosen if len(groups) == 1 else f"{chosen}, {len(groups)} groups",
                n_ranks=group.ranks,
                size_bytes=spec.size,
                start_s=spec.start,
                alone_s=group.alone_s,
                together_s=seconds[last],
                slowdown=seconds[last] / group.alone_s,
                shared_links=links,
                meets_on=topology.link_name(link) if links else "",
            )
        )
    item = JobsItem(site.setting.name, topology.world_size, "fair", tuple(rows), len(flows), 1)
    return item, warnings


def _groups(site: WorkSite, work: JobsSpec, i: int, topology: Topology, warnings: list[str]) -> list[_Group]:
    """The communicators of a job, each with its call."""
    setting, spec = site.setting, work.jobs[i]
    parameters, _ = nccl_parameters(setting, topology)
    options = Options(
        version=setting.library.named_version,
        env=setting.library.env,
        launch=setting.library.launch_mode,
        registered=setting.library.registered,
        mode=setting.mode,
        algorithm=spec.algorithm,
        channels=spec.channels,
    )
    groups = []
    for ranks in spec.groups(topology.world_size):
        refuse_unlike_networks(setting, topology, np.unique(topology.rank_node[ranks]).tolist())
        try:
            model = Predictor(topology, options, parameters, _rooted(ranks, spec.root or 0).tolist())
            call, alone = call_of(model, spec.collective, spec.size, spec.start)
        except CommsimError as error:
            raise site.error(("jobs", i), str(error)) from None
        warnings += [text for text in model.warnings if text not in warnings]
        late = max((setting.late_s.get(int(rank), 0.0) for rank in ranks), default=0.0)
        groups.append(_Group(ranks.size, replace(call, late_s=late), alone))
    return groups


def _rooted(ranks: Int64, root: int) -> Int64:
    """The ranks with the root first, as the model has it."""
    return np.concatenate([ranks[root : root + 1], np.delete(ranks, root)]) if root else ranks
