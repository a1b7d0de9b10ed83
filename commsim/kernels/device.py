"""A GPU as all-reduce kernels see it: NVLink, memory, SMs and their clock, the host that launches."""

from __future__ import annotations

from dataclasses import dataclass

from commsim.errors import ScenarioError
from commsim.training.accelerator import Accelerator

FLOP_PER_CLOCK = {"ampere": 128.0, "hopper": 256.0, "blackwell": 256.0}
"""Of one SM in single precision (64 or 128 multiply-adds; architecture papers of A100, H100, Blackwell): the peak over
SMs and these is the clock that the datasheet counts with. Tensor cores are throttled on some parts (H20), these not."""

REFERENCE_CLOCK_HZ = 67e12 / 132 / FLOP_PER_CLOCK["hopper"]
"""Of H100 SXM5, 1.98 GHz: latencies in clocks are stated as seconds at this clock."""

TRAY_GPUS = 4
"""GPUs of one host in a rack that NVLink joins (GB200 NVL72: two Graces with two GPUs each)."""


HOSTS = ("intel", "amd", "arm")


@dataclass(frozen=True)
class KernelDevice:
    """Rates in bytes/s of one direction, clock in Hz; `capability`: of CUDA, times ten.

    `host`: whose processor launches, "intel", "amd" or "arm"; `tray`: GPUs of one host; `domain`: that NVLink joins.
    """

    name: str
    generation: str
    capability: int
    sms: int
    clock_hz: float
    nvlink_bytes_per_s: float
    memory_bytes_per_s: float
    host: str
    tray: int
    domain: int

    @property
    def cycle(self) -> float:
        """Time of a clock over that of the reference."""
        return REFERENCE_CLOCK_HZ / self.clock_hz

    @property
    def two_dies(self) -> bool:
        """Whether the GPU is two dies: on the way to NVLink a request may cross from one to the other."""
        return self.generation == "blackwell"


def kernel_device(gpu: Accelerator, host: str = "") -> KernelDevice:
    """From a datasheet, and whose processor the host has: by default that of the boards measured.

    ScenarioError where the GPU has no NVLink, or is of a generation that no rows are of.
    """
    if gpu.generation not in FLOP_PER_CLOCK:
        known = ", ".join(FLOP_PER_CLOCK)
        raise ScenarioError(
            f"custom all-reduce kernels were measured on GPUs of {known}: {gpu.name} is {gpu.generation}"
        )
    if not gpu.nvlink_bytes_per_s:
        raise ScenarioError(f"{gpu.name} has no NVLink: frameworks run their all-reduce kernels over NVLink alone")
    capability = {"ampere": 80, "hopper": 90}.get(gpu.generation, 103 if "B300" in gpu.name else 100)
    rack = gpu.rack > 1
    usual = "arm" if rack or gpu.name.startswith("GH") else "amd" if capability == 80 else "intel"
    return KernelDevice(
        name=gpu.name,
        generation=gpu.generation,
        capability=capability,
        sms=gpu.sms,
        clock_hz=gpu.peak("fp32") / gpu.sms / FLOP_PER_CLOCK[gpu.generation],
        nvlink_bytes_per_s=gpu.nvlink_bytes_per_s,
        memory_bytes_per_s=gpu.memory_bytes_per_s,
        host=host if host in HOSTS else usual,
        tray=TRAY_GPUS if rack else gpu.nvlink_domain,
        domain=gpu.nvlink_domain,
    )
