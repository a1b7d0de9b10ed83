"""The measured time of a row: printed, or from a rate by the convention of its source.

FLOPs per token of a step, by convention: ``hardware`` 96 L h^2 (1 + s/6h + V/16Lh), which counts the recomputed forward
(Narayanan et al. 2021, eq. 3); ``full`` and ``causal`` three times the forward products with the whole score matrix or
half of it; ``six`` 6 P + 12 L h s.
"""

from __future__ import annotations

from commsim.accuracy.training_rows import TrainingRow
from commsim.training.spec import Step


def flops_per_token(step: Step, convention: str) -> float:
    """FLOPs per token that a source counts; with frozen weights the weight gradient is left out."""
    m, s = step.model, step.seq_len
    if convention == "hardware":
        h, layers = m.hidden, m.layers
        return 96.0 * layers * h * h * (1 + s / (6 * h) + m.vocab / (16 * layers * h))
    width = 2 * m.q_width  # of scores and weighted sum, both
    if convention == "six":
        return 6.0 * m.active_parameters() + 12.0 * m.layers * m.hidden * s
    per_layer = 2.0 * s * width * (0.5 if convention == "causal" and m.causal else 1.0)
    weights = m.active_parameters() - m.embedding_parameters + (m.vocab * m.hidden if m.tied_embeddings else 0)
    return (2.0 if step.frozen_weights else 3.0) * (2.0 * weights + m.layers * per_layer)


def measured(row: TrainingRow) -> float | None:
    """Seconds per step, None where the row prints no figure that gives them."""
    step, cells = row.step, row.cells
    if step is None:
        return None
    value = {
        k: _number(cells.get(k, "")) for k in ("iteration_time_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "mfu_pct")
    }
    if value["iteration_time_s"]:
        return value["iteration_time_s"]
    tokens = float(cells["global_batch_seqs"]) * step.seq_len  # as printed, not as rounded to whole micro-batches
    per_rank = tokens / step.world_size
    if value["tokens_per_s_per_gpu"]:
        return per_rank / value["tokens_per_s_per_gpu"]
    work = flops_per_token(step, row.source.convention) * per_rank
    if value["tflops_per_gpu"]:
        return work / (value["tflops_per_gpu"] * 1e12)
    if value["mfu_pct"]:
        # A share of the peak counts model FLOPs, whatever the source's TFLOP/s count.
        kind = "full" if row.source.convention == "hardware" else row.source.convention
        peak = step.accelerator.peak("bf16" if step.accelerator.supports("bf16") else "fp16")
        return flops_per_token(step, kind) * per_rank / (value["mfu_pct"] / 100 * peak)
    return None


def _number(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 < value < 1e12 else 0.0
