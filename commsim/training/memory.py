"""Memory of one GPU of every pipeline stage: every term by name, the peak, when it is reached, and what would help.

What it is not: a trace of the allocator. The peak is the larger of two moments: the backward of the fullest
micro-batch, and the optimizer's update, when activations are gone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from commsim.errors import CommsimError
from commsim.training.activations import layer_kept, recomputed
from commsim.training.offload import Offload
from commsim.training.pipeline_schedules import build
from commsim.training.spec import Step
from commsim.training.stages import Chunk, Weights, chunk_weights, chunks_of
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
    whole_checkpoints: bool = False


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
            return Software(flat, flat + 4.0 + 2.0, states + 4.0, 6 * GIB, 0.10, 10.0)
        return Software(flat, flat, states + 4.0 + flat, 6 * GIB, 0.10, 10.0)
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
    soft = software(step, framework)
    masks = not step.flash_attention if dropout is None else dropout
    order = build(_schedule(step), step.pp, step.num_microbatches, step.virtual_stages)
    in_flight = order.in_flight()
    chunks = chunks_of(step, layers)
    stages = tuple(
        _stage(step, soft, [c for c in chunks if c.stage == s], float(in_flight[s]), masks, framework, offload)
        for s in range(step.pp)
    )
    return StepMemory(stages, float(step.accelerator.memory_bytes))


def _schedule(step: Step) -> str:
    return "interleaved_1f1b" if step.virtual_stages > 1 else step.schedule


def _stage(
    step: Step,
    soft: Software,
    chunks: Sequence[Chunk],
    in_flight: float,
    masks: bool,
    framework: Framework,
    offload: Offload | None,
) -> StageMemory:
    weights = [chunk_weights(step, c) for c in chunks]
    total = Weights(sum(w.dense for w in weights), sum(w.expert for w in weights))
    copies = 2.0 if step.schedule == "dualpipe" else 1.0
    parts = {name: copies * value for name, value in states(step, soft, total, framework).items()}
    if offload is not None:
        parts = offload.kept(parts)
    gathered = framework == "fsdp2"
    everything = [layer_kept(step, layer, masks, gathered) for c in chunks for layer in range(c.first, c.last)]
    parts["activations"] = in_flight * sum(recomputed(kept, step) for kept in everything)
    if step.recompute != "none" and everything:
        none = replace(step, recompute="none")
        again = max(recomputed(kept, none) - recomputed(kept, step) for kept in everything)
        parts["recomputed layer"] = max(0.0, again)
    hidden = step.rank_tokens * step.model.hidden * step.precision.activation_bytes
    cut = step.tp if step.sequence_parallel else 1
    if any(c.outputs for c in chunks):
        parts["logits"] = soft.logits * step.rank_tokens * step.model.vocab / step.tp
        parts["output input"] = 2 * hidden / cut
    parts["temporary"] = _temporary(step)
    if step.pp > 1:
        parts["sends"] = 4 * hidden / cut
    if step.tp > 1 and step.sequence_parallel:
        parts["gathered activations"] = hidden  # of one layer at a time
    allocated = sum(parts.values())
    parts["fragmentation"] = soft.fragmentation * allocated
    parts["context and buffers"] = soft.base
    gone = ("activations", "recomputed layer", "logits", "output input", "sends", "gathered activations")
    update = sum(v for k, v in parts.items() if k not in gone) + _update_temporary(step, total)
    return StageMemory(
        chunks[0].stage, parts, {"backward of the fullest micro-batch": sum(parts.values()), "optimizer step": update}
    )


def states(step: Step, soft: Software, weights: Weights, framework: Framework = "megatron") -> dict[str, float]:
    """Bytes of weights, gradients and optimizer of one rank: what ZeRO cuts, and what it leaves."""
    found = {"weights": 0.0, "gradients": 0.0, "optimizer": 0.0}
    live = 0.0 if step.frozen_weights else 1.0
    for parameters, ranks in ((weights.dense, float(step.shards)), (weights.expert, float(step.expert_dp))):
        zero = step.zero_stage
        cut = [1.0 / ranks if zero >= stage else 1.0 for stage in (3, 2, 1)]
        found["weights"] += parameters * soft.weight * cut[0]
        found["gradients"] += parameters * soft.gradient * cut[1] * live
        found["optimizer"] += parameters * soft.owned * cut[2] * live
        if zero == 3:
            found.setdefault("gathered", 0.0)
            found["gathered"] += _gathered(step, parameters, framework)
    return found


def _gathered(step: Step, parameters: float, framework: Framework) -> float:
    """Parameters that are whole at a time: two layers' worth; with a pipeline all of them, and their gradients too.

    FSDP2 under a pipeline does not reshard between micro-batches, and reduces gradients once
    (torchtitan, `reshard_after_forward: default`).
    """
    width = step.precision.weight_bytes
    if step.pp > 1 and framework == "fsdp2":
        return parameters * (width + 4.0)
    return 2.0 * parameters / max(1.0, step.model.layers / step.pp) * width


def _temporary(step: Step) -> float:
    """The largest matrix's gradient in fp32, before it is added to the main gradient."""
    model = step.model
    matrix = model.hidden * max(model.ffn_hidden, 1) * (2 if model.gated_mlp else 1) / step.tp
    return 0.0 if step.frozen_weights else 4.0 * matrix


def _update_temporary(step: Step, weights: Weights) -> float:
    """What an unfused update makes: the step of the largest tensor in fp32."""
    return 0.0 if step.frozen_weights else 4.0 * step.model.vocab * step.model.hidden / step.tp


# -- what to change ---------------------------------


def advice(step: Step, memory: StepMemory, framework: Framework = "megatron") -> list[str]:
    """Single changes after which the step fits, most harmless first; empty when it fits already."""
    if memory.fits:
        return []
    found = []
    for words, changes in _changes(step):
        try:
            other = step_memory(replace(step, **changes), framework)  # type: ignore[arg-type]
        except CommsimError:  # the change does not go with the rest of the step
            continue
        if other.fits:
            found.append(f"{words}: {other.peak / GIB:.1f} GiB")
    return found


def _changes(step: Step) -> list[tuple[str, dict[str, object]]]:
    changes: list[tuple[str, dict[str, object]]] = []
    if step.tp > 1 and not step.sequence_parallel:
        changes.append(("sequence_parallel: true", {"sequence_parallel": True}))
    if step.dp * step.cp > 1:
        higher = range(step.zero_stage + 1, 4 if step.pp == 1 else 2)
        changes += [(f"zero_stage: {stage}", {"zero_stage": stage}) for stage in higher]
    if step.recompute == "none":
        changes.append(("recompute: selective", {"recompute": "selective"}))
    if step.recompute != "full":
        changes.append(("recompute: full", {"recompute": "full"}))
    if step.micro_batch_size > 1:
        changes.append(("micro_batch_size: 1", {"micro_batch_size": 1}))
    if step.tp * 2 <= step.gpus_per_node and step.dp % 2 == 0:
        changes.append((f"tp: {step.tp * 2}, dp: {step.dp // 2}", {"tp": step.tp * 2, "dp": step.dp // 2}))
    if step.dp % 2 == 0:
        changes.append((f"pp: {step.pp * 2}, dp: {step.dp // 2}", {"pp": step.pp * 2, "dp": step.dp // 2}))
    if step.dp % 2 == 0 and step.zero_stage:
        changes.append(
            (
                f"pp: {step.pp * 2}, dp: {step.dp // 2}, recompute: full",
                {"pp": step.pp * 2, "dp": step.dp // 2, "recompute": "full"},
            )
        )
    return changes
