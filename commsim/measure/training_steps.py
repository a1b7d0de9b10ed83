"""Training steps on real ranks: seconds, what communication adds to them, bytes sent, and the peak of memory."""

from __future__ import annotations

import ctypes
import gc
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import nn

from commsim.measure.gpu import Gpus
from commsim.measure.pipeline import one_forward_one_backward
from commsim.measure.run import TrainingTask
from commsim.measure.small_transformer import batch, loss, reference_loss, sharded, stage, tensor_slice, whole
from commsim.measure.traffic import Bytes
from commsim.training import traffic

_MIB = 2**20

Step = Callable[[], Any]
"""Does one step; returns its mean loss as a tensor of the device, where this rank has one: nobody waits for it."""


@dataclass(frozen=True)
class Parallel:
    """A step under one parallelism; `alone` makes the step that does the same computing without the communication."""

    step: Step
    alone: Callable[[], Step]
    parameter_bytes: int


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
    with _matmul_precision(task):
        before = _resident_bytes()
        parallel = _PARALLEL[task.scheme](task, rank, device)
        first = parallel.step()
        parallel.step()
        _barrier()
        _forget_peak(gpu)
        counted = traffic_of()
        _barrier()
        start = traffic_of()
        seconds = _timed(parallel.step, steps, gpu)
        _barrier()
        end = traffic_of()
        peak = _peak_bytes(gpu) - (before if gpu is None else 0)
        sent = None
        if counted is not None and start is not None and end is not None:
            sent = ((end - start).sent - (start - counted).sent * (1 + steps)) / steps
        expected_bytes, size, make_alone = (
            expected_sent(task, rank, parallel.parameter_bytes),
            parallel.parameter_bytes,
            parallel.alone,
        )
        del parallel  # with the shards, which the unsharded model needs the room of
        alone = _alone_seconds(make_alone, steps, gpu)
        del make_alone
        _release(gpu)
        mine = expected = None
        if first is not None:
            mine, expected = float(first), reference_loss(task, _micro_batches(task, rank, device), device)
    return StepSample(seconds, alone, sent, peak, mine, expected, expected_bytes, size)


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
    _barrier()
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
            _barrier()
        _wait(gpu)
        start = time.perf_counter()
        step()
        _wait(gpu)
        seconds.append(time.perf_counter() - start)
    return seconds


def _barrier() -> None:
    dist.all_reduce(torch.zeros(1))


def _wait(gpu: Gpus | None) -> None:
    if gpu is not None:
        gpu.synchronize()


def _release(gpu: Gpus | None) -> None:
    """Gives back the memory of what nobody refers to any more."""
    gc.collect()
    if gpu is not None:
        gpu.release_memory()


@contextmanager
def _matmul_precision(task: TrainingTask) -> Iterator[None]:
    """Has products of float32 run as the task says; torch's default is not the same in all its versions."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if task.precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


# -- parallelisms ---------------------------------


def _micro_batches(task: TrainingTask, rank: int, device: Any) -> list[tuple[Any, Any]]:
    """The data of one step; ranks of data parallelism have their own, others the same."""
    first = 1000 * rank if task.splits_data else 0
    return [tuple(t.to(device) for t in batch(task, first + i)) for i in range(task.micro_batches)]


class _Optimizer:
    """AdamW as frameworks run it: fused on a GPU, and for weights of 16 bits on a master copy in float32."""

    def __init__(self, task: TrainingTask, model: Any, device: Any) -> None:
        self._weights = list(model.parameters())
        self._masters = self._weights
        if task.precision == "bf16-fp32" and self._weights[0].dtype != torch.float32:  # FSDP's shards are its masters
            self._masters = [w.detach().float() for w in self._weights]
        how = {"fused": True} if torch.device(device).type == "cuda" else {"foreach": False}
        self._adam = torch.optim.AdamW(self._masters, lr=1e-4, **how)

    def step(self) -> None:
        """Applies the gradients and drops them."""
        if self._masters is not self._weights:
            for master, weight in zip(self._masters, self._weights, strict=True):
                master.grad = weight.grad.float()
        self._adam.step()
        if self._masters is not self._weights:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, self._masters)
            for weight in self._weights:
                weight.grad = None
        self._adam.zero_grad(set_to_none=True)


def _accumulate(
    model: Any,
    optimizer: _Optimizer,
    data: list[tuple[Any, Any]],
    around: Callable[[bool], AbstractContextManager[Any]] = lambda last: nullcontext(),
) -> Any:
    """One step of gradient accumulation; `around` surrounds each micro-batch and knows the last one."""
    total = 0.0
    for i, (tokens, targets) in enumerate(data):
        with around(i == len(data) - 1):
            value = loss(model(tokens), targets) / len(data)
            value.backward()
        total = total + value.detach()  # on the device: reading it here would wait for the backward pass
    optimizer.step()
    return total


def _weights(task: TrainingTask, model: nn.Module) -> int:
    """Bytes of the weights of a rank before sharding, as they are sent."""
    return sum(int(p.numel()) for p in model.parameters()) * task.width


def _ddp(task: TrainingTask, rank: int, device: Any) -> Parallel:
    model = whole(task, device)
    size, data = _weights(task, model), _micro_batches(task, rank, device)
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=task.bucket_bytes / _MIB)
    optimizer = _Optimizer(task, wrapped, device)

    def around(last: bool) -> AbstractContextManager[Any]:
        context: AbstractContextManager[Any] = nullcontext() if last else wrapped.no_sync()
        return context

    return Parallel(
        lambda: _accumulate(wrapped, optimizer, data, around), lambda: lambda: _accumulate(model, optimizer, data), size
    )


def _fsdp(task: TrainingTask, rank: int, device: Any) -> Parallel:
    """ZeRO-3, or ZeRO-2 where parameters stay gathered until the last micro-batch is through."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    keep = task.scheme == "zero2"
    torch.zeros((), device=device)  # a mesh chooses a GPU by the rank where none is in use yet
    mesh = init_device_mesh(torch.device(device).type, (task.ranks,))
    policy = MixedPrecisionPolicy()
    if task.precision == "bf16-fp32":  # gathered, multiplied and reduced in 16 bits; the shards stay in float32
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)

    def shard(module: Any) -> Any:
        return fully_shard(module, mesh=mesh, reshard_after_forward=not keep, mp_policy=policy)

    model = sharded(task, rank, device, shard)
    size, data = _weights(task, model), _micro_batches(task, rank, device)
    optimizer = _Optimizer(task, model, device)

    def around(last: bool) -> AbstractContextManager[Any]:
        if keep:
            model.set_reshard_after_backward(last)
        return nullcontext()

    def alone() -> Step:
        plain = whole(task, device)  # only now: beside the shards it would be most of the peak of memory
        whole_optimizer = _Optimizer(task, plain, device)
        return lambda: _accumulate(plain, whole_optimizer, data)

    return Parallel(lambda: _accumulate(model, optimizer, data, around), alone, size)


