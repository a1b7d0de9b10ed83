"""Fine-tuning with frozen base weights: LoRA, QLoRA, adapters, prefixes and prompts, and what one GPU needs for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from commsim.training.spec import Step

NF4_BYTES = 0.5 + 4.0 / 64  # 4 bits, and a fp32 constant per block of 64 (Dettmers et al. 2023, section 3)
NF4_DOUBLE_BYTES = 0.5 + 1.0 / 64 + 4.0 / (64 * 256)  # the constants quantised to 8 bits: 0.127 bits per parameter


def lora_parameters(step: Step, rank: int, targets: Sequence[str] = ("q", "v")) -> int:
    """Trainable parameters of LoRA: rank times (inputs + outputs) of every targeted matrix (Hu et al. 2021)."""
    model = step.model
    f = model.ffn_hidden
    widths = {
        "q": (model.hidden, model.q_width),
        "k": (model.hidden, model.kv_width),
        "v": (model.hidden, model.kv_width),
        "o": (model.q_width, model.hidden),
        "up": (model.hidden, f),
        "gate": (model.hidden, f if model.gated_mlp else 0),
        "down": (f, model.hidden),
    }
    return model.layers * rank * sum(sum(widths[t]) for t in targets if all(widths[t]))


def adapter_parameters(step: Step, bottleneck: int) -> int:
    """Two adapters per layer: down, up, and their biases (Houlsby et al. 2019)."""
    h = step.model.hidden
    return step.model.layers * 2 * (2 * h * bottleneck + h + bottleneck)


def prefix_parameters(step: Step, length: int) -> int:
    """Prefix tuning: a key and a value per layer and position (Li & Liang 2021)."""
    return step.model.layers * 2 * length * step.model.kv_width


def prompt_parameters(step: Step, length: int) -> int:
    """Prompt tuning: an embedding per position (Lester et al. 2021)."""
    return length * step.model.hidden


@dataclass(frozen=True)
class FineTune:
    """Frozen base weights and few trainable ones. ``base_bytes`` per frozen parameter: 2, or `NF4_BYTES`."""

    trainable: float
    base_bytes: float = 2.0
    state_bytes: float = 16.0


def finetune_memory(step: Step, tune: FineTune, tokens: int | None = None, ranks: int = 1) -> dict[str, float]:
    """Bytes of one GPU by part, on tensors as torch allocates them (eager, no fused loss).

    What is kept per token and layer of a frozen base: inputs of matrices need not be kept, but eager torch keeps those
    of norms, rotations and the activation function; 10 bytes per logit: 16 bit, fp32, and the gradient's fp32.
    Embeddings, output and norms stay in 16 bit when the rest is quantised, and bitsandbytes' 4-bit product keeps its
    input (autograd/_functions.py, MatMul4Bit up to 0.41): 6 h + 2 f bytes more per token and layer.
    """
    model = step.model
    tokens = step.rank_tokens if tokens is None else tokens
    wide = model.embedding_parameters + model.output_parameters + (2 * model.layers + 1) * model.norm_parameters
    inside = model.parameters() - wide
    quantised = tune.base_bytes < 2.0
    one = eager_bytes(step) + (6.0 * model.hidden + 2.0 * model.ffn_hidden if quantised else 0.0)
    per_token = model.layers * one if step.recompute != "full" else model.layers * 2.0 * model.hidden + one
    parts = {
        "weights": (inside * tune.base_bytes + wide * 2.0) / ranks,
        "trainable states": tune.trainable * tune.state_bytes / ranks,
        "activations": tokens * per_token,
        "logits": tokens * model.vocab * 10.0,
    }
    if quantised:
        parts["dequantised layer"] = 2.0 * 2.0 * max(model.hidden * model.ffn_hidden, model.hidden * model.q_width)
    return parts


def eager_bytes(step: Step) -> float:
    """Bytes that eager torch keeps per token and layer when the base is frozen and recompute is none.

    Multiples of 2 h: norms (input and fp32 copy), rotated queries and keys, attention's inputs and output, and of the
    MLP the activation function's inputs and output; LoRA's own inputs and the residual.
    """
    model = step.model
    h, q, kv, f = model.hidden, model.q_width, model.kv_width, model.ffn_hidden
    norms = 2 * (2.0 * h + (4.0 * h if model.norm == "rmsnorm" else 0.0))
    attention = 2.0 * (q + 2 * kv) + 2.0 * (q + kv) + 2.0 * q
    lora = 4.0 * h  # its input after dropout, and the sum with the residual
    mlp = 2.0 * f * (3 if model.gated_mlp else 1)
    return norms + attention + lora + mlp
