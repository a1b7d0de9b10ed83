"""Seconds of a layer's routed experts on one rank: two grouped products and the permutations around them."""

from __future__ import annotations

from dataclasses import dataclass

from commsim.generation.formats import Format, peak_of
from commsim.generation.parameters import short_peak
from commsim.generation.products import Values, product_terms, terms_key
from commsim.training.accelerator import Accelerator
from commsim.training.kernels import Throughput, product_seconds
from commsim.training.operators import Gemm


@dataclass(frozen=True)
class ExpertRows:
    """What a rank's experts work at in one layer; widths are of the rank's part of an expert.

    ``rows``: copies of tokens that come to them; ``touched``: experts that get any.
    """

    tokens: float
    rows: float
    touched: float
    hidden: float
    inner: float
    matrices: float  # of the first product: 2 with a gate


def touched_experts(local: float, experts: float, top_k: float, tokens: float) -> float:
    """The expected number of a rank's experts that any of so many tokens goes to, each to top_k drawn evenly.

    >>> round(touched_experts(256, 256, 8, 1), 2), round(touched_experts(256, 256, 8, 64), 1)
    (8.0, 222.4)
    """
    return local * (1.0 - (1.0 - top_k / experts) ** tokens) if tokens > 0 else 0.0


def expert_seconds(e: ExpertRows, kind: Format, gpu: Accelerator, v: Values) -> float:
    """Seconds of one layer's experts, communication not counted."""
    if e.rows <= 0 or e.touched <= 0:
        return 0.0
    name = f"experts.{kind.kernel}."
    rates = Throughput(
        v[name + "rate"] * short_peak(gpu, peak_of(gpu, kind)), v[name + "memory"] * gpu.memory_bytes_per_s, gpu.sms
    )
    terms = product_terms(name, terms_key(v))
    seconds = v[name + "launch"]
    for n, k in ((e.inner * e.matrices, e.hidden), (e.hidden, e.inner)):
        nbytes = e.touched * n * k * kind.weight_bytes + e.rows * (k * kind.input_bytes + 2.0 * n)
        g = Gemm("experts", e.rows / e.touched, n, k, e.touched, drawn=True)
        seconds += float(product_seconds(g, nbytes, rates, terms))
    moved = 2.0 * (e.rows + e.tokens) * e.hidden
    return float(seconds + v[name + "permute"] * moved / gpu.memory_bytes_per_s)
