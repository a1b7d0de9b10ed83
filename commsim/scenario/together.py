"""The jobs of a workload item run together: seconds alone and beside each other, and where they meet."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from commsim.collectives import registry
from commsim.engine.evaluate import BothWays, Contention
from commsim.engine.jobs import BackgroundFlow, Job, JobProgram, JobTimes, job_program, run_programs
from commsim.engine.program import Int64
from commsim.engine.usage import kind_name
from commsim.engine.variation import RepeatedTimes
from commsim.errors import ScheduleError, TopologyError
from commsim.scenario.jobs_result import JobRow, JobsItem
from commsim.scenario.raw import MOST_COMPARED, even_node, raw_schedule
from commsim.units import format_bandwidth

if TYPE_CHECKING:
    from commsim.scenario.jobs import JobsSpec
    from commsim.scenario.work import WorkSite
    from commsim.topology.graph import Topology


@dataclass(frozen=True, eq=False)
class MadeJob:
    """What a library makes of a job: its algorithm, its ranks, and by the number of a run what it does on the links."""

    algorithm: str
    n_ranks: int
    program: Callable[[int], JobProgram]


def run_jobs(site: WorkSite, work: JobsSpec) -> tuple[JobsItem, list[str]]:
    """The rows of one item of jobs, and what the user should know."""
    scenario, topology = site.setting, site.topology
    for i in range(len(work.background)):
        _check_flow(site, work, i)
    if scenario.library.name == "nccl":
        from commsim.scenario.nccl_jobs import run_nccl_jobs

        return run_nccl_jobs(site, work)
    jobs = [MAKERS[scenario.library.name](site, work, i) for i in range(len(work.jobs))]
    flows = [BackgroundFlow(f.src, f.dst, f.size, f.rate, f.start) for f in work.background]
    repeats = 1 if scenario.variation is None else scenario.variation.variation.repeats

    def together(run: int, contention: Contention, **knobs: float) -> JobTimes:
        return run_programs([job.program(run) for job in jobs], flows, topology, contention, **knobs)

    runs = [together(run, scenario.contention) for run in range(repeats)]
    rows = []
    for i, (spec, job) in enumerate(zip(work.jobs, jobs, strict=True)):
        alone_s = RepeatedTimes(np.array([run.alone_s[i] for run in runs]))
        together_s = RepeatedTimes(np.array([run.together_s[i] for run in runs]))
        meeting = runs[0].meetings[i]
        rows.append(
            JobRow(
                job=work.job_name(i),
                collective=spec.collective,
                algorithm=job.algorithm,
                n_ranks=job.n_ranks,
                size_bytes=spec.size,
                start_s=spec.start,
                alone_s=alone_s.median_s,
                together_s=together_s.median_s,
                # Of runs that vary: the median ratio, not the ratio of medians of different runs.
                slowdown=float(np.median([run.slowdown[i] for run in runs])),
                p99_s=together_s.p99_s if len(runs) > 1 else None,
                shared_links=meeting.links,
                meets_on=_place(topology, meeting.link) if meeting.links else "",
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
    if scenario.library.name != "none" or runs[0].messages > MOST_COMPARED:
        return item, []  # only schedules of ours may share links in either way
    names = [row.job for row in rows]
    if scenario.contention == "fair":
        return item, _differences(names, together(0, "fifo"), runs[0])
    return item, _differences(names, runs[0], together(0, "fair", quantum=1e-3))


def _place(topology: Topology, link: int) -> str:
    """Where jobs meet; links behind the topology's stand for cores, or for a process of both jobs."""
    if link >= topology.link_bandwidth.size:
        return "processor"
    return f"{topology.link_name(link)} ({kind_name(topology, link)})"


def _raw_job(site: WorkSite, work: JobsSpec, i: int) -> MadeJob:
    """A schedule as it is."""
    topology, spec = site.topology, work.jobs[i]
    ranks = _ranks(site, work, i)
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
    job = Job(work.job_name(i), schedule, ranks, spec.start)
    variation = None if site.setting.variation is None else site.setting.variation.variation
    return MadeJob(schedule.algorithm, ranks.size, lambda run: job_program(job, topology, variation, (run, i)))


def _gloo_job(site: WorkSite, work: JobsSpec, i: int) -> MadeJob:
    """One call of gloo among the job's ranks, each a process of its own."""
    from commsim.gloo.predict import GlooPredictor
    from commsim.scenario.params import gloo_parameters

    setting, spec, ranks = site.setting, work.jobs[i], _ranks(site, work, i)
    model = GlooPredictor(
        site.topology, gloo_parameters(setting)[0], one_host=setting.library.one_host, late_s=setting.late_s
    )
    algorithm, program = model.beside_others(spec.collective, spec.size, ranks, spec.root or 0)
    made = JobProgram.from_start(program, program.route, spec.start)
    return MadeJob(algorithm, ranks.size, lambda run: made)


MAKERS: dict[str, Callable[[WorkSite, JobsSpec, int], MadeJob]] = {"none": _raw_job, "gloo": _gloo_job}
"""By library, what makes the program of the i-th job of an item."""


def _ranks(site: WorkSite, work: JobsSpec, i: int) -> Int64:
    ranks = work.jobs[i].ranks
    return np.arange(site.topology.world_size) if ranks is None else np.array(ranks, np.int64)


def _check_flow(site: WorkSite, work: JobsSpec, i: int) -> None:
    """A ScenarioError if a flow has no way, or the narrowest link of it carries less than the flow's rate."""
    topology, flow = site.topology, work.background[i]
    try:
        route = topology.route(flow.src, flow.dst)
    except TopologyError as error:
        raise site.error(("background", i), str(error)) from None
    narrowest = int(route[np.argmin(topology.link_bandwidth[route])])
    if flow.rate is not None and flow.rate > topology.link_bandwidth[narrowest]:
        message = (
            f"found {format_bandwidth(flow.rate)}, expected at most what the narrowest link of the way carries, "
            f"{format_bandwidth(float(topology.link_bandwidth[narrowest]))} ({topology.link_name(narrowest)})"
        )
        raise site.error(("background", i, "rate"), message)


def _differences(names: list[str], fifo: JobTimes, fair: JobTimes) -> list[str]:
    """A line for each job whose time together differs by more than a tenth between the two views of contention."""
    return [
        f"{name}: {1e6 * a:.6g} us with FIFO links and {1e6 * b:.6g} us with fair sharing, "
        f"{max(a, b) / min(a, b) - 1:.0%} apart; slowdown {x:.3g} and {y:.3g}"
        for name, a, b, x, y in zip(names, fifo.together_s, fair.together_s, fifo.slowdown, fair.slowdown, strict=True)
        if BothWays(a, b).differs
    ]
