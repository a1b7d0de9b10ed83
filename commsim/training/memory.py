"""Memory of one GPU of every pipeline stage: every term by name, the peak, when it is reached, and what would help.

What it is not: a trace of the allocator. The peak is the larger of two moments: the backward of the fullest
micro-batch, and the optimizer's update, when activations are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np

from commsim.training.accelerator import CONTEXT_BYTES
from commsim.training.activations import layer_input, layer_kept, recomputed
from commsim.training.columns import Number, where
from commsim.training.offload import Offload
from commsim.training.pipeline_schedules import refuse_misfit
from commsim.training.spec import Step
from commsim.training.stages import Share, Weights, chunks_of, share_of, telling_stages, weights_of
from commsim.units import GIB

Framework = Literal["megatron", "deepspeed", "fsdp2", "ddp", "nanotron"]


@dataclass(frozen=True)
class Software:
    """Bytes that a framework keeps per parameter, and what it adds to every GPU.

    ``weight``, ``gradient``: on every rank; ``owned``: master weights, moments and gradient partitions, divided by the
    data-parallel ranks with ZeRO-1 and 2. ``base``: buffers and workspaces, without the CUDA context, which a GPU's
    room does not have (`commsim.training.communicator_memory` says what of it is NCCL's); ``fragmentation``: what the
    allocator holds beyond what comes and goes, as a share;
    ``logits``: bytes per logit in the loss.
    """

    weight: float
    gradient: Number
    owned: float
    base: Number
    fragmentation: float
    logits: float
    update: Number = 0.0  # bytes per owned parameter that the update alone needs


WORKSPACES = 0.4 * GIB
"""Beside tensors on a rank alone: read off SimuMax's runs of Megatron-LM on 8 B200."""

DDP_BASE = 1 * GIB
"""Workspaces, and buffers of one communicator."""

SEGMENTS = 0.25
"""What torch's allocator reserves beyond what comes and goes, as a share, where its segments cannot grow: read off
BLOOM's trials, as the next. NVIDIA's two runs of NeMo, which set no value here, print what is reserved, too."""

_DEEPSPEED = (7 * GIB - CONTEXT_BYTES, SEGMENTS, 10.0)
"""Base, fragmentation and bytes per logit, by what nvidia-smi showed in 56 of BLOOM's trials (`steps.csv`, which
`commsim validate training --memory` reads). The median error is 4.9 %, with a base of 6 and 8 GiB 4.2 and 4.5,
with a fragmentation of 0.2 and 0.3 4.3 and 5.0."""


def software(step: Step, framework: Framework) -> Software:
    """The bytes of a framework for a step's precision and optimizer.

    megatron: 16-bit weights, gradients of the precision's type (`with_gradients`), the states sharded (distributed
    optimizer; Transformer Engine's fused loss keeps 6 bytes per logit). deepspeed with fp16: 16-bit gradients, and at
    the update for its own part their flat 16-bit and fp32 copies (stage_1_and_2.py), without ZeRO a list of fp32 copies
    and that list flattened (fused_optimizer.py); with bf16 16-bit and flat fp32 gradients (bf16_optimizer.py). fsdp2:
    sharded with all else, weights are what the optimizer updates, fp32 in mixed precision (torchtitan), else of the
    precision's type, as their gradients and moments are (torchtune's ``dtype: bf16`` is ``pure-bf16``); an eager loss
    holds 16-bit logits, their fp32 copy, its log-softmax and a 16-bit gradient: 12 bytes. nanotron: fp32 gradients of
    all weights, 16-bit ones that live until the backward's end, and without ZeRO DDP's buckets of them
    (`gradient_accumulator.py`, `trainer.py`); logits as eager torch's. A rank alone has no buffers of NCCL or shards.
    """
    formats = step.precision
    states = formats.resident_bytes(step.optimizer)
    alone = step.dp * step.tp * step.pp * step.cp == 1
    if framework == "deepspeed":
        flat = formats.weight_bytes
        base, fragmentation, logits = where(alone, WORKSPACES, _DEEPSPEED[0]), *_DEEPSPEED[1:]
        if formats.weight == "bf16":
            return Software(flat, flat + 4.0, states, base, fragmentation, logits)
        copies = where(step.zero_stage == 0, 8.0, 4.0 + flat)
        return Software(flat, flat, states, base, fragmentation, logits, copies)
    if framework == "fsdp2":
        base = where(alone, WORKSPACES, 2 * GIB)
        if formats.master:
            return Software(4.0, 4.0, states - 4.0, base, 0.05, 12.0)
        return Software(formats.weight_bytes, formats.gradient_bytes, states, base, 0.05, 12.0)
    if framework == "ddp":
        base = where(alone, WORKSPACES, DDP_BASE)
        return Software(formats.weight_bytes, formats.gradient_bytes, states, base, 0.05, 10.0)
    if framework == "nanotron":
        buckets = where((step.dp * step.cp > 1) & (step.zero_stage == 0), formats.weight_bytes, 0.0)
        gradients = 4.0 + formats.weight_bytes + buckets
        return Software(formats.weight_bytes, gradients, states, WORKSPACES, 0.05, 12.0)
    gradients = formats.gradient_bytes + formats.extra_gradient_bytes
    return Software(formats.weight_bytes, gradients, states, WORKSPACES, 0.0, 6.0)


@dataclass(frozen=True)
class StageMemory:
    """Bytes of one GPU of a stage. ``parts`` is the breakdown at the peak; ``moments`` the total at each moment."""

    stage: int
    parts: dict[str, float]
    moments: dict[str, float]

    @property
    def peak(self) -> float:
        """The most bytes at any moment."""
        return max(self.moments.values())

    @property
    def moment(self) -> str:
        """When that is."""
        return max(self.moments, key=lambda name: self.moments[name])


@dataclass(frozen=True)
class StepMemory:
    """The memory of all stages, and what one GPU has."""

    stages: tuple[StageMemory, ...]
    capacity: float

    @property
    def fullest(self) -> StageMemory:
        """The stage that needs most."""
        return max(self.stages, key=lambda s: s.peak)

    @property
    def peak(self) -> float:
        """Bytes of the fullest stage."""
        return self.fullest.peak

    @property
    def fits(self) -> bool:
        """Whether every stage fits."""
        return self.peak <= self.capacity


def step_memory(
    step: Step,
    framework: Framework = "megatron",
    *,
    layers: Sequence[int] | None = None,
    dropout: bool | None = None,
    offload: Offload | None = None,
) -> StepMemory:
    """The memory of a step on every stage; ``dropout``: None where there is flash attention, else with masks."""
    refuse_misfit(step.run_schedule, step.pp, step.num_microbatches, step.virtual_stages)
    masks = not step.flash_attention if dropout is None else dropout
    chunks = chunks_of(step, layers)
    stages = []
    for s in range(step.pp):
        share = share_of(step.model, [c for c in chunks if c.stage == s])
        parts = stage_bytes(step, share, s, framework, masks, offload)
        moments = {moment: float(sum(each.values())) for moment, each in parts.items()}
        stages.append(StageMemory(s, _floats(parts[max(moments, key=lambda name: moments[name])]), moments))
    return StepMemory(tuple(stages), step.accelerator.room_bytes)


def reserved_bytes(step: Step, framework: Framework) -> float:
    """What `torch.cuda.max_memory_reserved` shows of the fullest GPU, and nvidia-smi beside the CUDA context.

    Segments that activations had stay the allocator's, and none is large enough for a flat copy of gradients: an
    update's copies come on top of the backward's peak, until the GPU is full and what is free is given back.
    """
    soft, masks, most = software(step, framework), not step.flash_attention, 0.0
    for s in range(step.pp):
        share = share_of(step.model, [c for c in chunks_of(step) if c.stage == s])
        parts = _floats(stage_bytes(step, share, s, framework, masks)[BACKWARD])
        moved = sum(value for name, value in parts.items() if name not in _LASTING)
        copies = float(soft.update * _owned(step, weights_of(step, share)))
        most = max(most, sum(parts.values()) - parts["fragmentation"] + SEGMENTS * moved + copies)
    return max(step_memory(step, framework).peak, min(most, step.accelerator.room_bytes))


def peak_bytes(step: Step, framework: Framework) -> Number:
    """Bytes of the fullest GPU, for a table of steps as well, whose layers or two more divide evenly into chunks.

    The first stage, the second or the last is the fullest: those between have the layers of the second and keep fewer
    micro-batches.
    """
    masks = not step.flash_attention
    moments = [stage_bytes(step, share, stage, framework, masks) for stage, share in telling_stages(step)]
    return reduce(np.maximum, (sum(parts.values()) for each in moments for parts in each.values()))


def kept_of_micro_batch(step: Step, framework: Framework, layers: Sequence[int] | None = None) -> float:
    """Bytes that a micro-batch keeps for its backward on the stage where they are most."""
    chunks, masks, kept = chunks_of(step, layers), not step.flash_attention, []
    for s in range(step.pp):
        share = share_of(step.model, [c for c in chunks if c.stage == s])
        backward = stage_bytes(step, share, s, framework, masks)[BACKWARD]
        kept.append(float(backward["activations"]) / float(in_flight(step, s)))
    return max(kept)


_LASTING = ("weights", "gradients", "optimizer", "gathered", "fragmentation", "buffers")
"""Parts that do not come and go within a step."""


def _floats(values: dict[str, Number]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


BACKWARD, UPDATE = "backward of the fullest micro-batch", "optimizer step"
"""The moments at which memory peaks."""


def stage_bytes(
    step: Step, share: Share, stage: Number, framework: Framework, masks: bool, offload: Offload | None = None
) -> dict[str, dict[str, Number]]:
    """Bytes by part at each moment, of one GPU of a stage that holds a share of the model.

    ``masks``: those of dropout are kept.
    """
    soft, model, tp = software(step, framework), step.model, step.tp
    weights = weights_of(step, share)
    parts = states(step, soft, weights, framework)
    if np.any(step.schedule == "dualpipe"):
        parts = {name: value * _copies(step, name) for name, value in parts.items()}
    if np.any(step.optimizer_in_backward):
        one = np.minimum(parts["gradients"], soft.gradient * _largest_tensor(step, share))
        parts["gradients"] = where(step.optimizer_in_backward, one, parts["gradients"])
    if offload is not None:
        parts = offload.kept(parts, step.precision.gradient_bytes)
    moving: dict[str, Number] = {}

    def put(name: str, present: Number, nbytes: Number) -> None:
        if np.any(present):
            moving[name] = where(present, nbytes, 0.0)

    kept, again, stashed = _activations(step, share, framework, masks)
    flight = in_flight(step, stage) * kept
    put("activations", True, np.minimum(flight, stashed) if offload is not None and offload.activations else flight)
    put("recomputed layer", (step.recompute != "none") & (share.layers > 0), again)
    hidden = step.rank_tokens * model.hidden * step.precision.activation_bytes
    put("logits", share.outputs, logit_bytes(step, soft.logits) * step.rank_tokens * model.vocab / tp)
    put("output input", share.outputs, 2 * hidden / step.sequence_cut)
    parts |= moving | {"temporary": _temporary(step)}
    put("sends", step.pp > 1, 4 * hidden / step.sequence_cut)
    put("gathered activations", (tp > 1) & step.sequence_parallel, hidden)  # of one layer at a time
    parts |= moving
    resting = {name: value for name, value in parts.items() if name not in moving}
    if framework == "fsdp2":
        parts = _on_a_rank_alone(step, share, soft, parts)
    moved = sum(parts.get(name, 0.0) for name in (*moving, "temporary"))
    for each in (parts, resting):
        each["fragmentation"] = soft.fragmentation * moved
        each["buffers"] = soft.base
    here = offload is None or not offload.optimizer
    update = _update_temporary(step, soft, weights) if here else 0.0
    return {BACKWARD: parts, UPDATE: resting | ({"update": update} if np.any(update) else {})}


def _on_a_rank_alone(step: Step, share: Share, soft: Software, parts: dict[str, Number]) -> dict[str, Number]:
    """The parts at the peak of a backward of torch's, where no gradient is cut: gradients come as what is kept goes.

    At its start there is the gradient of the output matrix (all, of earlier micro-batches) and the loss, or a layer
    made again; at its end all gradients and one layer.
    """
    first = np.minimum(parts["gradients"], soft.gradient * _largest_tensor(step, share))
    start = parts | {"gradients": where(step.num_microbatches == 1, first, parts["gradients"])}
    again, loss = parts.get("recomputed layer", 0.0), parts.get("logits", 0.0)
    gone = {"recomputed layer": again >= loss, "logits": loss > again}
    start |= {name: where(stays, parts[name], 0.0) for name, stays in gone.items() if name in parts}
    layers = np.maximum(share.layers, 1)
    end = parts | {"activations": parts["activations"] / layers}
    end |= {name: 0.0 for name in ("logits", "output input") if name in parts}
    later = sum(end.values()) > sum(start.values())
    alone = step.tp * step.pp * step.cp * step.dp == 1
    return {name: where(alone, where(later, end[name], start[name]), parts[name]) for name in parts}


def logit_bytes(step: Step, whole: float) -> Number:
    """Bytes per logit in the loss, ``whole`` without chunks: a chunk's fp32 copies are gone when the next one starts,
    the 16-bit logits stay (torchtune, `CEWithChunkedOutputLoss`, in 8 chunks). One kernel reads 16-bit logits and
    writes their gradient (torchtitan from 2025 and torchtune compile the loss)."""
    return 2.0 + (where(step.fused_loss, 4.0, whole) - 2.0) / step.loss_chunks


def _copies(step: Step, part: str) -> Number:
    """How many copies of a part DualPipe's two stages on a rank make: the ranks that hold a stage twice are more
    data-parallel ones, among which ZeRO cuts what it cuts (DeepSeek-V3, arXiv:2412.19437, table 2)."""
    cut = {"weights": 3, "gathered": 4, "gradients": 2, "optimizer": 1}[part]
    return where((step.schedule == "dualpipe") & (step.zero_stage < cut), 2.0, 1.0)


def _largest_tensor(step: Step, share: Share) -> Number:
    """Elements of the largest matrix of a share on one rank: an embedding where it has one, else the widest product."""
    model = step.model
    matrix = model.hidden * max(model.ffn_hidden, model.q_width)
    words = (share.embeds + share.outputs) > 0
    return where(words, np.maximum(model.vocab * model.hidden, matrix), matrix) / step.tp


STASHED_INPUTS = 5
"""Tensors on their way to the host at once (torchtune, `OffloadActivations`, `max_fwd_stash_size`)."""


def _activations(step: Step, share: Share, framework: Framework, masks: bool) -> tuple[Number, Number, Number]:
    """(kept by one micro-batch until its backward, made again for the layer under way, on the GPU when what is kept
    lies on the host)."""
    kept: Number = 0.0
    again: Number = 0.0
    stashed: Number = STASHED_INPUTS * layer_input(step)
    for layer, count in ((0, share.dense), (step.model.layers - 1, share.moe)):
        if np.any(count > 0):
            every = layer_kept(step, layer, masks, framework == "fsdp2", gate_apart=framework == "nanotron")
            held = recomputed(every, step)
            kept = kept + count * held
            stashed = np.maximum(stashed, where(count > 0, held, 0.0))
            again = np.maximum(again, where(count > 0, every.nbytes - held, 0.0))
    return kept, again, stashed


def in_flight(step: Step, stage: Number) -> Number:
    """Most micro-batches whose activations a stage keeps at once, in those of the whole stage."""
    pp, v, m = step.pp, step.virtual_stages, step.num_microbatches
    plain = np.minimum(m, pp - stage)
    warmup = np.minimum(m * v, 2 * (pp - stage - 1) + (v - 1) * pp + 1)
    chunked = where((pp > 1) & (v > 1), where(m == pp, m * v, warmup) / v, plain)
    counts = {"naive": 1, "gpipe": m, "interleaved_1f1b": chunked, "dualpipe": np.minimum(m, pp + 1)}
    counts |= {"zb_v": where(pp > 1, pp, 1), "dualpipe_v": where(pp > 1, pp + 0.5, 1)}  # both run 2 pp or more
    most = where((step.schedule == "1f1b") & (v > 1), chunked, plain)
    for schedule, count in counts.items():
        most = where(step.schedule == schedule, count, most)
    return most


def states(step: Step, soft: Software, weights: Weights, framework: Framework = "megatron") -> dict[str, float]:
    """Bytes of weights, gradients and optimizer of one rank: what ZeRO cuts, and what it leaves."""
    zero, live = step.zero_stage, 0.0 if step.frozen_weights else 1.0
    parts = {"weights": 0.0, "gradients": 0.0, "optimizer": 0.0}
    if np.any(zero == 3):
        parts["gathered"] = where(zero == 3, _gathered(step, weights, framework), 0.0)
    each = {"weights": (3, soft.weight), "gradients": (2, soft.gradient * live), "optimizer": (1, soft.owned * live)}
    for parameters, ranks in ((weights.dense, step.shards), (weights.expert, step.expert_dp)):
        for name, (stage, nbytes) in each.items():
            kept = where((zero == 2) & (name == "gradients"), whole_gradients(step), 0.0)
            whole = where(zero >= stage, kept, 1.0)
            parts[name] = parts[name] + parameters * nbytes * (whole + (1.0 - whole) / ranks)
    if step.optimizer == "muon":  # the second moment of what AdamW updates
        more = (step.precision.optimizer_bytes("adamw") - step.optimizer_bytes) * live
        parts["optimizer"] = parts["optimizer"] + more * weights.words / where(zero >= 1, step.shards, 1)
    return parts


def whole_gradients(step: Step) -> Number:
    """The share of its gradients that a rank has whole at once under ZeRO-2: those that are not yet summed.

    In a pipeline a chunk's are kept until its last micro-batch (`reduces_often`). Interleaved 1F1B with as many
    micro-batches as stages runs the backwards of a chunk one after the other, so that its gradients leave while the
    next chunk's are made (Llama 3, arXiv:2407.21783, section 3.3.2); other orders come back to every chunk at the end.
    """
    v, once = step.virtual_stages, step.num_microbatches == step.pp
    by_chunk = (v > 1) & once & ((step.schedule == "1f1b") | (step.schedule == "interleaved_1f1b"))
    return where(step.pp > 1, where(by_chunk, np.minimum(1.0, 2.0 / v), 1.0), 0.0)


def _gathered(step: Step, weights: Weights, framework: Framework) -> Number:
    """Parameters that are whole at a time: two layers' worth; with a pipeline all of them, and their gradients too.

    FSDP2 under a pipeline does not reshard between micro-batches, and reduces gradients once
    (torchtitan, `reshard_after_forward: default`).
    """
    width = step.precision.weight_bytes
    layers = 2.0 / np.maximum(1.0, step.model.layers / step.pp) * width
    return weights.total * where((step.pp > 1) & (framework == "fsdp2"), width + 4.0, layers)


def _temporary(step: Step) -> Number:
    """The largest matrix's gradient in fp32, before it is added to the main gradient, where there is one of fp32."""
    model = step.model
    matrix = model.hidden * max(model.ffn_hidden, 1) * model.up_matrices / step.tp
    return 4.0 * matrix if step.precision.master and not step.frozen_weights else 0.0


def _update_temporary(step: Step, soft: Software, weights: Weights) -> Number:
    """What an update makes: the step of the largest tensor, in the type of the weights that it updates, or its own
    copies of gradients."""
    if step.frozen_weights:
        return 0.0
    width = 4.0 if step.precision.master else step.precision.weight_bytes
    return np.maximum(width * step.model.vocab * step.model.hidden / step.tp, soft.update * _owned(step, weights))


def _owned(step: Step, weights: Weights) -> Number:
    """Parameters that a rank updates."""
    cut = step.zero_stage > 0
    return weights.dense / where(cut, step.shards, 1) + weights.expert / where(cut, step.expert_dp, 1)
