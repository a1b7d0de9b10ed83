"""A training step: everything that fixes its work and its traffic, and nothing that is predicted.

A `Step` names how the ranks are cut (dp, pp, cp, tp, ep), the batch, what is kept and what is recomputed, the number
formats and what the software does at the same time. Which rank is where is `commsim.training.mesh`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from commsim.errors import ScenarioError
from commsim.training.accelerator import Accelerator
from commsim.training.model import Model
from commsim.training.pipeline_schedules import SCHEDULES
from commsim.training.precision import OPTIMIZER_BYTES, Precision

RECOMPUTE = ("none", "selective", "layerwise", "full")
"""``selective`` recomputes the attention core (Korthikanti et al. 2022), ``layerwise`` keeps the results of matrix
products but for every second one (torchtitan's selective AC), ``full`` the whole layer."""

STACKS = ("tuned", "compiled", "eager")
"""Classes of software: vendor-tuned (fused kernels, Transformer Engine), graph compilers, plain kernel by kernel."""

KERNELS = ("vendor", "open")


@dataclass(frozen=True)
class Step:
    """One optimizer step of a model on ranks that are all alike. Sizes are counts; batches are in sequences."""

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
    attention_kernel: str = (
        "vendor"  # of fused attention: vendor (cuDNN, FlashAttention-3) or open (FlashAttention-1/2)
    )
    cuda_graphs: bool = False
    overlap_dp: bool = True  # gradients and parameters move during backward and forward
    overlap_tp: bool = False  # activations move during the matrix product that makes or uses them
    overlap_pp: bool = True  # stages send while they compute
    gpus_per_node: int = 8
    imbalance: float = 1.0  # tokens of the busiest expert rank over the mean

    def __post_init__(self) -> None:
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
    def expert_dp(self) -> int:
        """Copies of every expert."""
        return self.tp * self.cp * self.dp // (self.ep * self.expert_tp)

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO cuts one copy of the dense weights."""
        return self.shard_ranks or self.dp * self.cp

    @property
    def chunk_layers(self) -> float:
        """Layers of one model chunk, on average."""
        return self.model.layers / (self.pp * self.virtual_stages)

    def _faults(self) -> Iterator[str]:
        counts = (
            "seq_len",
            "micro_batch_size",
            "global_batch_size",
            "tp",
            "pp",
            "cp",
            "dp",
            "ep",
            "expert_tp",
            "virtual_stages",
            "gpus_per_node",
        )
        low = [n for n in counts if getattr(self, n) < 1]
        for name in low:
            yield f"{name} = {getattr(self, name)}, expected at least 1"
        if low:
            return
        for name, choices in (
            ("recompute", RECOMPUTE),
            ("schedule", SCHEDULES),
            ("stack", STACKS),
            ("attention_kernel", KERNELS),
        ):
            if getattr(self, name) not in choices:
                yield f"{name} = {getattr(self, name)!r}, expected one of {', '.join(choices)}"
        if self.optimizer not in OPTIMIZER_BYTES:
            yield f"optimizer = {self.optimizer!r}, expected one of {', '.join(OPTIMIZER_BYTES)}"
        if self.zero_stage not in (0, 1, 2, 3):
            yield f"zero_stage = {self.zero_stage}, expected 0, 1, 2 or 3"
        yield from self._batch_faults()
        yield from self._cut_faults()
        try:
            self.precision.check(self.accelerator)
        except ScenarioError as exc:
            yield f"precision = {self.precision.name!r}: {exc}"

    def _batch_faults(self) -> Iterator[str]:
        part = self.micro_batch_size * self.dp
        if self.global_batch_size % part:
            near = max(self.global_batch_size // part, 1) * part
            yield (
                f"global_batch_size = {self.global_batch_size}, expected a multiple of micro_batch_size * dp = "
                f"{self.micro_batch_size} * {self.dp} = {part}, such as {near}"
            )
        if self.seq_len % self.cp:
            yield f"seq_len = {self.seq_len}, expected a multiple of cp = {self.cp}"

    def _cut_faults(self) -> Iterator[str]:
        model = self.model
        if self.tp > 1 and model.heads % self.tp:
            yield f"tp = {self.tp}, expected a divisor of heads = {model.heads}"
        if self.pp * self.virtual_stages > model.layers + 2:  # the embedding and the output may be stages of their own
            yield (
                f"pp * virtual_stages = {self.pp} * {self.virtual_stages} = {self.pp * self.virtual_stages}, "
                f"expected at most layers = {model.layers} and two stages for embedding and output"
            )
        if self.virtual_stages > 1 and self.pp == 1:
            yield f"virtual_stages = {self.virtual_stages}, expected 1 without a pipeline (pp = 1)"
        if self.sequence_parallel and self.rank_tokens % self.tp:
            yield (
                f"tp = {self.tp}, expected a divisor of the {self.rank_tokens} tokens of a micro-batch with "
                "sequence_parallel"
            )
        if model.moe is None and self.ep > 1:
            yield f"ep = {self.ep}, expected 1: {model.name} has no experts"
        if model.moe is not None and model.moe.experts % self.ep:
            yield f"ep = {self.ep}, expected a divisor of experts = {model.moe.experts}"
        ranks = self.tp * self.cp * self.dp
        if ranks % (self.ep * self.expert_tp):
            yield f"ep * expert_tp = {self.ep} * {self.expert_tp}, expected a divisor of tp * cp * dp = {ranks}"
        if self.shard_ranks and (self.dp * self.cp) % self.shard_ranks:
            yield f"shard_ranks = {self.shard_ranks}, expected a divisor of dp * cp = {self.dp * self.cp}"
