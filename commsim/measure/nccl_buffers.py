"""The two buffers of a rank on its GPU, allocated and registered as nccl-tests does it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import torch
import torch.distributed as dist

from commsim.measure.communicator import Communicator
from commsim.measure.pattern import CHUNK_BYTES

_GRAIN = 2 << 20  # CUDA's granularity of memory that can be mapped by others
_CHECK_CHUNKS = 16  # a tile, and the doubles of a comparison with a tolerance


class Buffers:
    """Memory to send from and to receive into, of the same size; `send` and `receive` are bytes as torch tensors."""

    def __init__(self, communicator: Communicator, nbytes: int, device: Any) -> None:
        self.nbytes = -(-nbytes // _GRAIN) * _GRAIN
        self._communicator, self._device = communicator, device
        self._pointers: list[int] = []
        self._handles: list[int] = []
        self._windows = False
        try:
            self.send, self.receive = self._allocate(), self._allocate()
        except BaseException:
            self.close()
            raise

    def _allocate(self) -> Any:
        nccl = self._communicator.nccl
        if not nccl.has("ncclMemAlloc"):  # before 2.19
            return torch.empty(self.nbytes, dtype=torch.uint8, device=self._device)
        pointer = nccl.allocate(self.nbytes)
        self._pointers.append(pointer)
        return self._communicator.layer.tensor_at(pointer, self.nbytes, self._device)

    def register(self, how: str) -> str:
        """Registers both buffers with all ranks, ``buffer`` or ``window``; returns what NCCL made of it."""
        nccl, handle = self._communicator.nccl, self._communicator.handle
        self._windows = how == "window"
        for tensor in (self.send, self.receive):
            self._handles.append(nccl.register(handle, tensor.data_ptr(), self.nbytes, window=self._windows))
        return how if all(self._handles) else f"{how}, of which NCCL makes no use here"

    def close(self) -> None:
        """Gives the memory back."""
        nccl, handle = self._communicator.nccl, self._communicator.handle
        end = "ncclCommWindowDeregister" if self._windows else "ncclCommDeregister"
        for registered in filter(None, self._handles):
            nccl.call(end, handle, registered, communicator=handle)
        self._handles.clear()
        with suppress(AttributeError):  # the first of them could not be had
            del self.send, self.receive
        for pointer in self._pointers:
            nccl.free(pointer)
        self._pointers.clear()


def largest(communicator: Communicator, wanted: int, needed: int, ranks_per_gpu: int, device: Any) -> Buffers | None:
    """Buffers of `wanted` bytes, or of as many as all ranks can have; None where some rank cannot have `needed`.

    All ranks of the run call it together, and all get the same. A sixteenth of a GPU's memory is left to NCCL's own
    buffers (nccl-tests leaves as much: run in src/common.cu, 2.19.6), and some chunks to the check.
    """
    communicator.layer.release_memory()
    free, total = communicator.layer.memory()
    limit = max(0, (free - total // 16) // ranks_per_gpu - _CHECK_CHUNKS * CHUNK_BYTES) // 2
    while True:
        nbytes = max(needed, wanted)
        buffers = None
        if needed <= nbytes <= limit:
            try:
                buffers = Buffers(communicator, nbytes, device)
            except Exception as error:
                if not communicator.layer.is_out_of_memory(error):
                    raise
        on_all = torch.tensor([int(buffers is not None)])
        dist.all_reduce(on_all, dist.ReduceOp.MIN)
        if int(on_all):
            return buffers
        if buffers is not None:
            buffers.close()
        if nbytes <= needed:
            return None
        wanted = nbytes // 2
