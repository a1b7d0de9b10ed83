"""What measuring asks of GPUs: torch.cuda, NVML, libnccl and /sys, behind one small class.

No other file of this package calls torch.cuda, pynvml or /sys for a GPU or a NIC. `COMMSIM_GPU_LAYER=module:attribute`
names a class with the same methods for another vendor's runtime; the tests rehearse with one of their own.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from commsim.errors import MeasurementError

LAYER_VARIABLE = "COMMSIM_GPU_LAYER"
NCCL_VARIABLE = "COMMSIM_NCCL_LIBRARY"


def _torch() -> Any:
    """The module torch, which takes seconds to load: nothing loads it before a GPU is asked for."""
    import torch

    return torch


@dataclass(frozen=True)
class GpuProperties:
    """One GPU as CUDA sees it; `sm` is 90 for a Hopper, `uuid` is ``GPU-...`` as NVML has it, empty if unknown."""

    name: str
    sm: int
    memory_bytes: int
    multiprocessors: int
    uuid: str = ""


class Stream:
    """A stream of the GPU in use that does not wait for the default one; `pointer` is its cudaStream_t."""

    def __init__(self) -> None:
        self._stream = _torch().cuda.Stream()  # torch creates its own with cudaStreamNonBlocking, as nccl-tests does
        self.pointer = int(self._stream.cuda_stream)

    def finished(self) -> bool:
        """Whether the GPU has done all that was put here; raises RuntimeError where it failed."""
        return bool(self._stream.query())

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """A call that launches, as one CUDA graph, what `work` puts on this stream.

        The capture binds this thread alone: libraries allocate and query events in threads of their own.
        """
        import warnings

        import torch

        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self._stream):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with suppress(RuntimeError):  # what has been captured so far is worth nothing
                    graph.capture_end()
                raise
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a collective of one rank in place is an empty graph
                graph.capture_end()

        def launch() -> None:
            with torch.cuda.stream(self._stream):
                graph.replay()

        return launch


class Gpus:
    """The GPUs that this process sees, by their numbers from 0; CUDA_VISIBLE_DEVICES has done its work already."""

    sysfs = Path("/sys")
    """Where the kernel tells of NICs and PCI devices."""

    host = ""
    """What tells hosts apart that the kernel does not, such as those of a rehearsal."""

    c10d_backend = "cpu:gloo,cuda:nccl"
    """What torch.distributed's group of a run with GPUs is made of: times and verdicts travel over gloo."""

    def available(self) -> bool:
        """Whether there is a GPU to measure on."""
        return bool(_torch().cuda.is_available())

    def count(self) -> int:
        """How many GPUs this process sees."""
        return int(_torch().cuda.device_count())

    def properties(self, index: int) -> GpuProperties:
        """What CUDA says of a GPU."""
        p = _torch().cuda.get_device_properties(index)
        uuid = str(getattr(p, "uuid", ""))  # since torch 2.4
        return GpuProperties(
            name=p.name,
            sm=p.major * 10 + p.minor,
            memory_bytes=int(p.total_memory),
            multiprocessors=int(p.multi_processor_count),
            uuid=uuid if not uuid or uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}",
        )

    def use(self, index: int) -> None:
        """Makes a GPU the one that this process, and NCCL in it, works on."""
        _torch().cuda.set_device(index)

    def torch_device(self, index: int) -> Any:
        """The torch.device of a GPU."""
        return _torch().device("cuda", index)

    def synchronize(self) -> None:
        """Waits until the GPU in use has done everything."""
        _torch().cuda.synchronize()

    def clock(self) -> float:
        """Seconds since some moment, of the clock that times the calls of a library."""
        return time.perf_counter()

    def stream(self) -> Stream:
        """A new stream of the GPU in use."""
        return Stream()

    def event(self) -> Any:
        """A new torch.cuda.Event of the GPU in use, which is timed."""
        return _torch().cuda.Event(enable_timing=True)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the GPU in use; what torch keeps for later is not free."""
        free, total = _torch().cuda.mem_get_info()
        return int(free), int(total)

    def release_memory(self) -> None:
        """Gives what torch keeps for later back to the GPU."""
        _torch().cuda.empty_cache()

    def peak_memory(self) -> int:
        """The most bytes that torch has held on the GPU in use since `reset_peak_memory`."""
        return int(_torch().cuda.max_memory_allocated())

    def reset_peak_memory(self) -> None:
        """Lets `peak_memory` begin anew."""
        _torch().cuda.reset_peak_memory_stats()

    def is_out_of_memory(self, error: BaseException) -> bool:
        """Whether an error of torch or of NCCL says that a memory is full."""
        text = str(error).lower()
        return isinstance(error, MemoryError) or "out of memory" in text or "can't allocate memory" in text

    def tensor_at(self, pointer: int, nbytes: int, device: Any) -> Any:
        """The bytes at an address of the GPU as a torch tensor, which does not own them."""
        import torch

        class Memory:
            __cuda_array_interface__ = {  # noqa: RUF012 - the protocol's name and form
                "shape": (nbytes,),
                "typestr": "|u1",
                "data": (pointer, False),
                "version": 3,
            }

        return torch.as_tensor(Memory(), device=device)

    @staticmethod
    @cache
    def nccl() -> Any:
        """The handle of libnccl: `COMMSIM_NCCL_LIBRARY`, else the one that torch has loaded, else the system's.

        A name without a folder gives the copy that this process has loaded already.
        """
        import torch  # noqa: F401 - brings its own libnccl into this process

        named, tried = os.environ.get(NCCL_VARIABLE, ""), []
        for path in [named] if named else [*_nccl_of_wheels(), "libnccl.so.2", "libnccl.so"]:
            try:
                return ctypes.CDLL(path)
            except OSError as error:
                tried.append(f"{path}: {error}")
        raise MeasurementError(f"no libnccl can be loaded; name one in {NCCL_VARIABLE} ({'; '.join(tried)})")

    def nccl_version(self) -> tuple[int, int, int] | None:
        """The version that libnccl itself names, None where there is no libnccl."""
        try:
            library = self.nccl()
        except MeasurementError:
            return None
        code = ctypes.c_int()
        library.ncclGetVersion(ctypes.byref(code))
        return version_of(code.value)

    @staticmethod
    @cache
    def nvml() -> Any | None:
        """The module pynvml, initialised; None without it, without a driver, or where NVML is refused."""
        try:
            import pynvml
        except ImportError:
            return None
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError:
            return None
        return pynvml

    def nvml_handle(self, index: int) -> Any | None:
        """NVML's handle of a GPU of this process, whatever CUDA_VISIBLE_DEVICES has left out; None without NVML."""
        nvml = self.nvml()
        if nvml is None:
            return None
        try:
            if uuid := self.properties(index).uuid:
                return nvml.nvmlDeviceGetHandleByUUID(uuid)
            visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
            name = visible[index] if index < len(visible) else str(index)
            by_number = name.isdigit()
            return nvml.nvmlDeviceGetHandleByIndex(int(name)) if by_number else nvml.nvmlDeviceGetHandleByUUID(name)
        except nvml.NVMLError:
            return None


