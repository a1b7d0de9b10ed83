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
    """What one operator keeps for its backward, on one rank and micro-batch; ``core``: part of the attention core."""

    name: str
    nbytes: Number
    core: bool = False


def layer_kept(step: Step, layer: int, dropout: bool, gathered: bool = False) -> list[Kept]:
    """What one layer keeps without recomputation; ``dropout``: its masks, one byte per element.

    ``gathered``: with sequence parallelism the inputs of matrices are kept as gathered (DTensor) and not gathered
    again (Megatron-LM).
    """
    model, a = step.model, step.precision.activation_bytes
    tokens = step.rank_tokens
    whole = tokens / step.sequence_cut
    norm = whole * model.hidden * a
    kept = [
        Kept("norm 1 input", norm),
        *_attention(step, tokens if gathered else whole, dropout),
        Kept("norm 2 input", norm),
    ]
    if dropout:
        kept.append(Kept("attention dropout mask", whole * model.hidden))
    if model.is_moe_layer(layer):
        return kept + _experts(step, whole)
    return kept + _mlp(step, "mlp", tokens if gathered else whole, model.ffn_hidden, dropout)


def _attention(step: Step, whole: Number, dropout: bool) -> list[Kept]:
    model, a = step.model, step.precision.activation_bytes
    mine = step.rank_tokens / step.tp
    kept = [Kept("qkv input", whole * model.hidden * a)]
    if model.mla is not None:
        # Low-rank vectors before and after their norms, which tp does not cut, and the full heads.
        latent = 2 * model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
        kept += [
            Kept("query latent", whole * 2 * model.mla.q_lora_rank * a),
            Kept("key-value latent", whole * latent * a),
            Kept("queries", mine * model.heads * model.qk_head_dim * a, core=True),
            Kept("keys", mine * model.heads * model.qk_head_dim * a, core=True),
            Kept("values", mine * model.value_width * a, core=True),
        ]
    else:
        kept += [
            Kept("queries", mine * model.q_width * a, core=True),
            Kept("keys and values", mine * 2 * model.kv_width * a, core=True),
        ]
    if step.flash_attention:
        kept.append(Kept("softmax statistics", mine * model.heads * 4, core=True))
    else:
        scores = mine * step.seq_len * model.heads
        kept.append(Kept("softmax output", scores * a, core=True))
        if dropout:
            kept += [Kept("softmax dropout mask", scores, core=True), Kept("dropped scores", scores * a, core=True)]
    return [*kept, Kept("attention output", mine * model.value_width * a)]


def _mlp(step: Step, name: str, whole: Number, width: int, dropout: bool = False) -> list[Kept]:
    """An MLP: its input, what the activation function reads, what it makes."""
    model, a = step.model, step.precision.activation_bytes
    mine = step.rank_tokens / step.tp
    kept = [
        Kept(f"{name} input", whole * model.hidden * a),
        Kept(f"{name} activation input", mine * width * a * model.up_matrices),
        Kept(f"{name} activation output", mine * width * a),
    ]
    if dropout:
        kept.append(Kept(f"{name} dropout mask", whole * model.hidden))
    return kept


def _experts(step: Step, whole: Number) -> list[Kept]:
    """Experts: the copies of tokens that arrive, what their MLPs keep, and what comes back before it is weighted."""
    model, moe, a = step.model, step.model.routing, step.precision.activation_bytes
    rows = step.rank_tokens / step.tp * moe.top_k * step.imbalance
    kept = [
        Kept("router", whole * (model.hidden * a + moe.experts * 4 * 2)),
        Kept("expert input", rows * model.hidden * a),
        Kept("expert activation input", rows * moe.expert_ffn * a * model.up_matrices),
        Kept("expert activation output", rows * moe.expert_ffn * a),
        Kept("expert output", rows * model.hidden * a),
    ]
    return kept + _mlp(step, "shared expert", whole, moe.shared_ffn) if moe.shared_ffn else kept


def recomputed(kept: list[Kept], step: Step) -> float:
    """Bytes that are kept under the step's recomputation choice."""
    total = sum(k.nbytes for k in kept)
    # Of the attention core, which flash attention recomputes anyway.
    core = sum(k.nbytes for k in kept if k.core and not step.flash_attention and k.name not in _KEPT_CORE)
    layerwise = where(step.recompute == "layerwise", _every_second_product(step), total)
    selective = where(step.recompute == "selective", total - core, np.minimum(total, layerwise))
    held: float = where(step.recompute == "full", np.minimum(total, _layer_input(step)), selective)
    return held


_KEPT_CORE = ("queries", "keys and values", "keys", "values")
"""Selective recomputation starts from these."""


def _layer_input(step: Step) -> Number:
    return step.rank_tokens / step.sequence_cut * step.model.hidden * step.precision.activation_bytes


def _every_second_product(step: Step) -> Number:
    """torchtitan's selective checkpointing: a layer's input, attention's output, and every second product's result."""
    model, a = step.model, step.precision.activation_bytes
    mine = step.rank_tokens / step.tp
    products = model.q_width + 2 * model.kv_width + model.ffn_hidden * model.up_matrices
    attention = mine * (model.q_width * a + model.heads * 4)
    return _layer_input(step) + attention + 0.5 * mine * products * a + _layer_input(step)
