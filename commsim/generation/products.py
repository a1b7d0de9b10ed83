"""Seconds of matrix products of a step, by a weight of a format: a few rows are the traffic of the weight."""

from __future__ import annotations

from dataclasses import dataclass

from commsim.generation.formats import Format, peak_of
from commsim.generation.terms import NOTHING, Kernels, KernelSeconds, Terms, short_peak
from commsim.training.accelerator import Accelerator
from commsim.training.columns import Number, where
from commsim.training.kernels import ProductTerms, Throughput, product_seconds
from commsim.training.operators import Gemm


@dataclass(frozen=True, eq=False)
class Product:
    """`groups` products of (m, k) by (k, n) in one kernel, `count` times in a step; `kind`: of the weight."""

    name: str
    m: Number
    n: Number
    k: Number
    kind: Format
    groups: Number = 1.0
    count: float = 1.0

    @property
    def nbytes(self) -> Number:
        """Factors read and results written."""
        weight, rows = self.k * self.n * self.kind.weight_bytes, self.m * self.k * self.kind.input_bytes
        return self.groups * (weight + rows + self.m * self.n * 2.0)

    @property
    def cast_bytes(self) -> Number:
        """Of making the input narrower before."""
        width = self.kind.input_bytes
        return where(width < 2.0, self.groups * self.m * self.k * (2.0 + width), 0.0)


def kernel_seconds(p: Product, peak: Number, memory: Number, sms: Number, t: Terms) -> Number:
    """Seconds on a GPU of so many FLOP/s, bytes/s and SMs, with the kernel that makes the input narrower; without
    the launches of both."""
    gpu = Throughput(t["rate"] * peak, t["memory"] * memory, sms)
    terms = ProductTerms(t["side"], t["overhead"], t["tail"], t["split"], t["corner"])
    product = product_seconds(Gemm(p.name, p.m, p.n, p.k, p.groups), p.nbytes, gpu, terms)
    return product + t["cast"] * p.cast_bytes / memory


def product_time(p: Product, gpu: Accelerator, kernels: Kernels, framework: str) -> KernelSeconds:
    """Seconds of one such product of a framework; nothing for an empty one."""
    if p.m <= 0 or p.n <= 0 or p.k <= 0:
        return NOTHING
    terms = kernels.of("product", framework, p.kind.kernel)
    peak = short_peak(gpu, peak_of(gpu, p.kind))
    work = float(kernel_seconds(p, peak, gpu.memory_bytes_per_s, gpu.sms, terms))
    return KernelSeconds(work, terms["launch"])
