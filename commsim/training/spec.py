"""A training step: everything that fixes its work and its traffic, and nothing that is predicted.

A `Step` says how the ranks are cut (dp, pp, cp, tp, ep), the batch, what is kept and what is recomputed, the number
formats and what the software does at the same time. Which rank is where is `commsim.training.mesh`.

A `StepPlan` says how it is run. `RULES` say what is wrong with a step, or with each of a table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from commsim.errors import ScenarioError
from commsim.training.accelerator import Accelerator
from commsim.training.columns import Columns, Number, where
from commsim.training.model import Model
from commsim.training.offload import Offload
from commsim.training.overlap import IDEAL
from commsim.training.packing import attended_length, busiest
from commsim.training.pipeline_schedules import SCHEDULES, V_SHAPED, v_shaped
from commsim.training.precision import OPTIMIZER_BYTES, Precision
from commsim.units import GIGA

if TYPE_CHECKING:
    from commsim.training.communicators import HeldSms

RECOMPUTE = ("none", "selective", "layerwise", "full")
"""``selective`` recomputes the attention core (Korthikanti et al. 2022), ``layerwise`` keeps the results of matrix
products but for every second one (torchtitan's selective AC), ``full`` the whole layer."""

MODULES = ("core_attn", "mla_up_proj", "moe_act", "layernorm", "mlp", "moe", "shared_experts")
"""What ``selective`` may recompute, by the names of Megatron-LM's ``--recompute-modules`` (`transformer_config.py`)."""

STOPS_EARLY = ("fsdp2", "ddp")
"""Frameworks (`commsim.training.memory.Framework`) that make layers again by torch's checkpoint: `Step.ends_early`."""

STACKS = ("tuned", "compiled", "eager")
"""Classes of software: vendor-tuned (fused kernels, Transformer Engine), graph compilers, plain kernel by kernel."""

KERNELS = ("vendor", "open")

CONTEXT = ("ring", "all_gather", "ulysses")
"""Ring attention (Liu et al. 2023); keys and values gathered first (Llama 3, section 3.3.2); DeepSpeed Ulysses."""

DISPATCHERS = ("nccl", "deepep", "deepep_low_latency", "hybrid", "nvlink")
"""NCCL's all_to_all; DeepEP's normal and low-latency kernels; HybridEP; kernels over multi-node NVLink."""


@dataclass(frozen=True)
class Step:
    """One optimizer step of a model on ranks that are all alike. Sizes are counts; batches are in sequences.

    The types are those of one step. In a table of steps a number is an array and a name `Columns`.
    """

    model: Model
    accelerator: Accelerator
    precision: Precision
    seq_len: int
    micro_batch_size: int
    global_batch_size: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp: int = 1
    ep: int = 1
    expert_tp: int = 1
    virtual_stages: int = 1
    schedule: str = "1f1b"
    sequence_parallel: bool = False
    zero_stage: int = 0
    shard_ranks: int = 0  # ranks that share a full copy under ZeRO, 0: all of dp and cp (fewer is HSDP)
    recompute: str = "none"
    optimizer: str = "adam"
    frozen_weights: bool = False  # LoRA: no weight gradient, no state, no gradient traffic of the base weights
    stack: str = "tuned"
    flash_attention: bool = True
    attention_kernel: str = "vendor"  # of fused attention: cuDNN and FlashAttention-3, or open: FlashAttention-1/2
    cuda_graphs: bool = False
    overlap_dp: bool = True  # gradients and parameters move during backward and forward
    overlap_param_gather: bool = True  # so do, under ZeRO-1 and 2, updated parameters beside the next step's forward
    overlap_tp: bool = False  # activations move during the matrix product that makes or uses them
    overlap_ep: bool = False  # experts' exchanges hide behind another micro-batch's pass, as with DualPipe
    overlap_pp: bool = True  # stages send while they compute
    gpus_per_node: int = 8
    nic_bytes_per_s: float = GIGA  # a rank's share of its node's; a step inside a node takes the same with any
    imbalance: float = 1.0  # tokens of the busiest expert rank over the mean
    recompute_modules: tuple[str, ...] = ("core_attn",)  # of `MODULES`, with selective recomputation
    fp8_activations: bool = False  # what products and SwiGLU read is kept, and sent to experts, in 8 bit
    fused_loss: bool = False  # one kernel from 16-bit logits to their gradient: no fp32 copies
    loss_chunks: int = 1  # pieces of a micro-batch whose loss is computed one after the other
    optimizer_in_backward: bool = False  # a weight is updated, and its gradient freed, as soon as it is made
    expert_dispatch: str = "nccl"  # what sends tokens to their experts: `DISPATCHERS`
    context_parallel: str = "ring"  # how cp exchanges keys and values: `CONTEXT`
    early_stop: bool = False  # a layer's second forward ends with the last tensor that it keeps (`ends_early`)
    packed: tuple[int, ...] = ()  # lengths of documents that fill sequences, a sample of them; none: a sequence is one

    def __post_init__(self) -> None:
        if any(isinstance(getattr(self, f.name), (np.ndarray, Columns)) for f in fields(self)):
            return  # a table: `broken` tells which
        faults = list(self._faults())
        if faults:
            raise ScenarioError("; ".join(faults))

    @property
    def world_size(self) -> int:
        """Ranks of the job."""
        return self.tp * self.pp * self.cp * self.dp

    @property
    def num_microbatches(self) -> int:
        """Micro-batches of one pipeline in one step."""
        return self.global_batch_size // (self.micro_batch_size * self.dp)

    @property
    def tokens(self) -> int:
        """Tokens of one step over all ranks."""
        return self.global_batch_size * self.seq_len

    @property
    def rank_tokens(self) -> int:
        """Tokens of one micro-batch on a rank before tp (sequence parallelism) cuts them."""
        return self.micro_batch_size * self.seq_len // self.cp

    @property
    def ends_early(self) -> Number:
        """Whether full recomputation leaves out what a layer does after its last tensor is kept: a dense layer's last
        product, and the sum or the exchange of its results.

        So does torch's checkpoint without reentry since 2.1 (`set_checkpoint_early_stop`), and XLA and torch.compile
        drop what nothing reads. An adapter's product comes last and keeps its input (LoRA).
        """
        return (self.recompute == "full") & self.early_stop & np.logical_not(self.frozen_weights)

    @property
    def attended_len(self) -> Number:
        """Length of the sequences that take as much of a fused attention as those of the step."""
        return attended_length(self.packed) if self.packed else self.seq_len

    @property
    def busiest_attention(self) -> Number:
        """Attention's work of the replica that the others wait for, over the mean: they meet once a step, or in every
        micro-batch where they exchange parameters or tokens."""
        if not self.packed:
            return 1.0
        often = (self.zero_stage == 3) | (self.ep > 1)
        tokens = self.micro_batch_size * self.seq_len * where(often, 1, self.num_microbatches)
        whole = self.seq_len / self.attended_len  # a sequence holds no longer document
        return np.minimum(busiest(self.packed, tokens, self.dp), whole)

    @property
    def sequence_cut(self) -> Number:
        """Ranks among which norms and residuals are cut: tp with sequence parallelism, else 1."""
        return where(self.sequence_parallel, self.tp, 1)

    @property
    def expert_dp(self) -> int:
        """Copies of every expert."""
        return self.tp * self.cp * self.dp // (self.ep * self.expert_tp)

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO cuts one copy of the dense weights."""
        return self.shard_ranks or self.dp * self.cp

    @property
    def run_schedule(self) -> str:
        """The schedule of one step by its own name: 1F1B over several chunks of a stage is the interleaved one, and on
        one stage nothing comes back."""
        if self.pp == 1 and self.schedule in V_SHAPED:
            return "1f1b"
        return "interleaved_1f1b" if self.virtual_stages > 1 and self.schedule == "1f1b" else self.schedule

    @property
    def v_shaped(self) -> Number:
        """Whether micro-batches go down through one chunk of the stages and up through the other: the first stage
        has both the embedding and the output."""
        return v_shaped(self.schedule) & (self.pp > 1)

    @property
    def pairs_passes(self) -> Number:
        """Whether forwards run beside backwards of other micro-batches, so that each hides what the other exchanges."""
        return (self.schedule == "dualpipe") | (self.schedule == "dualpipe_v")

    @property
    def hides_experts(self) -> Number:
        """Whether experts' exchanges run beside another micro-batch's pass: paired passes are for that."""
        return self.pairs_passes | self.overlap_ep

    @property
    def nvlink_domain(self) -> int:
        """Ranks that reach each other without a NIC: of a node, if only over PCIe, or of a rack of them."""
        return max(self.accelerator.rack, self.gpus_per_node)

    @property
    def gemm_peak(self) -> float:
        """FLOP/s of the type that weights are multiplied in."""
        return self.accelerator.peak(self.precision.gemm)

    @property
    def wide_peak(self) -> float:
        """FLOP/s of the type of the attention core and the output matrix."""
        return self.accelerator.peak(self.precision.attention)

    @property
    def optimizer_bytes(self) -> float:
        """Bytes per parameter of the optimizer's states and the master weight."""
        return self.precision.optimizer_bytes(self.optimizer)

    def _faults(self) -> Iterator[str]:
        low = [name for name in COUNTS if getattr(self, name) < 1]
        for name in low:
            yield f"{name} = {getattr(self, name)}, expected at least 1"
        if low:
            return
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                yield f"{name} = {getattr(self, name)!r}, expected one of {', '.join(choices)}"
        for module in self.recompute_modules:
            if module not in MODULES:
                yield f"recompute_modules = {module!r}, expected some of {', '.join(MODULES)}"
        if self.zero_stage not in (0, 1, 2, 3):
            yield f"zero_stage = {self.zero_stage}, expected 0, 1, 2 or 3"
        yield from (rule.message(self) for rule in RULES if rule.broken(self))
        try:
            self.precision.check(self.accelerator)
        except ScenarioError as exc:
            yield f"precision = {self.precision.name!r}: {exc}"


Steps: TypeAlias = Step | Columns
"""A step, or many: formulas take either."""

COUNTS = (
    "seq_len", "micro_batch_size", "global_batch_size", "tp", "pp", "cp", "dp", "ep", "expert_tp", "virtual_stages",
    "gpus_per_node", "loss_chunks",
)  # fmt: skip
"""Fields of at least 1."""

CHOICES = {
    "recompute": RECOMPUTE,
    "schedule": tuple(SCHEDULES),
    "stack": STACKS,
    "attention_kernel": KERNELS,
    "expert_dispatch": DISPATCHERS,
    "context_parallel": CONTEXT,
    "optimizer": tuple(OPTIMIZER_BYTES),
}


@dataclass(frozen=True)
class StepPlan:
    """Choices of the software that runs a step, and what disturbs it: what a `Step` does not fix."""

    layers: Sequence[int] | None = None  # of each chunk, None: `split_layers`
    capacity_factor: float | None = None
    bucket_bytes: float | None = None  # None: Megatron-LM's
    trainable: float = 0.0  # parameters beside a frozen base whose gradients are summed, of a rank's layers together
    adapters: tuple[tuple[str, float, int, int], ...] = ()  # what they exchange: `finetune.lora_calls`
    parameter_server: bool = False  # gradients go to one process on the first host and parameters come from it
    values: Mapping[str, float] = field(default_factory=lambda: IDEAL)  # what stays in the open: `overlap`
    stragglers: Mapping[int, float] | None = None
    contention: bool = True
    offload: Offload | None = None
    pcie_bytes_per_s: float = 25e9  # between a GPU and its host, for offload
    held_sms: HeldSms | None = None  # that calls hold while compute runs; None: `slowdown` of `values` for all

    def load_of(self, step: Step) -> float:
        """Tokens of the busiest expert rank over the mean: those beyond the capacity factor are dropped."""
        return step.imbalance if self.capacity_factor is None else min(step.imbalance, self.capacity_factor)

    @property
    def fetches(self) -> Offload | None:
        """The offload, where parameters are fetched for every pass."""
        return self.offload if self.offload is not None and self.offload.parameters else None


# -- what a step must not be ---------------------------------


@dataclass(frozen=True)
class StepRule:
    """Where a step breaks it, for a step or a table of them, and what is wrong with one; `field` is at fault."""

    field: str
    broken: Callable[[Step], Number]
    message: Callable[[Step], str]


def broken(step: Step, *at_fault: str) -> Number:
    """Where a rule of these fields is broken."""
    wrong: Number = False
    for rule in RULES:
        if rule.field in at_fault:
            wrong = wrong | rule.broken(step)
    return wrong


def _batch(step: Step) -> str:
    part = step.micro_batch_size * step.dp
    near = max(step.global_batch_size // part, 1) * part
    return (
        f"global_batch_size = {step.global_batch_size}, expected a multiple of micro_batch_size * dp = "
        f"{step.micro_batch_size} * {step.dp} = {part}, such as {near}"
    )


def _chunks(step: Step) -> str:
    chunks = f"pp * virtual_stages = {step.pp} * {step.virtual_stages} = {step.pp * step.virtual_stages}"
    return f"{chunks}, expected at most layers = {step.model.layers} and two stages for embedding and output"


def _experts(step: Step) -> str:
    if step.model.moe is None:
        return f"ep = {step.ep}, expected 1: {step.model.name} has no experts"
    return f"ep = {step.ep}, expected a divisor of experts = {step.model.moe.experts}"


RULES = (
    StepRule("global_batch_size", lambda s: s.global_batch_size % (s.micro_batch_size * s.dp) != 0, _batch),
    StepRule(
        "seq_len",
        lambda s: s.seq_len % s.cp != 0,
        lambda s: f"seq_len = {s.seq_len}, expected a multiple of cp = {s.cp}",
    ),
    StepRule(
        "seq_len",
        lambda s: s.seq_len < max(s.packed, default=0),
        lambda s: f"packed = {max(s.packed)}, expected lengths up to seq_len = {s.seq_len}",
    ),
    StepRule(
        "tp",
        lambda s: s.model.heads % s.tp != 0,
        lambda s: f"tp = {s.tp}, expected a divisor of heads = {s.model.heads}",
    ),
    StepRule(
        "tp",
        lambda s: s.model.recurrent.key_heads % s.tp != 0,
        lambda s: f"tp = {s.tp}, expected a divisor of key heads of linear attention = {s.model.recurrent.key_heads}",
    ),
    StepRule(
        "seq_len",
        lambda s: (s.cp > 1) & (s.model.linear_share > 0),
        lambda s: f"cp = {s.cp}, expected 1: how linear attention passes its state between ranks is not modelled",
    ),
    # The embedding and the output may be stages of their own.
    StepRule("pp", lambda s: s.pp * s.virtual_stages > s.model.layers + 2, _chunks),
    StepRule(
        "virtual_stages",
        lambda s: (s.virtual_stages > 1) & (s.pp == 1),
        lambda s: f"virtual_stages = {s.virtual_stages}, expected 1 without a pipeline (pp = 1)",
    ),
    StepRule(
        "virtual_stages",
        lambda s: s.v_shaped & (s.virtual_stages != 2),
        lambda s: f"virtual_stages = {s.virtual_stages}, expected 2 with {s.schedule}: every stage has two chunks",
    ),
    StepRule(
        "sequence_parallel",
        lambda s: s.rank_tokens % s.sequence_cut != 0,
        lambda s: (
            f"tp = {s.tp}, expected a divisor of the {s.rank_tokens} tokens of a micro-batch with sequence_parallel"
        ),
    ),
    StepRule(
        "recompute_modules",
        lambda s: ("mla_up_proj" in s.recompute_modules) & (s.model.latent.kv_lora_rank == 0),
        lambda s: f"recompute_modules = mla_up_proj, expected other modules: {s.model.name} has no latent attention",
    ),
    StepRule(
        "optimizer_in_backward",
        lambda s: s.optimizer_in_backward & (s.num_microbatches > 1),
        lambda s: f"optimizer_in_backward with {s.num_microbatches} micro-batches, expected 1: gradients are not kept",
    ),
    StepRule("ep", lambda s: s.model.routing.experts % s.ep != 0, _experts),
    StepRule(
        "expert_tp",
        lambda s: (s.tp * s.cp * s.dp) % (s.ep * s.expert_tp) != 0,
        lambda s: f"ep * expert_tp = {s.ep} * {s.expert_tp}, expected a divisor of tp * cp * dp = {s.tp * s.cp * s.dp}",
    ),
    StepRule(
        "expert_dispatch",
        lambda s: (s.expert_dispatch == "nvlink") & (s.ep > s.nvlink_domain),
        lambda s: (
            f"expert_dispatch = nvlink with ep = {s.ep}, expected at most the {s.nvlink_domain} ranks that NVLink "
            "joins: its kernels use no NIC"
        ),
    ),
    StepRule(
        "shard_ranks",
        lambda s: (s.dp * s.cp) % s.shards != 0,
        lambda s: f"shard_ranks = {s.shard_ranks}, expected a divisor of dp * cp = {s.dp * s.cp}",
    ),
)
"""In the order in which their messages come."""
