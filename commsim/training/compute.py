"""Seconds of the operators of a step: what a GPU reaches of its peaks, by shape.

Four effects beside the peaks: the shapes of products and of attention (`commsim.training.kernels`); memory traffic;
clocks under the board's power limit; and the host, which launches kernels one after another and is the slower part
where they are small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from commsim.training.accelerator import REFERENCE_TDP_W
from commsim.training.columns import Number, where
from commsim.training.kernels import (
    AttentionTerms,
    ProductTerms,
    Throughput,
    attention_seconds,
    product_seconds,
)
from commsim.training.operators import (
    BACKWARD_BYTES,
    SOFTMAX_ALONE_BYTES,
    Attention,
    Gemm,
    Layer,
    dense_layer,
    logits,
    moe_layer,
    softmax_alone,
)
from commsim.training.spec import Steps

Values = Mapping[str, float]

USUAL_SCORE = 4.0 * 128.0
"""FLOPs of a score at a head width of 128, for which the share of the peak is given that fused attention reaches."""

FUSED_BACKWARD_FLOPS = 2.5
"""FLOPs of a fused attention's backward over its forward: five products for two (Dao 2023, arXiv:2307.08691, 4.1)."""

FUSED_BACKWARD_RATE = 0.85
"""Rate of that backward over the forward's: 63 % of A100's peak for 73 % (the same, 4.1), 0.86."""

SCORES_BACKWARD = 1.3
"""Memory traffic of unfused scores backward over forward. Measured, not counted: the mean of the sources' median errors
over `validation/training/steps.csv` is 7.82 %; it is 7.94 with 0.98, and 7.99 with 1.63."""

HOST_BACKWARD = 1.3
"""Time of the host backward over forward. Measured likewise: the median error of all rows is 6.7 %, with 0.98 8.3,
with 1.95 8.7."""


def by_generation(values: Values, name: str, step: Steps) -> Number:
    """The value of `name.<generation>` for every step; where a generation has none, that of the nearest older one."""
    given = next(value for g in REFERENCE_TDP_W if (value := values.get(f"{name}.{g}")) is not None)
    table = {}
    for generation in REFERENCE_TDP_W:
        given = table[generation] = values.get(f"{name}.{generation}", given)
    of_step = step.accelerator.generation
    return table[of_step] if isinstance(of_step, str) else of_step.mapped(table)


def gemm_rate(step: Steps, values: Values, wide: bool) -> Number:
    """FLOP/s that a large product reaches."""
    power = _clocks(step, values) * where(step.stack == "eager", values["stack_eager"], 1.0)
    base = by_generation(values, "gemm", step) * step.wide_peak * power
    if wide:
        return base
    narrow8 = by_generation(values, "gemm_fp8", step) * step.gemm_peak * power
    narrow4 = values["gemm_fp4"] * step.gemm_peak * power
    return where(step.precision.fp4, narrow4, where(step.precision.fp8, narrow8, base))


def _clocks(step: Steps, values: Values) -> Number:
    """Rate over that of the generation's reference board, by power."""
    return np.minimum(step.accelerator.power, 1.5) ** values["power"]


def memory_rate(step: Steps, values: Values) -> Number:
    """Bytes per second that kernels reach of the GPU's memory."""
    return step.accelerator.memory_bytes_per_s * values["hbm"]


def product_terms(values: Values) -> ProductTerms:
    """What shapes of products cost in a step."""
    return ProductTerms(values["tile_side"], values["k_overhead"], split=values["split"])


@dataclass(frozen=True, eq=False)
class Passes:
    """Seconds of one layer (or of the logits) on one rank and micro-batch, communication not counted."""

    forward: Number
    backward: Number
    weight: Number  # the part of backward that makes weight gradients
    attention: Number  # the part of forward that Korthikanti's selective recomputation repeats
    gemm: Number  # matrix products of forward
    memory: Number  # element-wise part of forward
    last: Number = 0.0  # the part of forward after which nothing is kept: a dense layer's last product


def gemm_passes(g: Gemm, step: Steps, values: Values) -> tuple[Number, Number, Number]:
    """Seconds of a product forward, of its inputs' gradient (of both factors where both are inputs, and the product
    again, as kernels of scans do that keep no states) and of its weight gradient."""
    width = 2.0 if g.wide else step.precision.gemm_bytes
    gpu = Throughput(gemm_rate(step, values, g.wide), memory_rate(step, values), step.accelerator.sms)
    terms = product_terms(values)
    slower = where((g.n % 64 == 0) & (g.k % 64 == 0), 1.0, values["misaligned"])  # of the weight, whatever the tokens

    def seconds_of(p: Gemm, extra: Number = 0.0) -> Number:
        """Of the mean layer."""
        nbytes = p.groups * ((p.m * p.k + p.k * p.n) * width + p.m * p.n * 2.0 + extra)
        seconds = where(p.m * p.n * p.k > 0, product_seconds(p, nbytes, gpu, terms) * slower, 0.0)
        return seconds if np.all(p.share == 1.0) else seconds * p.share

    forward = seconds_of(g)
    inputs = seconds_of(replace(g, n=g.k, k=g.n))
    other = replace(g, m=g.k, k=g.m, drawn=False)
    if g.inner:
        return forward, forward + inputs + seconds_of(other), 0.0  # what is not kept is made again
    weight = seconds_of(other, 8.0 * g.k * g.n)  # reads and writes the fp32 main gradient
    return forward, inputs, where(step.frozen_weights, 0.0, weight)


