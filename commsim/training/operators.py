"""The operators of a transformer layer on one rank and one micro-batch: shapes of matrix products, FLOPs, bytes.

Shapes follow Megatron-LM's column- and row-parallel layers (Shoeybi et al. 2019, arXiv:1909.08053): tp cuts the output
width of the first matrix of a pair and the input width of the second. Experts are grouped products, one group per local
expert, after tokens have been exchanged among the ep ranks (GShard, arXiv:2006.16668).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from commsim.training.columns import Columns

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Gemm:
    """`groups` products of (m, k) by (k, n); `wide` ones stay in 16 bit where others are fp8 or fp4."""

    name: str
    m: Float64
    n: Float64
    k: Float64
    groups: Float64 | float = 1.0
    wide: bool = False

    @property
    def flops(self) -> Float64:
        """Forward FLOPs; the backward pass has twice as many (data and weight gradient)."""
        return 2.0 * self.m * self.n * self.k * self.groups


@dataclass(frozen=True, eq=False)
class Attention:
    """The attention core of a rank's heads: `flops` forward with the mask's share, `scores` elements where unfused."""

    name: str
    flops: Float64
    scores: Float64
    nbytes: Float64  # of queries, keys, values and output, once each
    seq: Float64
    head_dim: Float64


@dataclass(frozen=True, eq=False)
class Elementwise:
    """An operator whose time is its memory traffic: bytes forward (backward `BACKWARD_BYTES` times as many)."""

    name: str
    nbytes: Float64


BACKWARD_BYTES = 1.7
"""Traffic of an element-wise operator's backward over its forward: it reads the gradient and the saved input."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer: operators and the number of kernels that the host launches for its forward pass."""

    gemms: tuple[Gemm, ...]
    attention: Attention
    elementwise: tuple[Elementwise, ...]
    kernels: Float64

    @property
    def flops(self) -> Float64:
        """Forward FLOPs."""
        products: Float64 = sum((g.flops for g in self.gemms), start=np.zeros_like(self.attention.flops))
        return products + self.attention.flops


def attention_gemms(c: Columns) -> tuple[Gemm, ...]:
    """Projections before and after the attention core; those of latent attention are empty where there is none."""
    t = c.tokens
    latent = c.kv_rank > 0
    qk = c.heads * c.head_dim
    return (
        Gemm("qkv", t, np.where(latent, 0, c.q_width + 2 * c.kv_width) / c.tp, c.hidden),
        Gemm("latent_down", t, np.where(latent, c.q_rank + c.kv_rank + c.rope_dim, 0), c.hidden),
        Gemm("query_up", t, np.where(latent, qk, 0) / c.tp, np.where(c.q_rank > 0, c.q_rank, c.hidden)),
        Gemm("kv_up", t, np.where(latent, c.heads * (c.nope_dim + c.v_dim), 0) / c.tp, c.kv_rank),
        Gemm("projection", t, c.hidden, c.q_width / c.tp),
    )


def attention_core(c: Columns) -> Attention:
    """Scores and weighted sum, 4 s^2 h FLOPs per sequence; a causal mask halves them where the kernel skips tiles."""
    span = np.where(c.causal > 0, (c.seq + 1) / 2, c.seq)
    windowed = np.minimum(span, np.where(c.window > 0, c.window, np.inf))
    span = (span + windowed) / 2  # every second layer, or the same
    heads = c.heads / c.tp
    flops = 2.0 * c.tokens * span * heads * (c.head_dim + c.v_dim)
    full = 2.0 * c.tokens * c.seq * heads * (c.head_dim + c.v_dim)
    nbytes = 2.0 * c.tokens * (2 * c.q_width + 2 * c.kv_width) / c.tp
    flops = np.where(c.flash > 0, flops, full)
    return Attention("attention", flops, c.tokens * c.seq * heads, nbytes, c.seq, c.head_dim)


def _norms(c: Columns) -> Elementwise:
    """Two norms, two residual additions with dropout: 14 bytes per token and element with fused kernels, 22 without."""
    cut = np.where(c.sp > 0, c.tp, 1.0)
    return Elementwise("norms", c.tokens * c.hidden * np.where(c.flash > 0, 14.0, 22.0) / cut)


