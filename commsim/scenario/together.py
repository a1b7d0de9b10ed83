"""The jobs of a workload item run together: seconds alone and beside each other, and where they meet."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from commsim.collectives import registry
from commsim.engine.evaluate import BothWays
from commsim.engine.jobs import BackgroundFlow, Job, JobTimes, run_together
from commsim.engine.usage import kind_name
from commsim.engine.variation import RepeatedTimes
from commsim.errors import ScheduleError
from commsim.scenario.jobs_result import JobRow, JobsItem
from commsim.scenario.raw import MOST_COMPARED, even_node, raw_schedule
from commsim.units import format_bandwidth

if TYPE_CHECKING:
    from commsim.scenario.jobs import JobsSpec
    from commsim.scenario.work import WorkSite


def run_jobs(site: WorkSite, work: JobsSpec) -> tuple[JobsItem, list[str]]:
    """The rows of one item of jobs, and what the user should know."""
    scenario, topology = site.setting, site.topology
    jobs = [_job(site, work, i) for i in range(len(work.jobs))]
    flows = [
        BackgroundFlow(f.src, f.dst, f.size, _paced(site, work, i), f.start) for i, f in enumerate(work.background)
    ]
    variation = None if scenario.variation is None else scenario.variation.variation
    together = partial(run_together, jobs, flows, topology, variation=variation)
    runs = [together(scenario.contention, run=run) for run in range(variation.repeats if variation else 1)]
    rows = []
    for i, (spec, job) in enumerate(zip(work.jobs, jobs, strict=True)):
        alone_s = RepeatedTimes(np.array([run.alone_s[i] for run in runs]))
        together_s = RepeatedTimes(np.array([run.together_s[i] for run in runs]))
        meeting = runs[0].meetings[i]
        place = f"{topology.link_name(meeting.link)} ({kind_name(topology, meeting.link)})" if meeting.links else ""
        rows.append(
            JobRow(
                job=job.name,
                collective=spec.collective,
                algorithm=job.schedule.algorithm,
                n_ranks=job.ranks.size,
                size_bytes=spec.size,
                start_s=spec.start,
                alone_s=alone_s.median_s,
                together_s=together_s.median_s,
                # Of runs that vary: the median ratio, not the ratio of medians of different runs.
                slowdown=float(np.median([run.slowdown[i] for run in runs])),
                p99_s=together_s.p99_s if len(runs) > 1 else None,
                shared_links=meeting.links,
                meets_on=place,
            )
        )
    item = JobsItem(
        name=scenario.name,
        world_size=topology.world_size,
        contention=scenario.contention,
        flows=len(flows),
        repeats=len(runs),
        rows=tuple(rows),
    )
    if runs[0].messages > MOST_COMPARED:
        return item, []
    if scenario.contention == "fair":
        return item, _differences(jobs, together("fifo"), runs[0])
    return item, _differences(jobs, runs[0], together("fair", quantum=1e-3))


def _job(site: WorkSite, work: JobsSpec, i: int) -> Job:
    topology, spec = site.topology, work.jobs[i]
    ranks = np.arange(topology.world_size) if spec.ranks is None else np.array(spec.ranks, np.int64)
    algorithm = spec.algorithm or registry.names(spec.collective)[0][1]
    try:
        schedule = raw_schedule(
            spec.collective,
            algorithm,
            spec.size,
            ranks.size,
            ranks_per_node=even_node(topology, ranks),
            channels=spec.channels or 1,
            root=spec.root or 0,
        )
    except ScheduleError as error:
        raise site.error(("jobs", i), str(error)) from None
    if schedule.endpoints > ranks.size:
        message = f"{algorithm} reduces in switches, which have no route here; expected another algorithm"
        raise site.error(("jobs", i, "algorithm"), message)
    return Job(work.job_name(i), schedule, ranks, spec.start)


def _paced(site: WorkSite, work: JobsSpec, i: int) -> float | None:
    """The rate of a flow; a fault if its narrowest link carries less."""
    topology, flow = site.topology, work.background[i]
    if flow.rate is None:
        return None
    route = topology.route(flow.src, flow.dst)
    narrowest = int(route[np.argmin(topology.link_bandwidth[route])])
    if flow.rate > topology.link_bandwidth[narrowest]:
        message = (
            f"found {format_bandwidth(flow.rate)}, expected at most what the narrowest link of the way carries, "
            f"{format_bandwidth(float(topology.link_bandwidth[narrowest]))} ({topology.link_name(narrowest)})"
        )
        raise site.error(("background", i, "rate"), message)
    return flow.rate


def _differences(jobs: list[Job], fifo: JobTimes, fair: JobTimes) -> list[str]:
    """A line for each job whose time together differs by more than a tenth between the two views of contention."""
    return [
        f"{job.name}: {1e6 * a:.6g} us with FIFO links and {1e6 * b:.6g} us with fair sharing, "
        f"{max(a, b) / min(a, b) - 1:.0%} apart; slowdown {x:.3g} and {y:.3g}"
        for job, a, b, x, y in zip(jobs, fifo.together_s, fair.together_s, fifo.slowdown, fair.slowdown, strict=True)
        if BothWays(a, b).differs
    ]