def attention_passes(a: Attention, step: Steps, values: Values) -> tuple[Number, Number]:
    """Seconds of the attention core: one fused kernel, or two batched products and a softmax that goes to memory."""
    hbm = memory_rate(step, values)
    sms, terms = step.accelerator.sms, AttentionTerms(values["softmax"], values["attention_start"])
    reached = by_generation(values, "attention", step) * step.wide_peak * _clocks(step, values)
    reached = reached * where(step.attention_kernel == "open", by_generation(values, "attention_open", step), 1.0)
    products = 1.0 / np.maximum(1.0 / reached - terms.softmax / (sms * USUAL_SCORE), 0.2 / reached)
    fused = attention_seconds(a, Throughput(products, hbm, sms), terms) * a.share
    rate = values["batched"] * by_generation(values, "gemm", step) * step.wide_peak * a.head_dim / (a.head_dim + 64.0)
    rate = rate / where(a.head_dim % 8 == 0, 1.0, values["misaligned_head"])
    moved = a.scores * (values["score_bytes"] + where(softmax_alone(step), SOFTMAX_ALONE_BYTES, 0.0)) / hbm
    plain = a.flops / rate + moved
    fused_back = FUSED_BACKWARD_FLOPS / FUSED_BACKWARD_RATE * fused
    plain_back = 2.0 * a.flops / rate + SCORES_BACKWARD * moved
    return where(step.flash_attention, fused, plain), where(step.flash_attention, fused_back, plain_back)


def elementwise_seconds(nbytes: Number, step: Steps, values: Values) -> Number:
    """Seconds of the memory traffic of element-wise kernels; compilers fuse more, eager stacks less."""
    compiled = where(step.stack == "compiled", values["elementwise_compiled"], 1.0)
    stack = where(step.stack == "eager", values["elementwise_eager"], compiled)
    return nbytes * values["elementwise"] * stack / memory_rate(step, values)


def host_seconds(kernels: Number, step: Steps, values: Values) -> Number:
    """Seconds that the host needs to launch kernels."""
    compiled = where(step.stack == "compiled", values["host_compiled"], 1.0)
    return kernels * values["host"] * where(step.cuda_graphs, values["host_graphs"], compiled)


def _either(gpu: Number, host: Number) -> Number:
    """The slower of two that run side by side, with a soft corner: (a^4 + b^4)^(1/4)."""
    return (gpu**4 + host**4) ** 0.25


def layer_passes(layer: Layer, step: Steps, values: Values) -> Passes:
    """Seconds of a layer."""
    gemm, inputs, weight = map(sum, zip(*(gemm_passes(g, step, values) for g in layer.gemms), strict=True))
    core, core_back = attention_passes(layer.attention, step, values)
    memory = elementwise_seconds(sum(layer.elementwise.values()), step, values)
    host = host_seconds(layer.kernels, step, values)
    forward = _either(gemm + core + memory, host)
    device = inputs + weight + core_back + BACKWARD_BYTES * memory
    backward = _either(device, HOST_BACKWARD * host)
    last = sum(gemm_passes(g, step, values)[0] for g in layer.gemms if g.name == "mlp_down")
    last = forward * last / (gemm + core + memory)
    return Passes(forward, backward, backward * weight / device, core, gemm, memory, last)


@dataclass(frozen=True, eq=False)
class StepCompute:
    """Passes of every part of a step on a rank, communication not counted."""

    dense: Passes
    moe: Passes
    head: Passes  # output matrix and loss

    def of_stage(self, step: Steps, seconds: Callable[[Passes], Number]) -> Number:
        """What all layers of a stage take, of what one takes."""
        moe = step.model.moe_layers
        return ((step.model.layers - moe) * seconds(self.dense) + moe * seconds(self.moe)) / step.pp


def step_compute(step: Steps, values: Values) -> StepCompute:
    """Seconds of layers and logits of one micro-batch."""
    dense = layer_passes(dense_layer(step), step, values)
    moe = layer_passes(moe_layer(step), step, values) if np.any(step.model.moe_layers > 0) else dense
    gemm, loss = logits(step)
    forward, inputs, weight = gemm_passes(gemm, step, values)
    half = elementwise_seconds(loss, step, values) / 2
    head = Passes(forward + half, inputs + weight + half, weight, 0.0, forward, half)
    return StepCompute(dense, moe, head)
