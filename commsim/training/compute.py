"""Seconds of the operators of a step: what a GPU reaches of its peaks, by shape.

Five effects beside the peaks: tiles of matrix products and the waves in which SMs take them; memory traffic; what a
fused attention kernel reaches by sequence length and head width; clocks under the board's power limit; and the host,
which launches kernels one after another and is the slower part where they are small.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.training.columns import GENERATIONS, Columns
from commsim.training.operators import (
    BACKWARD_BYTES,
    Attention,
    Elementwise,
    Gemm,
    Layer,
    dense_layer,
    logits,
    moe_layer,
)

Float64 = npt.NDArray[np.float64]
Values = Mapping[str, float]

TILES = ((256, 128, 1.0), (128, 128, 0.92), (128, 64, 0.72), (64, 64, 0.5))
"""Rows, columns and relative speed of the tiles that libraries choose from: a smaller tile reads more per FLOP."""


def by_generation(values: Values, name: str, c: Columns) -> Float64:
    """The value of `name.<generation>` for every step; where a generation has none, that of the nearest older one."""
    first = next(values[k] for g in GENERATIONS if (k := f"{name}.{g}") in values)
    table = [first]
    for g in GENERATIONS:
        table.append(values.get(f"{name}.{g}", table[-1]))
    return np.asarray(table[1:], np.float64)[c.generation]


def gemm_rate(c: Columns, values: Values, wide: bool) -> Float64:
    """FLOP/s that a large product reaches."""
    power = np.minimum(c.power, 1.5) ** values["power"]
    stack = np.where(c.eager > 0, values["stack_eager"], 1.0)
    base = by_generation(values, "gemm", c) * c.wide_peak * power * stack
    if wide:
        return base
    narrow8 = by_generation(values, "gemm_fp8", c) * c.gemm_peak * power * stack
    narrow4 = values["gemm_fp4"] * c.gemm_peak * power * stack
    return np.where(c.fp4 > 0, narrow4, np.where(c.fp8 > 0, narrow8, base))


def gemm_seconds(
    m: Float64, n: Float64, k: Float64, groups: Float64 | float, rate: Float64, c: Columns, values: Values
) -> Float64:
    """Seconds of products of (m, k) by (k, n): waves of tiles over the SMs, the best of a few tiles."""
    best = np.full(len(c), np.inf)
    overhead = k + values["k_overhead"]
    for rows, cols, speed in TILES:
        tiles = np.ceil(m / rows) * np.ceil(n / cols) * groups
        waves = np.ceil(tiles / c.sms)
        best = np.minimum(best, waves * c.sms * (2.0 * rows * cols) * overhead / (rate * speed))
    aligned = (n % 64 == 0) & (k % 64 == 0)
    return best * np.where(aligned, 1.0, values["misaligned"])


@dataclass(frozen=True, eq=False)
class Passes:
    """Seconds of one layer (or of the logits) on one rank and micro-batch, communication not counted."""

    forward: Float64
    backward: Float64
    weight: Float64  # the part of backward that makes weight gradients
    attention: Float64  # the part of forward that Korthikanti's selective recomputation repeats
    gemm: Float64  # matrix products of forward
    memory: Float64  # element-wise part of forward


def gemm_passes(g: Gemm, c: Columns, values: Values) -> tuple[Float64, Float64, Float64]:
    """Seconds of a product forward, of its data gradient and of its weight gradient."""
    rate = gemm_rate(c, values, g.wide)
    hbm = c.hbm * values["hbm"]
    width = np.where(g.wide, 2.0, c.gemm_bytes)

    def seconds_of(m: Float64, n: Float64, k: Float64, extra: Float64 | float = 0.0) -> Float64:
        traffic = g.groups * ((m * k + k * n) * width + m * n * 2.0 + extra)
        seconds = np.maximum(gemm_seconds(m, n, k, g.groups, rate, c, values), traffic / hbm)
        return np.where(m * n * k > 0, seconds, 0.0)

    forward = seconds_of(g.m, g.n, g.k)
    data = seconds_of(g.m, g.k, g.n)
    weight = seconds_of(g.k, g.n, g.m, 8.0 * g.k * g.n)  # reads and writes the fp32 main gradient
    return forward, data, np.where(c.frozen > 0, 0.0, weight)


def attention_passes(a: Attention, c: Columns, values: Values) -> tuple[Float64, Float64]:
    """Seconds of the attention core: one fused kernel, or two batched products and a softmax that goes to memory."""
    hbm = c.hbm * values["hbm"]
    narrow = np.where(a.head_dim <= 64, values["head_64"], 1.0)
    power = np.minimum(c.power, 1.5) ** values["power"]
    flash = by_generation(values, "attention", c) * c.wide_peak * power * narrow
    flash = flash * a.seq / (a.seq + values["attention_half"])
    flash = flash * np.where(c.open_kernel > 0, by_generation(values, "attention_open", c), 1.0)
    fused = np.maximum(a.flops / flash, a.nbytes / hbm)
    rate = values["batched"] * by_generation(values, "gemm", c) * c.wide_peak * a.head_dim / (a.head_dim + 64.0)
    rate = rate / np.where(a.head_dim % 8 == 0, 1.0, values["misaligned_head"])
    plain = a.flops / rate + a.scores * values["score_bytes"] / hbm
    fused_back = 2.5 / 0.85 * fused
    plain_back = 2.0 * a.flops / rate + 1.3 * a.scores * values["score_bytes"] / hbm
    # Sliding windows with learned sinks (GPT-OSS) ran unfused in every second layer, as published times suggest, until
    # the software that captures expert layers in CUDA graphs.
    share = np.where(c.flash > 0, np.where((c.window > 0) & (c.graphs == 0), 0.5, 0.0), 1.0)
    return fused + share * (plain - fused), fused_back + share * (plain_back - fused_back)


def elementwise_seconds(e: Elementwise, c: Columns, values: Values) -> Float64:
    """Seconds of the memory traffic of element-wise kernels; compilers fuse more, eager stacks less."""
    stack = np.where(
        c.eager > 0, values["elementwise_eager"], np.where(c.compiled > 0, values["elementwise_compiled"], 1.0)
    )
    return e.nbytes * values["elementwise"] * stack / (c.hbm * values["hbm"])


def host_seconds(kernels: Float64, c: Columns, values: Values) -> Float64:
    """Seconds that the host needs to launch kernels."""
    faster = np.where(c.graphs > 0, values["host_graphs"], np.where(c.compiled > 0, values["host_compiled"], 1.0))
    return kernels * values["host"] * faster


def _either(gpu: Float64, host: Float64) -> Float64:
    """The slower of two that run side by side, with a soft corner: (a^4 + b^4)^(1/4)."""
    return (gpu**4 + host**4) ** 0.25


def layer_passes(layer: Layer, c: Columns, values: Values) -> Passes:
    """Seconds of a layer."""
    products = np.array([gemm_passes(g, c, values) for g in layer.gemms])
    gemm, data, weight = products.sum(axis=0)
    core, core_back = attention_passes(layer.attention, c, values)
    memory = np.array([elementwise_seconds(e, c, values) for e in layer.elementwise]).sum(axis=0)
    host = host_seconds(layer.kernels, c, values)
    forward = _either(gemm + core + memory, host)
    device = data + weight + core_back + BACKWARD_BYTES * memory
    backward = _either(device, 1.3 * host)
    return Passes(forward, backward, backward * weight / device, core, gemm, memory)


@dataclass(frozen=True, eq=False)
class StepCompute:
    """Passes of every part of a step on a rank, communication not counted."""

    dense: Passes
    moe: Passes
    head: Passes  # output matrix and loss


def step_compute(c: Columns, values: Values) -> StepCompute:
    """Seconds of layers and logits of one micro-batch."""
    dense = layer_passes(dense_layer(c), c, values)
    moe = layer_passes(moe_layer(c), c, values) if np.any(c.moe_layers > 0) else dense
    gemm, loss = logits(c)
    forward, data, weight = gemm_passes(gemm, c, values)
    half = elementwise_seconds(loss, c, values) / 2
    head = Passes(forward + half, data + weight + half, weight, np.zeros(len(c)), forward, half)
    return StepCompute(dense, moe, head)
