"""Jobs of NCCL beside each other: each by NCCL's own choice on its ranks, over the links that their channels take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from commsim.engine.sharing import CallTraffic, beside, meetings
from commsim.engine.variation import RepeatedTimes
from commsim.errors import CommsimError
from commsim.nccl.noise import noise_of
from commsim.nccl.predict import Options, Prediction, Predictor
from commsim.nccl.traffic import call_of, flow_of
from commsim.scenario.jobs_result import JobRow, JobsItem
from commsim.scenario.params import nccl_parameters
from commsim.scenario.predictors import refuse_unlike_networks, survived, varied

if TYPE_CHECKING:
    from commsim.scenario.jobs import JobsSpec
    from commsim.scenario.setting import Setting
    from commsim.scenario.work import WorkSite
    from commsim.topology.graph import Topology
    from commsim.topology.kinds import Float64, Int64


@dataclass(frozen=True, eq=False)
class _Group:
    """One communicator of a job: its number of ranks, its call, and what NCCL chose for it."""

    ranks: int
    call: CallTraffic
    alone: Prediction
    alone_s: Float64  # of each run

    def of_run(self, run: int) -> CallTraffic:
        """Its call in one of the repeated runs."""
        return replace(self.call, alone_s=float(self.alone_s[run]))


def run_nccl_jobs(site: WorkSite, work: JobsSpec) -> tuple[JobsItem, list[str]]:
    """The rows of one item of jobs, and what the user should know.

    A job on an axis of a mesh has a communicator for each group; its row is that of the group that ends last.
    """
    topology, warnings = varied(site.setting, site.topology), survived(site.setting)
    if topology.draws_flowlets and len(work.jobs) + len(work.background) > 1:
        warnings.append(
            "routing: flowlet: each job alone meets its own flowlets; of others it is taken to meet "
            "the mean, evenly on all ways"
        )
    jobs = [_groups(site, work, i, topology, warnings) for i in range(len(work.jobs))]
    flows = [flow_of(topology, f.src, f.dst, f.size, f.rate, f.start) for f in work.background]
    every = [group for groups in jobs for group in groups]
    runs = every[0].alone_s.size
    _bounded(site, runs, len(every) + len(flows))
    beside_of_runs = [beside([*(group.of_run(run) for group in every), *flows]).seconds for run in range(runs)]
    seconds = np.array(beside_of_runs)[:, : len(every)]
    met = meetings([*(group.of_run(0) for group in every), *flows], beside_of_runs[0])
    rows, at = [], 0
    for i, (spec, groups) in enumerate(zip(work.jobs, jobs, strict=True)):
        own = range(at, at + len(groups))
        at += len(groups)
        together = RepeatedTimes(seconds[:, own.start : own.stop].max(axis=1))
        last = max(own, key=lambda k: seconds[together.typical, k])
        group, (links, link) = groups[last - own.start], met[last]
        alone = group.alone_s + group.call.late_s
        chosen = f"{group.alone.algorithm} {group.alone.protocol}, {group.alone.channels} channels"
        rows.append(
            JobRow(
                job=work.job_name(i),
                collective=spec.collective,
                algorithm=chosen if len(groups) == 1 else f"{chosen}, {len(groups)} groups",
                n_ranks=group.ranks,
                size_bytes=spec.size,
                start_s=spec.start,
                alone_s=float(np.median(alone)),
                together_s=together.median_s,
                slowdown=float(np.median(seconds[:, last] / alone)),  # not of medians of different runs
                p99_s=together.p99_s if runs > 1 else None,
                shared_links=links,
                meets_on=topology.link_name(link) if links else "",
            )
        )
    item = JobsItem(site.setting.name, topology.world_size, "fair", tuple(rows), len(flows), runs)
    return item, warnings


_MOST_CALLS = 20_000
"""Calls of all runs that share links: some seconds."""


def _bounded(site: WorkSite, runs: int, calls: int) -> None:
    """A ScenarioError where runs of many calls would take long."""
    if runs * calls > max(_MOST_CALLS, calls):
        text = (
            f"found {runs} runs of {calls} calls beside each other, expected up to {_MOST_CALLS:,} in all, which take "
            f"seconds: ask for fewer (variation.repeats={max(1, _MOST_CALLS // calls)})"
        )
        raise site.setting.document.error(("variation",), text)


def _alone_s(setting: Setting, model: Predictor, got: Prediction, collective: str, place: tuple[int, int]) -> Float64:
    """Seconds of a call alone in each of the repeated runs, (runs,), of the group of a job at a place.

    A node is as slow for all jobs that it has; messages are late for themselves.
    """
    variation = None if setting.variation is None else setting.variation.variation
    if variation is None or not variation.draws:
        return np.array([got.time_s])
    comm = model.nodes.comm
    drawn = variation.node_factors(variation.generator(0), (variation.repeats, comm.topology.nodes))
    seed = int(np.random.SeedSequence((variation.seed, *place)).generate_state(1)[0])
    later = noise_of(model, replace(variation, seed=seed), collective, got, drawn[:, comm.nodes])
    slower = [model.with_launch(got.kernel_s + float(each), got.launch_s) if each else 0.0 for each in later]
    return np.maximum(slower, got.time_s)


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
    for k, ranks in enumerate(spec.groups(topology.world_size)):
        refuse_unlike_networks(setting, topology, np.unique(topology.rank_node[ranks]).tolist())
        try:
            model = Predictor(topology, options, parameters, _rooted(ranks, spec.root or 0).tolist())
            call, alone = call_of(model, spec.collective, spec.size, spec.start)
            alone_s = _alone_s(setting, model, alone, spec.collective, (i, k))
        except CommsimError as error:
            raise site.error(("jobs", i), str(error)) from None
        warnings += [text for text in model.warnings if text not in warnings]
        late = max((setting.late_s.get(int(rank), 0.0) for rank in ranks), default=0.0)
        groups.append(_Group(ranks.size, replace(call, late_s=late), alone, alone_s))
    return groups


def _rooted(ranks: Int64, root: int) -> Int64:
    """The ranks with the root first, as the model has it."""
    return np.concatenate([ranks[root : root + 1], np.delete(ranks, root)]) if root else ranks
