"""A training step of the small transformer under each parallelism of torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from commsim.measure.small_transformer import batch, compute_type, loss, sharded, stage, tensor_slice, whole
from commsim.measure.tasks import TrainingTask

_MIB = 2**20

Step = Callable[[], Any]
"""Does one step; returns its mean loss as a tensor of the device, where this rank has one: nobody waits for it."""


@dataclass(frozen=True)
class Parallel:
    """A step under one parallelism; `alone` makes the step that does the same computing without the communication."""

    step: Step
    alone: Callable[[], Step]
    parameter_bytes: int


def micro_batches(task: TrainingTask, rank: int, device: Any) -> list[tuple[Any, Any]]:
    """The data of one step; ranks of data parallelism have their own, others the same."""
    first = 1000 * rank if task.splits_data else 0
    return [tuple(t.to(device) for t in batch(task, first + i)) for i in range(task.micro_batches)]


class Optimizer:
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
    optimizer: Optimizer,
    batches: list[tuple[Any, Any]],
    around: Callable[[bool], AbstractContextManager[Any] | None] = lambda last: None,
) -> Any:
    """One step of gradient accumulation; `around`, which knows the last micro-batch, gives what surrounds each."""
    total = 0.0
    for i, (tokens, targets) in enumerate(batches):
        with around(i == len(batches) - 1) or nullcontext():
            value = loss(model(tokens), targets) / len(batches)
            value.backward()
        total = total + value.detach()  # on the device: reading it here would wait for the backward pass
    optimizer.step()
    return total


def _weights(task: TrainingTask, model: nn.Module) -> int:
    """Bytes of the weights of a rank before sharding, as they are sent."""
    return sum(int(p.numel()) for p in model.parameters()) * task.width


def _ddp(task: TrainingTask, rank: int, device: Any) -> Parallel:
    model = whole(task, device)
    size, batches = _weights(task, model), micro_batches(task, rank, device)
    wrapped = nn.parallel.DistributedDataParallel(model, bucket_cap_mb=task.bucket_bytes / _MIB)
    optimizer = Optimizer(task, wrapped, device)
    return Parallel(
        lambda: _accumulate(wrapped, optimizer, batches, lambda last: None if last else wrapped.no_sync()),
        lambda: lambda: _accumulate(model, optimizer, batches),
        size,
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
    size, batches = _weights(task, model), micro_batches(task, rank, device)
    optimizer = Optimizer(task, model, device)

    def around(last: bool) -> None:
        if keep:
            model.set_reshard_after_backward(last)

    def alone() -> Step:
        plain = whole(task, device)  # only now: beside the shards it would be most of the peak of memory
        whole_optimizer = Optimizer(task, plain, device)
        return lambda: _accumulate(plain, whole_optimizer, batches)

    return Parallel(lambda: _accumulate(model, optimizer, batches, around), alone, size)


def _tensor(task: TrainingTask, rank: int, device: Any) -> Parallel:
    model = tensor_slice(task, rank, device)
    optimizer, batches = Optimizer(task, model, device), micro_batches(task, rank, device)

    def alone() -> Any:
        for block in model.blocks:
            block.alone = True
        try:
            return _accumulate(model, optimizer, batches)
        finally:
            for block in model.blocks:
                block.alone = False

    return Parallel(lambda: _accumulate(model, optimizer, batches), lambda: alone, _weights(task, model))


def _pipeline(task: TrainingTask, rank: int, device: Any) -> Parallel:
    model = stage(task, rank, device)
    optimizer, batches = Optimizer(task, model, device), micro_batches(task, rank, device)

    def step(communicate: bool) -> Any:
        total = _one_forward_one_backward(task, model, batches, rank, device, communicate=communicate)
        optimizer.step()
        return total

    return Parallel(lambda: step(True), lambda: lambda: step(False), _weights(task, model))


def _one_forward_one_backward(
    task: TrainingTask, model: Any, batches: list[tuple[Any, Any]], rank: int, device: Any, *, communicate: bool = True
) -> Any | None:
    """One stage under 1F1B: warm-up forwards, then a forward and a backward in turn; the mean loss, on the last one.

    The schedule of PipeDream-Flush (Narayanan et al. 2021, arXiv:2104.04473, section 2.2). A send to a neighbour and
    the receive from it travel in one batch: NCCL's send ends when its receive has been posted, so that two neighbours
    that both send first would wait for each other. Without communication a stage receives zeros.
    """
    m, shape = task.micro_batches, (task.micro_batch_size, task.seq_len, task.hidden)
    before = rank - 1 if rank > 0 else None
    after = rank + 1 if rank < task.ranks - 1 else None
    waiting: list[tuple[Any, Any]] = []
    total = torch.zeros((), device=device)

    def swap(peer: int | None, send: Any | None, receive: bool) -> Any | None:
        """Sends to a neighbour, if there is one, and returns what it sends meanwhile, if anything is wanted."""
        if peer is None:
            return None
        received = torch.zeros(shape, dtype=compute_type(task), device=device) if receive else None
        calls = [dist.P2POp(dist.isend, send.contiguous(), peer)] if send is not None else []
        if received is not None:
            calls.append(dist.P2POp(dist.irecv, received, peer))
        if calls and communicate:
            for work in dist.batch_isend_irecv(calls):
                work.wait()
        return received

    def forward(i: int, given: Any | None) -> Any:
        nonlocal total
        result = model(batches[i][0] if given is None else given.requires_grad_())
        if after is None:
            result = loss(result, batches[i][1]) / m
            total = total + result.detach()
        waiting.append((given, result))
        return result.detach()

    def backward(gradient: Any | None) -> Any | None:
        given, result = waiting.pop(0)
        result.backward(gradient)
        return None if given is None else given.grad

    warm = min(m, task.ranks - 1 - rank)
    for i in range(warm):
        handed = forward(i, swap(before, None, receive=True))
        swap(after, handed, receive=False)
    given = swap(before, None, receive=True) if warm < m else None
    for i in range(warm, m):
        handed = forward(i, given)
        gradient = backward(swap(after, handed, receive=True))
        given = swap(before, gradient, receive=i < m - 1)
    for _ in range(warm):
        swap(before, backward(swap(after, None, receive=True)), receive=False)
    return total if after is None else None


PARALLELISMS: dict[str, Callable[[TrainingTask, int, Any], Parallel]] = {
    "ddp": _ddp,
    "zero2": _fsdp,
    "zero3": _fsdp,
    "tp": _tensor,
    "pp": _pipeline,
}
