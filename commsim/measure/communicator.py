"""A communicator of NCCL among the ranks of a run: made, waited for with an eye on errors, and ended."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch.distributed as dist

from commsim.measure.gpu import Gpus
from commsim.measure.libnccl import REMOTE_ERROR, Nccl, NcclError, NcclFaultError
from commsim.measure.rendezvous import within
from commsim.measure.splits import colors, group_of

_LOOK_S = 0.02  # how often a waiting rank asks NCCL for errors: often enough for a person, rare enough for the clock
_ABORT_S = 10.0


class Communicator:
    """One rank's part of a communicator, and the stream on which it works.

    `rank` and `size` count within the communicator, which a split makes smaller than the run.
    """

    def __init__(self, layer: Gpus, gpu: int, run_rank: int, world_size: int, rule: str, timeout_s: float) -> None:
        self.layer, self.timeout_s = layer, timeout_s
        self.nccl = Nccl(layer.nccl())
        self._handles: list[int] = []
        self._gpu = gpu
        shared: list[Any] = [None]
        if run_rank == 0:
            try:
                shared = [self.nccl.unique_id()]
            except NcclError as error:
                shared = [str(error)]
        dist.broadcast_object_list(shared, src=0)
        if isinstance(shared[0], str):
            raise NcclFaultError(f"no communicator of NCCL: {shared[0]}")
        unique_id = shared[0]
        whole = self._begin(lambda: self.nccl.join(unique_id, run_rank, world_size), "all ranks")
        self._handles.append(whole)
        group = group_of(rule, world_size, run_rank)
        self.rank, self.size = group.index(run_rank), len(group)
        self.handle = whole
        if rule:
            color = colors(rule, world_size)[run_rank]
            self.handle = self._begin(lambda: self.nccl.split(whole, color, run_rank), "the ranks of its part")
            self._handles.append(self.handle)
        self.stream = layer.stream()

    def _begin(self, make: Callable[[], int], whom: str) -> int:
        """What makes a communicator returns, unless the others do not come in time or NCCL fails."""

        def work() -> int:
            self.layer.use(self._gpu)  # CUDA's current device belongs to a thread
            return make()

        try:
            return within(self.timeout_s, work)
        except TimeoutError:
            raise NcclFaultError(
                f"NCCL's communicator of {whom} was not there within {self.timeout_s:.0f} s (--timeout); "
                "NCCL_DEBUG=INFO says where it waits"
            ) from None
        except NcclError as error:
            raise NcclFaultError(f"no communicator of NCCL: {error}") from None

    def wait(self) -> None:
        """Returns when the stream has done everything; raises NcclFaultError where NCCL fails or waits too long.

        As testStreamSynchronize of nccl-tests (src/common.cu, 2.19.6) it asks the stream without a pause.
        """
        now = time.monotonic()
        until, look = now + self.timeout_s, now + _LOOK_S
        while not self.stream.finished():
            now = time.monotonic()
            if now < look:
                continue
            look = now + _LOOK_S
            if error := self.nccl.async_error(self.handle):
                what_failed = "a rank was lost ({})" if error.code == REMOTE_ERROR else "NCCL failed: {}"
                raise NcclFaultError(what_failed.format(error.words))
            if now > until:
                raise NcclFaultError(
                    f"NCCL did not finish within {self.timeout_s:.0f} s (--timeout): a rank has not called, or a "
                    "link does not carry"
                )

    def close(self) -> None:
        """Ends the communicator after a run without fault."""
        for handle in reversed(self._handles):
            self.nccl.call("ncclCommDestroy", handle)
        self._handles.clear()

    def abort(self) -> None:
        """Ends the communicator after a fault: what still waits on the GPU is given up; never waits long itself."""
        handles, self._handles = self._handles, []

        def work() -> None:
            self.layer.use(self._gpu)
            for handle in reversed(handles):
                self.nccl.function("ncclCommAbort")(handle)

        with suppress(TimeoutError, RuntimeError):  # the process ends anyway, and the driver clears up after it
            within(_ABORT_S, work)
