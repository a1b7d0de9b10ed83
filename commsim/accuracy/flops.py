"""FLOPs per token as printed rates count them.

``hardware``: 96 L h^2 (1 + s/6h + V/16Lh), which counts the recomputed forward (Narayanan et al. 2021, eq. 3); ``full``
and ``causal``: three times the forward products with the whole score matrix or half of it; ``six``: 6 P + 12 L h s.
"""

from __future__ import annotations

from commsim.training.spec import Step

FLOPS = ("hardware", "full", "causal", "six")


def flops_per_token(step: Step, convention: str) -> float:
    """FLOPs per token by a convention of `FLOPS`; with frozen weights the weight gradient is left out."""
    m, s = step.model, step.seq_len
    if convention == "hardware":
        h, layers = m.hidden, m.layers
        return 96.0 * layers * h * h * (1 + s / (6 * h) + m.vocab / (16 * layers * h))
    if convention == "six":
        return 6.0 * m.active_parameters() + 12.0 * m.layers * m.hidden * s
    scores = 4.0 * s * m.q_width * (0.5 if convention == "causal" and m.causal else 1.0)
    weights = m.active_parameters() - m.embedding_parameters + (m.vocab * m.hidden if m.tied_embeddings else 0)
    return (2.0 if step.frozen_weights else 3.0) * (2.0 * weights + m.layers * scores)
