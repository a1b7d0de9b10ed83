"""Seconds of the small kernels of a step: norms, rotary embedding, activation, router, and the choice of a token."""

from __future__ import annotations

from commsim.generation.layers import Layers
from commsim.generation.replica import Replica
from commsim.training.compute import Values

NORM_BYTES = 8.0
"""Per token and element of a norm fused with the residual addition: two inputs read, two outputs written, 16 bit."""

LOGIT_PASSES = 3.0
"""Passes over the fp32 logits of a token: the cast, the softmax, the choice."""


def kernels_of(r: Replica, layers: Layers) -> float:
    """Small kernels of one step: per layer two norms, the rotary embedding with the cache, an activation or router
    (top-k and the weighted sum), two norms of latent attention, and of linear attention convolution, gates, norm."""
    attending = 2.0 if r.model.mla is None else 4.0
    dense, experts = 1.0, 3.0 + (1.0 if r.model.routing.shared_ffn else 0.0)
    per_layer = 2.0 * layers.total + layers.dense * dense + layers.experts * experts
    return per_layer + layers.attending * attending + layers.recurrent * 3.0


def elementwise_seconds(r: Replica, layers: Layers, tokens: float, v: Values) -> float:
    """Of so many tokens of a rank's group: a start for each kernel, and their bytes."""
    model = r.model
    width = 2.0 * NORM_BYTES * model.hidden * layers.total
    width += layers.attending * 4.0 * (r.heads * model.qk_head_dim + 2.0 * r.kv_heads * model.head_dim)
    width += layers.dense * 6.0 * model.ffn_hidden / r.tp + layers.experts * 6.0 * model.routing.shared_ffn / r.tp
    width += layers.recurrent * (4.0 * model.recurrent.conv_width + 6.0 * model.recurrent.value_width) / r.tp
    nbytes = tokens * width / (v["elementwise.memory"] * r.gpu.memory_bytes_per_s)
    return kernels_of(r, layers) * v["elementwise.kernel"] + nbytes


def sampling_seconds(r: Replica, rows: float, v: Values) -> float:
    """Of choosing a token for so many rows."""
    nbytes = rows * r.model.vocab * 4.0 * LOGIT_PASSES
    return v["sampling.kernels"] * v["elementwise.kernel"] + nbytes / (
        v["elementwise.memory"] * r.gpu.memory_bytes_per_s
    )
