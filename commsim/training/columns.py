"""Steps as columns: one array per quantity, one element per step, so that thousands of steps cost as little as one.

The formulas of `operators`, `compute` and `step_time` are written once, on columns; a single step is a column of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from commsim.training.accelerator import CPU_TDP_W, Accelerator
from commsim.training.spec import Step

Float64 = npt.NDArray[np.float64]

GENERATIONS = ("volta", "ampere", "ada", "hopper", "blackwell", "cpu")

REFERENCE_TDP_W = {
    "volta": 300.0,
    "ampere": 400.0,
    "ada": 350.0,
    "hopper": 700.0,
    "blackwell": 1200.0,
    "cpu": CPU_TDP_W,
}
"""Board power of the part at which a generation's GEMM rate is stated."""


@dataclass(frozen=True)
class Links:
    """What a rank's messages travel over, from datasheets: bytes per second in one direction."""

    nvlink_bytes_per_s: float
    nvlink_domain: int  # ranks that reach each other at that rate
    nic_bytes_per_s: float  # one NIC's share of a rank
    nics_per_node: int = 8


def links_of(accelerator: Accelerator, nic_bytes_per_s: float, gpus_per_node: int = 8) -> Links:
    """Links of a rank: NVLink of the accelerator, PCIe where it has none."""
    pcie = {3: 12e9, 4: 24e9, 5: 50e9, 6: 100e9}  # what a x16 slot carries, after encoding and headers
    inside = accelerator.nvlink_bytes_per_s or pcie[accelerator.pcie_gen or 4]
    domain = max(accelerator.nvlink_domain, gpus_per_node)  # a node is one domain, if only over PCIe
    return Links(inside, domain, nic_bytes_per_s, gpus_per_node)


@dataclass(frozen=True, eq=False)
class Columns:
    """Arrays of shape (steps,), named as in `Step`, `Model`, `Accelerator` and `Links`."""

    # architecture
    layers: Float64
    hidden: Float64
    ffn: Float64
    q_width: Float64
    kv_width: Float64
    head_dim: Float64
    heads: Float64
    vocab: Float64
    causal: Float64
    matrices: Float64  # of the first half of the MLP: 2 gated, 1 not
    window: Float64
    dense_layers: Float64
    moe_layers: Float64
    experts: Float64
    top_k: Float64
    expert_ffn: Float64
    shared_ffn: Float64
    q_rank: Float64  # 0 without latent attention
    kv_rank: Float64
    rope_dim: Float64
    nope_dim: Float64
    v_dim: Float64
    dense_parameters: Float64  # of a layer without experts, over all ranks
    moe_shared_parameters: Float64  # of a layer with experts, without the routed ones
    expert_parameters: Float64  # routed, of a layer with experts
    embedding: Float64
    output: Float64
    # batch and cut
    tokens: Float64  # of one micro-batch on a rank, before tp cuts them
    seq: Float64
    micro_batch: Float64
    m: Float64
    tp: Float64
    pp: Float64
    cp: Float64
    dp: Float64
    ep: Float64
    expert_tp: Float64
    v: Float64
    shards: Float64
    sp: Float64
    zero: Float64
    full: Float64  # recompute, one of these is 1
    selective: Float64
    layerwise: Float64
    frozen: Float64
    flash: Float64
    open_kernel: Float64
    eager: Float64
    compiled: Float64
    graphs: Float64
    overlap_dp: Float64
    overlap_tp: Float64
    overlap_pp: Float64
    imbalance: Float64
    # formats
    gemm_bytes: Float64
    fp8: Float64
    fp4: Float64
    weight_bytes: Float64
    gradient_bytes: Float64
    optimizer_bytes: Float64
    # machine
    generation: npt.NDArray[np.int64]
    gemm_peak: Float64
    wide_peak: Float64  # of attention and output matrix
    sms: Float64
    hbm: Float64
    power: Float64  # board power over the generation's reference
    nvlink: Float64
    domain: Float64
    nic: Float64
    node: Float64

    def __len__(self) -> int:
        return max(len(getattr(self, name)) for name in _NAMES)  # what is the same for all may be an array of one

    def take(self, index: npt.NDArray[np.int64]) -> Columns:
        """Some of the steps."""
        return Columns(**{f.name: getattr(self, f.name)[index] for f in fields(self)})


