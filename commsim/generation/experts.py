"""Seconds of a layer's routed experts on one rank: two grouped products and the permutations around them."""

from __future__ import annotations

from dataclasses import dataclass

from commsim.generation.formats import Format, peak_of
from commsim.generation.grouped import Grouped, GroupedTerms, grouped_seconds
from commsim.generation.terms import Kernels, Terms, short_peak
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


def touched_experts(local: float, experts: float, top_k: float, tokens: float) -> float:
    """The expected number of a rank's experts that any of so many tokens goes to, each to top_k drawn evenly.

    >>> round(touched_experts(256, 256, 8, 1), 2), round(touched_experts(256, 256, 8, 64), 1)
    (8.0, 222.4)
    """
    return local * (1.0 - (1.0 - top_k / experts) ** tokens) if tokens > 0 else 0.0


def family(framework: str, generation: str, kind: Format, *, attention_dp: bool) -> str:
    """Whose grouped kernels a framework runs: those of TensorRT-LLM's generator on Blackwell, DeepGEMM, CUTLASS, Triton,
    Marlin for weights of 4 bit beside wide inputs (the kernels that moe.csv names by framework and GPU)."""
    blackwell = generation == "blackwell"
    if framework == "tensorrt_llm":
        if kind.kernel == "fp8_block" and blackwell:
            return "deepgemm"
        return "trtllm" if kind.kernel == "nvfp4" and not attention_dp else "cutlass"
    if blackwell:
        return "trtllm"
    if kind.kernel == "int4":
        return "marlin"
    return "cutlass" if framework == "vllm" and kind.kernel == "fp8" else "triton"


def layer_seconds(e: ExpertRows, kind: Format, peak: Number, memory: Number, sms: Number, t: Terms) -> Number:
    """Seconds on a GPU of so many FLOP/s, bytes/s and SMs."""
    gpu = Throughput(t["rate"] * peak, t["memory"] * memory, sms)
    terms = GroupedTerms(t["side"], t["overhead"], t["tail"], t["expert"])
    seconds = t["launch"] + t["permute"] * 2.0 * (e.rows + e.tokens) * e.hidden / memory
    for n, k in ((e.inner * e.matrices, e.hidden), (e.hidden, e.inner)):
        nbytes = e.touched * n * k * kind.weight_bytes + e.rows * (k * kind.input_bytes + 2.0 * n)
        seconds = seconds + grouped_seconds(Grouped(e.rows, e.touched, n, k, nbytes, e.drawn), gpu, terms)
    return seconds


def expert_seconds(e: ExpertRows, kind: Format, gpu: Accelerator, kernels: Kernels, of: str) -> float:
    """Seconds of one layer's experts by the kernels of a family, communication not counted."""
    if e.rows <= 0 or e.touched <= 0:
        return 0.0
    terms = kernels.of("experts", of, kind.kernel)
    peak = short_peak(gpu, peak_of(gpu, kind))
    return float(layer_seconds(e, kind, peak, gpu.memory_bytes_per_s, gpu.sms, terms))
