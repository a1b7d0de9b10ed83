"""Bytes that a layer keeps between its forward and its backward, by operator.

Without flash attention and with dropout these are the terms of Korthikanti et al. 2022 (arXiv:2205.05198, section
4): s b h (34 + 5 a s / h) on one rank, s b h (10 + 24/t + 5 a s / (h t)) with tensor parallelism, s b h (34/t + ...)
with sequence parallelism. Newer models train without dropout; flash attention keeps one number per row of scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.training.columns import Number, where
from commsim.training.spec import Step


@dataclass(frozen=True, eq=False)
class Kept:
    """What a layer keeps for its backward, on one rank and micro-batch; of it, the unfused scores."""

    nbytes: Number
    scores: Number


def layer_kept(step: Step, layer: int, dropout: bool, gathered: bool = False) -> Kept:
    """What one layer keeps without recomputation; ``dropout``: its masks, one byte per element.

    ``gathered``: with sequence parallelism the inputs of matrices are kept as gathered (DTensor) and not gathered
    again (Megatron-LM).
    """
    model, a = step.model, step.precision.activation_bytes
    whole = step.rank_tokens / step.sequence_cut
    inputs = step.rank_tokens if gathered else whole
    scores = 0.0 if step.flash_attention else _scores(step, dropout)
    nbytes = 2 * whole * model.hidden * a + _attention(step, inputs) + scores  # first the inputs of both norms
    if dropout:
        nbytes = nbytes + whole * model.hidden
    if model.is_moe_layer(layer):
        return Kept(nbytes + _experts(step, whole), scores)
    masks = inputs * model.hidden if dropout else 0.0
    return Kept(nbytes + _mlp(step, inputs, model.ffn_hidden) + masks, scores)


def _scores(step: Step, dropout: bool) -> Number:
    """Softmax's output; with dropout its mask and the dropped scores, too."""
    elements = step.rank_tokens / step.tp * step.seq_len * step.model.heads
    a = step.precision.activation_bytes
    return elements * (2 * a + 1 if dropout else a)


def _attention(step: Step, whole: Number) -> Number:
    """The input of the first projection, queries, keys, values and output; of fused attention its statistics, too."""
    model = step.model
    elements = model.value_width  # the output
    latent = 0
    if model.mla is None:
        elements += model.q_width + 2 * model.kv_width
    else:
        # Low-rank vectors before and after their norms, which tp does not cut, and the full heads.
        latent = 2 * model.mla.q_lora_rank + 2 * model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
        elements += 2 * model.heads * model.qk_head_dim + model.value_width
    mine = step.rank_tokens / step.tp
    statistics = mine * model.heads * 4 if step.flash_attention else 0.0
    return (whole * (model.hidden + latent) + mine * elements) * step.precision.activation_bytes + statistics


def _mlp(step: Step, whole: Number, width: int) -> Number:
    """An MLP's input, what the activation function reads, and what it makes."""
    model = step.model
    mine = step.rank_tokens / step.tp * width
    return (whole * model.hidden + mine * (model.up_matrices + 1)) * step.precision.activation_bytes


def _experts(step: Step, whole: Number) -> Number:
    """The router, the copies of tokens that arrive, what their MLPs keep, and what comes back before it is weighted."""
    model, moe, a = step.model, step.model.routing, step.precision.activation_bytes
    router = whole * (model.hidden * a + moe.experts * 4 * 2)
    rows = step.rank_tokens / step.tp * moe.top_k * step.imbalance
    experts = rows * (2 * model.hidden + moe.expert_ffn * (model.up_matrices + 1)) * a
    return router + experts + (_mlp(step, whole, moe.shared_ffn) if moe.shared_ffn else 0.0)


def recomputed(kept: Kept, step: Step) -> float:
    """Bytes that are kept under the step's recomputation choice; selective starts from queries, keys and values."""
    total = kept.nbytes
    layerwise = where(step.recompute == "layerwise", np.minimum(total, _every_second_product(step)), total)
    selective = where(step.recompute == "selective", total - kept.scores, layerwise)
    held: float = where(step.recompute == "full", np.minimum(total, _layer_input(step)), selective)
    return held


def _layer_input(step: Step) -> Number:
    return step.rank_tokens / step.sequence_cut * step.model.hidden * step.precision.activation_bytes


def _every_second_product(step: Step) -> Number:
    """torchtitan's selective checkpointing: a layer's input, attention's output, and every second product's result."""
    model, a = step.model, step.precision.activation_bytes
    mine = step.rank_tokens / step.tp
    products = model.q_width + 2 * model.kv_width + model.ffn_hidden * model.up_matrices
    attention = mine * (model.q_width * a + model.heads * 4)
    return _layer_input(step) + attention + 0.5 * mine * products * a + _layer_input(step)
