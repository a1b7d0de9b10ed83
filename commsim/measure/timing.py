"""Times of one operation on one rank: warm-up, iterations, bytes sent, and the check of the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from commsim.measure.gpu import gpus
from commsim.measure.operations import ReadyCollective
from commsim.measure.run import Run
from commsim.measure.traffic import Bytes


@dataclass(frozen=True)
class Sample:
    """Seconds of every iteration on one rank, elements that were wrong, payload bytes sent per call or None."""

    seconds: list[float]
    wrong: int
    sent: float | None


def sample(op: ReadyCollective, run: Run, device: Any, traffic: Callable[[], Bytes | None]) -> Sample:
    """Runs an operation `warmup` + `iterations` times, then once more on fresh data to check it.

    ``back_to_back``: one call after the other; ``single``: a barrier before each. Seconds are those between the start
    and the end of a call on a CPU, between events on the stream of a GPU.
    """
    op.fill()
    for _ in range(run.warmup):
        op.call()
    _barrier(device)
    before = traffic()
    _barrier(device)
    between = traffic()
    single = run.mode == "single"
    seconds = (_cuda_times if device.type == "cuda" else _cpu_times)(op, run.iterations, single, device)
    _barrier(device)
    after = traffic()
    wrong = 0
    if run.check:
        op.fill()
        _barrier(device)
        op.call()
        wrong = op.wrong()
    barriers = 1 + run.iterations * single
    return Sample(seconds, wrong, sent_per_call(before, between, after, run.iterations, barriers))


def sent_per_call(
    before: Bytes | None, between: Bytes | None, after: Bytes | None, calls: int, barriers: int
) -> float | None:
    """Bytes of one call: those from `between` to `after`, less the barriers among them, one of which came before."""
    if before is None or between is None or after is None:
        return None
    barrier = (between - before).sent
    counted = after - between
    return None if counted.too_few() else (counted.sent - barrier * barriers) / calls


def _barrier(device: Any) -> None:
    """All ranks have come here, and the GPU of this one has nothing left to do."""
    if device.type == "cuda":
        gpus().synchronize()
    dist.all_reduce(torch.zeros(1))


def _cpu_times(op: ReadyCollective, iterations: int, single: bool, device: Any) -> list[float]:
    seconds = []
    for _ in range(iterations):
        if single:
            _barrier(device)
        start = time.perf_counter()
        op.call()
        seconds.append(time.perf_counter() - start)
    return seconds


def _cuda_times(op: ReadyCollective, iterations: int, single: bool, device: Any) -> list[float]:
    events = [gpus().event() for _ in range(2 * iterations)]
    for first, last in zip(events[::2], events[1::2], strict=True):
        if single:
            _barrier(device)
        first.record()
        op.call()
        last.record()
    gpus().synchronize()
    return [first.seconds_to(last) for first, last in zip(events[::2], events[1::2], strict=True)]
