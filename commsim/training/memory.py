"""Memory of one GPU of every pipeline stage: every term by name, the peak, when it is reached, and what would help.

What it is not: a trace of the allocator. The peak is the larger of two moments: the backward of the fullest
micro-batch, and the optimizer's update, when activations are gone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import numpy as np

from commsim.errors import CommsimError
from commsim.training.activations import layer_kept, recomputed
from commsim.training.columns import Number, where
from commsim.training.offload import Offload
from commsim.training.pipeline_schedules import refuse_misfit
from commsim.training.spec import Step
from commsim.training.stages import Share, Weights, chunks_of, share_of, shares_of_ends, weights_of
from commsim.units import GIB

Framework = Literal["megatron", "deepspeed", "fsdp2", "ddp"]


@dataclass(frozen=True)
class Software:
    """Bytes that a framework keeps per parameter, and what it adds to every GPU.

    ``weight``, ``gradient``: on every rank; ``owned``: master weights, moments and gradient partitions, divided by the
    data-parallel ranks with ZeRO-1 and 2. ``base``: CUDA context, NCCL's buffers, workspaces; ``fragmentation``: what
    the allocator holds beyond what is allocated, as a share; ``logits``: bytes per logit in the loss.
    """

    weight: float
    gradient: float
    owned: float
    base: float
    fragmentation: float
    logits: float


_DEEPSPEED = (6 * GIB, 0.10, 10.0)
"""Base, fragmentation and bytes per logit, by what nvidia-smi showed in 65 of BLOOM's trials (`memory.csv`, which
`commsim validate training --memory` reads). The median error is 5.0 %, with a base of 4.5 and 7.5 GiB 5.3 and 5.6,
with a fragmentation of 0 and 0.15 7.3 and 7.2."""


def software(step: Step, framework: Framework) -> Software:
    """The bytes of a framework for a step's precision and optimizer.

    megatron: 16-bit weights, fp32 gradients, the states sharded (distributed optimizer; Transformer Engine's fused
    loss keeps 6 bytes per logit). deepspeed with fp16: 16-bit gradients, and for its own part the optimizer's fp32
    gradient and a flat 16-bit one (stage_1_and_2.py); with bf16 16-bit and fp32 gradients and flat copies of both
    (bf16_optimizer.py); nvidia-smi's figures. fsdp2: fp32 parameters, sharded with all else; an eager loss holds 16-bit
    logits, their fp32 copy, its log-softmax and a 16-bit gradient: 12 bytes.
    """
    formats = step.precision
    states = formats.optimizer_bytes(step.optimizer)
    if framework == "deepspeed":
        flat = formats.weight_bytes
        if formats.weight == "bf16":
            return Software(flat, flat + 4.0 + 2.0, states + 4.0, *_DEEPSPEED)
        return Software(flat, flat, states + 4.0 + flat, *_DEEPSPEED)
    if framework == "fsdp2":
        return Software(4.0, 4.0, max(0.0, states - 4.0), 2 * GIB, 0.05, 12.0)
    if framework == "ddp":
        return Software(formats.weight_bytes, formats.gradient_bytes, states, 1 * GIB, 0.05, 10.0)
    gradient = 4.0 if formats.master else formats.gradient_bytes
    return Software(formats.weight_bytes, gradient + formats.extra_gradient_bytes, states, 0.4 * GIB, 0.0, 6.0)


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
        parts, moments = stage_bytes(step, share, s, framework, masks, offload)
        stages.append(StageMemory(s, _floats(parts), _floats(moments)))
    return StepMemory(tuple(stages), step.accelerator.room_bytes)


def peak_bytes(step: Step, framework: Framework) -> Number:
    """Bytes of the fullest GPU, for a table of steps as well, whose layers or two more divide evenly into chunks.

    The first stage, the second or the last is the fullest: those between have the layers of the second and keep fewer
    micro-batches.
    """
    masks = not step.flash_attention
    places = zip(shares_of_ends(step), (0, np.minimum(1, step.pp - 1), step.pp - 1), strict=True)
    moments = [stage_bytes(step, share, stage, framework, masks)[1] for share, stage in places]
    return reduce(np.maximum, (nbytes for each in moments for nbytes in each.values()))


def _floats(values: dict[str, Number]) -> dict[str, float]:
    return {name: float(value) for name, value in values.items()}


BACKWARD, UPDATE = "backward of the fullest micro-batch", "optimizer step"
"""The moments at which memory peaks."""


def stage_bytes(
    step: Step, share: Share, stage: Number, framework: Framework, masks: bool, offload: Offload | None = None
) -> tuple[dict[str, Number], dict[str, Number]]:
    """(parts at the backward's peak, totals by moment) of one GPU of a stage that holds a share of the model.

    ``masks``: those of dropout are kept.
    """
    soft, model, tp = software(step, framework), step.model, step.tp
    copies = where(step.schedule == "dualpipe", 2.0, 1.0)
    parts = states(step, soft, weights_of(step, share), framework)
    parts = {name: copies * value for name, value in parts.items()}
    if offload is not None:
        parts = offload.kept(parts)
    moving: dict[str, Number] = {}

    def put(name: str, present: Number, nbytes: Number) -> None:
        if np.any(present):
            moving[name] = where(present, nbytes, 0.0)

    kept, again = _activations(step, share, framework, masks)
    put("activations", True, in_flight(step, stage) * kept)
    put("recomputed layer", (step.recompute != "none") & (share.layers > 0), again)
    hidden = step.rank_tokens * model.hidden * step.precision.activation_bytes
    put("logits", share.outputs, soft.logits * step.rank_tokens * model.vocab / tp)
    put("output input", share.outputs, 2 * hidden / step.sequence_cut)
    parts |= moving | {"temporary": _temporary(step)}
    put("sends", step.pp > 1, 4 * hidden / step.sequence_cut)
    put("gathered activations", (tp > 1) & step.sequence_parallel, hidden)  # of one layer at a time
    parts |= moving
    parts["fragmentation"] = soft.fragmentation * sum(parts.values())
    parts["context and buffers"] = soft.base
    backward = sum(parts.values())
    update = sum(value for name, value in parts.items() if name not in moving) + _update_temporary(step)
    return parts, {BACKWARD: backward, UPDATE: update}


def _activations(step: Step, share: Share, framework: Framework, masks: bool) -> tuple[Number, Number]:
    """(kept by one micro-batch until its backward, made again for the layer under way)."""
    kept: Number = 0.0
    again: Number = 0.0
    for layer, count in ((0, share.dense), (step.model.layers - 1, share.moe)):
        if np.any(count > 0):
            every = layer_kept(step, layer, masks, framework == "fsdp2")
            held = recomputed(every, step)
            kept = kept + count * held
            again = np.maximum(again, where(count > 0, every.nbytes - held, 0.0))
    return kept, again


def in_flight(step: Step, stage: Number) -> Number:
    """Most micro-batches whose activations a stage keeps at once, in those of the whole stage."""
    pp, v, m = step.pp, step.virtual_stages, step.num_microbatches
    plain = np.minimum(m, pp - stage)
    warmup = np.minimum(m * v, 2 * (pp - stage - 1) + (v - 1) * pp + 1)
    chunked = where((pp > 1) & (v > 1), where(m == pp, m * v, warmup) / v, plain)
    counts = {"naive": 1, "gpipe": m, "interleaved_1f1b": chunked, "dualpipe": np.minimum(m, pp + 1)}
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
            parts[name] = parts[name] + parameters * nbytes / where(zero >= stage, ranks, 1)
    return parts


def _gathered(step: Step, weights: Weights, framework: Framework) -> Number:
    """Parameters that are whole at a time: two layers' worth; with a pipeline all of them, and their gradients too.

    FSDP2 under a pipeline does not reshard between micro-batches, and reduces gradients once
    (torchtitan, `reshard_after_forward: default`).
    """
    width = step.precision.weight_bytes
    layers = 2.0 / np.maximum(1.0, step.model.layers / step.pp) * width
    return weights.total * where((step.pp > 1) & (framework == "fsdp2"), width + 4.0, layers)


def _temporary(step: Step) -> Number:
    """The largest matrix's gradient in fp32, before it is added to the main gradient."""
    model = step.model
    matrix = model.hidden * max(model.ffn_hidden, 1) * model.up_matrices / step.tp
    return 0.0 if step.frozen_weights else 4.0 * matrix


def _update_temporary(step: Step) -> Number:
    """What an unfused update makes: the step of the largest tensor in fp32."""
    return 0.0 if step.frozen_weights else 4.0 * step.model.vocab * step.model.hidden / step.tp


# -- what to change ---------------------------------


def advice(
    step: Step,
    memory: StepMemory,
    framework: Framework = "megatron",
    *,
    layers: Sequence[int] | None = None,
    offload: Offload | None = None,
) -> list[str]:
    """Single changes after which the step fits, most harmless first; empty when it fits already."""
    fitting: list[str] = []
    for changes in () if memory.fits else _changes(step):
        try:
            other = step_memory(replace(step, **changes), framework, layers=layers, offload=offload)
        except CommsimError:  # the change does not go with the rest of the step
            continue
        if other.fits:
            words = ", ".join(f"{name}: {str(value).lower()}" for name, value in changes.items())
            fitting.append(f"{words}: {other.peak / GIB:.1f} GiB")
    return fitting


def _changes(step: Step) -> Iterator[dict[str, Any]]:
    if step.tp > 1 and not step.sequence_parallel:
        yield {"sequence_parallel": True}
    if step.dp * step.cp > 1:
        yield from ({"zero_stage": stage} for stage in range(step.zero_stage + 1, 4 if step.pp == 1 else 2))
    if step.recompute == "none":
        yield {"recompute": "selective"}
    if step.recompute != "full":
        yield {"recompute": "full"}
    if step.micro_batch_size > 1:
        yield {"micro_batch_size": 1}
    if step.dp % 2 == 0:
        if step.tp * 2 <= step.gpus_per_node:
            yield {"tp": step.tp * 2, "dp": step.dp // 2}
        deeper: dict[str, Any] = {"pp": step.pp * 2, "dp": step.dp // 2}
        yield deeper
        if step.zero_stage:
            yield deeper | {"recompute": "full"}
