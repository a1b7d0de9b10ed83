"""Training steps on real ranks: seconds, what communication adds to them, bytes sent, and the peak of memory."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from commsim.measure.run import TrainingTask
from commsim.measure.small_transformer import Transformer, batch, loss, stage, tensor_slice, whole
from commsim.measure.traffic import Bytes
from commsim.training import traffic

_WIDTH = 4  # bytes of a float32, which weights, gradients and activations are
_MIB = 2**20


@dataclass(frozen=True)
class Parallel:
    """A step under one parallelism: `step` does it and returns its mean loss where this rank has one.

    `alone` does the same computing without the communication.
    """

    step: Callable[[], float | None]
    alone: Callable[[], float | None]
    parameter_bytes: int


@dataclass(frozen=True)
class StepSample:
    """What one rank measured over several steps; the loss is that of the first."""

    seconds: list[float]
    alone_seconds: list[float]
    sent: float | None
    peak_bytes: int
    loss: float | None
    expected_loss: float | None
    expected_sent: float
    parameter_bytes: int


def measure_steps(
    task: TrainingTask, rank: int, device: Any, steps: int, traffic_of: Callable[[], Bytes | None]
) -> StepSample:
    """Runs a task's steps on one rank: two to warm up, then `steps` timed, then as many without communication."""
    before = _resident_bytes()
    parallel = _PARALLEL[task.scheme](task, rank, device)
    first = parallel.step()
    parallel.step()
    _barrier()
    _forget_peak(device)
    counted = traffic_of()
    _barrier()
    start = traffic_of()
    seconds = _timed(parallel.step, steps, device)
    _barrier()
    end = traffic_of()
    peak = _peak_bytes(device) - (before if device.type == "cpu" else 0)
    alone = _timed(parallel.alone, steps, device)
    sent = None
    if counted is not None and start is not None and end is not None:
        sent = ((end - start).sent - (start - counted).sent * (1 + steps)) / steps
    expected = _expected_loss(task, rank) if first is not None else None
    bytes_ = expected_sent(task, rank, parallel.parameter_bytes)
    return StepSample(seconds, alone, sent, peak, first, expected, bytes_, parallel.parameter_bytes)


def expected_sent(task: TrainingTask, rank: int, parameter_bytes: float) -> float:
    """Bytes that a rank sends in one step, by the schedules; over gloo a reduce_scatter is an all_reduce."""
    n, m = task.ranks, task.micro_batches
    hidden = task.micro_batch_size * task.seq_len * task.hidden * _WIDTH
    if task.scheme == "pp":
        return float(m * hidden * ((rank < n - 1) + (rank > 0)))
    if task.scheme == "tp":
        calls = traffic.tensor_parallel(task.layers, hidden, n, m, sequence_parallel=False, recompute=False)
    else:
        scheme = cast("traffic.Scheme", task.scheme)
        calls = traffic.data_parallel(scheme, parameter_bytes, parameter_bytes, n, m)
    as_done = 2.0 if task.over_gloo else 1.0
    return sum(call.sent_bytes * (as_done if call.collective == "reduce_scatter" else 1.0) for call in calls)


def _timed(step: Callable[[], float | None], steps: int, device: Any) -> list[float]:
    seconds = []
    for _ in range(steps):
        _barrier()
        _wait(device)
        start = time.perf_counter()
        step()
        _wait(device)
        seconds.append(time.perf_counter() - start)
    return seconds


def _barrier() -> None:
    dist.all_reduce(torch.zeros(1))


def _wait(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# -- parallelisms ---------------------------------


def _micro_batches(task: TrainingTask, rank: int, device: Any) -> list[tuple[Any, Any]]:
    """The data of one step; ranks of data parallelism have their own, others the same."""
    first = 1000 * rank if task.splits_data else 0
    return [tuple(t.to(device) for t in batch(task, first + i)) for i in range(task.micro_batches)]


def _optimizer(model: Any) -> Any:
    return torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)


