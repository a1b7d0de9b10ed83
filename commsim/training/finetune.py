"""Fine-tuning with frozen base weights: LoRA, QLoRA, adapters, prefixes and prompts, and what one GPU needs for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import TYPE_CHECKING, Any, Literal

from commsim.training.memory import StageMemory, StepMemory
from commsim.training.spec import Step
from commsim.training.step_time import NORM_BYTES, UPDATE_BYTES
from commsim.units import GIB

if TYPE_CHECKING:
    from commsim.training.stages import Chunk
    from commsim.training.work import ChunkSeconds, ComputeTime

Kind = Literal["lora", "qlora", "adapters", "prefix", "prompt"]

NF4_BYTES = 0.5 + 4.0 / 64  # 4 bits, and a fp32 constant per block of 64 (Dettmers et al. 2023, section 3)
NF4_DOUBLE_BYTES = 0.5 + 1.0 / 64 + 4.0 / (64 * 256)  # the constants quantised to 8 bits: 0.127 bits per parameter


def lora_parameters(step: Step, rank: int, targets: Sequence[str] = ("q", "v")) -> int:
    """Trainable parameters of LoRA: rank times (inputs + outputs) of every targeted matrix (Hu et al. 2021)."""
    return step.model.layers * rank * sum(sum(pair) for pair in _widths(step, targets))


def _widths(step: Step, targets: Sequence[str]) -> list[tuple[int, int]]:
    """(inputs, outputs) of the targeted matrices of one layer; a gate only where the MLP has one."""
    model = step.model
    h, f = model.hidden, model.ffn_hidden
    widths = {
        "q": (h, model.q_width),
        "k": (h, model.kv_width),
        "v": (h, model.kv_width),
        "o": (model.q_width, h),
        "up": (h, f),
        "gate": (h, f if model.gated_mlp else 0),
        "down": (f, h),
    }
    return [widths[t] for t in targets if all(widths[t])]


@dataclass(frozen=True)
class FineTune:
    """Frozen base weights and few trainable ones. ``base_bytes`` per frozen parameter: 2, or `NF4_BYTES`.

    ``moved_bytes``: what the trainable products beside the base read and write per token in a forward.
    """

    trainable: float
    base_bytes: float = 2.0
    state_bytes: float = 16.0
    moved_bytes: float = 0.0


def fine_tune(
    step: Step,
    kind: Kind,
    *,
    rank: int = 16,
    targets: Sequence[str] = ("q", "v"),
    bottleneck: int = 64,
    length: int = 20,
) -> FineTune:
    """What a method trains, and what its own products move: 16-bit inputs and outputs, and the sum with the base's.

    Adapters: two per layer, down, up, and their biases (Houlsby et al. 2019). Prefix: a key and a value per layer and
    position (Li & Liang 2021). Prompt: an embedding per position (Lester et al. 2021). Prefixes and prompts have no
    products of their own; the few positions that they add are not timed.
    """
    layers, h = step.model.layers, step.model.hidden
    if kind in ("lora", "qlora"):
        moved = layers * sum(2.0 * n_in + 8.0 * n_out for n_in, n_out in _widths(step, targets))
        base = NF4_DOUBLE_BYTES if kind == "qlora" else 2.0
        return FineTune(lora_parameters(step, rank, targets), base, moved_bytes=moved)
    if kind == "adapters":
        return FineTune(layers * 2 * (2 * h * bottleneck + h + bottleneck), moved_bytes=layers * 2 * 10.0 * h)
    return FineTune(layers * 2 * length * step.model.kv_width if kind == "prefix" else length * h)


def beside_base(compute: ComputeTime, step: Step, tune: FineTune, memory_bytes_per_s: float) -> ComputeTime:
    """The passes with what a method adds: its products are bound by memory, once forward and twice backward, and a
    quantised base is read in 4 bits and written in 16 before every pass's products (bitsandbytes dequantises)."""
    inside = step.model.parameters() - _wide_parameters(step)
    forward = tune.moved_bytes * step.rank_tokens
    unpack = inside * (tune.base_bytes + 2.0) if tune.base_bytes < 2.0 else 0.0
    again = forward + unpack if step.recompute == "full" else 0.0

    def seconds(chunk: Chunk) -> ChunkSeconds:
        base, share = compute(chunk), chunk.layers / step.model.layers / memory_bytes_per_s
        return replace(
            base,
            forward=base.forward + share * (forward + unpack),
            backward_input=base.backward_input + share * (2.0 * forward + unpack + again),
        )

    return seconds


def update_seconds(tune: FineTune, memory_bytes_per_s: float) -> float:
    """The optimizer's pass over the trainable weights, as over all others."""
    return (UPDATE_BYTES + NORM_BYTES) * tune.trainable / memory_bytes_per_s


def finetune_step_memory(step: Step, tune: FineTune) -> StepMemory:
    """`finetune_memory` as the one stage of a step; the base is cut over the ranks with ZeRO-3."""
    parts = finetune_memory(step, tune, ranks=step.shards if step.zero_stage == 3 else 1)
    stage = StageMemory(0, parts, {"backward of a micro-batch": sum(parts.values())})
    return StepMemory((stage,), step.accelerator.room_bytes)


def finetune_advice(step: Step, tune: FineTune) -> list[str]:
    """Changes after which it fits, as few as possible, most harmless first; empty when it fits already."""
    if finetune_step_memory(step, tune).fits:
        return []
    single: list[tuple[str, dict[str, Any]]] = []
    if step.zero_stage < 3 and step.dp > 1:
        single.append(("zero_stage: 3", {"zero_stage": 3}))
    if step.recompute != "full":
        single.append(("recompute: full", {"recompute": "full"}))
    if step.micro_batch_size > 1:
        single.append(("micro_batch_size: 1", {"micro_batch_size": 1}))
    if tune.base_bytes == 2.0:
        single.append(("kind: qlora", {}))
    for number in range(1, len(single) + 1):
        fitting = []
        for changes in combinations(single, number):
            names = [name for name, _ in changes]
            other = replace(tune, base_bytes=NF4_DOUBLE_BYTES) if "kind: qlora" in names else tune
            memory = finetune_step_memory(replace(step, **{k: v for _, d in changes for k, v in d.items()}), other)
            if memory.fits:
                fitting.append(f"{', '.join(names)}: {memory.peak / GIB:.1f} GiB")
        if fitting:
            return fitting
    return []


def _wide_parameters(step: Step) -> int:
    """Embeddings, output and norms: they stay in 16 bit when the rest is quantised."""
    model = step.model
    return model.embedding_parameters + model.output_parameters + (2 * model.layers + 1) * model.norm_parameters


def finetune_memory(step: Step, tune: FineTune, tokens: int | None = None, ranks: int = 1) -> dict[str, float]:
    """Bytes of one GPU by part, on tensors as torch allocates them (eager, no fused loss).

    What is kept per token and layer of a frozen base: inputs of matrices need not be kept, but eager torch keeps those
    of norms, rotations and the activation function; 10 bytes per logit: 16 bit, fp32, and the gradient's fp32.
    Embeddings, output and norms stay in 16 bit when the rest is quantised, and bitsandbytes' 4-bit product keeps its
    input (autograd/_functions.py, MatMul4Bit up to 0.41): 6 h + 2 f bytes more per token and layer.
    """
    model = step.model
    tokens = step.rank_tokens if tokens is None else tokens
    wide = _wide_parameters(step)
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
        parts["dequantised layer"] = 2.0 * 2.0 * model.hidden * max(model.ffn_hidden, model.q_width)
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
