"""Training steps on real ranks: seconds, what communication adds to them, bytes sent, and the peak of memory."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from commsim.measure.compute_rates import float32_products, seconds_of
from commsim.measure.conditions import text_of
from commsim.measure.gpu import Gpus
from commsim.measure.parallelisms import PARALLELISMS, Step, micro_batches
from commsim.measure.small_transformer import reference_loss
from commsim.measure.tasks import TrainingTask
from commsim.measure.timing import barrier, counted, slowest
from commsim.measure.traffic import Bytes
from commsim.training import traffic

_MIB = 2**20


@dataclass(frozen=True)
class StepSample:
    """What one rank measured over several steps; the loss is that of the first.

    `alone_seconds` is empty where the computing does not fit into the memory of one rank.
    """

    seconds: list[float]
    alone_seconds: list[float]
    sent: float | None
    peak_bytes: int
    loss: float | None
    expected_loss: float | None
    expected_sent: float
    parameter_bytes: int


def measure_steps(
    task: TrainingTask,
    rank: int,
    device: Any,
    steps: int,
    traffic_of: Callable[[], Bytes | None],
    gpu: Gpus | None = None,
) -> StepSample:
    """Runs a task's steps on one rank: two to warm up, then `steps` timed, then as many without communication.

    `gpu` is the layer of the GPU that the rank works on, None on a CPU.
    """
    with float32_products("high" if task.precision == "tf32" else "highest"):
        before = _resident_bytes()
        parallel = PARALLELISMS[task.scheme](task, rank, device)
        first = parallel.step()
        parallel.step()
        _forget_peak(gpu)
        timed = partial(_timed, parallel.step, steps, gpu)
        seconds, sent = counted(timed, traffic_of, steps, 1 + steps, barrier)
        peak = _status("VmHWM") - before if gpu is None else gpu.peak_memory()
        size, make_alone = parallel.parameter_bytes, parallel.alone
        del parallel, timed  # with the shards, which the unsharded model needs the room of
        alone = _alone_seconds(make_alone, steps, gpu)
        del make_alone
        _release(gpu)
        mine = expected = None
        if first is not None:
            mine, expected = float(first), reference_loss(task, micro_batches(task, rank, device), device)
    return StepSample(seconds, alone, sent, peak, mine, expected, expected_sent(task, rank, size), size)


def _alone_seconds(make: Callable[[], Step], steps: int, gpu: Gpus | None) -> list[float]:
    """Seconds of the steps without communication; none on any rank where one of them has no room for them."""
    _release(gpu)
    if gpu is None:
        return _timed(make(), steps, gpu)
    seconds: list[float] = []
    try:
        alone = make()
        alone()
        seconds = _timed(alone, steps, gpu, together=False)  # a rank without room does not come to a barrier
    except (RuntimeError, MemoryError) as error:
        if not gpu.is_out_of_memory(error):
            raise
    barrier()
    return seconds


def expected_sent(task: TrainingTask, rank: int, parameter_bytes: float) -> float:
    """Bytes that a rank sends in one step, by the schedules; over gloo a reduce_scatter is an all_reduce."""
    n, m = task.ranks, task.micro_batches
    hidden = task.micro_batch_size * task.seq_len * task.hidden * task.width
    if task.scheme == "pp":
        return float(m * hidden * ((rank < n - 1) + (rank > 0)))
    if task.scheme == "tp":
        calls = traffic.tensor_parallel(task.layers * m, hidden, n, sequence_parallel=False, recompute=False)
    else:
        scheme = cast("traffic.Scheme", task.scheme)
        calls = traffic.data_parallel(scheme, parameter_bytes, parameter_bytes, n, m)
    as_done = 2.0 if task.over_gloo else 1.0
    return sum(call.sent_bytes * (as_done if call.collective == "reduce_scatter" else 1.0) for call in calls)


def _timed(step: Step, steps: int, gpu: Gpus | None, *, together: bool = True) -> list[float]:
    """Seconds of each step; `together` has all ranks begin at once."""
    seconds = []
    for _ in range(steps):
        if together:
            barrier()
        seconds.append(seconds_of(step, gpu))
    return seconds


def _release(gpu: Gpus | None) -> None:
    """Gives back the memory of what nobody refers to any more."""
    gc.collect()
    if gpu is not None:
        gpu.release_memory()


def _status(name: str) -> int:
    """Bytes that Linux states of this process under a name; elsewhere its peak."""
    if match := re.search(rf"^{name}:\s+(\d+)", text_of("/proc/self/status"), re.MULTILINE):
        return int(match[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if os.uname().sysname == "Darwin" else 1024)


def _resident_bytes() -> int:
    """Bytes in use now; what an earlier task has freed is given back to the system first."""
    gc.collect()
    with suppress(AttributeError, OSError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def _forget_peak(gpu: Gpus | None) -> None:
    """Starts a new peak; where the kernel does not let us, the peak is that since the start."""
    if gpu is not None:
        gpu.reset_peak_memory()
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")


def training_record(task: TrainingTask, samples: list[StepSample]) -> dict[str, Any]:
    """What all ranks measured, as plain values with units in the names; seconds are medians of the slowest rank."""
    seconds = slowest([s.seconds for s in samples])
    step_s, compute_s = float(seconds.quantile(0.5)), None
    if all(s.alone_seconds for s in samples):
        compute_s = float(slowest([s.alone_seconds for s in samples]).quantile(0.5))
    tokens = task.micro_batch_size * task.seq_len * task.micro_batches * (task.ranks if task.splits_data else 1)
    return {
        "name": task.name,
        "scheme": task.scheme,
        "ranks": task.ranks,
        "precision": task.precision,
        "parameter_bytes": [s.parameter_bytes for s in samples],
        "tokens_per_step": tokens,
        "step_s": step_s,
        "step_p95_s": float(seconds.quantile(0.95)),
        "step_min_s": float(seconds.min()),
        "compute_s": compute_s,
        "exposed_comm_s": None if compute_s is None else max(0.0, step_s - compute_s),
        "tokens_per_s": tokens / step_s,
        "sent_bytes": [s.sent for s in samples],
        "expected_sent_bytes": [s.expected_sent for s in samples],
        "peak_memory_bytes": [s.peak_bytes for s in samples],
        "losses": [s.loss for s in samples],
        "wrong": sum(_differs(s.loss, s.expected_loss, _TOLERANCE[task.width]) for s in samples),
    }


_TOLERANCE = {4: 1e-3, 2: 2e-2}
"""By bytes of a weight: sums in another order differ by far less, also in bfloat16 (8 bits) over all tokens' mean."""


def _differs(loss: float | None, expected: float | None, tolerance: float) -> bool:
    """Whether a loss is not that of the whole model; one that is no number is."""
    return loss is not None and expected is not None and not abs(loss - expected) <= tolerance * abs(expected)


def format_record(record: dict[str, Any]) -> str:
    """One line on a training item."""
    sent, expected = record["sent_bytes"], record["expected_sent_bytes"]
    most = max((s for s in sent if s is not None), default=None)
    ratio = ""
    if most is not None and any(expected):
        ratio = f", sent {most:.0f} B/rank ({most / max(expected):.4f} of the schedules')"
    exposed = record["exposed_comm_s"]
    hidden = "no room to compute alone" if exposed is None else f"exposed communication {exposed * 1e3:.1f} ms"
    return (
        f"# training {record['name']} on {record['ranks']} ranks: step {record['step_s'] * 1e3:.1f} ms, "
        f"{hidden}{ratio}, "
        f"peak memory {max(record['peak_memory_bytes']) / _MIB:.0f} MiB, #wrong {record['wrong']}"
    )
