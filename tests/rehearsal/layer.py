"""The layer of a rehearsal, in the place of torch.cuda, NVML, libnccl and /sys (`commsim.measure.gpu.Gpus`)."""

from __future__ import annotations

import ctypes
import mmap
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from commsim.measure.gpu import GpuProperties, Gpus
from rehearsal.collectives import Operation
from rehearsal.counters import Counters, lay_out
from rehearsal.library import Library
from rehearsal.nvml import Nvml
from rehearsal.settings import Failure, settings
from rehearsal.streams import RehearsedStream

_FIRST_STREAM = 0x5000_0000


class Rehearsal(Gpus):
    """One process's view of the rehearsed machine; `now_s` is its virtual clock."""

    c10d_backend = "gloo"

    def __init__(self) -> None:
        self.settings = settings()
        self.now_s = 0.0
        self.last_error = ""
        self.used_bytes = self.most_used_bytes = 0
        self.rehearsed_nvml = Nvml(self.settings) if self.settings.nvml else None
        self._streams: dict[int, RehearsedStream] = {}
        self._using = 0
        self._seen: dict[int, int] = {}
        lay_out(self.settings)
        self.library = Library(self)

    @property
    def sysfs(self) -> Path:  # type: ignore[override]
        return self.settings.node_folder / "sys"

    @property
    def host(self) -> str:  # type: ignore[override]
        return f"node{self.settings.node}"

    @cached_property
    def counters(self) -> Counters:
        """Those of the GPU in use, which only this rank's process advances."""
        return Counters(self.settings, self.settings.visible()[self._using])

    def available(self) -> bool:
        return bool(self.settings.visible())

    def count(self) -> int:
        return len(self.settings.visible())

    def properties(self, index: int) -> GpuProperties:
        s = self.settings
        return GpuProperties(s.name, s.sm, s.memory_bytes, 132, f"GPU-rehearsal-{s.visible()[index]}")

    def use(self, index: int) -> None:
        if not 0 <= index < self.count():
            raise RuntimeError("CUDA error: invalid device ordinal")
        self._using = index

    def torch_device(self, index: int) -> Any:
        del index
        return torch.device("cpu")

    def synchronize(self) -> None:
        for stream in self._streams.values():
            while not stream.finished():
                pass

    def clock(self) -> float:
        return self.now_s

    def stream(self) -> RehearsedStream:
        pointer = _FIRST_STREAM + 0x40 * len(self._streams)
        self._streams[pointer] = RehearsedStream(self, pointer)
        return self._streams[pointer]

    def stream_at(self, pointer: int | None) -> RehearsedStream:
        """The stream that a call of NCCL names by its address."""
        return self._streams[pointer or 0]

    def memory(self) -> tuple[int, int]:
        return self.settings.memory_bytes - self.used_bytes, self.settings.memory_bytes

    def map_memory(self, nbytes: int) -> mmap.mmap:
        """Memory for a GPU's, which takes none of the host's until it is written to."""
        return mmap.mmap(-1, nbytes)

    def release_memory(self) -> None:
        pass

    def peak_memory(self) -> int:
        return self.most_used_bytes

    def reset_peak_memory(self) -> None:
        self.most_used_bytes = self.used_bytes

    def tensor_at(self, pointer: int, nbytes: int, device: Any) -> Any:
        del device
        return torch.frombuffer((ctypes.c_uint8 * nbytes).from_address(pointer), dtype=torch.uint8)

    def nccl(self) -> Library:  # type: ignore[override]  # each rank has its own
        return self.library

    def nvml(self) -> Any | None:  # type: ignore[override]
        return self.rehearsed_nvml

    def due(self, operation: Operation) -> list[Failure]:
        """The failures that were ordered for a call of this rank."""
        s, work = self.settings, operation.work()
        return [
            f
            for f in s.failures
            if f.rank == s.rank and f.collective in ("", operation.kind) and work.nbytes >= f.nbytes
        ]

    def failure(self, operation: Operation) -> Failure | None:
        """The first of them that is about the call itself, and not about its data."""
        return next((f for f in self.due(operation) if f.kind not in ("wrong", "refuse")), None)
