"""Bytes that a layer keeps between its forward and its backward, by operator.

Without flash attention and with dropout these are the terms of Korthikanti et al. 2022 (arXiv:2205.05198, section
4): s b h (34 + 5 a s / h) on one rank, s b h (10 + 24/t + 5 a s / (h t)) with tensor parallelism, s b h (34/t + ...)
with sequence parallelism. Newer models train without dropout; flash attention keeps one number per row of scores.
"""

from __future__ import annotations

from dataclasses import dataclass

from commsim.training.model import Mla, Model, Moe
from commsim.training.spec import Step


@dataclass(frozen=True)
class Kept:
    """What one operator keeps for its backward, on one rank and micro-batch; ``core``: part of the attention core."""

    name: str
    nbytes: float
    core: bool = False
    product: bool = False  # the input of a matrix product is recomputed only under full recomputation


def layer_kept(step: Step, layer: int, dropout: bool, gathered: bool = False) -> list[Kept]:
    """What one layer keeps without recomputation; ``dropout``: its masks, one byte per element.

    ``gathered``: with sequence parallelism the inputs of matrices are kept as gathered (DTensor) and not gathered
    again (Megatron-LM).
    """
    model, a = step.model, step.precision.activation_bytes
    tokens, tp = step.rank_tokens, step.tp
    whole = tokens / (tp if step.sequence_parallel else 1)
    h = model.hidden
    kept = [
        Kept("norm 1 input", whole * h * a),
        *_attention(step, tokens, tokens if gathered else whole, a, dropout),
        Kept("norm 2 input", whole * h * a),
    ]
    if dropout:
        kept.append(Kept("attention dropout mask", whole * h))
    if model.moe is not None and model.is_moe_layer(layer):
        return kept + _experts(step, model.moe, tokens, whole, a)
    inputs = tokens if gathered else whole
    return kept + _mlp(model, "mlp", tokens / tp, inputs, model.ffn_hidden, a, dropout)


def _attention(step: Step, tokens: float, whole: float, a: float, dropout: bool) -> list[Kept]:
    model, tp = step.model, step.tp
    mine = tokens / tp
    if model.mla is not None:
        kept, value_width = _latent(model, model.mla, mine, whole, a), model.heads * model.mla.v_head_dim
    else:
        kept = [
            Kept("qkv input", whole * model.hidden * a, product=True),
            Kept("queries", mine * model.q_width * a, core=True),
            Kept("keys and values", mine * 2 * model.kv_width * a, core=True),
        ]
        value_width = model.q_width
    scores = mine * step.seq_len * model.heads
    if step.flash_attention:
        kept.append(Kept("softmax statistics", mine * model.heads * 4, core=True))
        kept.append(Kept("attention output", mine * value_width * a, product=True))
        return kept
    kept.append(Kept("softmax output", scores * a, core=True))
    if dropout:
        kept += [Kept("softmax dropout mask", scores, core=True), Kept("dropped scores", scores * a, core=True)]
    kept.append(Kept("attention output", mine * value_width * a, product=True))
    return kept


def _latent(model: Model, mla: Mla, mine: float, whole: float, a: float) -> list[Kept]:
    """Latent attention keeps the low-rank vectors before and after their norms, and the full heads."""
    qk = mla.qk_nope_head_dim + mla.qk_rope_head_dim
    tokens = whole  # the down projections are not cut by tp
    return [
        Kept("qkv input", whole * model.hidden * a, product=True),
        Kept("query latent", tokens * 2 * mla.q_lora_rank * a),
        Kept("key-value latent", tokens * (2 * mla.kv_lora_rank + mla.qk_rope_head_dim) * a),
        Kept("queries", mine * model.heads * qk * a, core=True),
        Kept("keys", mine * model.heads * qk * a, core=True),
        Kept("values", mine * model.heads * mla.v_head_dim * a, core=True),
    ]


def _mlp(model: Model, name: str, mine: float, whole: float, width: int, a: float, dropout: bool) -> list[Kept]:
    """An MLP: its input, what the activation function reads, what it makes."""
    kept = [
        Kept(f"{name} input", whole * model.hidden * a, product=True),
        Kept(f"{name} activation input", mine * width * a * (2 if model.gated_mlp else 1)),
        Kept(f"{name} activation output", mine * width * a, product=True),
    ]
    if dropout:
        kept.append(Kept(f"{name} dropout mask", whole * model.hidden))
    return kept


def _experts(step: Step, moe: Moe, tokens: float, whole: float, a: float) -> list[Kept]:
    """Experts: the copies of tokens that arrive, what their MLPs keep, and what comes back before it is weighted."""
    model = step.model
    rows = tokens / step.tp * moe.top_k * step.imbalance
    matrices = 2 if model.gated_mlp else 1
    kept = [
        Kept("router", whole * (model.hidden * a + moe.experts * 4 * 2)),
        Kept("expert input", rows * model.hidden * a, product=True),
        Kept("expert activation input", rows * moe.expert_ffn * a * matrices),
        Kept("expert activation output", rows * moe.expert_ffn * a, product=True),
        Kept("expert output", rows * model.hidden * a),
    ]
    if moe.shared_ffn:
        kept += _mlp(model, "shared expert", tokens / step.tp, whole, moe.shared_ffn, a, dropout=False)
    return kept


def recomputed(kept: list[Kept], step: Step) -> float:
    """Bytes that are kept under the step's recomputation choice."""
    total = sum(k.nbytes for k in kept)
    if step.recompute == "none":
        return total
    if step.recompute == "selective":  # of the attention core, which flash attention recomputes anyway
        return total - sum(k.nbytes for k in kept if k.core and not step.flash_attention and k.name not in _KEPT_CORE)
    if step.recompute == "layerwise":
        return min(total, _every_second_product(step))
    return min(total, _layer_input(step))


_KEPT_CORE = ("queries", "keys and values", "keys", "values")
"""Selective recomputation starts from these."""


def _layer_input(step: Step) -> float:
    whole = step.rank_tokens / (step.tp if step.sequence_parallel else 1)
    return whole * step.model.hidden * step.precision.activation_bytes


def _every_second_product(step: Step) -> float:
    """torchtitan's selective checkpointing: a layer's input, attention's output, and every second product's result."""
    model, a = step.model, step.precision.activation_bytes
    mine = step.rank_tokens / step.tp
    products = model.q_width + 2 * model.kv_width + model.ffn_hidden * (2 if model.gated_mlp else 1)
    attention = mine * (model.q_width * a + model.heads * 4)
    return _layer_input(step) + attention + 0.5 * mine * products * a + _layer_input(step)
