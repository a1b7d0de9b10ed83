"""Seconds of the small kernels of a step: norms, rotary embedding, activation, router, and the choice of a token."""

from __future__ import annotations

from commsim.generation.layers import Layers
from commsim.generation.replica import Replica

NORM_BYTES = 8.0
"""Per token and element of a norm fused with the residual addition: two inputs read, two outputs written, 16 bit."""

SAMPLING_KERNELS = 8.0
"""Of choosing a token: the cast, penalties, softmax, top-k and top-p, the draw, what is kept of it."""

LOGIT_PASSES = 3.0
"""Passes over the fp32 logits of a token: the cast, the softmax, the choice."""


def small_kernels(r: Replica, layers: Layers) -> float:
    """Small kernels of one step: per layer two norms, the rotary embedding with the cache, an activation or router
    (top-k and the weighted sum), two norms of latent attention, of linear attention convolution, gates, norm and the
    recurrence, and those that choose a token."""
    attending = 2.0 if r.model.mla is None else 4.0
    experts = 3.0 + (1.0 if r.model.routing.shared_ffn else 0.0)
    per_layer = 2.0 * layers.total + layers.dense + layers.experts * experts
    return per_layer + layers.attending * attending + layers.recurrent * 5.0 + SAMPLING_KERNELS


def elementwise_bytes(r: Replica, layers: Layers, tokens: float) -> float:
    """Bytes that the small kernels of so many tokens of a rank's group move."""
    model = r.model
    width = 2.0 * NORM_BYTES * model.hidden * layers.total
    width += layers.attending * 4.0 * (r.heads * model.qk_head_dim + 2.0 * r.kv_heads * model.head_dim)
    width += layers.dense * 6.0 * model.ffn_hidden / r.tp + layers.experts * 6.0 * model.routing.shared_ffn / r.tp
    width += layers.recurrent * (4.0 * model.recurrent.conv_width + 6.0 * model.recurrent.value_width) / r.tp
    return tokens * width


def sampling_bytes(r: Replica, rows: float) -> float:
    """Bytes of choosing a token for so many rows."""
    return rows * r.model.vocab * 4.0 * LOGIT_PASSES
