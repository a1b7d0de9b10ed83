"""What the ranks of a run say to each other in their group, so that all of them do the same."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from commsim.errors import MeasurementError
from commsim.measure.gpu import gpus
from commsim.measure.rank_end import first_line
from commsim.measure.rendezvous import Place, Rendezvous
from commsim.measure.run import Run
from commsim.measure.seat import Seat

T = TypeVar("T")

_WATCHDOG_FIRST_S = 60.0
"""By which ranks wait longer over gloo than NCCL's watchdog does, which says what hangs."""


def form_group(run: Run, seat: Seat, meeting: Rendezvous) -> None:
    """Makes the process group of all ranks, in which they call each other from now on."""
    # Ranks meet through the store as they make their groups, now or at the first call of a kind, and a rank may
    # take long to load its libraries or to make its context on the GPU.
    meeting.answer_within(run.timeout_s)
    backend = "gloo" if seat.gpu is None else seat.gpu.c10d_backend
    # torch's own NCCL, made at once, would only take the GPU's memory where libnccl is called.
    in_torch = run.training or not all(run.through_libnccl(task) for task in run.tasks)
    needs_nccl = run.backend == "nccl" and in_torch and "nccl" in backend
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("group", meeting.store),
        rank=meeting.place.rank,
        world_size=meeting.place.world_size,
        timeout=timedelta(seconds=run.timeout_s),
        **({"device_id": seat.device} if needs_nccl else {}),
    )
    if seat.gpu is not None:
        # A rank that hears nothing over gloo waits until NCCL's watchdog has named what hangs.
        gloo = dist.group.WORLD._get_backend(torch.device("cpu"))
        gloo._set_default_timeout(timedelta(seconds=run.timeout_s + _WATCHDOG_FIRST_S))


class Ranks:
    """The ranks of a run as one of them hears them; each method is called by all of them in the same order."""

    def __init__(self, place: Place, meeting: Rendezvous) -> None:
        self.place, self.meeting = place, meeting

    def of_all(self, mine: T) -> list[T]:
        """What every rank says, in the order of the ranks."""
        every: list[Any] = [None] * self.place.world_size
        dist.all_gather_object(every, mine)
        return every

    def rank_0_says(self, mine: bool) -> bool:
        """What rank 0 says, on every rank."""
        said = torch.tensor([int(mine)])
        dist.broadcast(said, 0)
        return bool(said)

    def agree(self, fault: str | None) -> None:
        """Raise the same MeasurementError on all ranks if one of them has a fault, or was told of one."""
        fault = fault or (self.meeting.told() if self.place.rank == 0 else None)
        flag = torch.tensor([self.place.rank + 1 if fault else 0])
        dist.all_reduce(flag, dist.ReduceOp.MAX)
        if not int(flag):
            return
        reason = [fault]
        dist.broadcast_object_list(reason, src=int(flag) - 1)
        raise MeasurementError(reason[0] or "unknown fault")

    def within_memory(self, doing: str, work: Callable[[], T]) -> tuple[T | None, str]:
        """What work returns, and which ranks had no memory for it, in one line: the same on every rank.

        Where one rank alone fails while the others wait for it inside the work, the run ends, for this reason.
        """
        done, mine = None, ""
        try:
            done = work()
        except (RuntimeError, MemoryError) as error:
            if not gpus().is_out_of_memory(error):
                raise
            mine = first_line(error)
        try:
            every = self.of_all(mine)
        except RuntimeError as error:  # the others stand where they wait for this rank
            raise MeasurementError(f"{doing}: out of memory ({mine[:160]})") if mine else error from None
        full = {rank: text for rank, text in enumerate(every) if text}
        if not full:
            return done, ""
        rank, text = next(iter(full.items()))
        others = f" and {len(full) - 1} more" if len(full) > 1 else ""
        return None, f"out of memory on rank {rank}{others} ({text[:160]})"
