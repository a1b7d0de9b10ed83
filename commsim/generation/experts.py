"""Seconds of a layer's routed experts on one rank: two grouped products and the permutations around them."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log, sqrt

from commsim.generation.formats import Format, peak_of
from commsim.generation.grouped import Grouped, GroupedTerms, grouped_seconds
from commsim.generation.terms import NOTHING, Kernels, KernelSeconds, Terms, short_peak
from commsim.training.accelerator import Accelerator
from commsim.training.columns import Number
from commsim.training.kernels import Throughput


@dataclass(frozen=True, eq=False)
class ExpertRows:
    """What a rank's experts work at in one layer; `inner` is of the rank's part of an expert.

    ``rows``: copies of tokens that come to them; ``touched``: experts that get any; ``drawn``: by a router.
    """

    tokens: Number
    rows: Number
    touched: Number
    hidden: Number
    inner: Number
    matrices: Number  # of the first product: 2 with a gate
    drawn: Number = True


def touched_experts(local: float, experts: float, top_k: float, tokens: float, spread: float) -> float:
    """The expected number of a rank's experts that any of so many tokens goes to.

    Experts are not equally popular: chances are drawn from a gamma distribution of a relative variance ``spread``, by
    which an expert is missed with the chance (1 + s p T)^(-1 / s), the e^(-p T) of even ones for s of 0.

    >>> [round(touched_experts(256, 256, 8, 64, s), 1) for s in (0.0, 0.5, 1.0)]
    [221.4, 192.0, 170.7]
    """
    expected = top_k / experts * tokens
    missed = exp(-expected) if spread < 1e-6 else (1.0 + spread * expected) ** (-1.0 / spread)
    return local * (1.0 - missed)


def busiest_rank(local: float, ranks: float, spread: float) -> float:
    """Rows of the busiest of so many ranks over the mean: the sum of the chances of its local experts varies by
    sqrt(spread / local), and the largest of n normal values is about sqrt(2 ln n) - 0.5 deviations above the mean."""
    if ranks < 2:
        return 1.0
    return 1.0 + sqrt(spread / local) * max(sqrt(2.0 * log(ranks)) - 0.5, 0.5)


def family(framework: str, generation: str, kind: Format, *, attention_dp: bool) -> str:
    """Whose grouped kernels a framework runs: those of TensorRT-LLM's generator on Blackwell, DeepGEMM, CUTLASS,
    Triton, Marlin for weights of 4 bit beside wide inputs (the kernels that moe.csv names by framework and GPU)."""
    blackwell = generation == "blackwell"
    if framework == "tensorrt_llm":
        if blackwell and kind.kernel == "fp8_block" and attention_dp:
            return "deepgemm"
        return "trtllm" if blackwell and kind.casts else "cutlass"
    if blackwell:
        return "trtllm"
    if kind.kernel == "int4":
        return "marlin"
    return "cutlass" if framework == "vllm" and kind.kernel == "fp8" else "triton"


def layer_seconds(e: ExpertRows, kind: Format, peak: Number, memory: Number, sms: Number, t: Terms) -> Number:
    """Seconds on a GPU of so many FLOP/s, bytes/s and SMs, without the launches."""
    gpu = Throughput(t["rate"] * peak, t["memory"] * memory, sms)
    terms = GroupedTerms(t["side"], t["overhead"], t["tail"], t["expert"])
    seconds = t["permute"] * 2.0 * (e.rows + e.tokens) * e.hidden / memory
    for n, k in ((e.inner * e.matrices, e.hidden), (e.hidden, e.inner)):
        nbytes = e.touched * n * k * kind.weight_bytes + e.rows * (k * kind.input_bytes + 2.0 * n)
        seconds = seconds + grouped_seconds(Grouped(e.rows, e.touched, n, k, nbytes, e.drawn), gpu, terms)
    return seconds


def expert_seconds(e: ExpertRows, kind: Format, gpu: Accelerator, kernels: Kernels, of: str) -> KernelSeconds:
    """Seconds of one layer's experts by the kernels of a family, communication not counted."""
    if e.rows <= 0 or e.touched <= 0:
        return NOTHING
    terms = kernels.of("experts", of, kind.kernel)
    peak = short_peak(gpu, peak_of(gpu, kind))
    return KernelSeconds(float(layer_seconds(e, kind, peak, gpu.memory_bytes_per_s, gpu.sms, terms)), terms["launch"])