def _accumulate(
    model: Any,
    optimizer: Any,
    data: list[tuple[Any, Any]],
    around: Callable[[bool], AbstractContextManager[Any]] = lambda last: nullcontext(),
) -> float:
    """One step of gradient accumulation; `around` surrounds each micro-batch and knows the last one."""
    total = 0.0
    for i, (tokens, targets) in enumerate(data):
        with around(i == len(data) - 1):
            value = loss(model(tokens), targets) / len(data)
            value.backward()
        total += float(value.detach())
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return total


def _weights(model: nn.Module) -> int:
    return sum(p.numel() * p.element_size() for p in model.parameters())


def _ddp(task: TrainingTask, rank: int, device: Any) -> Parallel:
    model = whole(task).to(device)
    size, data = _weights(model), _micro_batches(task, rank, device)
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=task.bucket_bytes / _MIB)
    optimizer = _optimizer(wrapped)

    def around(last: bool) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = nullcontext() if last else wrapped.no_sync()
        return context

    return Parallel(
        lambda: _accumulate(wrapped, optimizer, data, around), lambda: _accumulate(model, optimizer, data), size
    )


def _fsdp(task: TrainingTask, rank: int, device: Any) -> Parallel:
    """ZeRO-3, or ZeRO-2 where parameters stay gathered until the last micro-batch is through."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    keep = task.scheme == "zero2"
    plain, model = whole(task).to(device), whole(task).to(device)
    size, data = _weights(plain), _micro_batches(task, rank, device)
    mesh = init_device_mesh(device.type, (task.ranks,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh, reshard_after_forward=not keep)
    fully_shard(model, mesh=mesh, reshard_after_forward=not keep)
    optimizer, alone = _optimizer(model), _optimizer(plain)

    def around(last: bool) -> AbstractContextManager[Any]:
        if keep:
            model.set_reshard_after_backward(last)
        return nullcontext()

    return Parallel(lambda: _accumulate(model, optimizer, data, around), lambda: _accumulate(plain, alone, data), size)


def _tensor(task: TrainingTask, rank: int, device: Any) -> Parallel:
    model = tensor_slice(task, rank).to(device)
    optimizer, data = _optimizer(model), _micro_batches(task, rank, device)

    def alone() -> float:
        for block in model.blocks:
            block.alone = True
        try:
            return _accumulate(model, optimizer, data)
        finally:
            for block in model.blocks:
                block.alone = False

    return Parallel(lambda: _accumulate(model, optimizer, data), alone, _weights(model))


def _pipeline(task: TrainingTask, rank: int, device: Any) -> Parallel:
    """One stage under 1F1B (Narayanan et al. 2019): warm-up forwards, then one forward and one backward in turn."""
    model = stage(task, rank).to(device)
    optimizer, data = _optimizer(model), _micro_batches(task, rank, device)
    n, m = task.ranks, task.micro_batches
    shape = (task.micro_batch_size, task.seq_len, task.hidden)
    total: list[float] = []

    def receive(peer: int, communicate: bool) -> Any:
        values = torch.zeros(shape, device=device)
        if communicate:
            dist.recv(values, peer)
        return values

    def forward(i: int, communicate: bool, sent: list[Any]) -> tuple[Any, Any]:
        given = data[i][0] if rank == 0 else receive(rank - 1, communicate).requires_grad_()
        result = model(given)
        if rank == n - 1:
            result = loss(result, data[i][1]) / m
            total.append(float(result.detach()))
        elif communicate:
            handed = result.detach()
            sent.append((dist.isend(handed, rank + 1), handed))
        return given, result

    def backward(given: Any, result: Any, communicate: bool, sent: list[Any]) -> None:
        result.backward(None if rank == n - 1 else receive(rank + 1, communicate))
        if rank > 0 and communicate:
            sent.append((dist.isend(given.grad, rank - 1), given.grad))

    def step(communicate: bool) -> float | None:
        total.clear()
        sent: list[Any] = []  # with the tensors, which must stay until they are through
        waiting: list[tuple[Any, Any]] = []
        warm = min(m, n - 1 - rank)
        for i in range(m):
            waiting.append(forward(i, communicate, sent))
            if i >= warm:
                backward(*waiting.pop(0), communicate, sent)
        while waiting:
            backward(*waiting.pop(0), communicate, sent)
        for work, _ in sent:
            work.wait()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return sum(total) if total else None

    return Parallel(lambda: step(True), lambda: step(False), _weights(model))


_PARALLEL: dict[str, Callable[[TrainingTask, int, Any], Parallel]] = {
    "ddp": _ddp,
    "zero2": _fsdp,
    "zero3": _fsdp,
    "tp": _tensor,
    "pp": _pipeline,
}


def _expected_loss(task: TrainingTask, rank: int) -> float:
    """The loss of the first step, by the whole model in this process."""
    model: Transformer = whole(task)
    with torch.no_grad():
        values = [float(loss(model(x), y)) for x, y in _micro_batches(task, rank, torch.device("cpu"))]
    return sum(values) / len(values)


# -- memory ---------------------------------


def _status(name: str) -> int:
    try:
        for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if os.uname().sysname == "Darwin" else 1024)


def _resident_bytes() -> int:
    """Bytes in use now; what an earlier task has freed is given back to the system first."""
    gc.collect()
    with suppress(AttributeError, OSError):  # glibc's
        ctypes.CDLL(None).malloc_trim(0)
    return _status("VmRSS")


def _forget_peak(device: Any) -> None:
    """Starts a new peak; where the kernel does not let us, the peak is that since the start."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return


