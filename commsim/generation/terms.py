"""What the kernels of serving frameworks reach, by kind of kernel: terms fitted to operators measured one by one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from commsim.document import read_documents
from commsim.errors import ScenarioError
from commsim.training.accelerator import Accelerator

PATH = Path(__file__).with_name("kernels.yaml")

Terms = Mapping[str, float]

REFERENCE_W_PER_FLOP_PER_S = 700.0 / 989e12
"""Of an H100 SXM5, in 16 bit."""

POWER = 0.1
"""Exponent of a board's watts per 16-bit FLOP/s on the share of the peak that short kernels reach
(`validation/measured_operators.py`)."""


@dataclass(frozen=True)
class KernelSeconds:
    """Seconds of kernels: what they do, and what they begin with, of which a graph hides a part."""

    work: float
    launch: float

    def __add__(self, other: KernelSeconds) -> KernelSeconds:
        return KernelSeconds(self.work + other.work, self.launch + other.launch)

    def __mul__(self, count: float) -> KernelSeconds:
        return KernelSeconds(self.work * count, self.launch * count)


NOTHING = KernelSeconds(0.0, 0.0)


@dataclass(frozen=True, eq=False)
class Kernels:
    """Terms by kind of kernel, such as ``experts.triton.fp8_block``; a kind that was not measured has those of the
    nearest that was: of the same formats by others, then of wider formats."""

    groups: Mapping[str, Terms]
    _known: dict[tuple[str, str, str], Terms] = field(init=False, default_factory=dict)

    def of(self, operator: str, family: str, kind: str) -> Terms:
        """The terms of an operator's kernels of a family for a format."""
        key = (operator, family, kind)
        terms = self._known.get(key)
        if terms is None:
            terms = self._known[key] = self.groups[self._nearest(*key)]
        return terms

    def _nearest(self, operator: str, family: str, kind: str) -> str:
        for wider in (kind, *WIDER.get(kind, ())):
            for other in (family, *FAMILIES[operator]):
                if (name := f"{operator}.{other}.{wider}") in self.groups:
                    return name
        raise ScenarioError(f"found no kernels of {operator} for {kind}, expected some in {PATH.name}")


FAMILIES: Mapping[str, tuple[str, ...]] = {
    "product": ("sglang", "tensorrt_llm", "vllm"),
    "experts": ("trtllm", "cutlass", "triton", "deepgemm", "marlin"),
    "decode": ("flash", "trtllm", "xqa"),
    "context": ("flash", "trtllm"),
}
"""By operator, in the order in which others stand for a family that was not measured."""

WIDER = {
    "fp8": ("fp8_block", "bf16"),
    "fp8_block": ("fp8", "bf16"),
    "nvfp4": ("fp8_block", "fp8", "bf16"),
    "mxfp4": ("nvfp4", "fp8_block"),
    "int4": ("bf16",),
}
"""By format, those that stand for it."""


@lru_cache(maxsize=8)
def kernels(path: Path = PATH) -> Kernels:
    """The terms of a file, by default those that ship."""
    entries = read_documents(path)[0].data
    return Kernels({name: {t: float(x) for t, x in terms.items()} for name, terms in entries.items()})


def short_peak(gpu: Accelerator, peak: float) -> float:
    """The peak of short kernels, by the watts that a board has for it."""
    return float(peak * (gpu.tdp_w / gpu.half_peak / REFERENCE_W_PER_FLOP_PER_S) ** POWER)
