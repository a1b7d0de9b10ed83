"""Jobs beside each other on real ranks: every job timed alone, then all of them let go at once."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from commsim.measure.operations import ReadyCollective, operation
from commsim.measure.run import Run
from commsim.measure.tasks import JobsTask, JobTask
from commsim.measure.timing import barrier, slowest
from commsim.units import format_bytes, microseconds


@dataclass(frozen=True)
class JobSample:
    """Seconds of every call of one rank's job, alone and together, and elements that were wrong."""

    alone: list[float]
    together: list[float]
    wrong: int


def measure_jobs(work: JobsTask, run: Run, rank: int, device: Any) -> JobSample | None:
    """What a rank sees of its job, None where it has none; all ranks of the run call this.

    Before every call all ranks meet. A call takes from there, and from the job's start, until it returns; where the
    rank is late, with its sleep.
    """
    patience = timedelta(seconds=run.timeout_s)
    groups = [dist.new_group(list(job.ranks), timeout=patience, backend="gloo") for job in work.jobs]
    mine = work.of_rank(rank)
    op = None if mine is None else _operation(mine, groups[work.jobs.index(mine)], rank, device)
    # A rank waits at the meetings while jobs of others run alone.
    alone = [_timed(op if job is mine else None, job, run, rank) for job in work.jobs]
    together = _timed(op, mine, run, rank)
    wrong = _wrong(op)
    for group in groups:
        if dist.get_rank(group) >= 0:
            dist.destroy_process_group(group)
    return None if mine is None else JobSample(alone[work.jobs.index(mine)], together, wrong)


def _operation(job: JobTask, group: Any, rank: int, device: Any) -> ReadyCollective:
    return operation(job.task, job.size, "oop", job.ranks.index(rank), len(job.ranks), device, group)


def _timed(op: ReadyCollective | None, job: JobTask | None, run: Run, rank: int) -> list[float]:
    """Seconds of the calls of a rank's job, after those that warm up; without one, nothing but the meetings."""
    seconds = []
    if op is not None:
        op.fill()
    for call in range(run.warmup + run.iterations):
        barrier()
        if op is None or job is None:
            continue
        begin = time.perf_counter()
        time.sleep(job.start_s + run.late_of(rank))
        op.call()
        if call >= run.warmup:
            seconds.append(time.perf_counter() - begin - job.start_s)
    return seconds


def _wrong(op: ReadyCollective | None) -> int:
    """Elements that one more call of all jobs at once, on fresh data, gets wrong on this rank."""
    if op is not None:
        op.fill()
    barrier()
    if op is None:
        return 0
    op.call()
    return op.wrong()


def jobs_record(work: JobsTask, repeat: int, every: Sequence[JobSample | None]) -> dict[str, Any]:
    """What ``jobs.json`` holds of an item, from the samples of all ranks.

    A job has ended when its slowest rank has; times are medians over the calls, in microseconds, and the slowdown is
    their ratio.
    """
    return {"name": work.name, "repeat": repeat, "jobs": [_record(job, every) for job in work.jobs]}


def _record(job: JobTask, every: Sequence[JobSample | None]) -> dict[str, Any]:
    samples = [sample for rank in job.ranks if (sample := every[rank]) is not None]
    alone = slowest([sample.alone for sample in samples]).tolist()
    together = slowest([sample.together for sample in samples]).tolist()
    middle = statistics.median(alone), statistics.median(together)
    return {
        "job": job.name,
        "collective": job.task.collective,
        "n_ranks": len(job.ranks),
        "size_bytes": job.size,
        "start_us": microseconds(job.start_s),
        "alone_us": microseconds(middle[0]),
        "together_us": microseconds(middle[1]),
        "slowdown": middle[1] / middle[0],
        "alone_min_us": microseconds(min(alone)),
        "alone_max_us": microseconds(max(alone)),
        "together_min_us": microseconds(min(together)),
        "together_max_us": microseconds(max(together)),
        "wrong": sum(sample.wrong for sample in samples),
    }


def format_jobs(record: dict[str, Any]) -> str:
    """A line per job, as the table of a run has one per row."""
    return "\n".join(
        f"# {record['name']}, {job['job']}: {job['collective']} of {format_bytes(job['size_bytes'])} on "
        f"{job['n_ranks']} ranks: alone {job['alone_us']:.0f} us, together {job['together_us']:.0f} us, "
        f"slowdown {job['slowdown']:.3f}, wrong {job['wrong']}"
        for job in record["jobs"]
    )