def columns(steps: Sequence[Step], links: Sequence[Links]) -> Columns:
    """The columns of steps and of the links of their ranks."""
    rows = [_row(step, link) for step, link in zip(steps, links, strict=True)]
    arrays: dict[str, Any] = {name: np.array([r[name] for r in rows], np.float64) for name in _NAMES}
    arrays["generation"] = arrays["generation"].astype(np.int64)
    return Columns(**arrays)


def _row(step: Step, link: Links) -> dict[str, Any]:
    model, gpu, formats = step.model, step.accelerator, step.precision
    moe, mla = model.moe, model.mla
    routed = moe.experts * model.expert_parameters if moe else 0
    return {
        "layers": model.layers,
        "hidden": model.hidden,
        "ffn": model.ffn_hidden,
        "q_width": model.heads * mla.v_head_dim if mla else model.q_width,
        "kv_width": model.kv_width,
        "head_dim": mla.qk_nope_head_dim + mla.qk_rope_head_dim if mla else model.head_dim,
        "heads": model.heads,
        "vocab": model.vocab,
        "causal": model.causal,
        "matrices": 2 if model.gated_mlp else 1,
        "window": model.window,
        "dense_layers": model.layers - model.moe_layers,
        "moe_layers": model.moe_layers,
        "experts": moe.experts if moe else 1,
        "top_k": moe.top_k if moe else 1,
        "expert_ffn": moe.expert_ffn if moe else 0,
        "shared_ffn": moe.shared_ffn if moe else 0,
        "q_rank": mla.q_lora_rank if mla else 0,
        "kv_rank": mla.kv_lora_rank if mla else 0,
        "rope_dim": mla.qk_rope_head_dim if mla else 0,
        "nope_dim": mla.qk_nope_head_dim if mla else 0,
        "v_dim": mla.v_head_dim if mla else model.head_dim,
        "dense_parameters": model.attention_parameters + model.mlp_parameters + 2 * model.norm_parameters,
        "moe_shared_parameters": model.layer_parameters(model.layers - 1) - routed if moe else 0,
        "expert_parameters": routed,
        "embedding": model.embedding_parameters,
        "output": model.vocab * model.hidden,
        "tokens": step.rank_tokens,
        "seq": step.seq_len,
        "micro_batch": step.micro_batch_size,
        "m": step.num_microbatches,
        "tp": step.tp,
        "pp": step.pp,
        "cp": step.cp,
        "dp": step.dp,
        "ep": step.ep,
        "expert_tp": step.expert_tp,
        "v": step.virtual_stages,
        "shards": step.shards,
        "sp": step.sequence_parallel,
        "zero": step.zero_stage,
        "full": step.recompute == "full",
        "selective": step.recompute == "selective",
        "layerwise": step.recompute == "layerwise",
        "frozen": step.frozen_weights,
        "flash": step.flash_attention,
        "open_kernel": step.attention_kernel == "open",
        "eager": step.stack == "eager",
        "compiled": step.stack == "compiled",
        "graphs": step.cuda_graphs,
        "overlap_dp": step.overlap_dp,
        "overlap_tp": step.overlap_tp,
        "overlap_pp": step.overlap_pp,
        "imbalance": step.imbalance,
        "gemm_bytes": 1.0 if formats.gemm in ("fp8", "fp6", "fp4") else formats.weight_bytes,
        "fp8": formats.gemm in ("fp8", "fp6"),
        "fp4": formats.gemm == "fp4",
        "weight_bytes": formats.weight_bytes,
        "gradient_bytes": formats.gradient_bytes,
        "optimizer_bytes": formats.optimizer_bytes(step.optimizer),
        "generation": GENERATIONS.index(gpu.generation),
        "gemm_peak": gpu.peak(formats.gemm),
        "wide_peak": gpu.peak(formats.attention),
        "sms": gpu.sms,
        "hbm": gpu.memory_bytes_per_s,
        "power": gpu.tdp_w / REFERENCE_TDP_W[gpu.generation],
        "nvlink": link.nvlink_bytes_per_s,
        "domain": link.nvlink_domain,
        "nic": link.nic_bytes_per_s,
        "node": step.gpus_per_node,
    }


_NAMES = [f.name for f in fields(Columns)]
