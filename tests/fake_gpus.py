"""GPUs of this process that are none: NVML and /sys as a test says, and a torch device that is the CPU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from commsim.measure.gpu import GpuProperties, Gpus


class FakeGpus(Gpus):
    """`count` GPUs with UUIDs of their own; `nvml` is what stands for pynvml."""

    def __init__(self, count: int = 8, nvml: Any = None, sysfs: Path = Path("/nonexistent"), sm: int = 90) -> None:
        self._count, self._fake_nvml, self._sm = count, nvml, sm
        self.sysfs = sysfs

    def available(self) -> bool:
        return self._count > 0

    def count(self) -> int:
        return self._count

    def properties(self, index: int) -> GpuProperties:
        return GpuProperties("NVIDIA H100 80GB HBM3", self._sm, 85 << 30, 132, f"GPU-{index}")

    def use(self, index: int) -> None:
        pass

    def torch_device(self, index: int) -> Any:
        return torch.device("cpu")

    def synchronize(self) -> None:
        pass

    def nccl_version(self) -> tuple[int, int, int] | None:
        return 2, 27, 7

    def nvml(self) -> Any | None:  # type: ignore[override]  # each fake has its own
        return self._fake_nvml

    def nvml_handle(self, index: int) -> Any | None:
        return None if self._fake_nvml is None else self._fake_nvml.nvmlDeviceGetHandleByUUID(f"GPU-{index}")


class NvmlError(Exception):
    """What pynvml raises."""


def field(value: int | None) -> Any:
    """One answer of nvmlDeviceGetFieldValues: a value, or that there is none (NVML_ERROR_NOT_SUPPORTED, 3)."""
    return SimpleNamespace(nvmlReturn=3 if value is None else 0, value=SimpleNamespace(ullVal=value or 0))


class FakeNvml:
    """NVLink counters by (UUID, field, scope), and what else a test sets as an attribute."""

    NVMLError = NvmlError

    def __init__(self, counters: dict[tuple[str, int, int], int], **answers: Any) -> None:
        self.counters = counters
        for name, answer in answers.items():
            setattr(self, name, answer)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceGetFieldValues(self, handle: str, fields: list[tuple[int, int]]) -> list[Any]:
        return [field(self.counters.get((handle, number, scope))) for number, scope in fields]


def adapter(sysfs: Path, name: str, sent_words: int, received_words: int, *, state: str = "4: ACTIVE") -> None:
    """An InfiniBand adapter with one port, as Linux shows it."""
    port = sysfs / "class/infiniband" / name / "ports" / "1"
    (port / "counters").mkdir(parents=True, exist_ok=True)
    (port / "state").write_text(f"{state}\n")
    (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
    (port / "link_layer").write_text("InfiniBand\n")
    (port / "counters/port_xmit_data").write_text(f"{sent_words}\n")
    (port / "counters/port_rcv_data").write_text(f"{received_words}\n")
    (sysfs / "class/infiniband" / name / "fw_ver").write_text("28.39.1002\n")