def dense_layer(c: Columns) -> Layer:
    """A layer with an ordinary MLP."""
    t = c.tokens
    gemms = (
        *attention_gemms(c),
        Gemm("mlp_up", t, c.ffn * c.matrices / c.tp, c.hidden),
        Gemm("mlp_down", t, c.hidden, c.ffn / c.tp),
    )
    width = c.q_width + 2 * c.kv_width
    elementwise = (
        _norms(c),
        Elementwise("activation", t * c.ffn / c.tp * np.where(c.matrices > 1, 6.0, 4.0)),
        Elementwise("rotary", t * width / c.tp * 5.0),
        Elementwise("casts", _casts(c, t * (width + c.q_width) / c.tp + t * c.ffn / c.tp * 2 + 2 * t * c.hidden)),
    )
    return Layer(gemms, attention_core(c), elementwise, _kernels(c))


def moe_layer(c: Columns) -> Layer:
    """A layer of experts: router, permutation, grouped products over the local experts, shared experts."""
    t = c.tokens
    mine = t / c.tp * c.expert_tp  # tokens that enter the experts' group: sequence parallelism cuts by tp
    rows = mine * c.top_k  # copies that a rank sends, and on average receives
    local = c.experts / c.ep
    per_expert = rows * c.imbalance / local
    gemms = (
        *attention_gemms(c),
        Gemm("router", t / np.where(c.sp > 0, c.tp, 1.0), c.experts, c.hidden, wide=True),
        Gemm("experts_up", per_expert, c.expert_ffn * c.matrices / c.expert_tp, c.hidden, local),
        Gemm("experts_down", per_expert, c.hidden, c.expert_ffn / c.expert_tp, local),
        Gemm("shared_up", t, c.shared_ffn * c.matrices / c.tp, c.hidden),
        Gemm("shared_down", t, c.hidden, c.shared_ffn / c.tp),
    )
    width = c.q_width + 2 * c.kv_width
    elementwise = (
        _norms(c),
        Elementwise("activation", (rows * c.expert_ffn / c.expert_tp + t * c.shared_ffn / c.tp) * 6.0),
        Elementwise("rotary", t * width / c.tp * 5.0),
        # Gather the copies, scatter them to their experts, back, and the weighted sum: each reads and writes 16 bit.
        Elementwise("permute", rows * c.hidden * 2.0 * (2 + 2 + 2 + 2)),
        Elementwise("router", t / np.where(c.sp > 0, c.tp, 1.0) * c.experts * 4.0 * 6),
        Elementwise(
            "casts", _casts(c, t * (width + c.q_width) / c.tp + rows * (c.expert_ffn + c.hidden) + t * c.hidden)
        ),
    )
    # A grouped product launches per local expert; narrow formats also quantise each expert's input and its transpose.
    per_local = np.where(c.fp8 + c.fp4 > 0, 6.0, 2.0) * np.minimum(local, 64.0)
    return Layer(gemms, attention_core(c), elementwise, _kernels(c) + 30.0 + per_local)


def logits(c: Columns) -> tuple[Gemm, Elementwise]:
    """Output matrix and cross entropy of the last stage, cut by tp; 24 bytes per token and word for both passes."""
    gemm = Gemm("logits", c.tokens, c.vocab / c.tp, c.hidden, wide=True)
    return gemm, Elementwise("loss", c.tokens * c.vocab / c.tp * 24.0)


def _casts(c: Columns, elements: Float64) -> Float64:
    """Bytes for quantising the inputs of narrow products: read 16 bit, write 8 bit (and its transpose)."""
    return elements * np.where(c.fp8 + c.fp4 > 0, 3.0, 0.0)


def _kernels(c: Columns) -> Float64:
    """Kernels of a dense layer's forward pass: 16 fused, 24 with an unfused attention, 4 more with tp."""
    return np.where(c.flash > 0, 16.0, 24.0) + np.where(c.tp > 1, 4.0, 0.0)
