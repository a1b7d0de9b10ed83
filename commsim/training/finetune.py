"""Fine-tuning with frozen base weights: LoRA, QLoRA, adapters, prefixes and prompts, and what one GPU needs for it.

Tensor parallelism cuts LoRA's matrices as Megatron-Bridge does (`peft/utils.py`, `ParallelLinearAdapter`): beside a
column-parallel matrix A and B by columns, beside a row-parallel one A by rows and B by columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from commsim.errors import CommsimError
from commsim.training.activations import layer_input, layer_kept, recomputed
from commsim.training.compute import gemm_rate, memory_rate
from commsim.training.memory import (
    STASHED_INPUTS,
    StageMemory,
    StepMemory,
    in_flight,
    kept_of_micro_batch,
    logit_bytes,
    step_memory,
)
from commsim.training.offload import Offload
from commsim.training.spec import Step
from commsim.training.stages import chunks_of
from commsim.training.step_time import NORM_BYTES, UPDATE_BYTES

if TYPE_CHECKING:
    from commsim.training.compute import Values
    from commsim.training.stages import Chunk
    from commsim.training.work import ChunkSeconds, ComputeTime

Kind = Literal["lora", "qlora", "adapters", "prefix", "prompt"]

NF4_BYTES = 0.5 + 4.0 / 64  # 4 bits, and a fp32 constant per block of 64 (Dettmers et al. 2023, section 3)
NF4_DOUBLE_BYTES = 0.5 + 1.0 / 64 + 4.0 / (64 * 256)  # the constants quantised to 8 bits: 0.127 bits per parameter


def lora_parameters(step: Step, rank: int, targets: Sequence[str] = ("q", "v")) -> int:
    """Trainable parameters of LoRA: rank times (inputs + outputs) of every targeted matrix (Hu et al. 2021)."""
    return step.model.layers * rank * sum(sum(pair) for pair in _widths(step, targets))


def lora_kept(step: Step, targets: Sequence[str]) -> float:
    """Bytes per token and layer that LoRA keeps: its input after dropout in 16 bit and the mask, a byte each, once for
    queries, keys and values together (LitGPT, `lora.py`, `LoRALinear` and `LoRAQKVLinear`)."""
    alone = [t for t in targets if t not in ("q", "k", "v")]
    return 3.0 * (sum(n_in for n_in, _ in _widths(step, alone)) + step.model.hidden * (len(alone) < len(targets)))


def scaled_kept(step: Step) -> float:
    """Bytes per token and layer that adapter v2 keeps: what every matrix makes, which a trained scale multiplies
    (LitGPT, `adapter_v2.py`, `AdapterV2Linear`)."""
    return sum(2.0 * n_out for _, n_out in _widths(step, ("q", "k", "v", "o", "up", "gate", "down")))


ROW_PARALLEL = ("o", "down")
"""Matrices that tensor parallelism cuts by rows; the others it cuts by columns (Shoeybi et al. 2019)."""


def lora_moved(step: Step, targets: Sequence[str]) -> float:
    """Bytes per token and layer that a rank's products of LoRA read and write forward beside what lies between the two
    matrices: 16-bit inputs, and outputs with the sum of the base's. Beside a row-parallel matrix the output is whole,
    beside others the input."""
    moved = 0.0
    for target in targets:
        for n_in, n_out in _widths(step, [target]):
            rows = target in ROW_PARALLEL
            moved += 2.0 * n_in / (step.tp if rows else 1) + 8.0 * n_out / (1 if rows else step.tp)
    return moved


def lora_calls(step: Step, rank: int, targets: Sequence[str]) -> tuple[tuple[str, float, int, int], ...]:
    """(collective, elements per token, times forward, times backward) over tp of LoRA in a layer.

    Columns: what A makes is gathered; backward sums B's input gradient, and A's where sequence parallelism does not.
    Rows: what A makes is summed, what B makes is gathered; backward sums B's input gradient.
    """
    h, whole = float(step.model.hidden), 0 if step.sequence_parallel else 1
    calls: list[tuple[str, float, int, int]] = []
    for target in targets:
        if not _widths(step, [target]):
            continue
        if target in ROW_PARALLEL:
            calls += [("all_reduce", float(rank), 1, 1), ("all_gather", h, 1, 0)]
        else:
            calls += [("all_gather", float(rank), 1, 0), ("all_reduce", float(rank), 0, 1), ("all_reduce", h, 0, whole)]
    return tuple(calls)


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

    ``moved_bytes`` and ``flops``: what the trainable products beside the base read and write, and compute, per token in
    a rank's forward; ``kept_bytes``: what they keep of a token and layer for the backward. ``calls``: `lora_calls`.
    """

    trainable: float
    base_bytes: float = 2.0
    state_bytes: float = 16.0
    moved_bytes: float = 0.0
    flops: float = 0.0
    kept_bytes: float = 0.0
    inner: float = 0.0  # elements per token and layer between LoRA's matrices
    calls: tuple[tuple[str, float, int, int], ...] = ()

    @property
    def quantised(self) -> bool:
        """Whether the base is in 4 bit."""
        return self.base_bytes < 2.0


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
    products of their own; the few positions that they add are not timed. CommsimError for a rank above a matrix's.
    """
    layers, h = step.model.layers, step.model.hidden
    least = min((min(pair) for pair in _widths(step, targets)), default=0)
    if kind in ("lora", "qlora") and rank > least:
        raise CommsimError(f"found {rank}, expected at most {least}, the narrower side of a targeted matrix")
    states = step.precision.resident_state_bytes(step.optimizer)
    if kind in ("lora", "qlora"):
        trained = lora_parameters(step, rank, targets)
        return FineTune(
            trained,
            NF4_DOUBLE_BYTES if kind == "qlora" else 2.0,
            states,
            layers * (lora_moved(step, targets) + 4.0 * rank * len(_widths(step, targets))),
            2.0 * trained / step.tp,
            lora_kept(step, targets),
            float(rank * len(_widths(step, targets))),
            lora_calls(step, rank, targets) if step.tp > 1 else (),
        )
    if kind == "adapters":
        trained = layers * 2 * (2 * h * bottleneck + h + bottleneck)
        return FineTune(trained, 2.0, states, layers * 2 * 10.0 * h, 2.0 * trained)
    return FineTune(layers * 2 * length * step.model.kv_width if kind == "prefix" else length * h, 2.0, states)


def beside_base(compute: ComputeTime, step: Step, tune: FineTune, values: Values) -> ComputeTime:
    """The passes with what a method adds: its products once forward and twice backward, bound by memory unless their
    rank is in the hundreds, and a quantised base is read in 4 bits and written in 16 before every pass's products
    (bitsandbytes dequantises)."""
    inside = step.model.parameters() - _wide_parameters(step)
    read, rate = float(memory_rate(step, values)), float(gemm_rate(step, values, wide=True))
    forward = step.rank_tokens * max(tune.moved_bytes / read, tune.flops / rate)
    unpack = inside * (tune.base_bytes + 2.0) / read if tune.quantised else 0.0
    again = forward + unpack if step.recompute == "full" else 0.0

    def seconds(chunk: Chunk) -> ChunkSeconds:
        base, share = compute(chunk), chunk.layers / step.model.layers
        return replace(
            base,
            forward=base.forward + share * (forward + unpack),
            backward_input=base.backward_input + share * (2.0 * forward + unpack + again),
        )

    return seconds


def trained_of_stages(step: Step, tune: FineTune, layers: Sequence[int] | None = None) -> list[float]:
    """Trainable weights on a rank of every stage: by its layers, cut by tp."""
    held = [0.0] * step.pp
    for chunk in chunks_of(step, layers):
        held[chunk.stage] += tune.trainable / step.tp * chunk.layers / step.model.layers
    return held


def update_seconds(
    step: Step, tune: FineTune, memory_bytes_per_s: float, layers: Sequence[int] | None = None
) -> list[float]:
    """The optimizer's pass over every stage's trainable weights, as over all others."""
    held = trained_of_stages(step, tune, layers)
    return [(UPDATE_BYTES + NORM_BYTES) * trained / memory_bytes_per_s for trained in held]


def _stages_memory(step: Step, tune: FineTune, offload: Offload | None, layers: Sequence[int] | None) -> StepMemory:
    """Of a base that is cut by tp and pp: Megatron's memory of frozen weights, the trained ones with their states, and
    what LoRA makes between its matrices; their inputs are those of the base, which are kept."""
    base = step_memory(step, layers=layers, offload=offload)
    inner = 0.0 if step.recompute == "full" else step.rank_tokens * tune.inner * step.precision.activation_bytes
    stages = []
    for stage, trained in zip(base.stages, trained_of_stages(step, tune, layers), strict=True):
        share = trained * step.tp / max(tune.trainable, 1.0)
        more = {"trainable states": trained * tune.state_bytes / (step.shards if step.zero_stage == 3 else 1)}
        more["adapters"] = inner * step.model.layers * share * float(in_flight(step, stage.stage))
        moments = {name: nbytes + sum(more.values()) for name, nbytes in stage.moments.items()}
        stages.append(StageMemory(stage.stage, stage.parts | more, moments))
    return StepMemory(tuple(stages), base.capacity)


def finetune_step_memory(
    step: Step, tune: FineTune, offload: Offload | None = None, layers: Sequence[int] | None = None
) -> StepMemory:
    """Of every stage; without tp and pp `finetune_memory` as the one stage, whose base ZeRO-3 cuts over the ranks."""
    if step.tp * step.pp > 1:
        return _stages_memory(step, tune, offload, layers)
    ranks = step.shards if step.zero_stage == 3 else 1
    parts = finetune_memory(step, tune, ranks=ranks, on_host=offload is not None and offload.activations)
    stage = StageMemory(0, parts, {"backward of a micro-batch": sum(parts.values())})
    return StepMemory((stage,), step.accelerator.room_bytes)


def _wide_parameters(step: Step) -> int:
    """Embeddings, output and norms: they stay in 16 bit when the rest is quantised."""
    model = step.model
    return model.embedding_parameters + model.output_parameters + (2 * model.layers + 1) * model.norm_parameters


def kept_of_tune(step: Step, tune: FineTune) -> float:
    """Bytes that a micro-batch keeps for its backward."""
    if step.tp * step.pp > 1:
        return kept_of_micro_batch(step, "megatron")
    return _activations(step, tune)[0]


def finetune_memory(step: Step, tune: FineTune, ranks: int = 1, *, on_host: bool = False) -> dict[str, float]:
    """Bytes of one GPU by part at the peak.

    What is kept is what a layer keeps whose weights are trained (`layer_kept`), without what products read, and with
    what the method keeps; 10 bytes per logit: 16 bit, fp32, and the gradient's fp32. Embeddings, output and norms stay
    in 16 bit when the rest is quantised; on the eager stack bitsandbytes' 4-bit product keeps its input
    (autograd/_functions.py, MatMul4Bit up to 0.41), torchao's keeps the weight only. With full recomputation the loss
    and a layer made again come one after the other. ``ranks`` share the base, two layers of which are whole at a time.
    ``on_host``: what is kept lies on the host.
    """
    model = step.model
    wide = _wide_parameters(step)
    inside = model.parameters() - wide
    kept, largest, again = _activations(step, tune)
    if on_host:
        kept = min(kept, max(STASHED_INPUTS * layer_input(step), largest))
    parts = {
        "weights": (inside * tune.base_bytes + wide * 2.0) / ranks,
        "trainable states": tune.trainable * tune.state_bytes / ranks,
        "activations": kept,
    }
    if ranks > 1:
        parts["gathered"] = 2.0 * inside / model.layers * tune.base_bytes
    loss = {"logits": step.rank_tokens * model.vocab * logit_bytes(step, 10.0)}
    layer = {"recomputed layer": again} if step.recompute != "none" else {}
    if tune.quantised:
        layer["dequantised layer"] = 2.0 * 2.0 * model.hidden * max(model.ffn_hidden, model.q_width)
    if step.recompute == "full":
        return parts | max(loss, layer, key=lambda moment: sum(moment.values()))
    return parts | loss | layer


def _activations(step: Step, tune: FineTune) -> tuple[float, float, float]:
    """(kept by all layers, by the one that keeps most, made again for the layer under way)."""
    kept = largest = again = 0.0
    for layer, count in (
        (0, step.model.layers - step.model.moe_layers),
        (step.model.layers - 1, step.model.moe_layers),
    ):
        if count:
            reads = tune.quantised and step.stack == "eager"
            every = layer_kept(step, layer, not step.flash_attention, reads=reads)
            whole = float(every.nbytes) + step.rank_tokens * tune.kept_bytes
            held = float(recomputed(every, step)) + step.rank_tokens * tune.kept_bytes * (step.recompute != "full")
            kept, largest, again = kept + count * held, max(largest, held), max(again, whole - held)
    return kept, largest, again