def _tensor(task: TrainingTask, rank: int, device: Any) -> Parallel:
    model = tensor_slice(task, rank, device)
    optimizer, data = _Optimizer(task, model, device), _micro_batches(task, rank, device)

    def alone() -> Any:
        for block in model.blocks:
            block.alone = True
        try:
            return _accumulate(model, optimizer, data)
        finally:
            for block in model.blocks:
                block.alone = False

    return Parallel(lambda: _accumulate(model, optimizer, data), lambda: alone, _weights(task, model))


def _pipeline(task: TrainingTask, rank: int, device: Any) -> Parallel:
    model = stage(task, rank, device)
    optimizer, data = _Optimizer(task, model, device), _micro_batches(task, rank, device)

    def step(communicate: bool) -> Any:
        total = one_forward_one_backward(task, model, data, rank, device, communicate=communicate)
        optimizer.step()
        return total

    return Parallel(lambda: step(True), lambda: lambda: step(False), _weights(task, model))


_PARALLEL: dict[str, Callable[[TrainingTask, int, Any], Parallel]] = {
    "ddp": _ddp,
    "zero2": _fsdp,
    "zero3": _fsdp,
    "tp": _tensor,
    "pp": _pipeline,
}


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


def _forget_peak(gpu: Gpus | None) -> None:
    """Starts a new peak; where the kernel does not let us, the peak is that since the start."""
    if gpu is not None:
        gpu.reset_peak_memory()
        return
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    except OSError:
        return


def _peak_bytes(gpu: Gpus | None) -> int:
    return _status("VmHWM") if gpu is None else gpu.peak_memory()


# -- results ---------------------------------


def training_record(task: TrainingTask, samples: list[StepSample]) -> dict[str, Any]:
    """What all ranks measured, as plain values with units in the names; seconds are medians of the slowest rank."""
    slowest = torch.tensor([s.seconds for s in samples], dtype=torch.float64).amax(dim=0)
    step_s, compute_s = float(slowest.quantile(0.5)), None
    if all(s.alone_seconds for s in samples):
        compute_s = float(
            torch.tensor([s.alone_seconds for s in samples], dtype=torch.float64).amax(dim=0).quantile(0.5)
        )
    tokens = task.micro_batch_size * task.seq_len * task.micro_batches * (task.ranks if task.splits_data else 1)
    return {
        "name": task.name,
        "scheme": task.scheme,
        "ranks": task.ranks,
        "precision": task.precision,
        "parameter_bytes": [s.parameter_bytes for s in samples],
        "tokens_per_step": tokens,
        "step_s": step_s,
        "step_p95_s": float(slowest.quantile(0.95)),
        "step_min_s": float(slowest.min()),
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
    ratio = (
        ""
        if most is None or not any(expected)
        else (f", sent {most:.0f} B/rank ({most / max(expected):.4f} of the schedules')")
    )
    exposed = record["exposed_comm_s"]
    hidden = "no room to compute alone" if exposed is None else f"exposed communication {exposed * 1e3:.1f} ms"
    return (
        f"# training {record['name']} on {record['ranks']} ranks: step {record['step_s'] * 1e3:.1f} ms, "
        f"{hidden}{ratio}, "
        f"peak memory {max(record['peak_memory_bytes']) / _MIB:.0f} MiB, #wrong {record['wrong']}"
    )