def version_of(code: int) -> tuple[int, int, int]:
    """NCCL's version from its number: one digit each until 2.8, two each from 2.9 (NCCL_VERSION in nccl.h).

    >>> version_of(2708), version_of(22809)
    ((2, 7, 8), (2, 28, 9))
    """
    base = 10000 if code >= 10000 else 1000
    return code // base, code % base // 100, code % 100


@cache
def gpus() -> Gpus:
    """The layer that this process works with: torch and NVIDIA's libraries, or what `COMMSIM_GPU_LAYER` names."""
    named = os.environ.get(LAYER_VARIABLE, "")
    if not named:
        return Gpus()
    module, _, attribute = named.partition(":")
    try:
        layer = getattr(importlib.import_module(module), attribute)()
    except (ImportError, AttributeError, ValueError, TypeError) as error:
        raise MeasurementError(
            f"found {LAYER_VARIABLE}={named!r}, expected module:class of a GPU layer ({error})"
        ) from None
    if not isinstance(layer, Gpus):
        raise MeasurementError(f"found {LAYER_VARIABLE}={named!r}, expected a class derived from commsim's Gpus")
    return layer


def _nccl_of_wheels() -> list[str]:
    with suppress(ImportError, ValueError):  # no wheel of NVIDIA is there
        spec = importlib.util.find_spec("nvidia.nccl")
        folders = (spec.submodule_search_locations or ()) if spec else ()
        return [str(path) for folder in folders if (path := Path(folder) / "lib" / "libnccl.so.2").exists()]
    return []
