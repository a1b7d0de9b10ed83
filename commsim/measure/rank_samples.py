"""The row of a table from what every rank measured of it."""

from __future__ import annotations

from typing import Any

from commsim.measure.link_counters import expected_sent
from commsim.measure.records import busbw_factor
from commsim.measure.run import Repeat, Run
from commsim.measure.splits import group_of
from commsim.measure.timing import Sample, slowest
from commsim.units import gb_per_s, microseconds


def row_of(point: Repeat, run: Run, every: list[dict[str, Sample]]) -> dict[str, Any]:
    """The columns of one row from the samples of all ranks."""
    task, size, ranks = point.task, point.size, run.group_size
    row = point.columns(run)
    for place in run.places(task):
        samples = [rank[place] for rank in every]
        time_s, columns = (_mean_of_ranks if run.through_libnccl(task) else _slowest_rank)(samples)
        row |= {
            f"{place}_time_us": microseconds(time_s),
            f"{place}_algbw_GBps": gb_per_s(size / time_s),
            f"{place}_busbw_GBps": gb_per_s(size / time_s) * busbw_factor(task.collective, ranks),
            f"{place}_wrong": sum(s.wrong for s in samples) if run.check else "N/A",
            **{f"{place}_{name}_us": microseconds(seconds) for name, seconds in columns.items()},
        }
        sent = [s.sent for s in samples]
        if all(n is not None for n in sent) and (any(sent) or run.world_size == 1):
            row["sent_bytes"] = " ".join(f"{n:.0f}" for n in sent)
    places_of = [group_of(run.split, run.world_size, rank).index(rank) for rank in range(run.world_size)]
    expected = [expected_sent(task.collective, size, rank, ranks, task.root) for rank in places_of]
    if all(n is not None for n in expected):
        row["expected_sent_bytes"] = " ".join(f"{n:.0f}" for n in expected)
    return row


def _mean_of_ranks(samples: list[Sample]) -> tuple[float, dict[str, float]]:
    """The mean over the ranks, as nccl-tests prints it (``-a 1``), beside the fastest and the slowest rank."""
    times = [s.seconds[0] for s in samples]
    mean = sum(times) / len(times)
    return mean, {"mean": mean, "min": min(times), "max": max(times)}


def _slowest_rank(samples: list[Sample]) -> tuple[float, dict[str, float]]:
    """The median over the calls, each of which is over when its slowest rank is through."""
    seconds = slowest([s.seconds for s in samples])
    ends = {"min": float(seconds.min()), "max": float(seconds.max())}
    columns = {"mean": float(seconds.mean()), "p95": float(seconds.quantile(0.95)), **ends}
    return float(seconds.quantile(0.5)), columns