def _peak_bytes(device: Any) -> int:
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else _status("VmHWM")


# -- results ---------------------------------


def training_record(task: TrainingTask, samples: list[StepSample]) -> dict[str, Any]:
    """What all ranks measured, as plain values with units in the names; seconds are medians of the slowest rank."""
    slowest, alone = (
        torch.tensor([getattr(s, name) for s in samples], dtype=torch.float64).amax(dim=0)
        for name in ("seconds", "alone_seconds")
    )
    step_s, compute_s = float(slowest.quantile(0.5)), float(alone.quantile(0.5))
    tokens = task.micro_batch_size * task.seq_len * task.micro_batches * (task.ranks if task.splits_data else 1)
    return {
        "name": task.name,
        "scheme": task.scheme,
        "ranks": task.ranks,
        "parameter_bytes": [s.parameter_bytes for s in samples],
        "tokens_per_step": tokens,
        "step_s": step_s,
        "step_p95_s": float(slowest.quantile(0.95)),
        "step_min_s": float(slowest.min()),
        "compute_s": compute_s,
        "exposed_comm_s": max(0.0, step_s - compute_s),
        "tokens_per_s": tokens / step_s,
        "sent_bytes": [s.sent for s in samples],
        "expected_sent_bytes": [s.expected_sent for s in samples],
        "peak_memory_bytes": [s.peak_bytes for s in samples],
        "losses": [s.loss for s in samples],
        "wrong": sum(_differs(s.loss, s.expected_loss) for s in samples),
    }


def _differs(got: float | None, expected: float | None) -> bool:
    """Whether a loss is not that of the whole model; sums in another order differ by far less than 1e-3."""
    return got is not None and expected is not None and abs(got - expected) > 1e-3 * abs(expected)


def format_record(record: dict[str, Any]) -> str:
    """One line on a training item."""
    sent, expected = record["sent_bytes"], record["expected_sent_bytes"]
    most = max((s for s in sent if s is not None), default=None)
    ratio = "" if most is None else f", sent {most:.0f} B/rank ({most / max(expected):.4f} of the schedules')"
    return (
        f"# training {record['name']} on {record['ranks']} ranks: step {record['step_s'] * 1e3:.1f} ms, "
        f"exposed communication {record['exposed_comm_s'] * 1e3:.1f} ms{ratio}, "
        f"peak memory {max(record['peak_memory_bytes']) / _MIB:.0f} MiB, #wrong {record['wrong']}"
    )
