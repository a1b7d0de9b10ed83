"""Bytes that a layer keeps between its forward and its backward, by operator.

Without flash attention and with dropout these are the terms of Korthikanti et al. 2022 (arXiv:2205.05198, section
4): s b h (34 + 5 a s / h) on one rank, s b h (10 + 24/t + 5 a s / (h t)) with tensor parallelism, s b h (34/t + ...)
with sequence parallelism. Newer models train without dropout; flash attention keeps one number per row of scores.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from commsim.training.columns import Number, holds, where
from commsim.training.spec import Step


@dataclass(frozen=True, eq=False)
class Kept:
    """What a layer keeps for its backward, on one rank and micro-batch; of it, what each module would not keep that
    selective recomputation makes again (`commsim.training.spec.MODULES`)."""

    nbytes: Number
    dropped: dict[str, Number]


def layer_kept(
    step: Step,
    layer: int,
    dropout: bool,
    gathered: bool = False,
    *,
    gate_apart: bool = False,
    reads: bool | None = None,
) -> Kept:
    """What one layer keeps without recomputation; ``dropout``: its masks, one byte per element.

    ``gathered``: with sequence parallelism the inputs of matrices are kept as gathered (DTensor) and not gathered
    again (Megatron-LM). ``gate_apart``: the activation function of a gated MLP and the product with the gate are two
    operators, between which torch keeps a tensor; the eager stack has them apart, too, and RMS norms, rotations and the
    way to attention's projection are made of operators that keep tensors of their own. ``reads``: products keep what
    they read, which only gradients of their weights need; left out: where weights are trained.
    """
    model, a = step.model, step.precision.activation_bytes
    reads = not step.frozen_weights if reads is None else reads
    whole, eager = step.rank_tokens / step.sequence_cut, step.stack == "eager"
    inputs = step.rank_tokens if gathered else whole
    scores = 0.0 if step.flash_attention else _scores(step, dropout)
    norms = 2 * inputs * model.hidden * _read_bytes(step) * reads  # what both norms make, which products read
    wide = where(eager & (model.norm == "rmsnorm"), 2 * whole * model.hidden * 4, 0.0)  # fp32 copies within
    dropped = {"core_attn": scores, "layernorm": norms + wide, "mla_up_proj": _up_projected(step, whole)}
    nbytes = 2 * whole * model.hidden * a + norms + wide + _attention(step, whole) + scores  # first both norms' inputs
    nbytes = nbytes + where(eager, _apart(step, reads), 0.0)
    if dropout:
        nbytes = nbytes + whole * model.hidden
    if model.is_moe_layer(layer):
        return _moe(step, whole, nbytes, dropped, reads)
    masks = inputs * model.hidden if dropout else 0.0
    inner = _mlp(step, model.ffn_hidden, reads + where(eager | gate_apart, 1, 0) * model.gated_mlp)
    return Kept(nbytes + inner + masks, dropped | {"mlp": inner})


def _apart(step: Step, reads: bool) -> Number:
    """What eager attention keeps beside fused one's: rotated queries and keys, and its output as read."""
    model, a = step.model, step.precision.activation_bytes
    turned = where(model.positions == "computed", model.q_width + model.kv_width, 0)
    output = where(step.flash_attention & reads, model.value_width, 0)
    return step.rank_tokens / step.tp * (turned + output) * a


def _read_bytes(step: Step) -> float:
    """Bytes of an element that a product reads, as it is kept: 8 bit in FP8 training (DeepSeek-V3, arXiv:2412.19437,
    section 3.3.3: inputs of Linear operators for their weight gradients)."""
    return 1.0 if step.fp8_activations else step.precision.activation_bytes


def _scores(step: Step, dropout: bool) -> Number:
    """Softmax's output; with dropout its mask and the dropped scores, too."""
    elements = step.rank_tokens / step.tp * step.seq_len * step.model.heads * step.model.attending_share
    a = step.precision.activation_bytes
    return elements * (2 * a + 1 if dropout else a)


