"""What must be known of GPUs and NICs to read a measurement: what they are set to, and what slowed them down.

Everything here is asked for and may be refused: what a machine does not tell is left out.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from commsim.measure.conditions import text_of
from commsim.measure.gpu import Gpus

SLOWED = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""nvmlClocksEventReason of nvml.h (throttle reasons in drivers before 535): those that take clock away from work."""

_SET = {0x01: "idle", 0x02: "application clocks", 0x10: "sync boost", 0x100: "display clocks"}
_CLOCK_SM, _CLOCK_MEMORY = 1, 2  # nvmlClockType_t
_ACS = 0x000D  # PCI Express extended capability of access control services, with its control register 6 bytes further
_CONTROL = 6
_TOPO_TIMEOUT_S = 20.0
_OF_PORT = {"state": "state", "rate": "rate", "link": "link_layer"}


def gpu_conditions(gpu: Gpus, index: int) -> dict[str, Any]:
    """What the GPU of a rank is and how it is set; watts, MHz and bytes have their unit in the name."""
    import torch

    properties = gpu.properties(index)
    conditions: dict[str, Any] = {
        "gpu": properties.name,
        "gpu_memory_bytes": properties.memory_bytes,
        "sm": properties.sm,
        "multiprocessors": properties.multiprocessors,
        "cuda": torch.version.cuda or "",
    }
    version = gpu.nccl_version()
    if version is not None:
        conditions["nccl"] = ".".join(map(str, version))
    nvml, handle = gpu.nvml(), gpu.nvml_handle(index)
    if nvml is None or handle is None:
        return conditions | {"nvml": "not there"}
    asked: dict[str, Callable[[], Any]] = {
        "driver": lambda: _text(nvml.nvmlSystemGetDriverVersion()),
        "power_cap_w": lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1e3,
        "sm_clock_most_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, _CLOCK_SM),
        "memory_clock_most_mhz": lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, _CLOCK_MEMORY),
        "ecc": lambda: bool(nvml.nvmlDeviceGetEccMode(handle)[0]),
        "mig": lambda: bool(nvml.nvmlDeviceGetMigMode(handle)[0]),
        "persistence": lambda: bool(nvml.nvmlDeviceGetPersistenceMode(handle)),
        "numa_node": lambda: _numa_node(gpu.sysfs, _text(nvml.nvmlDeviceGetPciInfo(handle).busId)),
    }
    # CUDA's multi-process service listens there.
    mps = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"))
    return conditions | _answers(asked) | {"mps": (mps / "control").exists()}


def gpu_state(gpu: Gpus, index: int) -> dict[str, Any]:
    """What changes while a GPU works: clocks, power, temperature, and why its clocks are what they are."""
    nvml, handle = gpu.nvml(), gpu.nvml_handle(index)
    if nvml is None or handle is None:
        return {}
    old_name = getattr(nvml, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", old_name)

    def because_of() -> list[str]:
        bits = int(reasons(handle)) if reasons else 0
        return [word for bit, word in (SLOWED | _SET).items() if bits & bit]

    asked: dict[str, Callable[[], Any]] = {
        "sm_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_SM),
        "memory_clock_mhz": lambda: nvml.nvmlDeviceGetClockInfo(handle, _CLOCK_MEMORY),
        "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, 0),
        "clocks_because_of": because_of,
    }
    return _answers(asked)


def slowed(state: dict[str, Any]) -> list[str]:
    """The reasons in a state that took clock away."""
    return [reason for reason in state.get("clocks_because_of", []) if reason in SLOWED.values()]


def _answers(asked: dict[str, Callable[[], Any]]) -> dict[str, Any]:
    """What is answered; NVML raises errors of its own for what a board, a driver or a right does not give."""
    answers = {}
    for name, ask in asked.items():
        with suppress(Exception):
            answers[name] = ask()
    return answers


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _numa_node(sysfs: Path, bus: str) -> int:
    """The NUMA node of a PCI device; NVML writes its domain with eight digits, the kernel with four."""
    domain, _, rest = bus.lower().partition(":")
    return int((sysfs / "bus/pci/devices" / f"{domain[-4:]}:{rest}" / "numa_node").read_text())


def host_conditions(gpu: Gpus) -> dict[str, Any]:
    """What the host of a rank has: adapters, access control on PCI bridges, the matrix of nvidia-smi."""
    return {
        "hcas": hcas(gpu.sysfs),
        "acs": acs(gpu.sysfs),
        "iommu_groups": len(_entries(gpu.sysfs / "kernel/iommu_groups")),
        "topo_m": _topo_matrix(),
    }


def hcas(sysfs: Path) -> list[dict[str, Any]]:
    """InfiniBand and RoCE adapters with their ports: state, rate and link layer, as the kernel writes them."""
    adapters = []
    for device in _entries(sysfs / "class/infiniband"):
        ports = [
            {key: _line(port / name) for key, name in _OF_PORT.items()} | {"port": port.name}
            for port in _entries(device / "ports")
        ]
        adapters.append({"name": device.name, "firmware": _line(device / "fw_ver"), "ports": ports})
    return adapters


def acs(sysfs: Path) -> str:
    """How many PCI bridges redirect transfers between devices upwards (ACS), which takes GPUDirect its short way.

    The capability lies behind the first 256 bytes of a device's configuration, which only root may read.
    """
    redirecting: list[bool] = []
    for device in _entries(sysfs / "bus/pci/devices"):
        if _line(device / "class").startswith("0x0604"):
            with suppress(OSError):
                configuration = (device / "config").read_bytes()
                redirecting += [_redirects(configuration)] * (len(configuration) >= 512)
    return f"{sum(redirecting)} of {len(redirecting)} bridges redirect" if redirecting else "not readable"


def _redirects(configuration: bytes) -> bool:
    """Whether the configuration of a bridge has P2P request or completion redirect on (bits 2 and 3 of the control)."""
    at = 0x100
    for _ in range(64):
        head = int.from_bytes(configuration[at : at + 4], "little")
        if head & 0xFFFF == _ACS:
            return bool(int.from_bytes(configuration[at + _CONTROL : at + _CONTROL + 2], "little") & 0x0C)
        at = head >> 20
        if at < 0x100 or at + 8 > len(configuration):
            return False
    return False


def loaded_plugins() -> list[str]:
    """File names of the NCCL libraries and plugins that this process has mapped, once NCCL has begun."""
    paths = re.findall(r"\s(/\S*libnccl[\w.+-]*\.so[\w.]*)", text_of("/proc/self/maps"))
    return sorted({Path(path).name for path in paths})


def _topo_matrix() -> str:
    """What ``nvidia-smi topo -m`` prints, without its colours; empty without it."""
    words = ["nvidia-smi", "topo", "-m"]
    with suppress(OSError, subprocess.SubprocessError):
        done = subprocess.run(words, capture_output=True, text=True, timeout=_TOPO_TIMEOUT_S, check=True)
        return re.sub(r"\x1b\[[0-9;]*m", "", done.stdout).strip()
    return ""


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.glob("*"))


def _line(path: Path) -> str:
    return text_of(path).strip()
