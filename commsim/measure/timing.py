"""Times of one operation on one rank, bytes sent, the check of the result; and the row of a table from all ranks'."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from commsim.collectives.semantics import busbw_factor
from commsim.measure.gpu import gpus
from commsim.measure.operations import ReadyCollective
from commsim.measure.run import Repeat, Run
from commsim.measure.splits import group_of
from commsim.measure.traffic import Bytes, expected_sent
from commsim.units import gb_per_s, microseconds

T = TypeVar("T")


@dataclass(frozen=True)
class Sample:
    """Seconds of every iteration on one rank, elements that were wrong, payload bytes sent per call or None."""

    seconds: list[float]
    wrong: int
    sent: float | None


def late(op: ReadyCollective, seconds: float) -> ReadyCollective:
    """The operation of a rank that sleeps before each call, which lasts so much longer by its clock.

    The rank's Python thread sleeps; the threads of gloo and the kernel go on with what the last call left them.
    """

    def call() -> None:
        time.sleep(seconds)
        op.call()

    return replace(op, call=call) if seconds else op


def sample(op: ReadyCollective, run: Run, device: Any, traffic: Callable[[], Bytes | None]) -> Sample:
    """Runs an operation `warmup` + `iterations` times, then once more on fresh data to check it.

    ``back_to_back``: one call after the other; ``single``: a barrier before each. Seconds are those between the start
    and the end of a call on a CPU, between events on the stream of a GPU.
    """
    op.fill()
    for _ in range(run.warmup):
        op.call()
    single, wrong, here = run.mode == "single", 0, partial(_idle_barrier, device)
    work = partial(_cuda_times if device.type == "cuda" else _cpu_times, op, run.iterations, single, device)
    seconds, sent = counted(work, traffic, run.iterations, 1 + run.iterations * single, here)
    if run.check:
        op.fill()
        here()
        op.call()
        wrong = op.wrong()
    return Sample(seconds, wrong, sent)


def barrier() -> None:
    """All ranks of the run have come here."""
    dist.all_reduce(torch.zeros(1))


def counted(
    work: Callable[[], T],
    traffic: Callable[[], Bytes | None],
    calls: int,
    barriers: int,
    meet: Callable[[], None] = barrier,
) -> tuple[T, float | None]:
    """What some work returns, and the bytes of one of its calls on this rank, None where they are not known.

    `barriers` counts those from the work's begin to the one after it; their bytes are taken off.
    """
    meet()  # an adapter that ranks share has sent what was to be sent before
    before = traffic()
    meet()
    between = traffic()
    result = work()
    meet()
    return result, sent_per_call(before, between, traffic(), calls, barriers)


def sent_per_call(
    before: Bytes | None, between: Bytes | None, after: Bytes | None, calls: int, barriers: int
) -> float | None:
    """Bytes of one call: those from `between` to `after`, less the barriers among them, one of which came before."""
    if before is None or between is None or after is None:
        return None
    of_barrier, of_all = (between - before).sent, after - between
    return None if of_all.too_few() else (of_all.sent - of_barrier * barriers) / calls


def slowest(seconds: list[list[float]]) -> Any:
    """Seconds of each call on its slowest rank, (calls,), from those of every rank."""
    return torch.tensor(seconds, dtype=torch.float64).amax(dim=0)


def _idle_barrier(device: Any) -> None:
    """All ranks have come here, and the GPU of this one has nothing left to do."""
    if device.type == "cuda":
        gpus().synchronize()
    barrier()


def _cpu_times(op: ReadyCollective, iterations: int, single: bool, device: Any) -> list[float]:
    seconds = []
    for _ in range(iterations):
        if single:
            _idle_barrier(device)
        start = time.perf_counter()
        op.call()
        seconds.append(time.perf_counter() - start)
    return seconds


def _cuda_times(op: ReadyCollective, iterations: int, single: bool, device: Any) -> list[float]:
    events = [gpus().event() for _ in range(2 * iterations)]
    for first, last in zip(events[::2], events[1::2], strict=True):
        if single:
            _idle_barrier(device)
        first.record()
        op.call()
        last.record()
    gpus().synchronize()
    return [first.elapsed_time(last) * 1e-3 for first, last in zip(events[::2], events[1::2], strict=True)]


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