def _attention(step: Step, whole: Number) -> Number:
    """Queries, keys, values and output; of latent attention the low ranks; of fused attention its statistics, too."""
    model, a = step.model, step.precision.activation_bytes
    mine = step.rank_tokens / step.tp
    statistics = mine * model.heads * 4 if step.flash_attention else 0.0
    if model.mla is None:
        gate = model.q_width if model.attention_gate else 0
        kept = mine * (model.q_width + 2 * model.kv_width + model.value_width + gate) * a + statistics
        return model.attending_share * kept + model.linear_share * _scan(step)
    ranks = model.mla.q_lora_rank + model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
    return whole * ranks * a + mine * model.value_width * a + statistics + _up_projected(step, whole)


def _scan(step: Step) -> Number:
    """Of linear attention: inputs and results of the convolution, the gate, what the scan makes and what the gated norm
    makes of it, and fp32 decays; states between chunks are made again (flash-linear-attention, mamba_ssm)."""
    mix = step.model.recurrent
    elements = 2 * mix.conv_width + 3 * mix.value_width
    heads = mix.value_heads * (8.0 if mix.delta else 4.0)
    return step.rank_tokens / step.tp * (elements * step.precision.activation_bytes + heads)


def _up_projected(step: Step, whole: Number) -> Number:
    """What latent attention makes of its low ranks: their norms' outputs, which tp does not cut, and the full heads."""
    model = step.model
    if model.mla is None:
        return 0.0
    normed = whole * (model.mla.q_lora_rank + model.mla.kv_lora_rank) * _read_bytes(step)
    heads = 2 * model.heads * model.qk_head_dim + model.value_width
    return normed + step.rank_tokens / step.tp * heads * step.precision.activation_bytes


def _mlp(step: Step, width: int, made: Number) -> Number:
    """Of an MLP, beside its input, what the activation function reads, and so many tensors that come of it."""
    return step.rank_tokens / step.tp * width * (step.model.up_matrices + made) * _read_bytes(step)


def _moe(step: Step, whole: Number, nbytes: Number, dropped: dict[str, Number], reads: bool) -> Kept:
    """A layer with experts: the router, the copies of tokens that arrive, what the experts' MLPs keep.

    What experts make is not kept: the router's weights multiply inside, after the activation function (Megatron-LM,
    `experts.py`, `weighted_bias_swiglu_impl`).
    """
    model, moe, width = step.model, step.model.routing, _read_bytes(step)
    router = whole * moe.experts * 4 * 2  # its input is what the norm makes
    rows = step.rank_tokens / step.tp * moe.top_k * step.imbalance
    made = rows * moe.expert_ffn * width
    shared = _mlp(step, moe.shared_ffn, reads) if moe.shared_ffn else 0.0
    inner = router + rows * model.hidden * width * reads + (model.up_matrices + reads) * made + shared
    return Kept(nbytes + inner, dropped | {"moe_act": made * reads, "shared_experts": shared, "moe": inner})


_INSIDE_MOE = ("moe_act", "shared_experts")
"""Modules that a recomputed ``moe`` has within."""


def recomputed(kept: Kept, step: Step) -> float:
    """Bytes that are kept under the step's recomputation choice; selective recomputes `recompute_modules`."""
    total = kept.nbytes
    dropped: Number = 0.0
    for module, nbytes in kept.dropped.items():
        gone = holds(step.recompute_modules, module)
        inside = holds(step.recompute_modules, "moe") if module in _INSIDE_MOE else False
        dropped = dropped + where(gone, where(inside, 0.0, nbytes), 0.0)
    layerwise = where(step.recompute == "layerwise", np.minimum(total, _every_second_product(step)), total)
    selective = where(step.recompute == "selective", total - dropped, layerwise)
    held: float = where(step.recompute == "full", np.minimum(total, layer_input(step)), selective)
    return held


def layer_input(step: Step) -> Number:
    """Bytes of what a layer gets from the one before it."""
    return step.rank_tokens / step.sequence_cut * step.model.hidden * step.precision.activation_bytes


def _every_second_product(step: Step) -> Number:
    """torchtitan's selective checkpointing: a layer's input, attention's output, and every second product's result."""
    model, a = step.model, step.precision.activation_bytes
    mine = step.rank_tokens / step.tp
    products = model.q_width + 2 * model.kv_width + model.ffn_hidden * model.up_matrices
    attention = mine * (model.q_width * a + model.heads * 4)
    return layer_input(step) + attention + 0.5 * mine * products * a + layer_input(step)
