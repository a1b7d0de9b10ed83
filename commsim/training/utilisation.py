"""FLOPs of a step under the two usual conventions, and what share of the peak they are.

Model FLOPs count every product once forward and twice backward, attention as if no mask halved it (Narayanan et al.
2021, appendix; PaLM, arXiv:2204.02311, appendix B), within packed documents only (Megatron-LM); hardware FLOPs count
the recomputed forward as well.
"""

from __future__ import annotations

from commsim.training.model import Model
from commsim.training.recompute import module_shares
from commsim.training.spec import Step


def forward_flops(model: Model, seq_len: float, causal: bool = False) -> float:
    """FLOPs of one token's forward: 2 per weight that it meets, attention and scans; ``causal``: half of the scores."""
    norms = (2 * model.layers + 1) * model.norm_parameters
    met = model.active_parameters() - model.embedding_parameters - norms
    if model.tied_embeddings:
        met += model.vocab * model.hidden
    scans = model.recurrent.layers * model.recurrent.scan_flops
    return 2.0 * met + scans + model.attending_layers * attention_flops(model, seq_len, causal)


def attention_flops(model: Model, seq_len: float, causal: bool = False) -> float:
    """FLOPs of one token's scores and their weighted sum in the mean attention."""
    near = min(model.window or seq_len, seq_len)
    half = 0.5 if causal else 1.0
    slid = near if near < seq_len and not model.chunked else half * near  # a sliding window lies before its token
    span = half * seq_len + model.window_layers / max(model.attending_layers, 1) * (slid - half * seq_len)
    return 2.0 * span * model.heads * (model.qk_head_dim + model.v_head_dim)


def model_flops(step: Step, causal: bool = False) -> float:
    """FLOPs of a step: three forwards, two where the weights are frozen."""
    return step.tokens * forward_flops(step.model, step.attended_len, causal) * (2.0 if step.frozen_weights else 3.0)


def hardware_flops(step: Step, causal: bool = False) -> float:
    """`model_flops` and what is computed again: the layers with full recomputation, up to their last
    product where they end early, their modules with selective."""
    again = 0.0
    attention = step.model.attending_layers * attention_flops(step.model, step.attended_len, causal)
    layers = forward_flops(step.model, step.attended_len, causal) - 2.0 * step.model.vocab * step.model.hidden
    if step.recompute == "full":
        dense = step.model.layers - step.model.moe_layers
        again = layers - float(step.ends_early) * 2.0 * dense * step.model.hidden * step.model.ffn_hidden
    elif step.recompute == "selective":
        again = module_shares(step)[0] * (layers - attention)
        if "core_attn" in step.recompute_modules and not step.flash_attention:
            again += attention
    return model_flops(step, causal) + step.tokens * again


def peak_flop_per_s(step: Step) -> float:
    """Dense FLOP/s of all GPUs in the type that weights are multiplied in."""
    return float(step.world_size * step.gemm_peak)
