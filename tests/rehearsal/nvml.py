"""NVML of the rehearsed node, as the module pynvml shows it: as much as measuring asks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from rehearsal.counters import Counters
from rehearsal.settings import Settings


class NVMLError(Exception):
    """What pynvml raises."""


class Nvml:
    """The functions of pynvml; a handle is the number of a GPU of the node."""

    NVMLError = NVMLError
    NVML_CLOCK_GRAPHICS, NVML_CLOCK_SM, NVML_CLOCK_MEM = 0, 1, 2
    NVML_FEATURE_ENABLED = 1
    NVML_DEVICE_MIG_DISABLE = 0

    def __init__(self, s: Settings) -> None:
        self._settings = s
        self._counters: dict[int, Counters] = {}
        self.throttled = False

    def nvmlInit(self) -> None:
        pass

    def nvmlSystemGetDriverVersion(self) -> str:
        return "570.86.15"

    def nvmlDeviceGetCount(self) -> int:
        return self._settings.gpus

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        if not 0 <= index < self._settings.gpus:
            raise NVMLError("Invalid Argument")
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        number = uuid.removeprefix("GPU-rehearsal-")
        if not number.isdigit():
            raise NVMLError("Not Found")
        return self.nvmlDeviceGetHandleByIndex(int(number))

    def nvmlDeviceGetName(self, handle: int) -> str:
        del handle
        return self._settings.name

    def nvmlDeviceGetFieldValues(self, handle: int, fields: list[Any]) -> list[Any]:
        """NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX and _RX (138, 139) in KiB; any other is not supported (3)."""
        if handle not in self._counters:
            self._counters[handle] = Counters(self._settings, handle)
        counters = self._counters[handle]
        answers = []
        for field in fields:
            number = field[0] if isinstance(field, tuple) else field
            known = self._settings.nvlink and number in (138, 139)
            value = int(counters.nvlink()[number - 138]) // 1024 if known else 0
            answers.append(SimpleNamespace(nvmlReturn=0 if known else 3, value=SimpleNamespace(ullVal=value)))
        return answers

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        del handle
        return 1200 if self.throttled and kind != 2 else {2: 2619}.get(kind, 1980)

    def nvmlDeviceGetMaxClockInfo(self, handle: int, kind: int) -> int:
        del handle
        return {2: 2619}.get(kind, 1980)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        """0x40: hardware thermal slowdown (nvmlClocksEventReasonHwThermalSlowdown)."""
        del handle
        return 0x40 if self.throttled else 0

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:
        return self.nvmlDeviceGetCurrentClocksEventReasons(handle)

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:
        del handle
        return 700_000

    def nvmlDeviceGetPowerManagementDefaultLimit(self, handle: int) -> int:
        del handle
        return 700_000

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        del handle, sensor
        return 89 if self.throttled else 45

    def nvmlDeviceGetEccMode(self, handle: int) -> list[int]:
        del handle
        return [1, 1]

    def nvmlDeviceGetMigMode(self, handle: int) -> list[int]:
        del handle
        return [0, 0]

    def nvmlDeviceGetComputeMode(self, handle: int) -> int:
        del handle
        return 0

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        del handle
        return []
