"""One collective of torch.distributed on one rank: its buffers, the call, and the check of its result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from commsim.collectives.semantics import GATHERING, SCATTERING
from commsim.measure.pattern import Pattern, pattern_of
from commsim.measure.run import IN_PLACE_ONLY
from commsim.measure.tasks import Task

# torch 2.13 renamed the two and warns of the old names, which are the only ones before.
_ALL_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_REDUCE_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


@dataclass(frozen=True)
class ReadyCollective:
    """A collective that is ready to run: `fill` sets the buffers, `call` communicates, `wrong` counts faults."""

    fill: Callable[[], None]
    call: Callable[[], None]
    wrong: Callable[[], int]


def operation(
    task: Task, size: int, place: str, rank: int, world_size: int, device: Any, group: Any = None
) -> ReadyCollective:
    """The collective of a task at a size in bytes; `place` is ``oop`` or ``ip``.

    `group`: the process group of torch in which `rank` and `world_size` count; None for that of all ranks. The buffers
    hold the pattern before every check; calls in a row work on what the last one left.
    """
    p = pattern_of(task, size, world_size)
    send, receive, call = _buffers(p, task, place == "ip", rank, device, group)

    def fill() -> None:
        receive.view(torch.uint8).zero_()
        p.fill(rank, send)  # scatter has an input only at its root

    return ReadyCollective(fill, call, lambda: p.wrong(rank, receive))


def _buffers(
    p: Pattern, task: Task, in_place: bool, rank: int, device: Any, group: Any
) -> tuple[Any, Any, Callable[[], None]]:
    """The send buffer, the receive buffer (the same memory or a part of it, in place), and the call."""
    n, name, total = p.world_size, p.collective, p.elements
    world_rank = list(range(n)) if group is None else dist.get_process_group_ranks(group)
    root = world_rank[p.root]  # torch counts roots and peers among all ranks, whatever the group

    def new(elements: int) -> Any:
        return torch.zeros(elements, dtype=p.dtype, device=device)

    op = getattr(dist.ReduceOp, {"prod": "PRODUCT"}.get(task.redop, task.redop.upper())) if task.reduces else None
    if name in IN_PLACE_ONLY:
        array = new(total)
        call = {
            "all_reduce": lambda: dist.all_reduce(array, op, group=group),
            "reduce": lambda: dist.reduce(array, root, op, group=group),
            "broadcast": lambda: dist.broadcast(array, root, group=group),
        }[name]
        return array, array, call
    if name in GATHERING or name in SCATTERING:
        has_whole = not task.rooted or rank == p.root
        whole = new(total if has_whole else 0)
        part = whole[slice(*p.block(rank))] if in_place and has_whole else new(total // n)
        parts = list(whole.chunk(n)) if has_whole else None
        call = {
            "all_gather": lambda: _ALL_GATHER(whole, part, group=group),
            "gather": lambda: dist.gather(part, parts, dst=root, group=group),
            "reduce_scatter": lambda: _REDUCE_SCATTER(part, whole, op, group=group),
            "scatter": lambda: dist.scatter(part, parts, src=root, group=group),
        }[name]
        return (part, whole, call) if name in GATHERING else (whole, part, call)
    if name == "all_to_all_v":
        counts = p.pair_counts()
        to, of = counts[rank], [row[rank] for row in counts]
        send, receive = new(sum(to)), new(sum(of))
        return send, receive, lambda: dist.all_to_all_single(receive, send, of, to, group=group)
    send, receive = new(total), new(total)
    if name == "all_to_all":
        return send, receive, lambda: dist.all_to_all_single(receive, send, group=group)
    return send, receive, lambda: _send_recv(send, receive, rank, world_rank, group)


def _send_recv(send: Any, receive: Any, rank: int, world_rank: list[int], group: Any) -> None:
    """Every rank sends to the next one and receives from the one before."""
    n = len(world_rank)
    if n == 1:
        receive.copy_(send)
        return
    after, before = world_rank[(rank + 1) % n], world_rank[(rank - 1) % n]
    works = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, send, after, group), dist.P2POp(dist.irecv, receive, before, group)]
    )
    for work in works:
        work.wait()
