"""Seconds of matrix products of a step, by a weight of a format: a few rows are the traffic of the weight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from commsim.generation.formats import Format, peak_of
from commsim.generation.parameters import short_peak
from commsim.training.accelerator import Accelerator
from commsim.training.kernels import ProductTerms, Throughput, product_seconds
from commsim.training.operators import Gemm

Values = Mapping[str, float]


@dataclass(frozen=True)
class Product:
    """`groups` products of (m, k) by (k, n) in one kernel, `count` times in a step; `kind`: of the weight."""

    name: str
    m: float
    n: float
    k: float
    kind: Format
    groups: float = 1.0
    count: float = 1.0


def seconds_of(p: Product, gpu: Accelerator, v: Values) -> float:
    """Seconds of one such product, and of the kernel before it that makes its input narrower."""
    if p.m <= 0 or p.n <= 0 or p.k <= 0:
        return 0.0
    name = f"product.{p.kind.kernel}."
    nbytes = p.groups * ((p.m * p.k) * p.kind.input_bytes + p.k * p.n * p.kind.weight_bytes + p.m * p.n * 2.0)
    rates = Throughput(
        v[name + "rate"] * short_peak(gpu, peak_of(gpu, p.kind)),
        v[name + "memory"] * gpu.memory_bytes_per_s,
        gpu.sms,
    )
    cast = p.groups * p.m * p.k * (2.0 + p.kind.input_bytes) / gpu.memory_bytes_per_s if p.kind.casts else 0.0
    terms = product_terms(name, terms_key(v))
    return float(
        v[name + "launch"]
        + product_seconds(Gemm(p.name, p.m, p.n, p.k, p.groups), nbytes, rates, terms)
        + v[name + "cast"] * cast
    )


class ByIdentity:
    """Values as a key of a cache: the same mapping gives the same terms."""

    def __init__(self, values: Values) -> None:
        self.values = values

    def __hash__(self) -> int:
        return id(self.values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and self.values is other.values


def terms_key(v: Values) -> ByIdentity:
    return ByIdentity(v)


@lru_cache(maxsize=256)
def product_terms(name: str, key: ByIdentity) -> ProductTerms:
    """The terms of the kernels of a format."""
    v = key.values
    return ProductTerms(v[name + "side"], v[name + "overhead"], v[name + "tail"], v[name + "split"], v[name + "corner"])
