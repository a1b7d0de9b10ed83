"""One stage of a pipeline under 1F1B on a real rank: warm-up forwards, then one forward and one backward in turn.

The schedule of PipeDream-Flush (Narayanan et al. 2021, arXiv:2104.04473, section 2.2). A send to a neighbour and the
receive from it travel in one batch: NCCL's send ends when its receive has been posted, so that two neighbours that both
send first would wait for each other.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from commsim.measure.run import TrainingTask
from commsim.measure.small_transformer import compute_type, loss


def one_forward_one_backward(
    task: TrainingTask, model: Any, batches: list[tuple[Any, Any]], rank: int, device: Any, *, communicate: bool = True
) -> Any | None:
    """Forward and backward of all micro-batches on one stage; the mean loss, as a tensor, on the last one.

    Without communication a stage receives zeros.
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
