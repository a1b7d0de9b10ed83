"""What a GPU can do, from its datasheet: peaks by type, memory, NVLink, power.

Not `commsim.topology.kinds.Gpu`, which is a place in a machine. What a GPU reaches of its peaks is in
`commsim.training.parameters`.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from commsim.document import read_documents, validate
from commsim.errors import ScenarioError
from commsim.units import GIB, GIGA

TYPES = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "fp4")

_PRESETS = Path(__file__).with_name("accelerators.yaml")


MOST_OF_A_NODE = 16
"""GPUs that NVLink joins in one chassis: a DGX-2 has most."""

CPU_TDP_W = 100.0
"""Stands for whatever power a processor was measured at: its rates are what it reached."""

REFERENCE_TDP_W = {
    "volta": 300.0,
    "ampere": 400.0,
    "ada": 350.0,
    "hopper": 700.0,
    "blackwell": 1200.0,
    "cpu": CPU_TDP_W,
}
"""By generation, oldest first: board power of the part at which its GEMM rate is given."""

PCIE_BYTES_PER_S = {3: 12e9, 4: 24e9, 5: 50e9, 6: 100e9}
"""What a slot of 16 lanes carries one way by generation, after encoding and headers: 15.75 GB/s and its doublings."""


CONTEXT_BYTES = 0.5 * GIB
"""Of a process's CUDA context: in use and not torch's are 0.51 GiB on an RTX 4090 (pytorch/pytorch#16417) and 0.49 on
an A100 (TianheWu/CoSeR#10)."""

NOT_ALLOCATED_BYTES = 0.5 * GIB + CONTEXT_BYTES
"""Of what the driver reports as a GPU's total, what no program allocates: a context, and what the driver keeps, 0.34 to
0.71 GiB (torch sees 79.11 of an H100's 79.65 GiB, vllm-project/vllm#27508; 23.65 of an RTX 4090's 23.99,
pytorch/pytorch#16417; 178.35 of a B200's 179.06, pytorch/ao#4002)."""


@dataclass(frozen=True)
class Accelerator:
    """A GPU, or the share of a processor that one process has: SI units, dense peaks; None where a type has no rate."""

    name: str
    generation: str  # volta | ampere | ada | hopper | blackwell | cpu
    flop_per_s: tuple[tuple[str, float | None], ...]  # by type, in the order of `TYPES`
    sms: int
    tdp_w: float
    memory_bytes: int
    memory_bytes_per_s: float
    nvlink_bytes_per_s: float  # one direction; 0 without NVLink
    nvlink_domain: int  # GPUs that reach each other at that rate
    pcie_gen: int | None
    source: str = ""
    memory_source: str = ""  # of `memory_bytes`

    def peak(self, dtype: str) -> float:
        """FLOP/s of a type; ScenarioError where the generation does not support it."""
        rate = dict(self.flop_per_s).get(dtype)
        if rate is None:
            supported = ", ".join(t for t, r in self.flop_per_s if r is not None)
            raise ScenarioError(f"{self.name} ({self.generation}) has no {dtype} rate, it supports {supported}")
        return rate

    @property
    def room_bytes(self) -> float:
        """What a program can allocate of a GPU's memory; a processor's is all its own."""
        return self.memory_bytes - (0.0 if self.generation == "cpu" else NOT_ALLOCATED_BYTES)

    @property
    def room_words(self) -> str:
        """Where `room_bytes` come from, as a phrase."""
        if self.generation == "cpu":
            return f"{self.memory_bytes / GIB:.1f} GiB, a process's share of the host"
        kept = f"less {NOT_ALLOCATED_BYTES / GIB:.0f} GiB for driver and CUDA context"
        return f"{self.memory_bytes / GIB:.1f} GiB of {self.name} by {self.memory_source}, {kept}"

    @property
    def near_bytes_per_s(self) -> float:
        """Bytes per second to a GPU of the same node, one direction: over NVLink, or PCIe where there is none."""
        return self.nvlink_bytes_per_s or PCIE_BYTES_PER_S[self.pcie_gen or 4]

    @property
    def rack(self) -> int:
        """GPUs of several nodes that one NVLink domain joins; 1 where it ends with the node."""
        return self.nvlink_domain if self.nvlink_domain > MOST_OF_A_NODE else 1

    @property
    def power(self) -> float:
        """Board power over that of the part at which the generation's GEMM rate is given."""
        return self.tdp_w / REFERENCE_TDP_W[self.generation]

    @property
    def half_peak(self) -> float:
        """FLOP/s in bf16, or in fp16 where there is no bf16."""
        return self.peak("bf16" if self.supports("bf16") else "fp16")

    def supports(self, dtype: str) -> bool:
        """Whether a type has a rate."""
        return dict(self.flop_per_s).get(dtype) is not None


@lru_cache(maxsize=1)
def _entries() -> dict[str, dict[str, Any]]:
    entries: dict[str, dict[str, Any]] = read_documents(_PRESETS)[0].data
    return entries


def accelerator_names() -> tuple[str, ...]:
    """The names of all presets."""
    return tuple(_entries())


_SHORT = {
    "V100": "V100-SXM2-32GB",
    "A100": "A100-SXM4-80GB",
    "A100-80GB": "A100-SXM4-80GB",
    "A100-40GB": "A100-SXM4-40GB",
    "A800": "A800-SXM4-80GB",
    "H100": "H100-SXM5-80GB",
    "H800": "H800-SXM5-80GB",
    "H20": "H20-SXM5-96GB",
    "H200": "H200-SXM5-141GB",
    "GH200": "GH200-96GB",
    "B200": "B200-SXM-180GB",
    "GB200": "GB200-NVL72",
    "B300": "B300-SXM-288GB",
    "GB300": "GB300-NVL72",
    "L40S": "L40S-48GB",
    "A6000": "RTX-A6000-48GB",
    "RTX-4090": "RTX-4090-24GB",
}
"""What is meant by a name without form factor and memory: the part of the reference machine of its generation."""


@lru_cache(maxsize=64)
def accelerator(name: str) -> Accelerator:
    """The preset of a name, ``H100`` and the like included; ScenarioError with the short names where unknown."""
    names = {n.lower(): n for n in (*_entries(), *_SHORT)}
    preset = names.get(name.strip().lower())
    if preset is None:
        near = difflib.get_close_matches(name.strip().lower()[:80], list(names), n=1, cutoff=0.7)
        hint = f"did you mean {names[near[0]]}? Known are" if near else "expected one of"
        known = f"{', '.join(_SHORT)}, or one in full, such as H100-PCIe-80GB"
        raise ScenarioError(f"found the accelerator {name[:80]!r}, {hint} {known}")
    key = _SHORT.get(preset, preset)
    entry = _entries()[key]
    peaks = entry["dense_tflops"]
    return Accelerator(
        name=key,
        generation=entry["generation"],
        flop_per_s=tuple((t, None if peaks[t] is None else peaks[t] * 1e12) for t in TYPES),
        sms=entry["sms"],
        tdp_w=float(entry["tdp_W"]),
        memory_bytes=_memory_bytes(entry),
        memory_bytes_per_s=entry["mem_GBps"] * GIGA,
        nvlink_bytes_per_s=(entry["nvlink_GBps_per_direction"] or 0) * GIGA,
        nvlink_domain=entry["nvlink_domain"],
        pcie_gen=entry["pcie_gen"],
        source=entry["source"],
        memory_source="datasheet" if entry["driver_MiB"] is None else entry["driver_source"],
    )


def _memory_bytes(entry: dict[str, Any]) -> int:
    """Total memory as the driver reports it, or the datasheet's where no report is at hand."""
    mib = entry["driver_MiB"]
    total: float = entry["mem_GB"] * GIGA if mib is None else mib * GIB / 1024
    return round(total)


_MEMORY_APART = 0.25
"""By which the memory of a board may miss that of its preset: GiB for GB, and what the driver keeps, are below it."""


def accelerator_of_board(gpu: str, memory_bytes: int = 0) -> Accelerator | None:
    """The preset of a board by the name that its driver gives it; None where there is none of its form and memory.

    A PCIe or NVL board has another clock, power and memory than the SXM module of the same chip, and the driver writes
    only what it is not: ``NVIDIA H100 80GB HBM3`` is the module. Without `memory_bytes`, that in the name counts.

    >>> [accelerator_of_board(name).name for name in ("NVIDIA H100 PCIe", "NVIDIA H100 NVL", "Tesla V100-SXM2-16GB")]
    ['H100-PCIe-80GB', 'H100-NVL-94GB', 'V100-SXM2-16GB']
    """
    words = re.split(r"[\s-]+", gpu.upper())
    form = next((word for word in ("PCIE", "NVL") if word in words), "")
    sizes = [int(match[1]) * 10**9 for word in words if (match := re.fullmatch(r"(\d+)GB", word))]
    wanted = memory_bytes or next(iter(sizes), 0)
    fitting = []
    for name in accelerator_names():
        parts = name.upper().split("-")
        chip = parts[1] if parts[0] == "RTX" else parts[0]
        own = next((word for word in ("PCIE", "NVL") if word in parts), "")
        if chip in words and own == form:
            one = accelerator(name)
            apart = abs(one.memory_bytes / wanted - 1) if wanted else 0.0
            if apart <= _MEMORY_APART:
                fitting.append((apart, name != _SHORT.get(chip), one))
    return min(fitting, key=lambda item: item[:2])[2] if fitting else None


class MeasuredProcessor(BaseModel):
    """A file that `commsim rates --device cpu` wrote: what one process reached with one thread, and the memory."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    processor: str
    source: str
    fp32: float = Field(gt=0, description="FLOP/s of the largest matrix product")
    bf16: float | None = Field(default=None, gt=0)
    memory_bytes: int = Field(gt=0)
    memory_bytes_per_s: float = Field(gt=0, description="read and written by a copy")


def read_processor(path: Path, processes: int = 1, cores: int = 0) -> Accelerator:
    """What each of so many processes has of a measured processor; they take turns where `cores` (0: enough) lack."""
    measured = validate(MeasuredProcessor, read_documents(path)[0])
    share = min(1.0, cores / processes) if cores else 1.0
    rates = {"fp32": measured.fp32, "bf16": measured.bf16}
    return Accelerator(
        name=measured.processor,
        generation="cpu",
        flop_per_s=tuple((t, None if (rate := rates.get(t)) is None else rate * share) for t in TYPES),
        sms=1,
        tdp_w=CPU_TDP_W,
        memory_bytes=measured.memory_bytes // processes,
        memory_bytes_per_s=measured.memory_bytes_per_s * share,
        nvlink_bytes_per_s=0.0,
        nvlink_domain=1,
        pcie_gen=None,
        source=measured.source,
    )
